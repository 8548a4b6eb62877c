"""The cache on disk: a result is computed once, and a damaged file never changes it."""

import json

import pytest

from alidpfl.store import cache as module
from alidpfl.store.cache import cached


class Oracle:
    def __init__(self):
        self.asked = 0

    def __call__(self):
        self.asked += 1
        return {"answer": self.asked}


@pytest.fixture
def ask(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return lambda question, oracle: cached(question, oracle, kind="plans", packages=["privacy"])


def test_what_was_asked_before_is_not_computed_again(ask):
    oracle = Oracle()
    assert ask({"epsilon": 2.0}, oracle) == ask({"epsilon": 2.0}, oracle) == {"answer": 1}
    assert ask({"epsilon": 2.5}, oracle) == {"answer": 2}


def test_new_code_answers_anew(ask, tmp_path, monkeypatch):
    oracle = Oracle()
    package = tmp_path / "source" / "privacy"
    package.mkdir(parents=True)
    monkeypatch.setattr(module, "_PACKAGE", package.parent)
    (package / "accounting.py").write_text("steps = 1")
    assert ask({}, oracle) == {"answer": 1}
    (package / "accounting.py").write_text("steps = 2")
    assert ask({}, oracle) == {"answer": 2}


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b'{"answer": {"answer": 9}}', b'{"question": {}}', b"[" * 100_000]
)
def test_a_damaged_file_is_computed_anew(ask, tmp_path, content):
    oracle = Oracle()
    ask({"epsilon": 2.0}, oracle)
    (kept,) = tmp_path.rglob("*.json")
    assert json.loads(kept.read_bytes())["answer"] == {"answer": 1}
    kept.write_bytes(content)
    assert ask({"epsilon": 2.0}, oracle) == {"answer": 2}


@pytest.mark.parametrize("answer", ["null", "[]", '{"a": NaN}', '{"a": Infinity}'])
def test_an_answer_that_was_never_given_is_computed_anew(ask, tmp_path, answer):
    oracle = Oracle()
    ask({"epsilon": 2.0}, oracle)
    (kept,) = tmp_path.rglob("*.json")
    kept.write_text(f'{{"question": {{"epsilon": 2.0}}, "answer": {answer}}}')
    assert ask({"epsilon": 2.0}, oracle) == {"answer": 2}


def test_without_a_place_to_keep_it_the_answer_still_comes(ask, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    oracle = Oracle()
    assert ask({}, oracle) == {"answer": 1}
    assert ask({}, oracle) == {"answer": 2}


def test_what_cannot_be_answered_is_not_kept(ask):
    def refuse():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        ask({}, refuse)
    assert ask({}, Oracle()) == {"answer": 1}
