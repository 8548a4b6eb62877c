"""`alidpfl run` as its users see it."""

import json
import math
import re

import numpy as np
import pytest
from rich.progress import Progress

from alidpfl import RunDirectory
from alidpfl.federation.loop import Federation
from alidpfl.privacy import SampledGaussian, epsilon
from tests.runs.command import alidpfl, run_arguments


def test_json_is_the_last_line(tmp_path):
    out = tmp_path / "run"
    result = alidpfl(*run_arguments(out), "--json")
    assert result.exit_code == 0
    told = json.loads(result.stdout.splitlines()[-1])
    assert {"accuracy", "epsilon", "delta", "rounds", "steps", "stop_reason", "seconds", "out"} <= set(told)
    assert 20 < told["accuracy"] <= 100  # %
    steps = SampledGaussian(sample_rate=0.1, noise_multiplier=told["noise_multiplier"], steps=told["steps"])
    assert told["epsilon"] == epsilon([steps], told["delta"], "rdp")
    assert (told["rounds"], told["stop_reason"], told["out"]) == (6, "max_rounds", str(out))
    assert math.isfinite(told["seconds"])
    assert told == RunDirectory.open(out).summary()
    again = alidpfl("run", "--resume", out, "--json")
    assert json.loads(again.stdout.splitlines()[-1]) == told


def test_without_json_it_shows_the_result(tmp_path):
    result = alidpfl(*run_arguments(tmp_path / "run"))
    assert result.exit_code == 0
    summary = RunDirectory.open(tmp_path / "run").summary()
    last = result.stdout.splitlines()[-1]
    low, high = summary["intervals"]["accuracy"]
    told = f"accuracy {summary['accuracy']:.2f} % ({low:.2f} to {high:.2f}) on synthetic data at "
    for part in (told, str(tmp_path / "run")):
        assert part in last
    printed = float(re.search(r"ε = ([\d.]+)", last)[1])
    assert summary["epsilon"] <= printed < summary["epsilon"] + 1e-3  # rounded towards the private side
    assert "NOT" not in result.stdout


@pytest.fixture
def bar(monkeypatch):
    """Where the bar of training was put, one place after the other."""
    shown, update = [], Progress.update

    def seen(self, task, **changes):
        if "completed" in changes and "description" not in changes:
            shown.append(changes["completed"])
        update(self, task, **changes)

    monkeypatch.setattr(Progress, "update", seen)
    return shown


def test_the_bar_moves_within_a_round_too(tmp_path, bar):
    """A round of a large network may take minutes."""
    assert alidpfl(*run_arguments(tmp_path / "run", federation__max_rounds=2)).exit_code == 0
    told = list(bar)
    assert told == sorted(told)
    assert len(told) == 2 * (4 + 1)  # after each of four clients, and after the round
    assert [done for done in told if done in (1, 2)] == [1, 1, 2, 2]
    assert 0 < told[0] < told[1] < 1 < told[5] < told[6] < 2


def test_the_bar_of_a_resumed_run_goes_on_where_it_was(tmp_path, bar, monkeypatch):
    dispatch = Federation._dispatch

    def stopped_in_the_second_round(self, *arguments):
        if bar and bar[-1] == 1:
            raise KeyboardInterrupt
        return dispatch(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Federation, "_dispatch", stopped_in_the_second_round)
        assert alidpfl(*run_arguments(tmp_path / "run", federation__max_rounds=2)).exit_code == 130
    bar.clear()
    assert alidpfl("run", "--resume", tmp_path / "run").exit_code == 0
    assert 1 < bar[0] < bar[-1] == 2


def test_on_a_pipe_every_evaluation_is_one_plain_line(tmp_path):
    result = alidpfl(*run_arguments(tmp_path / "run"), "--json")  # 6 rounds, evaluated every third
    records = RunDirectory.open(tmp_path / "run").records()
    budget, *lines = result.stderr.splitlines()
    words = r"the privacy budget pays for (\d+) local steps, in at most 6 rounds; round 1 takes τ = (\d+)"
    told = re.fullmatch(words, budget)
    assert (int(told[1]), int(told[2])) == (12, records[0].local_steps)
    assert re.fullmatch(r"round 1/6  τ \d+  ε [\d.]+  [\d.]+ s a round", lines[0])
    for line, number in zip(lines[1:], (3, 6), strict=True):
        record = records[number - 1]
        told = re.fullmatch(r"round (\d)/6  τ (\d+)  ε ([\d.]+)  accuracy ([\d.]+) %", line)
        assert told, line
        assert (int(told[1]), int(told[2])) == (number, record.local_steps)
        assert record.epsilon <= float(told[3]) < record.epsilon + 1e-3
        assert float(told[4]) == pytest.approx(record.accuracy, abs=0.051)
    assert len(result.stdout.splitlines()) == 1
    json.loads(result.stdout)


