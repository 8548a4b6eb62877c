"""The noise, coordinate by coordinate: honest noise passes, what one line does not show is found."""

import dataclasses

import pytest
import torch

from alidpfl.audit import audit_step
from alidpfl.audit.noise import NoiseMeter
from alidpfl.dpsgd import step
from tests.audit.parts import REAL_ADD_NOISE, network, subject

SIZE, DRAWS = 300, 400


def measured(noise, *, draws=DRAWS, params=None, mean=0.0, scale=1.0):
    """Of releases `noise(random)` (SIZE,)."""
    params = torch.zeros(SIZE) if params is None else params
    meter = NoiseMeter(params, torch.full((SIZE,), mean), scale)
    random = torch.Generator().manual_seed(0)
    for _ in range(draws):
        meter.add(noise(random))
    return meter.audit(0.9999)


def honest(random):
    return torch.randn(SIZE, generator=random)


def test_honest_noise_passes_whatever_lies_under_it():
    found = measured(lambda random: 3 + 5 * honest(random), mean=3.0, scale=5.0)
    assert found.problem is None
    assert found.refuted_below < found.least < 1
    assert found.unread == 0
    assert found.draws == DRAWS


def test_honest_noise_is_refuted_as_seldom_as_is_said():
    """At a confidence of 0.5 one in two may be; fewer are, since two of the three bounds are not tight."""
    refuted = 0
    for seed in range(200):
        random = torch.Generator().manual_seed(seed)
        meter = NoiseMeter(torch.zeros(20), torch.zeros(20), 1.0)
        for _ in range(100):
            meter.add(torch.randn(20, generator=random))
        refuted += meter.audit(0.5).problem is not None
    assert 5 <= refuted <= 100  # 0 would be a test that cannot refute


@pytest.mark.parametrize("ratio", [0.0, 0.5, 1 / 1.5])
@pytest.mark.parametrize("place", [0, 77, SIZE - 1])
def test_a_single_weight_with_too_little_noise_is_found(ratio, place):
    def noise(random):
        found = honest(random)
        found[place] *= ratio
        return found

    found = measured(noise)
    assert found.where == place
    assert found.problem == f"weight {place} has {found.least:.3g} of the noise that is claimed"


def test_the_same_noise_in_two_tensors_is_found():
    def noise(random):
        found = honest(random)
        found[200:250] = found[20:70]
        return found

    found = measured(noise)
    assert found.distance == 180
    assert "180 apart" in found.problem


def test_the_noise_of_the_release_before_is_found():
    kept = []

    def noise(random):
        """Every second release has the last one's."""
        if len(kept) % 2 == 0:
            kept.append(honest(random))
        else:
            kept.append(kept[-1])
        return kept[-1]

    assert "the one before" in measured(noise).problem


def test_weights_too_coarse_to_be_read_are_said_to_be():
    params = torch.zeros(SIZE)
    params[:10] = 1e9  # a float32 there is 64 from the next

    def noise(random):
        return (params + honest(random)) - params

    found = measured(noise, params=params)
    assert found.unread == 10
    assert found.problem is None


def test_a_model_of_one_weight():
    meter = NoiseMeter(torch.zeros(1), torch.zeros(1), 1.0)
    random = torch.Generator().manual_seed(0)
    for _ in range(100):
        meter.add(torch.randn(1, generator=random))
    assert meter.audit(0.9999).problem is None


def noise_but(monkeypatch, change):
    def add_noise(gradients, scale, random):
        before = {name: gradient.clone() for name, gradient in gradients.items()}
        REAL_ADD_NOISE(gradients, scale, random)
        change(before, gradients)

    monkeypatch.setattr(step, "add_noise", add_noise)


def without_biases(before, noised):
    noised.update({name: before[name].float() for name in noised if name.endswith("bias")})


def without_one_weight(before, noised):
    noised["2.weight"][1, 3] = before["2.weight"][1, 3]


def alike(before, noised):
    """As many numbers of the first tensor's noise as the last weight has."""
    size = before["2.weight"].numel()
    noise = (noised["0.weight"] - before["0.weight"]).flatten()[:size]
    noised["2.weight"] = (before["2.weight"] + noise.view_as(before["2.weight"])).float()


@pytest.mark.parametrize("change", [without_biases, without_one_weight, alike])
def test_an_engine_that_forgets_noise_off_the_canarys_line_is_refuted(monkeypatch, change):
    noise_but(monkeypatch, change)
    found = audit_step(subject(network()), draws=300, seed=1)
    assert found.noise.problem is not None
    assert found.is_refuted
    unseen = dataclasses.replace(found, noise=dataclasses.replace(found.noise, least=1.0, alike=0.0, repeated=0.0))
    if change is not without_biases:
        assert not unseen.is_refuted, "the line of the canary shows it too: this test is of what it does not show"
