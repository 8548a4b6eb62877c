import errno
import json
import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from alidpfl.errors import ConfigError, DataError
from alidpfl.store import RoundTiming, RunDirectory, describe_environment, files
from alidpfl.store.environment import _git_state
from alidpfl.store.files import parse_record
from alidpfl.types import RoundRecord
from tests.store.samples import record, tensors

CONFIG = {"data": {"name": "mnist", "clients": 10}, "run": {"seed": 7}}


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory.create(tmp_path / "run")
    directory.write_config(CONFIG)
    return directory


def timing(number):
    return RoundTiming(round=number, seconds=0.5, seconds_total=0.5 * (number + 1))


def test_everything_is_read_back_as_written(run):
    for number in range(3):
        run.append_record(record(number))
        run.append_timing(timing(number))
    run.write_environment({"seed": 7})
    run.write_summary({"accuracy": 61.5, "stop_reason": "privacy_budget"})
    run.write_model({"weight": torch.eye(2)}, {"dataset": "mnist", "method": "ali"})
    read = RunDirectory.open(run.path)
    assert read.config() == CONFIG
    assert read.environment() == {"seed": 7}
    assert read.records() == [record(number) for number in range(3)]
    assert read.timings() == [timing(number) for number in range(3)]
    assert read.summary() == {"accuracy": 61.5, "stop_reason": "privacy_budget"}
    parameters, metadata = read.read_model()
    assert torch.equal(parameters["weight"], torch.eye(2))
    assert metadata == {"dataset": "mnist", "method": "ali"}


def test_a_new_run_has_nothing_yet(run):
    assert (run.records(), run.timings()) == ([], [])
    assert (run.summary(), run.environment(), run.read_checkpoint(), run.read_model()) == (None, None, None, None)


def test_lines_are_in_the_order_of_the_fields_and_repeatable(run, tmp_path):
    run.append_record(record(0))
    line = run.metrics_path.read_text(encoding="utf-8")
    only_with_noise = {"held_out", "intervals"}  # of an evaluation with noise: other lines do not have them
    assert list(json.loads(line)) == [name for name in RoundRecord.__dataclass_fields__ if name not in only_with_noise]
    assert line.endswith("\n")
    again = RunDirectory.create(tmp_path / "again")
    again.append_record(record(0))
    assert again.metrics_path.read_bytes() == run.metrics_path.read_bytes()


WHOLE = st.integers(0, 2**63)  # what is larger is nothing that we write, and is refused when it is read


@given(
    st.builds(
        RoundRecord,
        round=WHOLE,
        local_steps=WHOLE,
        steps=WHOLE,
        why=st.text(st.characters(exclude_categories=["Cs"])),
        learning_rate=st.floats(allow_nan=False),
        clip_norm=st.floats(allow_nan=False),
        noise_multiplier=st.floats(allow_nan=False),
        epsilon=st.floats(allow_nan=False),
        client_epsilon=st.dictionaries(WHOLE, st.floats(allow_nan=False), max_size=3),
        covers_everything=st.booleans(),
        dropped=st.lists(WHOLE, max_size=3).map(tuple),
        rejected=st.dictionaries(WHOLE, st.text(st.characters(exclude_categories=["Cs"])), max_size=2),
        accuracy=st.none() | st.floats(allow_nan=False),
    )
)
def test_any_record_survives_its_line(tmp_path_factory, value):
    run = RunDirectory.create(tmp_path_factory.mktemp("run"))
    run.append_record(value)
    run.append_record(value)
    assert run.records() == [value, value]


@given(
    st.binary(max_size=40)
    | st.builds(
        lambda v: json.dumps(v).encode(),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.text(max_size=3),
            lambda inner: (
                st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["round", "epsilon", "x"]), inner)
            ),
        ),
    )
)
def test_any_other_line_is_an_error_of_ours(tmp_path_factory, line):
    with pytest.raises(DataError, match=r"metrics\.jsonl line 3 "):
        parse_record(line, 3, "metrics.jsonl")


def test_a_value_of_the_wrong_kind_is_an_error(run):
    values = record(0).to_json()
    for name, wrong in [("epsilon", "2"), ("round", True), ("accuracy", [1]), ("client_epsilon", 3)]:
        run.metrics_path.write_text(json.dumps({**values, name: wrong}) + "\n")
        with pytest.raises(DataError, match=r"metrics\.jsonl line 1 "):
            run.records()


def test_a_cut_last_line_is_left_out_and_a_bad_middle_line_is_named(run):
    for number in range(3):
        run.append_record(record(number))
    whole = run.metrics_path.read_bytes()
    for cut in (1, 40, len(whole.splitlines(keepends=True)[-1])):
        run.metrics_path.write_bytes(whole[:-cut])
        assert run.records() == [record(0), record(1)]
    lines = whole.splitlines(keepends=True)
    run.metrics_path.write_bytes(lines[0] + lines[1][:20] + b"\n" + lines[2])
    with pytest.raises(DataError, match=r"metrics\.jsonl line 2 "):
        run.records()
    run.timings_path.write_text('{"round": 0, "seconds": "long", "seconds_total": 1}\n')
    with pytest.raises(DataError, match=r"timings\.jsonl line 1 "):
        run.timings()


