"""The noise, weight by weight: correct noise passes, and gaps off the line of the canary are found."""

import dataclasses
import math

import pytest
import torch

from alidpfl.audit import audit_step
from alidpfl.audit.arms import make_arms
from alidpfl.audit.noise import NoiseMeter, largest_sum
from alidpfl.audit.subject import stream
from alidpfl.dpsgd import step
from tests.audit.parts import REAL_ADD_NOISE, network, subject

SIZE, DRAWS = 300, 400


def measured(noise, *, draws=DRAWS, params=None, mean=0.0, scale=1.0, **how):
    """Measure releases `noise(random)` (SIZE,)."""
    params = torch.zeros(SIZE) if params is None else params
    meter = NoiseMeter(params, scale, **how)
    random = torch.Generator().manual_seed(0)
    for _ in range(draws):
        meter.add(noise(random), torch.full((SIZE,), mean))
    return meter.audit(0.9999)


def honest(random):
    return torch.randn(SIZE, generator=random)


def test_honest_noise_passes_whatever_lies_under_it():
    found = measured(lambda random: 3 + 5 * honest(random), mean=3.0, scale=5.0)
    assert found.problem is None
    assert found.refuted_below < found.least < 1
    assert found.unread == 0
    assert found.releases == DRAWS


def test_honest_noise_is_refuted_as_seldom_as_is_said():
    """At confidence 0.5, half of them may be. Fewer are, because two of the three bounds are not tight."""
    refuted = 0
    for seed in range(200):
        random = torch.Generator().manual_seed(seed)
        meter = NoiseMeter(torch.zeros(20), 1.0)
        for _ in range(100):
            meter.add(torch.randn(20, generator=random), torch.zeros(20))
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
    assert f"weight {place} " in found.problem


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
        """Repeat the noise in every second release."""
        if len(kept) % 2 == 0:
            kept.append(honest(random))
        else:
            kept.append(kept[-1])
        return kept[-1]

    found = measured(noise)
    assert found.repeated > 1
    assert found.problem is not None


def test_weights_too_coarse_to_be_read_are_said_to_be():
    params = torch.zeros(SIZE)
    params[:10] = 1e9  # a float32 there is 64 from the next

    def noise(random):
        return (params + honest(random)) - params

    found = measured(noise, params=params)
    assert found.unread == 10
    assert found.problem is None


def test_a_model_of_one_weight():
    meter = NoiseMeter(torch.zeros(1), 1.0)
    random = torch.Generator().manual_seed(0)
    for _ in range(100):
        meter.add(torch.randn(1, generator=random), torch.zeros(1))
    assert meter.audit(0.9999).problem is None


def test_a_sum_of_products_exceeds_its_bound_as_seldom_as_is_said():
    """The sum has 50 products, and each number is in two of them."""
    assert largest_sum(100, 2 * math.exp(-3)) == pytest.approx(6 + math.sqrt(36 + 600))  # both signs share the error
    numbers = torch.randn(20_000, 51, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    sums = (numbers[:, 1:] * numbers[:, :-1]).sum(1).abs()
    for error in (0.3, 0.03):
        assert 0 < float((sums > largest_sum(50, error)).double().mean()) <= error


def test_what_lies_under_the_noise_need_not_be_known_exactly():
    """An offset looks like repeated noise. It must neither refute nor hide a weight without noise."""

    def noise(random):
        return honest(random) + 1

    assert measured(noise).problem is not None
    found = measured(noise, is_exact=False)
    assert found.problem is None
    assert (found.alike, found.repeated) == (None, None)

    def but_one(random):
        found = noise(random)
        found[5] = 1.0
        return found

    assert "weight 5 " in measured(but_one, is_exact=False).problem


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_releases_that_are_no_numbers_do_not_blind_it(number):
    def noise(random):
        found = 0 * honest(random)
        found[0] = number
        return found

    found = measured(noise)
    assert found.not_finite == DRAWS
    assert str(DRAWS) in found.problem


def test_noise_that_cannot_be_read_anywhere_is_said_to_be():
    found = measured(honest, params=torch.full((SIZE,), 1e9))
    assert (found.least, found.unread, found.problem) == (None, SIZE, None)


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
    """Use the noise of the first tensor again for the last weight."""
    size = before["2.weight"].numel()
    noise = (noised["0.weight"] - before["0.weight"]).flatten()[:size]
    noised["2.weight"] = (before["2.weight"] + noise.view_as(before["2.weight"])).float()


def test_noise_that_is_used_twice_is_found(monkeypatch):
    """The noise of one step is used again for the next."""
    kept = []

    def add_noise(gradients, scale, random):
        before = {name: gradient.double() for name, gradient in gradients.items()}
        if kept:
            noise = kept.pop()
            gradients.update({name: (before[name] + noise[name]).float() for name in before})
        else:
            REAL_ADD_NOISE(gradients, scale, random)
            kept.append({name: gradients[name] - before[name] for name in before})

    monkeypatch.setattr(step, "add_noise", add_noise)
    found = audit_step(subject(network()), draws=300, seed=1)
    assert found.noise.repeated > 1
    assert found.noise.problem is not None
    assert found.is_refuted


RANDOM_LOSSES = {
    "strong perturbation": {"perturbation": 1.0, "regularisation": 3.0},
    "dropout": {"model": torch.nn.Sequential(torch.nn.Dropout(0.8), torch.nn.Linear(8, 3))},
}


@pytest.mark.parametrize("name", RANDOM_LOSSES)
def test_a_correct_update_with_a_random_loss_is_not_refuted(name):
    """Its un-noised update is known on average only."""
    audited = subject(sigma=0.3, epsilon=50.0, method="pe_dpfl", variant="output", **RANDOM_LOSSES[name])
    assert not make_arms(audited, stream(1)).is_exact
    assert audit_step(audited, draws=2000, seed=1).noise.problem is None


@pytest.mark.parametrize(
    "settings", [{"model": network()}, {}, {"method": "pe_dpfl", "variant": "output", "regularisation": 0.0}]
)
def test_releases_lie_around_what_is_taken_to_be_under_the_noise(settings):
    arms = make_arms(subject(sigma=0.3, epsilon=50.0, **settings), stream(1))
    random, draws = stream(2), 300
    assert arms.unnoised.keys() == ({False} if settings.get("method") else {False, True})
    for is_in, unnoised in arms.unnoised.items():
        mean = torch.stack([arms.released(is_in, number, random) for number in range(draws)]).mean(0)
        off = (mean - unnoised) / (arms.noise_scale / draws**0.5)
        assert float(off.abs().max()) < 5
        if is_in or settings.get("method"):
            assert float(unnoised.norm()) > 5 * arms.noise_scale / draws**0.5, "nothing to tell apart"


@pytest.mark.parametrize("change", [without_biases, without_one_weight, alike])
def test_an_engine_that_forgets_noise_off_the_canarys_line_is_refuted(monkeypatch, change):
    noise_but(monkeypatch, change)
    found = audit_step(subject(network()), draws=300, seed=1)
    assert found.noise.problem is not None
    assert found.is_refuted
    unseen = dataclasses.replace(found, noise=dataclasses.replace(found.noise, least=1.0, alike=0.0, repeated=0.0))
    if change is not without_biases:
        assert not unseen.is_refuted, "the line of the canary shows it too: this test is of what it does not show"
