"""Runs on tables that evaluate on held-out rows by noised releases, and say what that cost."""

import json

import numpy as np
import pytest
import torch

from alidpfl.config.load import load_config
from alidpfl.data.table import load_own_rows
from alidpfl.dpsgd import RandomStream
from alidpfl.errors import ConfigError
from alidpfl.metrics import measure
from alidpfl.privacy import GaussianRelease, epsilon
from alidpfl.runs import execute, load_model, resume
from alidpfl.runs.execute import Listener
from alidpfl.runs.prepare import prepare
from alidpfl.runs.tables import with_table_defaults
from alidpfl.simulation.runner import Runner
from alidpfl.store import RunDirectory
from alidpfl.tables import read_schema
from alidpfl.tables.held_out import held_out_key
from tests.runs.command import alidpfl
from tests.tables.parts import hospitals, table

SIZES = (900, 600, 500)
SEED = 5


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    return folder / "schema.toml", hospitals(folder, SIZES)


def settings(files, *more, private="true"):
    schema, paths = files
    changes = [
        "data.name=table",
        f"data.schema_file={json.dumps(str(schema))}",
        f"data.files={json.dumps([str(path) for path in paths])}",
        "privacy.accountant=rdp",
        "privacy.sample_rate=0.1",
        "privacy.noise_multiplier=3",
        "federation.max_rounds=4",
        "evaluation.releases=3",
        "run.processes=1",
        f"run.seed={SEED}",
        *([] if private is None else [f"evaluation.private={private}"]),
    ]
    return with_table_defaults(load_config(overrides=[*changes, *more]))


def test_a_run_says_what_training_and_evaluations_spent(files, tmp_path):
    outcome = execute(settings(files), tmp_path / "run")
    run = RunDirectory.open(tmp_path / "run")
    evaluated = [record for record in run.records() if record.metrics]
    assert [record.number for record in evaluated] == [2, 4]
    noises = [record.held_out.noise_multiplier for record in evaluated]
    assert noises[1] < noises[0]
    spent = epsilon([GaussianRelease(noise_multiplier=noise) for noise in noises], 1e-5, "rdp")
    assert outcome.held_out.epsilon == pytest.approx(spent)
    assert outcome.held_out == evaluated[-1].held_out
    assert (outcome.held_out.releases, outcome.held_out.clients) == (2, 3)
    assert outcome.epsilon == max(outcome.training_epsilon, outcome.held_out.epsilon) <= 2.0
    assert outcome.client_epsilon == {str(client): outcome.epsilon for client in range(3)}
    assert outcome.covers_everything
    assert outcome.uncovered == []
    assert all(record.covers_everything for record in run.records())
    assert outcome.metrics == evaluated[-1].metrics
    for name, (low, high) in evaluated[-1].intervals.items():
        assert outcome.intervals[name] == [low, high]
        assert low <= outcome.metrics[name] <= high
    assert "held_out" not in json.loads(run.metrics_path.read_text().splitlines()[0])


def test_the_intervals_hold_the_exact_metrics(files, tmp_path):
    """The exact metrics of the same rows have no sampling error, so an interval misses one in less than 1 of 20."""
    outcome = execute(settings(files), tmp_path / "run")
    schema, paths = files
    rows = [load_own_rows(path, read_schema(schema), held_out_key(SEED)).held_out for path in paths]
    inputs, targets = (torch.cat([getattr(part, name) for part in rows]) for name in ("inputs", "targets"))
    with torch.no_grad():
        outputs = load_model(tmp_path / "run").model(inputs)
    exact = measure("class", outputs.numpy(), targets.numpy())
    inside = [low <= exact.values[name] <= high for name, (low, high) in outcome.intervals.items()]
    assert "accuracy" in outcome.intervals
    assert sum(inside) >= len(inside) - 1


def test_secure_runs_on_tables_are_private_and_seeded_ones_are_not(files, tmp_path):
    secure = prepare(settings(files, 'run.randomness="secure"', private=None))
    seeded = prepare(settings(files, private=None))
    public = prepare(settings(files, 'run.randomness="secure"', private="false"))
    assert (secure.uncovered, secure.federation.private_evaluation is None) == ((), False)
    assert secure.federation.evaluate("test") is None  # nothing without noise
    for other in (seeded, public):
        assert any("holds out for testing" in reason for reason in other.uncovered)
        assert other.federation.private_evaluation is None
        assert not other.federation.covers_everything


def test_public_test_rows_are_evaluated_without_noise(files, tmp_path):
    schema, paths = files
    table(80, seed=9).write_csv(tmp_path / "test.csv")
    with_public = (schema, [*paths, tmp_path / "test.csv"])
    assert prepare(settings(with_public, private=None)).federation.private_evaluation is None
    with pytest.raises(ConfigError, match=r"evaluation\.private"):
        prepare(settings(with_public))


def test_other_data_hold_no_rows_out_by_their_content(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((40, 3), np.float32), y=np.arange(40) % 2)
    changes = ["data.name=npz", f"data.data_dir={json.dumps(str(tmp_path))}", "model.name=linear"]
    with pytest.raises(ConfigError, match=r"evaluation\.private"):
        prepare(load_config(overrides=[*changes, "evaluation.private=true"]))


