"""Checkpoints are read back exactly, damage is noticed, and a killed writer leaves a whole one."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alidpfl.errors import DataError
from alidpfl.store import RoundTiming, RunDirectory, files
from alidpfl.store.checkpoint import decode_checkpoint, encode_checkpoint
from tests.store.samples import record, tensors

ROOT = Path(__file__).parents[2]
STATE = {"round": 3, "steps": {"0": 9}, "rate": 0.1, "nothing": None, "names": ["μ", "b"]}
FILE = Path("checkpoint.safetensors")


@pytest.fixture
def run(tmp_path):
    directory = RunDirectory.create(tmp_path / "run")
    directory.write_config({})
    return directory


def test_tensors_and_state_are_read_back(run):
    run.append_record(record(0))
    run.append_timing(RoundTiming(round=0, seconds=1.0, seconds_total=1.0))
    run.write_checkpoint(tensors(), STATE)
    read, state = run.read_checkpoint()
    sizes = {
        "metrics_bytes": run.metrics_path.stat().st_size,
        "timings_bytes": run.timings_path.stat().st_size,
    }
    assert state == {**STATE, **sizes}
    assert read.keys() == tensors().keys()
    for name, tensor in tensors().items():
        assert (read[name].dtype, read[name].shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(read[name], tensor)
    read["params"].add_(1)  # a resumed run trains on it


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8])
def test_every_type_of_number(dtype):
    content = encode_checkpoint({"x": torch.arange(5).to(dtype)}, {})
    assert torch.equal(decode_checkpoint(content, FILE).tensors["x"], torch.arange(5).to(dtype))


def test_no_tensors_at_all_and_strange_names():
    assert decode_checkpoint(encode_checkpoint({}, {"a": 1}), FILE) == ({}, {"a": 1})
    names = {'quote " and \\ and μ': torch.zeros(2), "": torch.ones(1)}
    assert decode_checkpoint(encode_checkpoint(names, {}), FILE).tensors.keys() == names.keys()


def test_equal_checkpoints_give_equal_bytes():
    assert len({encode_checkpoint(tensors(), STATE) for _ in range(5)}) == 1


def test_any_safetensors_reader_opens_it(run):
    from safetensors.torch import load_file

    run.write_checkpoint(tensors(2.5), STATE)
    assert torch.equal(load_file(run.checkpoint_path)["params"], torch.full((6,), 2.5))


def test_a_key_that_json_would_change_is_refused(run):
    with pytest.raises(TypeError, match=r"state\['spent'\]\[0\] .*3"):
        run.write_checkpoint({}, {"spent": [{3: 0.5}]})


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_flipped_bit_anywhere_is_noticed_or_harmless(data):
    content = bytearray(encode_checkpoint(tensors(), STATE))
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    try:
        read, state = decode_checkpoint(bytes(content), FILE)
    except DataError:
        return
    assert state == STATE  # a space of the header's padding became another kind of space
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors().items())


def test_every_flip_in_the_tensors_is_noticed():
    content = encode_checkpoint({"x": torch.arange(8.0)}, STATE)
    for position in range(len(content) - 32, len(content)):
        changed = bytearray(content)
        changed[position] ^= 1
        with pytest.raises(DataError, match=str(FILE)):
            decode_checkpoint(bytes(changed), FILE)


@pytest.mark.parametrize("length", [0, 4, 8, 100, -1])
def test_a_cut_file_is_noticed(run, length):
    run.write_checkpoint(tensors(), STATE)
    run.checkpoint_path.write_bytes(run.checkpoint_path.read_bytes()[:length])
    with pytest.raises(DataError, match=str(run.checkpoint_path)):
        run.read_checkpoint()


def test_another_file_or_another_format_is_said(run):
    run.write_model(tensors(), {"format": "pt"})
    with pytest.raises(DataError, match=str(FILE)):
        decode_checkpoint(run.model_path.read_bytes(), FILE)
    content = encode_checkpoint({}, {}).replace(b"checkpoint-1", b"checkpoint-9")
    with pytest.raises(DataError, match="alidpfl-checkpoint-9"):
        decode_checkpoint(content, FILE)


def test_resume_cuts_back_to_the_checkpoint(run):
    for number in range(4):
        run.append_record(record(number))
        run.append_timing(RoundTiming(round=number, seconds=1.0, seconds_total=1.0))
        if number == 1:
            run.write_checkpoint({}, {"round": number})
    with run.metrics_path.open("ab") as file:
        file.write(b'{"round": 4, "loc')
    run.write_summary({"stop_reason": "interrupted"})
    run.truncate_to(run.read_checkpoint().state)
    assert [r.round for r in run.records()] == [0, 1]
    assert [t.round for t in run.timings()] == [0, 1]
    assert run.summary() is None
    run.truncate_to(None)
    assert (run.metrics_path.stat().st_size, run.timings()) == (0, [])


def test_resume_refuses_metrics_that_were_cut_or_edited(run):
    run.append_record(record(0))
    run.write_checkpoint({}, {})
    state = run.read_checkpoint().state
    whole = run.metrics_path.read_bytes()
    for changed in (whole[:-1], whole[:10], b"x" + whole):
        run.metrics_path.write_bytes(changed)
        with pytest.raises(DataError, match=str(run.metrics_path)):
            run.truncate_to(state)
        assert run.metrics_path.read_bytes() == changed
    run.metrics_path.unlink()
    with pytest.raises(DataError, match=str(run.metrics_path)):
        run.truncate_to(state)


def test_the_sizes_are_those_of_now_also_when_an_old_state_is_written_again(run):
    for number in range(2):
        run.append_record(record(number))
        checkpoint = run.read_checkpoint()
        run.write_checkpoint({}, checkpoint.state if checkpoint else {})
    assert run.read_checkpoint().state["metrics_bytes"] == run.metrics_path.stat().st_size


def test_lines_then_content_then_name_reach_the_disk(run, monkeypatch):
    """A power cut loses what was not synced. A test can only check the order of the calls."""
    run.append_record(record(0))
    calls = []
    fsync, replace = os.fsync, os.replace

    def note_fsync(descriptor):
        calls.append(Path(os.readlink(f"/proc/self/fd/{descriptor}")).name)
        fsync(descriptor)

    def note_replace(source, target):
        calls.append("rename")
        replace(source, target)

    monkeypatch.setattr(files.os, "fsync", note_fsync)
    monkeypatch.setattr(files.os, "replace", note_replace)
    run.write_checkpoint({}, {})
    assert calls == ["metrics.jsonl", ".checkpoint.safetensors.tmp", "rename", "run"]


def _uninterrupted_metrics(path: Path, rounds: int) -> bytes:
    run = RunDirectory.create(path)
    for number in range(rounds):
        run.append_record(record(number))
    return run.metrics_path.read_bytes()


def test_kill_9_at_any_moment_leaves_a_run_that_goes_on(run, tmp_path):
    """Kill a process that resumes and writes without end at random moments, many times."""
    moments = random.Random(20261116)  # noqa: S311
    kills, rounds, longest_life = 0, -1, 0.1
    # One parent holds the imports and forks a child for each life: starting Python 25 times would take a minute.
    command = [sys.executable, "-m", "tests.store.endless_writer", str(run.path)]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        while kills < 25 or rounds < 25:
            _live_and_be_killed(parent, moments.uniform(0.0, longest_life))
            kills += 1
            before, rounds = rounds, _check_what_is_left(run, rounds)
            if rounds == before:
                longest_life *= 1.3  # a busy machine: without progress the test would prove nothing
        parent.stdin.close()
        assert parent.wait() == 0
    run.truncate_to(run.read_checkpoint().state)
    assert run.metrics_path.read_bytes() == _uninterrupted_metrics(tmp_path / "whole", rounds + 1)
    assert [json.loads(line)["round"] for line in run.timings_path.read_text().splitlines()] == list(range(rounds + 1))


def _live_and_be_killed(parent: subprocess.Popen, seconds: float) -> None:
    parent.stdin.write("go\n")
    parent.stdin.flush()
    pid = int(parent.stdout.readline())
    time.sleep(seconds)
    parent.stdin.write("kill\n")
    parent.stdin.flush()
    assert parent.stdout.readline() == f"{pid} killed\n"


def _check_what_is_left(run: RunDirectory, rounds: int) -> int:
    """Check that tensors and state belong together, and that the lines on disk reach at least as far."""
    checkpoint = run.read_checkpoint()
    if checkpoint is None:
        assert rounds == -1, "the checkpoint disappeared"
        return rounds
    number = checkpoint.state["round"]
    assert number >= rounds
    assert torch.equal(checkpoint.tensors["params"], torch.full((50_000,), float(number)))
    assert len(run.records()) > number
    return number