def test_a_finished_run_says_so_when_it_is_resumed(tmp_path):
    first = alidpfl(*run_arguments(tmp_path / "run", federation__max_rounds=1))
    assert "already finished" not in first.stderr
    again = alidpfl("run", "--resume", tmp_path / "run")
    assert again.exit_code == 0
    assert again.stderr.startswith(f"{tmp_path / 'run'} is already finished")
    assert again.stdout.splitlines()[-1] == first.stdout.splitlines()[-1]


def test_a_file_and_overrides(tmp_path):
    (tmp_path / "mine.toml").write_text('[data]\nname = "synthetic"\n[model]\nname = "linear"\n[run]\nseed = 5\n')
    arguments = run_arguments(tmp_path / "run", federation__max_rounds=1)
    result = alidpfl("run", tmp_path / "mine.toml", *arguments[1:])
    assert result.exit_code == 0
    found = RunDirectory.open(tmp_path / "run").config()
    assert (found["run"]["seed"], found["federation"]["max_rounds"]) == (5, 1)


def test_unnoised_signals_are_told(tmp_path):
    unsafe = {"method__policy": "paper", "privacy__unsafe": ["unaccounted-signals"]}
    result = alidpfl(*run_arguments(tmp_path / "run", **unsafe))
    assert result.exit_code == 0
    assert "(it does NOT cover: un-noised signals of the clients" in result.stdout
    assert "epsilon does NOT cover this run: it shows un-noised signals of the clients" in result.stderr.splitlines()
    assert re.search("not covered +│ un-noised signals of the clients", result.stdout)
    told = json.loads(alidpfl("run", "--resume", tmp_path / "run", "--json").stdout.splitlines()[-1])
    assert told["covers_everything"] is False


def test_small_clients_are_warned_of(tmp_path):
    result = alidpfl(*run_arguments(tmp_path / "run", privacy__sample_rate=0.01, federation__max_rounds=1), "--json")
    (warning,) = [line for line in result.stderr.splitlines() if line.startswith("warning:")]
    assert "2 of 4 clients" in warning
    assert warning.endswith("raise privacy.sample_rate or data.min_samples")  # on a pipe lines are not folded
    json.loads(result.stdout)  # the warning is not among the results


def test_rounds_of_very_many_steps_are_warned_of_before_the_first(tmp_path, monkeypatch):
    """Noise that two rounds cannot use up: the first alone would take minutes, behind a bar that does not move."""

    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Federation, "_dispatch", stopped)
    much = {"privacy__noise_multiplier": 50.0, "federation__max_rounds": 2}
    result = alidpfl(*run_arguments(tmp_path / "run", **much))
    assert result.exit_code == 130
    budget, warning, *_ = result.stderr.splitlines()
    steps, first = (
        int(number.replace(",", "")) for number in re.search(r"([\d,]+) local .* τ = ([\d,]+)", budget).groups()
    )
    assert first == steps // 2 > 10_000
    assert f"warning: a round takes τ = {first:,} local steps, {first / 10:,.0f} passes of every client" in warning
    assert "--plan auto" in warning