def test_epsilon_is_that_of_the_part_that_spent_more(files, tmp_path):
    """Little is spent on training here, so held-out rows decide, for the run and for every client."""
    little = ("privacy.noise_multiplier=30", "method.policy=fixed", "federation.max_rounds=1")
    outcome = execute(settings(files, *little), tmp_path / "run")
    assert outcome.training_epsilon < outcome.held_out.epsilon / 2
    assert outcome.epsilon == outcome.held_out.epsilon
    assert set(outcome.client_epsilon.values()) == {outcome.held_out.epsilon}


def test_more_epsilon_than_promised_is_refused(files):
    with pytest.raises(ConfigError, match=r"evaluation\.epsilon"):
        prepare(settings(files, "evaluation.epsilon=3"))


def test_less_epsilon_for_held_out_rows_is_kept_to(files, tmp_path):
    outcome = execute(settings(files, "evaluation.epsilon=0.5"), tmp_path / "run")
    assert 0.4 < outcome.held_out.epsilon <= 0.5  # one of three releases was not due


def test_a_grid_that_does_not_cover_the_evaluations_is_refused_before_the_first_round(files):
    """With a tiny ε of held-out rows their noise is larger than the grid can be."""
    with pytest.raises(ConfigError, match="noise"):
        prepare(settings(files, 'privacy.noise="grid"', "evaluation.epsilon=0.0001", "privacy.sample_rate=0.02"))


@pytest.mark.parametrize("changes", [(), ("data.standardise=private",)])
def test_evaluations_have_the_noise_of_the_run(files, tmp_path, monkeypatch, changes):
    def refused(self, count):
        raise AssertionError("floating-point noise was drawn")

    monkeypatch.setattr(RandomStream, "normal", refused)
    changes = (*changes, "federation.max_rounds=2", "privacy.sample_rate=0.02", "method.policy=fixed")
    on_grid = settings(files, 'privacy.noise="grid"', *changes)
    assert execute(on_grid, tmp_path / "grid").held_out is not None
    with pytest.raises(AssertionError):
        execute(settings(files, *changes), tmp_path / "gaussian")


def test_the_number_of_processes_changes_nothing(files, tmp_path):
    one = execute(settings(files), tmp_path / "one")
    two = execute(settings(files, "run.processes=2"), tmp_path / "two")
    assert (one.metrics, one.held_out) == (two.metrics, two.held_out)


class _StopError(Exception):
    pass


@pytest.mark.parametrize("after", [1, 2, 3])
def test_a_resumed_run_ends_like_one_that_was_not_killed(files, tmp_path, after):
    whole = execute(settings(files), tmp_path / "whole")

    def stop(record, _seconds):
        if record.number == after:
            raise _StopError

    with pytest.raises(_StopError):
        execute(settings(files), tmp_path / "killed", listener=Listener(on_round=stop))
    again = resume(tmp_path / "killed")
    assert (again.metrics, again.intervals, again.held_out) == (whole.metrics, whole.intervals, whole.held_out)
    assert (tmp_path / "killed" / "metrics.jsonl").read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()


def test_a_lost_secure_round_stays_charged_with_its_evaluation(files, tmp_path):
    def stop(record, _seconds):
        raise _StopError

    secure = settings(files, 'run.randomness="secure"')
    with pytest.raises(_StopError):
        execute(secure, tmp_path / "killed", listener=Listener(on_round=stop))  # the second round may be lost
    again = resume(tmp_path / "killed")
    assert (again.held_out.releases, again.held_out.clients) == (3, 3)
    assert again.held_out.epsilon <= 2.0


@pytest.mark.parametrize("killed", ["append_record", "append_timing", "write_checkpoint"])
def test_a_release_of_the_last_round_that_the_budget_pays_for_is_charged(files, tmp_path, monkeypatch, killed):
    """Killed after the release, and before the checkpoint that knows of it."""
    changes = ("method.policy=fixed", "method.local_steps=1000000", "federation.max_rounds=9")
    rounds, keep, left, release = [], getattr(RunDirectory, killed), [], Runner.release

    def stop(*given):
        if left:
            raise _StopError
        keep(*given)

    def released(runner, params, plan):
        left.append((plan.client, plan.noise_multiplier))
        return release(runner, params, plan)

    with monkeypatch.context() as patched:
        patched.setattr(RunDirectory, killed, stop)
        patched.setattr(Runner, "release", released)
        with pytest.raises(_StopError):
            execute(settings(files, 'run.randomness="secure"', *changes), tmp_path / "killed")
    again = resume(tmp_path / "killed", listener=Listener(on_round=lambda *_: rounds.append(1)))
    assert (again.stop_reason, rounds) == ("privacy_budget", [])
    noises = [GaussianRelease(noise_multiplier=noise) for client, noise in left if client == 0]
    assert len(noises) == 1
    assert epsilon(noises, 1e-5, "rdp") <= again.held_out.epsilon <= 2.0


def test_show_and_compare_say_both(files, tmp_path):
    execute(settings(files), tmp_path / "run")
    for command in (["show", tmp_path / "run"], ["compare", tmp_path / "run", tmp_path / "run"]):
        shown = alidpfl(*command)
        assert shown.exit_code == 0
        for heading in ("held-out rows", "training rows"):
            assert heading in shown.stdout
