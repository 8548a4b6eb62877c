"""kill -9 at any moment, then --resume: the end is the same to the last byte as if nothing had happened."""

import importlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import pytest

from alidpfl import RunDirectory
from alidpfl.errors import DataError
from alidpfl.federation.loop import Federation
from alidpfl.runs import execute, load_config, resume
from alidpfl.runs.execute import Listener

from .command import ADAP, alidpfl, config, forked, num_rounds, run_arguments

_ROUNDS = 30
_ALI = {"method.policy": "ali", "privacy.noise_multiplier": 1.5, "privacy.epsilon": 4.0}
_SERVER = {
    "federation.max_rounds": _ROUNDS,
    "federation.momentum": 0.5,
    "federation.averaging": 0.8,
    "federation.dropout_rate": 0.2,
    "run.processes": 2,
}
_METHODS = {
    "ali_dpfl": _ALI | _SERVER,
    "adap_dpfl": ADAP | _SERVER | {"federation.clients_per_round": 3, "method.local_steps": 1},
}


def _arguments(out, method):
    return run_arguments(out, **{key.replace(".", "__"): value for key, value in _METHODS[method].items()})


@pytest.fixture(scope="module", params=_METHODS)
def method(request):
    return request.param


@pytest.fixture(scope="module")
def whole(method, tmp_path_factory):
    """A run that nobody interrupts."""
    out = tmp_path_factory.mktemp("whole") / "run"
    process = forked(out.parent / "log", *_arguments(out, method), "--json")
    assert process.wait() == 0, process.log.read_text()
    assert num_rounds(out) > 15
    return out


def _assert_same(out, whole):
    for name in ("metrics.jsonl", "model.safetensors", "config.toml"):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name
    ours, theirs = (
        {key: value for key, value in RunDirectory.open(path).summary().items() if key not in ("seconds", "out")}
        for path in (out, whole)
    )
    assert ours == theirs
    rounds = [timing.round for timing in RunDirectory.open(out).timings()]
    assert rounds == list(range(len(rounds)))
    assert len(rounds) == num_rounds(out)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 20))])
def test_killed_again_and_again(tmp_path, method, whole, seed):
    moments, out, log = random.Random(seed), tmp_path / "run", tmp_path / "log"  # noqa: S311
    arguments, kills = _arguments(out, method), 0
    while True:
        process = forked(log, *arguments)
        process.wait_for_rounds(out, num_rounds(out) + moments.randint(1, 5))
        time.sleep(moments.random() * 0.01)  # anywhere in a round: at work, writing a line, writing the checkpoint
        if not process.is_running():
            break
        process.kill()
        kills += process.status == -signal.SIGKILL
        arguments = ["run", "--resume", out] if (out / "config.toml").exists() else arguments
    assert process.wait() == 0, log.read_text()
    assert kills >= 3
    _assert_same(out, whole)


def test_killed_before_the_first_round(tmp_path, method, whole):
    out, log = tmp_path / "run", tmp_path / "log"
    process = forked(log, *_arguments(out, method))
    while not (out / "config.toml").exists() and process.is_running():
        time.sleep(0.001)
    process.kill()
    process = forked(log, "run", "--resume", out)
    assert process.wait() == 0, log.read_text()
    _assert_same(out, whole)


def test_killed_at_any_byte_of_the_last_lines(tmp_path, whole):
    """What a kill can leave: a checkpoint of an earlier round, and lines after it, whole or cut."""
    out, log = tmp_path / "run", tmp_path / "log"
    shutil.copytree(whole, out)
    for name in ("summary.json", "model.safetensors"):
        (out / name).unlink()
    for name in ("metrics.jsonl", "timings.jsonl"):
        with (out / name).open("ab") as file:
            file.write((whole / name).read_bytes()[:150])  # a line that no checkpoint knows, cut in the middle
    assert forked(log, "run", "--resume", out).wait() == 0, log.read_text()
    _assert_same(out, whole)


