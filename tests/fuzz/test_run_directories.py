"""Damaged or edited run directories: `show`, `compare`, `report` and `resume` work or refuse them."""

import json
import math
import shutil
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alidpfl.errors import AliDpflError
from alidpfl.runs import execute
from alidpfl.store.files import to_toml
from tests.runs.command import config

from .damage import damaged, edited
from .harness import command, examples

JSON_FILES = ("summary.json", "environment.json", "members.json")
LINES = ("metrics.jsonl", "timings.jsonl")
FILES = ("config.toml", "checkpoint.safetensors", "statistics.safetensors", "lock", *JSON_FILES, *LINES)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Make a run of three rounds, with files that only other kinds of runs have."""
    out = tmp_path_factory.mktemp("whole") / "run"
    execute(config(federation__max_rounds=3, run__evaluate_every=1), out)
    member = {"node": "5", "vault": "a", "num_records": 10, "most_steps": 3}
    (out / "members.json").write_text(json.dumps({"run": "a", "clients": [member]}))
    (out / "statistics.safetensors").write_bytes((out / "model.safetensors").read_bytes())
    (out / "lock").write_text("process 7 on host\n")
    return out


@pytest.fixture
def copy(whole, tmp_path):
    """Return a function that copies the run. With `is_finished=False` the copy can be resumed."""

    def made(is_finished=True):
        out = tmp_path / "run"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(whole, out)
        if not is_finished:
            (out / "summary.json").unlink()
            (out / "members.json").unlink()
        return out

    return made


VIEWS = st.sampled_from(("show", "show --json", "compare", "report"))


def _looked_at(out, view):
    match view:
        case "compare":
            command("compare", out, out)
        case "report":
            command("report", out, "-o", out.parent / "page.html")
        case _:
            command(*view.split(), out)


@examples(8)
@given(data=st.data(), name=st.sampled_from(FILES), view=VIEWS)
def test_damaged_files_are_looked_at(copy, data, name, view):
    out = copy()
    (out / name).write_bytes(data.draw(damaged((out / name).read_bytes())))
    _looked_at(out, view)


@examples(8)
@given(data=st.data(), name=st.sampled_from((*JSON_FILES, *LINES, "config.toml")), view=VIEWS)
def test_edited_files_are_looked_at(copy, data, name, view):
    out = copy()
    _edit(out / name, data)
    _looked_at(out, view)


@examples(8)
@given(data=st.data(), name=st.sampled_from(FILES), is_finished=st.booleans())
def test_a_damaged_run_is_resumed_or_refused(copy, whole, data, name, is_finished):
    out = copy(is_finished)
    if not (out / name).exists():
        return
    (out / name).write_bytes(data.draw(damaged((out / name).read_bytes())))
    _resumed(out, whole)


@examples(8)
@given(data=st.data(), name=st.sampled_from(("summary.json", "metrics.jsonl", "timings.jsonl", "config.toml")))
def test_an_edited_run_is_resumed_or_refused(copy, whole, data, name):
    out = copy(is_finished=name == "summary.json")
    _edit(out / name, data)
    _resumed(out, whole)


def test_a_summary_with_numbers_that_json_has_not_is_printed(copy):
    """Fuzzing found a NaN below the first level."""
    out = copy(is_finished=True)
    document = json.loads((out / "summary.json").read_text())
    document["client_epsilon"]["0"] = math.nan
    (out / "summary.json").write_text(json.dumps(document))
    status, told = command("run", "--resume", out, "--json")
    assert status == 0, told


def _resumed(out, whole):
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    status, told = command("run", "--resume", out, "--json")
    after = {path.name: path.read_bytes() for path in out.iterdir()}
    if status == 2:
        kept = before.keys() - {"lock"}  # where it says who is at work
        assert {key: after.get(key) for key in kept} == {key: before[key] for key in kept}, told
    else:  # whatever was done to its files, the same training came to its end
        assert after["model.safetensors"] == (whole / "model.safetensors").read_bytes()


def _edit(path, data):
    content = path.read_bytes()
    if path.suffix == ".toml":
        document = data.draw(edited(tomllib.loads(content.decode())))
        try:
            path.write_text(to_toml(document))
        except (AliDpflError, AttributeError):  # what no TOML can say
            path.write_bytes(repr(document).encode(errors="replace"))
    elif path.suffix == ".jsonl":
        lines = content.splitlines()
        number = data.draw(st.integers(0, len(lines) - 1))
        lines[number] = json.dumps(data.draw(edited(json.loads(lines[number])))).encode()
        path.write_bytes(b"\n".join(lines) + b"\n")
    else:
        path.write_text(json.dumps(data.draw(edited(json.loads(content)))))
