"""Inputs that fuzzing found: each once caused a traceback, or an error that quoted a record."""

import io
import json
import math
import os
import shutil
import struct
import zipfile

import numpy as np
import pytest
import torch

from alidpfl.config.load import parse_config
from alidpfl.data.synthetic import load_synthetic
from alidpfl.errors import AliDpflError, ConfigError, DataError
from alidpfl.reporting import RunSnapshot
from alidpfl.runs import execute, resume
from alidpfl.runs.execute import Outcome
from alidpfl.store import RunDirectory
from alidpfl.store.checkpoint import encode_checkpoint, encode_tensors
from alidpfl.vault.chain import Head
from alidpfl.vault.folder import RefusalLog
from alidpfl.vault.policy import make_policy
from reproduction.results import Results
from tests.runs.command import alidpfl, config

from .harness import check_text

DEEP = "[" * 100_000


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    out = tmp_path_factory.mktemp("made") / "run"
    execute(config(federation__max_rounds=2), out)
    return out


@pytest.fixture
def run(made, tmp_path):
    shutil.copytree(made, tmp_path / "run")
    return tmp_path / "run"


def test_the_text_of_an_error_is_one_line():
    assert str(DataError("a\nb\x1b[2J\ud800")) == "a?b?[2J?"
    assert len(str(ConfigError("x" * 10_000))) == 2000


def test_a_header_of_an_array_that_reaches_into_the_records(tmp_path):
    """numpy quotes a header that it cannot parse, and with it the records."""
    from alidpfl.data.own import load_client

    records = np.frombuffer(b"PATIENT731" * 40, np.uint8).view(np.float32).reshape(-1, 2)
    file = io.BytesIO()
    np.save(file, records)
    content = bytearray(file.getvalue())
    content[8:10] = struct.pack("<H", 400)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("x.npy", bytes(content))
        archive.writestr("y.npy", bytes(content))
    with pytest.raises(DataError, match=r"a\.npz") as caught:
        load_client(tmp_path / "a.npz")
    assert "PATIENT" not in str(caught.value)
    assert caught.value.__cause__ is None  # nor in a traceback
    assert caught.value.__suppress_context__


@pytest.mark.parametrize("name", ["summary.json", "environment.json", "metrics.jsonl", "timings.jsonl", "config.toml"])
def test_nesting_beyond_all_measure(run, name):
    (run / name).write_text(f"{DEEP}\n" if name != "config.toml" else f"x = {DEEP}")
    refused = alidpfl("show", run)
    assert refused.exit_code == 2
    check_text(refused.stderr.strip())


@pytest.mark.parametrize("change", [{"accuracy": "high"}, {"epsilon": None}, {"rounds": 1.5}, {"client_epsilon": []}])
def test_a_summary_that_was_edited(run, change):
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, **change}))
    with pytest.raises(DataError, match=r"summary\.json"):
        resume(run)
    (run / "summary.json").write_text(json.dumps({**summary, "loss": float("nan")}))
    assert isinstance(resume(run), Outcome)  # a model that diverged


def test_numbers_beyond_all_measure_in_a_record(run):
    lines = (run / "metrics.jsonl").read_text().splitlines()
    record = json.loads(lines[0])
    lines[0] = json.dumps({**record, "accuracy": 10**400})
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    assert alidpfl("show", run).exit_code == 2


def test_members_that_are_no_list(run):
    (run / "members.json").write_text('{"clients": null}')
    assert RunSnapshot.load(run).facts()["clients"] is None


def test_a_whole_checkpoint_of_something_else(run):
    (run / "summary.json").unlink()
    (run / "checkpoint.safetensors").write_bytes(
        encode_checkpoint({"w": torch.zeros(1)}, {"metrics_bytes": 0, "timings_bytes": 0})
    )
    with pytest.raises(DataError, match=r"checkpoint\.safetensors"):
        resume(run)


@pytest.mark.parametrize("seal", ["3", "[]", '{"format": "alidpfl-checkpoint-1", "sha256": "", "state": 7}', DEEP])
def test_a_checkpoint_whose_seal_is_none(run, seal):
    (run / "checkpoint.safetensors").write_bytes(encode_tensors({"w": torch.zeros(1)}, {"alidpfl": seal}))
    with pytest.raises(DataError, match=r"checkpoint\.safetensors"):
        RunDirectory.open(run).read_checkpoint()


