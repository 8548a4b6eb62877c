"""A clean Ctrl-C loses nothing, so a secure run that is resumed after it pays nothing. A kill may lose a round."""

import json
import os
import signal

import pytest

from alidpfl.config.load import load_config
from alidpfl.runs import execute, resume
from alidpfl.runs.execute import Listener
from alidpfl.runs.tables import with_table_defaults
from alidpfl.simulation.runner import Runner
from alidpfl.store import RunDirectory
from tests.tables.parts import hospitals

ROUNDS = 4


class _KilledError(Exception):
    pass


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    """A secure run with an evaluation after every second round. Its steps do not depend on the noise."""
    folder = tmp_path_factory.mktemp("tables")
    files = hospitals(folder, (120, 90))
    changes = [
        "data.name=table",
        f"data.schema_file={json.dumps(str(folder / 'schema.toml'))}",
        f"data.files={json.dumps([str(path) for path in files])}",
        'run.randomness="secure"',
        "run.processes=1",
        "privacy.accountant=rdp",
        "privacy.sample_rate=0.1",
        "privacy.noise_multiplier=3",
        "method.policy=fixed",
        "method.local_steps=2",
        f"federation.max_rounds={ROUNDS}",
        "evaluation.releases=2",
    ]
    return with_table_defaults(load_config(overrides=changes))


@pytest.fixture(scope="module")
def whole(settings, tmp_path_factory):
    """The accounts of a run that nobody interrupts."""
    return accounts(execute(settings, tmp_path_factory.mktemp("whole") / "run"))


def accounts(outcome):
    held_out = outcome.held_out
    return {
        "ended": (outcome.stop_reason, outcome.rounds, outcome.steps),
        "training": outcome.training_epsilon,
        "client": outcome.client_epsilon,
        "held-out": (held_out.epsilon, held_out.releases, held_out.noise_multiplier, held_out.clients),
    }


def ctrl_c(*rounds):
    """Press Ctrl-C once in these rounds."""
    return Listener(on_round=lambda record, _: os.kill(os.getpid(), signal.SIGINT) if record.number in rounds else None)


def killed(*_):
    raise _KilledError


@pytest.mark.parametrize("after", range(1, ROUNDS + 1))
def test_a_clean_interrupt_costs_nothing(settings, whole, tmp_path, after):
    done = execute(settings, tmp_path / "run", listener=ctrl_c(after))
    assert done.rounds == after
    assert accounts(resume(tmp_path / "run")) == whole


def test_an_interrupt_in_every_round_costs_nothing(settings, whole, tmp_path):
    done = execute(settings, tmp_path / "run", listener=ctrl_c(1))
    for after in range(2, ROUNDS + 1):
        assert done.rounds == after - 1
        done = resume(tmp_path / "run", listener=ctrl_c(after))
    assert accounts(resume(tmp_path / "run")) == whole


def test_a_kill_between_the_start_and_the_first_charge_is_charged(settings, whole, tmp_path):
    """In doubt a round counts as lost: the run no longer says that none is in flight, and nothing was charged yet."""
    execute(settings, tmp_path / "run", listener=ctrl_c(1))
    with pytest.raises(_KilledError):
        resume(tmp_path / "run", listener=Listener(on_start=killed))
    assert accounts(resume(tmp_path / "run"))["training"] > whole["training"]


@pytest.mark.parametrize("releases", [0, 1])
def test_a_kill_in_the_round_after_a_clean_interrupt_is_charged(settings, whole, tmp_path, monkeypatch, releases):
    """The round was charged and may have released weights; with `releases`, an evaluation of this many clients too."""
    execute(settings, tmp_path / "run", listener=ctrl_c(1))
    with monkeypatch.context() as patched:
        if releases:
            patched.setattr(Runner, "release", killed)
        else:
            patched.setattr(Runner, "train", killed)
        with pytest.raises(_KilledError):
            resume(tmp_path / "run")
    again = accounts(resume(tmp_path / "run"))
    assert again["training"] > whole["training"]
    assert again["held-out"][:2] == whole["held-out"][:2]  # its evaluation is charged, and not asked for again
    rounds = [record.round for record in RunDirectory.open(tmp_path / "run").records()]
    assert rounds == list(range(ROUNDS))


def test_a_checkpoint_that_does_not_say_counts_as_in_flight(settings, whole, tmp_path):
    """Such as those of older versions."""
    execute(settings, tmp_path / "run", listener=ctrl_c(2))
    directory = RunDirectory.open(tmp_path / "run")
    tensors, state = directory.read_checkpoint()
    assert state.pop("in_flight") is False
    directory.write_checkpoint(tensors, state)
    assert accounts(resume(tmp_path / "run"))["training"] > whole["training"]


def test_a_second_interrupt_in_the_round_is_charged(settings, whole, tmp_path, monkeypatch):
    """It stops at once, so that the round is lost."""

    def twice(*_):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(Runner, "train", twice)
        with pytest.raises(KeyboardInterrupt):
            execute(settings, tmp_path / "run")
    assert accounts(resume(tmp_path / "run"))["training"] > whole["training"]
