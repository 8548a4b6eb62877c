"""A client's round: exactly its plan, and nothing but noised quantities out."""

import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from alidpfl.dpsgd import PerSampleClipper, RandomStream, StepSettings, cross_entropy, dp_sgd_step, poisson_sample
from alidpfl.errors import DataError
from alidpfl.federation import client
from alidpfl.federation.client import ClientData, LocalTrainer
from alidpfl.federation.tensors import flatten, load, trained, unflatten
from alidpfl.methods.method import Objective
from alidpfl.types import ClientPlan
from tests.federation.conftest import make_data, make_model

PLAN = ClientPlan(
    client=2, round=0, sample_rate=0.2, noise_multiplier=1.5, clip_norm=0.7, learning_rates=(0.5, 0.4, 0.3)
)


def client_data(rows=slice(50, 100)) -> ClientData:
    data = make_data()
    return ClientData(inputs=data.inputs, targets=data.targets, rows=torch.arange(len(data.inputs))[rows])


def trainer(model=None) -> LocalTrainer:
    return LocalTrainer(Objective(model=model or make_model(), loss=cross_entropy))


def flat_data(num_records: int = 40, num_features: int = 2000) -> ClientData:
    """Inputs of zero: with no bias every gradient is zero, and what comes out is noise alone."""
    return ClientData(
        inputs=torch.zeros(num_records, num_features),
        targets=torch.zeros(num_records, dtype=torch.int64),
        rows=torch.arange(num_records),
    )


def flat_model(num_features: int = 2000) -> torch.nn.Module:
    return torch.nn.Linear(num_features, 2, bias=False)


def test_a_round_is_the_plans_steps_one_by_one():
    data, model = client_data(), make_model()
    start = flatten(trained(model))
    update = trainer().train(start, data, PLAN, RandomStream.seeded(1))

    clipper, random = PerSampleClipper(model), RandomStream.seeded(1)
    for learning_rate in PLAN.learning_rates:
        x, y = data.batch(poisson_sample(50, 0.2, random))
        settings = StepSettings(
            clip_norm=0.7, noise_multiplier=1.5, learning_rate=learning_rate, expected_batch_size=10.0
        )
        dp_sgd_step(clipper, x, y, settings, random)
    assert torch.equal(update.params, flatten(clipper.parameters))


def test_only_weights_leave_unless_signals_are_asked_for():
    update = trainer().train(flatten(trained(make_model())), client_data(), PLAN, RandomStream.seeded(1))
    assert (update.secants, update.gradient_norm, update.raw) == (None, None, None)


def test_signals_do_not_change_the_weights():
    start = flatten(trained(make_model()))
    asked = replace(PLAN, signals=frozenset({"secants", "gradient_norm", "raw"}))
    plain, told = (trainer().train(start, client_data(), p, RandomStream.seeded(1)) for p in (PLAN, asked))
    assert torch.equal(plain.params, told.params)
    assert told.secants is not None
    assert told.gradient_norm is not None
    assert told.raw is not None


def test_the_divisor_is_public_and_ignores_what_the_batch_turned_out_to_be():
    """A record whose gradient is zero, put in place of another such one or left out of every batch, changes no bit."""
    model, start = flat_model(), torch.randn(4000)
    data = flat_data()
    whole = trainer(model).train(start, data, PLAN, RandomStream.seeded(3)).params
    drawn = iter([torch.arange(0), torch.arange(20), torch.arange(40)])  # batches of other sizes, the same noise
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "alidpfl.federation.client.poisson_sample", lambda n, q, random: (random.uniform(n), next(drawn))[1]
        )
        other = trainer(model).train(start, data, PLAN, RandomStream.seeded(3)).params
    moved = start - whole
    expected = 1.5 * 0.7 / (0.2 * 40) * math.sqrt(sum(rate**2 for rate in PLAN.learning_rates))
    assert torch.equal(whole, other)
    assert float(moved.std()) == pytest.approx(expected, rel=0.05)  # 4,000 draws: 4.5 standard errors
    assert float(moved.std()) != pytest.approx(expected * 1.25, rel=0.05)


def test_no_step_meets_a_denormal_number(monkeypatch):
    """They take a hundred times as long, so that time would tell which records meet them."""
    seen = []

    def drawn(num_records, sample_rate, random):
        seen.append(float(torch.full((1,), 1e-30) * torch.full((1,), 1e-10)))
        return poisson_sample(num_records, sample_rate, random)

    monkeypatch.setattr(client, "poisson_sample", drawn)
    trainer().train(flatten(trained(make_model())), client_data(), PLAN, RandomStream.seeded(1))
    assert seen == [0.0] * PLAN.steps


def test_secants_of_pure_noise_are_what_their_own_figures_say():
    """The noise's mean and variance are claimed; measure them. Wrong by a quarter, either would be seen."""
    plan = replace(PLAN, signals=frozenset({"secants"}))
    model, start, data = flat_model(), torch.zeros(4000), flat_data()
    local = trainer(model)
    seen = [local.train(start, data, plan, RandomStream.seeded(9, i)).secants for i in range(400)]
    added = (0.5 + 0.4) * 4000 * (1.5 * 0.7 / 8) ** 2  # Σ c s² d; the rest of what is claimed bounds the sampling
    products = torch.tensor([s.product for s in seen], dtype=torch.float64)
    claimed = sum(s.noise_variance for s in seen) / len(seen)
    assert abs(float(products.mean()) - added) < 4 * math.sqrt(claimed / len(seen))
    assert claimed * 0.7 < float(products.var()) < claimed * 1.3  # 4 standard errors
    assert seen[0].noise == pytest.approx(added + (0.5 + 0.4) * 0.8 * 0.7**2 / 8)