@pytest.mark.parametrize("counter", ["1e999", "-1", '"1"', "null", "true", "[" * 50_000])
def test_a_ledgers_head_that_is_none(tmp_path, counter):
    (tmp_path / "head").write_text(f'{{"vault": "a", "counter": {counter}, "hash": "{"0" * 64}"}}')
    with pytest.raises(DataError, match="damaged"):
        Head.read(tmp_path / "head")


@pytest.mark.parametrize("last", ["[null]", "[7]", '[{"code": 7}]', "7", DEEP, '[{"time": 1e999, "code": "budget"}]'])
def test_refusals_that_are_none(tmp_path, last):
    (tmp_path / "refusals.json").write_text(f'{{"counts": {{"budget": 1}}, "last": {last}}}')
    assert RefusalLog.read(tmp_path / "refusals.json").last == []


@pytest.mark.parametrize("content", [b"\xff\xfe\n", b"[]\n", DEEP.encode(), b'{"accuracies": [[1e999, 1]]}\n', b"7\n"])
def test_results_that_are_none(tmp_path, content):
    (tmp_path / "small.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=r"line 1 .*small\.jsonl"):
        Results(tmp_path / "results.sqlite").read_lines(tmp_path / "small.jsonl")


def test_output_that_fits_nowhere():
    """Run `alidpfl --version > /dev/full`."""
    import subprocess
    import sys

    with open("/dev/full", "w", encoding="ascii") as full:
        done = subprocess.run(
            [sys.executable, "-m", "alidpfl", "--version"], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "No space left" in done.stderr
    assert os.path.exists("/dev/full")


def test_memory_that_is_not_there():
    from alidpfl.cli.app import _told

    for error in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to ...")):
        assert "memory" in _told(error)
    assert "No space left" in _told(OSError(28, "No space left on device"))
    assert _told(KeyError("a bug of ours")) is None
    assert _told(BrokenPipeError(32, "Broken pipe")) is None
    assert _told(AliDpflError("x")) == "x"


@pytest.mark.parametrize("key", ["alpha", "beta"])
def test_made_up_data_beyond_all_floats(key):
    done = alidpfl("run", "--set", "data.name=synthetic", "--set", "model.name=linear", "--set", f"data.{key}=1e300")
    assert done.exit_code == 2
    assert f"data.{key}" in done.stderr
    with pytest.raises(ConfigError, match=f"{key}=1e\\+300"):
        load_synthetic(**{key: 1e300})


def test_configurations_that_make_long_errors():
    many = {f"unknown{number}": 1 for number in range(500)}
    for values in ({"9" * 100_000: {}}, {"run": many}, {"run": {"device": "x" * 100_000}}):
        with pytest.raises(ConfigError) as caught:
            parse_config(values)
        check_text(str(caught.value))
    with pytest.raises(ConfigError, match="and 495 more"):
        parse_config({"run": many})


@pytest.mark.parametrize("values", [{"accounting": {"kind": "x" * 100_000}}, {"y" * 100_000: 1}])
def test_policies_that_make_long_errors(values):
    with pytest.raises(ConfigError) as caught:
        make_policy(values, "policy.toml")
    check_text(str(caught.value))


@pytest.mark.parametrize("epsilon", [True, 1e300, -1e300, 10**400])
def test_an_epsilon_that_is_none(run, epsilon):
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"epsilon": epsilon}))
    done = alidpfl("show", run)
    assert done.exit_code in (0, 2), done.stderr


@pytest.mark.parametrize("name", ["round", "local_steps", "steps"])
@pytest.mark.parametrize("value", [math.nan, 0.5])
def test_a_count_that_is_not_whole(run, name, value):
    first, *rest = (run / "metrics.jsonl").read_text().splitlines(keepends=True)
    (run / "metrics.jsonl").write_text("".join([json.dumps(json.loads(first) | {name: value}) + "\n", *rest]))
    done = alidpfl("show", run)
    assert done.exit_code == 2
    assert "metrics.jsonl line 1" in done.stderr