def _finished(tmp_path):
    assert alidpfl(*run_arguments(tmp_path / "done", federation__max_rounds=1)).exit_code == 0
    return tmp_path / "done"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--set", "privacy.epsilom=2"], "did you mean privacy.epsilon?"),
        (["--set", "epsilon"], "key=value"),
        (["--set", "=5"], "--set =5: write key=value"),
        (["--set", "data.name=synthetic"], "needs images"),
        (["{tmp}/nowhere.toml"], "there is no configuration file"),
        (["{tmp}/broken.toml"], "is not valid TOML"),
        (["--resume", "{tmp}/nowhere"], "does not exist"),
        (["--resume", "{tmp}"], "is not a run directory"),
        (["--resume", "{tmp}/done", "--set", "seed=1"], "--resume takes its settings from the folder"),
        (["--set", "method.policy=paper"], "unaccounted-signals"),
        (["--set", "method.options.clip_norm=2"], "method.options of ali_dpfl: the option 'clip_norm'"),
        (["--set", "noise_multiplier=0.01"], "does not pay for one step"),
        (["--set", "noise_multiplier=0.01"], " would do"),
        (["--set", "unsafe=yes"], "privacy.unsafe='yes' must be a list of"),
        (["--set", "clients_per_round=5"], "clients_per_round=5"),
        (["--set", "traffic_limit=1KB"], "traffic_limit=1000 (bytes) does not pay for one round"),
        (["--set", "time_limit=1e-7"], "time_limit=1e-07 (seconds) does not pay for one round"),
        (["--set", "device=cuda"], "CUDA"),
        (["--set", "data.name=mnist", "--data-dir", "{tmp}/empty"], "mnist"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(tmp_path, arguments, told, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ALIDPFL_DATA_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "broken.toml").write_text("[run")
    (tmp_path / "empty").mkdir()
    if "{tmp}/done" in arguments:
        _finished(tmp_path)
    linear = [] if "data.name=synthetic" in arguments else run_arguments(tmp_path / "run")[1:-2]
    given = [argument.replace("{tmp}", str(tmp_path)) for argument in arguments]
    before = [] if "--resume" in arguments else linear
    result = alidpfl("run", *before, *given)
    assert result.exit_code == 2
    assert told in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_a_folder_that_holds_a_run_or_anything_else_is_left_alone(tmp_path):
    done = _finished(tmp_path)
    before = {path.name: path.read_bytes() for path in done.iterdir()}
    result = alidpfl(*run_arguments(done))
    assert result.exit_code == 2
    assert f"{done} holds a run already: continue it with --resume" in result.stderr
    assert {path.name: path.read_bytes() for path in done.iterdir()} == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").write_text("x")
    result = alidpfl(*run_arguments(tmp_path / "other"))
    assert result.exit_code == 2
    assert "thesis.tex" in result.stderr


def test_without_out_a_new_folder_is_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = alidpfl(*run_arguments(tmp_path, federation__max_rounds=1)[:-2], "--json")
    told = json.loads(result.stdout)
    assert told["out"].startswith("runs/synthetic-ali_dpfl-")
    assert RunDirectory.open(tmp_path / told["out"]).summary() == told


def test_a_run_goes_on_from_another_folder(tmp_path, monkeypatch):
    """Own files by a relative path, as one types it."""
    (tmp_path / "silos").mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "test"):
        x = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
        np.savez(tmp_path / "silos" / f"{name}.npz", x=x, y=np.arange(50) % 2)

    def stopped(*_):
        raise KeyboardInterrupt

    own = {"data__name": "npz", "data__data_dir": "silos", "data__num_classes": 2, "data__clients": 2}
    with monkeypatch.context() as patch:
        patch.setattr(Federation, "_dispatch", stopped)
        assert alidpfl(*run_arguments(tmp_path / "run", **own)).exit_code == 130
    monkeypatch.chdir(tmp_path / "elsewhere")
    result = alidpfl("run", "--resume", tmp_path / "run")
    assert result.exit_code == 0, result.stderr
    assert RunDirectory.open(tmp_path / "run").config()["data"]["data_dir"] == str(tmp_path / "silos")


def test_names_of_own_files_are_shown_and_not_handed_on(tmp_path):
    (tmp_path / "silos").mkdir()
    for name in ("a_north", "b_south", "test"):
        np.savez(tmp_path / "silos" / f"{name}.npz", x=np.ones((50, 4), "float32"), y=np.arange(50) % 2)
    own = {"data__name": "npz", "data__data_dir": str(tmp_path / "silos"), "data__num_classes": 2, "data__clients": 2}
    assert alidpfl(*run_arguments(tmp_path / "run", **own, federation__max_rounds=1)).exit_code == 0
    assert "clients: 0 = a_north, 1 = b_south" in alidpfl("show", tmp_path / "run").stdout.splitlines()
    for shared in ("summary.json", "model.safetensors", "metrics.jsonl"):
        assert b"a_north" not in (tmp_path / "run" / shared).read_bytes()


def test_a_damaged_run_is_a_mistake_and_not_a_crash(tmp_path):
    done = _finished(tmp_path)
    (done / "summary.json").unlink()
    content = (done / "checkpoint.safetensors").read_bytes()
    (done / "checkpoint.safetensors").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    result = alidpfl("run", "--resume", done)
    assert result.exit_code == 2
    assert "checkpoint.safetensors" in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_tensorboard_is_an_option(tmp_path):
    pytest.importorskip("tensorboard")
    assert alidpfl(*run_arguments(tmp_path / "run", federation__max_rounds=2), "--tensorboard").exit_code == 0
    (file,) = (tmp_path / "run" / "tensorboard").iterdir()
    assert file.name.startswith("events.out.tfevents")