@pytest.mark.parametrize("method", ["ali_dpfl"], indirect=True, scope="module")  # one: torch takes seconds to import
def test_the_command_itself_killed(tmp_path, whole, method):
    """As users run it: python -m alidpfl, from the start of the interpreter."""
    out = tmp_path / "run"
    command = [sys.executable, "-m", "alidpfl", *_arguments(out, method)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while num_rounds(out) < 4 and process.poll() is None:
        time.sleep(0.001)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert 4 <= num_rounds(out) < num_rounds(whole)
    assert forked(tmp_path / "log", "run", "--resume", out).wait() == 0, (tmp_path / "log").read_text()
    _assert_same(out, whole)


def test_ctrl_c_ends_after_the_round(tmp_path, method, whole):
    out, log = tmp_path / "run", tmp_path / "log"
    process = forked(log, *_arguments(out, method), "--json")
    process.wait_for_rounds(out, 5)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait() == 130, log.read_text()
    told = log.read_text().splitlines()
    done = num_rounds(out)
    assert 5 <= done < num_rounds(whole)
    assert "stopping after this round; Ctrl-C again stops now" in told
    assert f"alidpfl run --resume {out};" in told[-1]
    assert told[-1].endswith(f"alidpfl show {out}")
    assert told[-2].startswith(f"interrupted after round {done}: ε = ")
    outcome = json.loads(next(line for line in told if line.startswith("{")))
    assert (outcome["stop_reason"], outcome["rounds"]) == ("interrupted", done)
    assert outcome["accuracy"] is not None
    run = RunDirectory.open(out)
    assert run.summary() is None
    assert run.read_checkpoint().state["progress"]["round"] == done
    assert forked(log, "run", "--resume", out).wait() == 0, log.read_text()
    _assert_same(out, whole)


@pytest.mark.parametrize(("randomness", "lost"), [("seeded", "again"), ("secure", "charged")])
def test_a_second_ctrl_c_stops_at_once_and_tells_what_stays(tmp_path, randomness, lost):
    out, log = tmp_path / "run", tmp_path / "log"

    def twice(_training, _plans):  # in the first round, which without the signals would have no end
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
        time.sleep(60)

    arguments = run_arguments(out, run__randomness=randomness)
    process = forked(log, *arguments, first=lambda: setattr(Federation, "_dispatch", twice))
    assert process.wait() == 130, log.read_text()
    *said, told, last = log.read_text().splitlines()
    assert last == "alidpfl: interrupted"
    assert lost in told
    assert told.endswith(f"alidpfl run --resume {out}")
    assert "stopping after this round; Ctrl-C again stops now" in said
    assert forked(log, "run", "--resume", out).wait() == 0, log.read_text()


def test_after_an_interruption_two_lines_are_printed(tmp_path):
    out, log = tmp_path / "run", tmp_path / "log"

    def once(training, plans):
        os.kill(os.getpid(), signal.SIGINT)
        return dispatch(training, plans)

    dispatch = Federation._dispatch
    process = forked(log, *run_arguments(out), first=lambda: setattr(Federation, "_dispatch", once))
    assert process.wait() == 130, log.read_text()
    _, _, asked, first_round, *told = log.read_text().splitlines()
    assert (asked, first_round[:9]) == ("stopping after this round; Ctrl-C again stops now", "round 1/6")
    assert len(told) == 2
    assert not any("accuracy" in line for line in told)  # of a model that no record tells of


def test_one_process_to_a_run(tmp_path, method):
    out, log = tmp_path / "run", tmp_path / "log"
    first = forked(log, *_arguments(out, method), "--set", "federation.max_rounds=100000")
    first.wait_for_rounds(out, 2)
    try:
        for arguments in (["run", "--resume", out], _arguments(out, method)):
            second = alidpfl(*arguments)
            assert second.exit_code == 2
            assert len(second.stderr.splitlines()) == 1
            assert str(out) in second.stderr
        assert f"process {first.pid}" in alidpfl("run", "--resume", out).stderr
    finally:
        first.kill()
    # The lock is gone with its holder, at once, even while a worker of it is still at work.
    third = forked(log, "run", "--resume", out)
    third.wait_for_rounds(out, num_rounds(out) + 2)
    assert third.is_running(), log.read_text()
    third.kill()


@pytest.mark.parametrize("randomness", ["seeded", "secure"])
def test_killed_between_the_first_line_and_its_checkpoint(tmp_path, monkeypatch, randomness):
    """Found by a kill in `reproduce`: a round was written, and no checkpoint yet."""
    module = importlib.import_module("alidpfl.runs.execute")

    settings = ["data.name=synthetic", "data.clients=2", "model.name=linear", "federation.max_rounds=4"]
    config = load_config(overrides=[*settings, "run.processes=1", f'run.randomness="{randomness}"'])
    whole = module.execute(config, tmp_path / "whole")
    written, checkpoint = [], module._checkpoint

    def killed_in_the_first_round(*arguments):
        written.append(checkpoint(*arguments) if not written else None)
        if len(written) > 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "_checkpoint", killed_in_the_first_round)
    with pytest.raises(KeyboardInterrupt):
        module.execute(config, tmp_path / "killed")
    monkeypatch.undo()
    assert num_rounds(tmp_path / "killed") == 1
    outcome = module.resume(tmp_path / "killed")
    if randomness == "seeded":
        _assert_same(tmp_path / "killed", tmp_path / "whole")
    else:  # the lost round stays charged, and its steps are missing at the end
        assert outcome.epsilon == whole.epsilon
        assert outcome.steps < whole.steps


@pytest.mark.parametrize(
    ("randomness", "behind", "goes_on"),
    [("secure", 3, False), ("secure", 2, False), ("secure", 1, True), ("seeded", 3, True)],
)
def test_an_older_checkpoint_put_back(tmp_path, randomness, behind, goes_on):
    """With secure noise its rounds would be released a second time; with a seed they are the same again.

    One behind is what a kill leaves: the line is written first, and the round counts as lost.
    """
    out, kept = tmp_path / "run", []

    def stop_after_four(_record, _seconds):
        kept.append((out / "checkpoint.safetensors").read_bytes())
        if len(kept) == 4:
            raise InterruptedError

    settings, listener = (
        config(federation__max_rounds=6, run__randomness=randomness),
        Listener(on_round=stop_after_four),
    )
    with pytest.raises(InterruptedError):
        execute(settings, out, listener=listener)
    (out / "checkpoint.safetensors").write_bytes(kept[3 - behind])
    if goes_on:
        assert resume(out).rounds == 6
    else:
        with pytest.raises(DataError, match="checkpoint"):
            resume(out)
