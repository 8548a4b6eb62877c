"""Audits of every loss: the real engine passes, and broken ones do not."""

import json

import pytest
import torch

from alidpfl.audit import audit_run, audit_step
from alidpfl.types import LOSS_KINDS
from tests.runs.command import alidpfl
from tests.tables.parts import hospitals

from .parts import nothing_clipped, subject, too_little_noise

WIDE = 1000  # enough parameters for canaries with different gradients
LOSSES = [name for name, kind in LOSS_KINDS.items() if kind != "class"]


@pytest.mark.parametrize(("loss", "method"), [*((loss, "fedavg_dp") for loss in LOSSES), ("squared", "pe_dpfl")])
def test_the_real_step_is_not_refuted_and_the_canary_is_strong(loss, method):
    found = audit_step(subject(loss=loss, method=method), draws=100, seed=1)
    assert not found.is_refuted
    assert 0.9 < found.strength <= 1


def test_too_little_noise_is_refuted(monkeypatch):
    audited = subject(loss="squared")
    too_little_noise(monkeypatch, 1.6)
    assert audit_step(audited, draws=1000, seed=2).is_refuted


@pytest.mark.parametrize("loss", ["squared", "binary"])
def test_gradients_that_are_not_clipped_are_refuted(loss, monkeypatch):
    audited = subject(loss=loss)
    nothing_clipped(monkeypatch)
    assert audit_step(audited, draws=100, seed=1).is_refuted


def test_an_update_with_noise_is_not_refuted():
    audited = subject(loss="squared", method="pe_dpfl", variant="output", sigma=1.0, epsilon=10.0)
    found = audit_step(audited, draws=100, seed=1)
    assert not found.is_refuted
    assert found.strength > 0.5


@pytest.mark.parametrize(("loss", "outputs"), [("squared", 1), ("binary", 3)])
def test_a_canary_that_was_in_scores_higher(loss, outputs):
    """With hardly any noise most guesses are correct: two of three canaries are in some batch of the ten."""
    model = torch.nn.Linear(WIDE, outputs)
    found = audit_run(subject(model, features=WIDE, loss=loss, sigma=0.1, epsilon=1000.0), canaries=100, seed=1)
    assert found.correct / found.guesses > 0.75
    assert found.lower_bound > 0.5
    assert not found.is_refuted


@pytest.mark.parametrize("kind", ["number", "labels"])
def test_the_command_audits_a_table(tmp_path, kind):
    files = [str(path) for path in hospitals(tmp_path, kind=kind)]
    own = ["data.name=table", f"data.schema_file={tmp_path / 'schema.toml'}", f"data.files={json.dumps(files)}"]
    own += ["privacy.accountant=rdp", "privacy.max_steps=5"]
    done = alidpfl(
        "audit", *(part for one in own for part in ("--set", one)), "--one-step", "--draws", 100, "--seed", 1
    )
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize(("loss", "classes"), [("squared", 1), ("binary", 4)])
def test_a_model_is_searched_for_mixing(loss, classes):
    words = ["--model", "mlp", "--loss", loss, "--input-shape", "6", "--classes", classes, "--trials", 5, "--seed", 1]
    done = alidpfl("audit", *words, "--json")
    assert done.exit_code == 0, done.stderr
    assert not json.loads(done.stdout)["refuted"]
