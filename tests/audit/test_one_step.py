"""The one-step audit: the real engine passes, broken ones do not."""

import dataclasses

import pytest
import torch

from alidpfl.audit import audit_run, audit_step
from alidpfl.audit.arms import make_arms
from alidpfl.audit.subject import stream
from alidpfl.dpsgd import cross_entropy
from alidpfl.dpsgd.places import GROUPS_IN_A_FAMILY, rounding
from alidpfl.errors import ConfigError
from tests.audit.parts import (
    clipped_per_layer,
    network,
    noise_on_first_steps_alone,
    nothing_clipped,
    softmax_regression,
    subject,
    too_little_noise,
    too_little_noise_on_the_grid,
)

REAL = {
    "softmax": {},
    "network": {"model": network()},
    "grid": {"noise": "grid"},
    "network on the grid": {"noise": "grid", "model": network()},
    "adap_dpfl": {"method": "adap_dpfl", "sigma": 4.0},
    "perturbed": {"model": network(), "method": "pe_dpfl"},
    "update": {"method": "pe_dpfl", "variant": "output", "sigma": 1.0, "epsilon": 10.0, "model": network()},
}


@pytest.mark.parametrize("name", REAL)
def test_the_real_step_is_not_refuted_and_the_canary_is_strong(name):
    audited = subject(**REAL[name])
    found = audit_step(audited, draws=200, seed=1)
    assert not found.is_refuted
    assert found.claimed == 1 / audited.noise_multiplier
    assert found.lower_bound < found.estimate
    assert found.strength <= 1
    clipped_at = 1 - rounding(128, GROUPS_IN_A_FAMILY) if "network" in name else 1.0  # of C
    assert found.strength > {"perturbed": 0.95, "update": 0.9}.get(name, 0.999 * clipped_at)
    assert found.estimate == pytest.approx(found.strength * found.claimed, rel=0.5 if name == "update" else 0.25)
    assert 0 <= found.epsilon_lower_bound < found.claimed_epsilon


def test_the_real_step_is_not_refuted_by_as_many_draws_as_find_a_fifth_less_noise():
    assert not audit_step(subject(), draws=2000, seed=2).is_refuted


def test_too_little_noise_is_refuted(monkeypatch):
    """σ/1.25 is found with the draws of the largest models. Audits by a threshold on ε miss it."""
    audited = subject()
    too_little_noise(monkeypatch, 1.25)
    found = audit_step(audited, draws=2000, seed=2)
    assert found.is_refuted
    assert found.catches < 1.25
    assert found.epsilon_lower_bound > audited.epsilon_at(audited.noise_multiplier)


def test_too_little_noise_on_a_grid_is_refuted(monkeypatch):
    too_little_noise_on_the_grid(monkeypatch, 1.25)
    assert audit_step(subject(noise="grid"), draws=2000, seed=2).is_refuted


def test_too_little_noise_on_an_update_is_refuted(monkeypatch):
    too_little_noise(monkeypatch, 2.0)
    found = audit_step(subject(**REAL["update"]), draws=500, seed=1)
    assert found.copies == 1
    assert found.is_refuted


@pytest.mark.parametrize("model", [softmax_regression, network])
def test_noise_on_first_steps_alone_is_refuted(monkeypatch, model):
    noise_on_first_steps_alone(monkeypatch)
    assert audit_step(subject(model()), draws=500, seed=1).is_refuted


@pytest.mark.parametrize("model", [softmax_regression, network])
def test_a_sum_that_is_not_clipped_is_refuted(monkeypatch, model):
    nothing_clipped(monkeypatch)
    found = audit_step(subject(model()), draws=100, seed=1)
    assert found.strength > 2
    assert found.is_refuted


def test_clipping_each_layer_by_itself_is_refuted(monkeypatch):
    clipped_per_layer(monkeypatch)
    found = audit_step(subject(network(), sigma=0.4, epsilon=50.0), draws=500, seed=1)
    assert found.strength > 1.3
    assert found.is_refuted


def test_a_weak_canary_is_not_passed_off_as_a_strong_one():
    """Gradients of this network never reach C, so the audit shows little, and reports that."""
    found = audit_step(subject(network(), clip_norm=1e5), draws=100, seed=1)
    assert found.strength < 0.5
    assert found.catches is None or found.catches > 2
    assert not found.is_refuted


def test_copies_make_up_for_much_noise():
    arms = make_arms(subject(sigma=6.0), stream(1))
    assert arms.copies == 16
    assert arms.distance == pytest.approx(16, rel=1e-3)


def test_both_arms_have_as_many_records_and_differ_in_the_canary_alone():
    arms = make_arms(subject(network()), stream(1))
    assert len(arms.data[True]) == len(arms.data[False]) == arms.copies
    absent, _ = arms.data[False].batch(torch.arange(arms.copies))
    present, _ = arms.data[True].batch(torch.arange(arms.copies))
    assert bool(absent.isnan().all())
    assert bool(present.isfinite().all())
    assert [(plan.sample_rate, plan.steps) for plan in arms.plans] == [(1.0, 1), (1.0, 2)]


def test_the_arms_lie_where_the_threshold_expects_them():
    found = audit_step(subject(sigma=1.0, epsilon=8.0), draws=200, seed=3)
    assert sum(found.without) / 200 == pytest.approx(0, abs=0.3)
    assert sum(found.with_canary) / 200 == pytest.approx(found.copies, abs=0.3)


def test_a_seed_repeats_an_audit_and_none_does_not():
    first, again, other = (audit_step(subject(), draws=100, seed=seed) for seed in (1, 1, None))
    assert first == again
    assert first.without != other.without


@pytest.mark.parametrize(
    ("wrong", "says"),
    [({"draws": 5}, "draws=5"), ({"confidence": 1.0}, "confidence=1.0")],
)
def test_what_cannot_be_measured_is_refused(wrong, says):
    with pytest.raises(ConfigError, match=says):
        audit_step(subject(), **wrong)


def test_the_configured_loss_is_audited():
    """Not the default one: a loss with small gradients makes the canary weak."""
    audited = dataclasses.replace(subject(network()), loss=lambda *batch: 1e-9 * cross_entropy(*batch))
    assert audit_step(audited, draws=100, seed=1).strength < 0.1
    assert audit_run(audited, canaries=50, seed=1).strength < 0.1