def test_create_refuses_a_folder_in_use(run, tmp_path):
    with pytest.raises(ConfigError, match=f"--resume {run.path}"):
        RunDirectory.create(run.path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    with pytest.raises(ConfigError, match=r"photos .*'cat\.jpg'.*--out"):
        RunDirectory.create(tmp_path / "photos")
    with pytest.raises(ConfigError, match=r"cat\.jpg"):
        RunDirectory.create(tmp_path / "photos" / "cat.jpg")
    with pytest.raises(ConfigError, match=r"config\.toml"):
        run.write_config(CONFIG)


def test_create_takes_what_a_start_that_was_killed_at_once_has_left(tmp_path):
    run = RunDirectory.create(tmp_path / "run")
    run.write_environment({"seed": 7})
    with run.lock():
        pass
    (run.path / ".config.toml.tmp").touch()
    RunDirectory.create(run.path).write_config(CONFIG)
    assert RunDirectory.open(run.path).config() == CONFIG


def test_open_says_what_is_not_a_run(run, tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        RunDirectory.open(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"config\.toml"):
        RunDirectory.open(run.config_path)
    with pytest.raises(ConfigError, match=rf"{tmp_path} .*config\.toml"):
        RunDirectory.open(tmp_path)
    for bad in (b"seed = ", b"\xff\xfe"):
        run.config_path.write_bytes(bad)
        with pytest.raises(DataError, match=r"config\.toml"):
            RunDirectory.open(run.path)


def test_a_damaged_summary_is_an_error(run):
    for bad in (b"{", b"[1]", b"\xff"):
        run.summary_path.write_bytes(bad)
        with pytest.raises(DataError, match=r"summary\.json"):
            run.summary()


def test_the_lock_keeps_a_second_process_out_and_names_the_first(run):
    code = (
        "import sys\nfrom alidpfl.store import RunDirectory\n"
        "with RunDirectory.open(sys.argv[1]).lock():\n    print('held', flush=True)\n    sys.stdin.read()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code, str(run.path)], **pipes) as other:
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(ConfigError, match=rf"process {other.pid} on "), run.lock():
            pass
        other.kill()
        other.wait()
        with run.lock():  # the system has dropped the lock of the dead
            pass


def test_the_lock_holds_within_one_process_too(run):
    with run.lock():
        with pytest.raises(ConfigError, match=f"process {os.getpid()} on "), run.lock():
            pass
        assert run.config() == CONFIG  # reading needs no lock
    with run.lock():
        pass


def test_a_path_that_cannot_be_written_is_named(run):
    run.write_summary({})
    with pytest.raises(DataError, match=r"summary\.json/deeper"):
        RunDirectory.create(run.summary_path / "deeper")
    with pytest.raises(DataError, match="/proc/run"):
        RunDirectory.create("/proc/run")
    (run.path / "model.safetensors").mkdir()
    with pytest.raises(DataError, match=r"model\.safetensors"):
        run.write_model({"w": torch.zeros(1)}, {})


def test_a_full_disk_is_said_and_leaves_the_old_file(run, monkeypatch):
    run.write_summary({"accuracy": 1})

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(files.os, "replace", full)
    with pytest.raises(DataError, match=r"summary\.json: the disk is full"):
        run.write_summary({"accuracy": 2})
    assert run.summary() == {"accuracy": 1}


def test_a_line_that_does_not_fit_on_the_disk_leaves_no_half(run, monkeypatch):
    run.append_record(record(0))
    write = os.write
    monkeypatch.setattr(files.os, "write", lambda descriptor, line: write(descriptor, line[:10]))
    with pytest.raises(DataError, match=r"append to .*metrics\.jsonl: the disk is full"):
        run.append_record(record(1))
    monkeypatch.undo()
    run.append_record(record(2))
    assert run.records() == [record(0), record(2)]


def test_a_really_full_disk(run):
    with pytest.raises(DataError, match="/dev/full: the disk is full"):
        files.append_line(type(run.path)("/dev/full"), b"line\n")


def test_the_environment_is_described():
    environment = describe_environment(seed=7)
    assert environment["seed"] == 7
    assert environment["versions"].keys() >= {"alidpfl", "python", "torch", "numpy", "dp-accounting"}
    assert environment["versions"]["torch"] == torch.__version__
    assert environment["native_kernel"] in {"avx512", "avx2", "portable", "none"}
    assert environment["cpu"]
    assert environment["git"] is None or len(environment["git"]["commit"]) == 40
    json.dumps(environment)


def test_equal_models_give_equal_bytes(run):
    metadata = {name: name for name in "abcdefgh"}
    contents = set()
    for _ in range(5):
        run.write_model(tensors(), metadata)
        contents.add(run.model_path.read_bytes())
    assert len(contents) == 1


def test_a_checkout_that_is_not_ours_is_not_our_commit(tmp_path):
    (tmp_path / ".git").mkdir()
    assert _git_state(tmp_path) is None