def test_secants_displacement_is_how_far_the_weights_moved_between_gradients():
    plan = replace(PLAN, signals=frozenset({"secants"}), learning_rates=(0.5, 0.25))
    start = flatten(trained(make_model()))
    one_step = trainer().train(start, client_data(), replace(plan, learning_rates=(0.5,)), RandomStream.seeded(1))
    two_steps = trainer().train(start, client_data(), plan, RandomStream.seeded(1))
    moved = float((one_step.params - start).double().square().sum())
    assert two_steps.secants.displacement == pytest.approx(moved, rel=1e-4)
    assert one_step.secants is None


def test_gradient_norm_is_debiased():
    """Pure noise has norm σC√d/B; without its share taken off, Adap DP-FL's clip norm would run away."""
    plan = replace(PLAN, signals=frozenset({"gradient_norm"}))
    raw = 1.5 * 0.7 * math.sqrt(4000) / 8
    measured = trainer(flat_model()).train(torch.zeros(4000), flat_data(), plan, RandomStream.seeded(2)).gradient_norm
    assert measured < raw / 3


def test_update_release_clips_and_noises_the_whole_update_once():
    plan = replace(PLAN, release="update", clip_norm=0.3, learning_rates=(5.0,) * 20, noise_multiplier=1e-3)
    start = flatten(trained(make_model()))
    moved = trainer().train(start, client_data(), plan, RandomStream.seeded(1)).params - start
    assert float(moved.norm()) == pytest.approx(0.3, rel=0.02)  # the steps would have gone much further
    noisy = replace(plan, noise_multiplier=2.0)
    noise = trainer(flat_model()).train(torch.zeros(4000), flat_data(), noisy, RandomStream.seeded(1)).params
    assert float(noise.std()) == pytest.approx(2 * 0.3 * 2.0, rel=0.05)
    assert float(noise.std()) != pytest.approx(0.3 * 2.0, rel=0.05)


def test_a_trial_of_the_model_takes_no_record(monkeypatch):
    """It comes before the charge."""
    made, asked = trainer(), []
    real = made._clipper.clipped_sum

    def spy(inputs, targets, *, rows, **settings):
        asked.append(rows)
        return real(inputs, targets, rows=rows, **settings)

    monkeypatch.setattr(made._clipper, "clipped_sum", spy)
    made.rehearse(client_data())
    assert [len(rows) for rows in asked] == [0]


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3, 1e15])
def test_what_an_update_contributes_never_exceeds_s_by_any_rounding(monkeypatch, scale):
    """Strictly: what is charged is noise for a move of 2S, and not a little more."""
    seen = []
    monkeypatch.setattr(client, "add_noise", lambda released, *_: seen.append(released["update"].clone()))
    plan = replace(PLAN, release="update", clip_norm=0.7)
    for seed in range(200):
        after = scale * torch.randn(1 + 7 * seed, generator=torch.Generator().manual_seed(seed))
        client._noised_update(torch.zeros(len(after)), after, plan, RandomStream.seeded(1))
    norms = [math.sqrt(sum(Fraction(value) ** 2 for value in update.tolist())) for update in seen]
    assert max(norms) <= 0.7
    assert scale < 1 or min(norms[10:]) > 0.7 * (1 - 1e-5), "updates are clipped to S, and not far below"


@pytest.mark.parametrize("end", [math.inf, math.nan])
def test_update_release_sends_noise_when_the_update_is_not_finite(end):
    plan = replace(PLAN, release="update")
    before = torch.zeros(1000)
    sent = client._noised_update(before, torch.full((1000,), end), plan, RandomStream.seeded(1))
    assert torch.isfinite(sent).all()
    assert float(sent.std()) == pytest.approx(2 * 0.7 * 1.5, rel=0.1)  # noise alone


def test_raw_signals_are_the_papers_on_a_quadratic():
    """ℓ = |w·x − y|²/2 has curvature x² everywhere: the secant must find it."""
    data = ClientData(inputs=torch.full((8, 1), 3.0), targets=torch.zeros(8, dtype=torch.int64), rows=torch.arange(8))
    objective = Objective(model=torch.nn.Linear(1, 1, bias=False), loss=lambda out, y: 0.5 * (out[:, 0] - y).square())
    plan = replace(PLAN, signals=frozenset({"raw"}))
    update = LocalTrainer(objective).train(torch.tensor([0.5]), data, plan, RandomStream.seeded(0))
    assert update.raw.curvature == pytest.approx(9.0, rel=1e-4)
    assert update.raw.loss_before == pytest.approx(0.5 * 1.5**2)


def test_an_empty_client_is_refused():
    with pytest.raises(DataError, match="client 2"):
        trainer().train(torch.zeros(43), client_data(slice(0, 0)), PLAN, RandomStream.seeded(0))


def test_parameters_travel_as_one_vector_and_come_back():
    model = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.Flatten(), torch.nn.Linear(3, 2))
    model.to(memory_format=torch.channels_last)  # logical order must not depend on the memory's
    vector = flatten(trained(model))
    other = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.Flatten(), torch.nn.Linear(3, 2))
    load(vector, trained(other))
    for name, parameter in other.named_parameters():
        assert torch.equal(parameter, model.get_parameter(name))
    with pytest.raises(ValueError, match="shape"):
        unflatten(vector[1:], trained(other))
