"""Records and keys with unmistakable values: whatever works or fails, none is printed, logged or written as text."""

import logging
import os

import numpy as np
import pytest

from alidpfl.dpsgd import randomness
from alidpfl.errors import AliDpflError
from alidpfl.runs import execute, load_config
from alidpfl.vault.refusals import VaultRefusedError
from alidpfl.vault.training import RecordTrainer
from tests.runs.command import alidpfl
from tests.vault.parts import body, made_vault, opened

VALUE, LABEL = 7317.5625, 77  # exact in float32; no other number here begins or ends so
KEY = b"KEYOFTHENOISE731KEYOFTHENOISE731"
MARKS = ("7317.5", "7317,5", "7.3175", "7.317e", "KEYOFTHE", KEY[:6].hex(), np.float32(VALUE).tobytes().hex())
_NOT_TEXT = (".safetensors", ".npz", ".sock")


@pytest.fixture
def heard(caplog, capfd, monkeypatch):
    """Everything that was said at any level; noise is keyed by a key that can be recognised."""
    caplog.set_level(logging.DEBUG)
    real = os.urandom
    monkeypatch.setattr(randomness.os, "urandom", lambda size: KEY if size == len(KEY) else real(size))
    said = []

    def check(folder):
        out, err = capfd.readouterr()
        everything = "\n".join([caplog.text, out, err, *said])
        for path in folder.rglob("*"):
            if path.is_file() and path.suffix not in _NOT_TEXT:
                everything += path.read_text(errors="replace")
        assert not [mark for mark in MARKS if mark in everything]
        return everything

    check.said = said
    return check


@pytest.fixture
def records(tmp_path):
    """Files of three clients and a public test file; every private input is the mark, in part with noughts."""
    folder = tmp_path / "data"
    folder.mkdir()
    for number in range(3):
        inputs = np.where(np.arange(80).reshape(40, 2) % 3 == 0, VALUE, 0.0).astype(np.float32)
        np.savez(folder / f"client{number}.npz", x=inputs, y=(np.arange(40) + number) % 3)
    np.savez(folder / "test.npz", x=np.zeros((9, 2), np.float32), y=np.arange(9) % 3)
    return folder


def _settings(records, *more):
    own = [f'data.data_dir="{records}"', "data.name=npz", "data.num_classes=3", "model.name=linear"]
    own += ["privacy.accountant=rdp", "privacy.sample_rate=0.2", "method.learning_rate=0.5", "federation.max_rounds=2"]
    return [*own, 'run.randomness="secure"', "run.processes=1", *more]


def test_the_marks_would_be_found(heard, tmp_path, caplog):
    (tmp_path / "log.txt").write_text(f"record {VALUE}")
    with pytest.raises(AssertionError):
        heard(tmp_path)
    (tmp_path / "log.txt").write_text("nothing")
    logging.getLogger("alidpfl").debug("key %r", KEY)
    with pytest.raises(AssertionError):
        heard(tmp_path)


def test_a_run_that_works(heard, records, tmp_path):
    execute(load_config(overrides=_settings(records)), tmp_path / "run")
    arguments = [part for one in _settings(records) for part in ("--set", one)]
    for command in (
        ["run", *arguments, "--out", tmp_path / "second"],
        ["show", tmp_path / "run"],
        ["report", tmp_path / "run", "-o", tmp_path / "page.html"],
    ):
        done = alidpfl(*command)
        assert done.exit_code == 0, done.stderr
        heard.said.append(done.stdout + done.stderr)
    assert "linear" in heard(tmp_path)


@pytest.mark.parametrize("spoilt", ["label", "shape", "nan", "cut", "header"])
def test_records_that_are_refused(heard, records, tmp_path, spoilt):
    path = records / "client1.npz"
    arrays = dict(np.load(path, allow_pickle=False))
    match spoilt:
        case "label":
            arrays["y"][3] = LABEL
        case "shape":
            arrays["x"] = arrays["x"][:-1]
        case "nan":
            arrays["x"][5] = np.nan
    np.savez(path, **arrays)
    content = path.read_bytes()
    if spoilt == "cut":
        path.write_bytes(content[: len(content) // 2])
    if spoilt == "header":  # its length now reaches into the records
        path.write_bytes(content.replace(b"\x01\x00v\x00", b"\x01\x00\xf0\x01"))
        assert path.read_bytes() != content
    arguments = [part for one in _settings(records) for part in ("--set", one)]
    done = alidpfl("run", *arguments, "--out", tmp_path / "run")
    assert done.exit_code == 2
    heard.said.append(done.stderr)
    assert str(LABEL) not in done.stderr.replace(str(path), "")
    heard(tmp_path)


def test_a_vault(heard, tmp_path, monkeypatch):
    inputs = np.full((40, 6), VALUE, np.float32)
    np.savez(tmp_path / "vault.npz", x=inputs, y=np.arange(40) % 3)
    folder = made_vault(tmp_path)

    def failing(self, trainer, weights, plan):
        raise ValueError(f"a record is {self._data.inputs[0]}, the key {KEY!r}")

    with opened(folder) as vault:
        contents = [body(round=0), body(round=1, noise_multiplier=0.1), b"no", body(1.0, round=0), body(round=2)]
        for number, content in enumerate(contents):
            if number == 4:
                monkeypatch.setattr(RecordTrainer, "_trained", failing)
            try:
                vault.answer(content)
            except VaultRefusedError as error:
                heard.said.append(repr(error) + str(error.__cause__))
            else:
                assert number == 0
        assert len(heard.said) == 4
    for command in (["vault", "status", "--dir", folder.path], ["vault", "status", "--dir", folder.path, "--json"]):
        heard.said.append(alidpfl(*command).stdout)
    inputs[0] = 1.0
    np.savez(tmp_path / "vault.npz", x=inputs, y=np.arange(40) % 3)
    try:
        with opened(folder):
            raise AssertionError("other records are served")
    except AliDpflError as error:
        heard.said.append(str(error))
    heard(tmp_path)
