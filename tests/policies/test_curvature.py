"""The private curvature, on quadratics of known curvature."""

import json
import math

import numpy as np
import pytest

from alidpfl.policies import CurvatureEstimate, pool
from alidpfl.types import SecantSums

CURVATURE, PARAMS, PAIRS = 0.7, 400, 3


def secants(rng, *, noise, length=1.0, curvature=CURVATURE, num_params=PARAMS):
    """Noised gradients of F = (curvature/2)‖w‖² at fresh pairs of weights `length` apart."""
    moves = rng.standard_normal((PAIRS, num_params))
    moves *= length / np.linalg.norm(moves, axis=1, keepdims=True)
    change = curvature * moves + noise * (rng.standard_normal(moves.shape) - rng.standard_normal(moves.shape))
    return SecantSums(
        product=float((change * moves).sum()),
        displacement=float((moves**2).sum()),
        noise=0.0,  # these moves do not hold the noise
        noise_variance=2 * noise**2 * float((moves**2).sum()),
    )


def estimate(seed, *, rounds=30, clients=10, **given):
    rng, state = np.random.default_rng(seed), CurvatureEstimate()
    for _ in range(rounds):
        state = state.observe(pool([(0.1, secants(rng, **given)) for _ in range(clients)]))
    return state


def test_it_finds_a_known_curvature():
    """At noise 0.5 a pair's product has standard deviation 0.7, as large as its mean."""
    for seed in range(20):
        assert estimate(seed, noise=0.5).value == pytest.approx(CURVATURE, rel=0.4)
    assert estimate(0, noise=0.0).value == pytest.approx(CURVATURE, rel=1e-9)


def test_it_claims_nothing_that_noise_could_have_made():
    """False positives are 0.13 % a look by design."""
    unresolved = [estimate(seed, noise=1.0, rounds=6, curvature=0.0).value is None for seed in range(100)]
    assert sum(unresolved) >= 99
    # And the test has power: what it demands is not out of reach.
    assert sum(estimate(seed, noise=0.1, rounds=12).value is None for seed in range(20)) == 0


def test_the_variance_it_tracks_is_the_variance_there_is():
    states = [estimate(seed, noise=1.0, rounds=6, curvature=0.0, clients=3) for seed in range(300)]
    spread = np.std([state.signal for state in states])
    tracked = np.mean([math.sqrt(state.noise_variance) for state in states])
    assert spread == pytest.approx(tracked, rel=0.12)  # 3 standard errors of a standard deviation of 300
    assert abs(np.mean([state.signal for state in states])) < 3.5 * spread / math.sqrt(300)


def test_averages_by_hand():
    first = SecantSums(product=5.0, displacement=4.0, noise=1.0, noise_variance=0.5)
    second = SecantSums(product=3.0, displacement=2.0, noise=1.0, noise_variance=0.1)
    state = CurvatureEstimate().observe(first)
    assert state.value == pytest.approx(1.0)  # 4/4: the slow start of the averages cancels
    state = state.observe(second)
    assert state.signal == pytest.approx(0.9 * 0.4 + 0.1 * 2)
    assert state.displacement == pytest.approx(0.9 * 0.4 + 0.1 * 2)
    assert state.noise_variance == pytest.approx(0.81 * 0.01 * 0.5 + 0.01 * 0.1)
    assert state.count == 2


def test_it_resolves_beyond_three_standard_deviations_and_not_before():
    def after(signal):
        return CurvatureEstimate().observe(
            SecantSums(product=10 + signal, displacement=1.0, noise=10.0, noise_variance=4.0)
        )

    assert after(5.99).value is None
    assert after(6.01).value == pytest.approx(6.01)
    assert CurvatureEstimate().value is None


def test_it_survives_json():
    state = estimate(1, noise=0.05, rounds=3)
    assert CurvatureEstimate.from_json(json.loads(json.dumps(state.to_json()))) == state


def test_pooling_by_hand():
    one = SecantSums(product=6.0, displacement=2.0, noise=2.0, noise_variance=4.0)  # ratio 2, variance 1
    two = SecantSums(product=5.0, displacement=1.0, noise=1.0, noise_variance=3.0)  # ratio 4, variance 3
    both = pool([(0.6, one), (0.2, two)])  # shares 3/4 and 1/4; median displacement 1.5
    assert both.displacement == 1.5
    assert (both.product - both.noise) / both.displacement == pytest.approx(0.75 * 2 + 0.25 * 4)
    assert both.noise_variance / 1.5**2 == pytest.approx(0.75**2 * 1 + 0.25**2 * 3)
    alone = pool([(0.3, one)])
    assert (alone.product, alone.displacement, alone.noise, alone.noise_variance) == pytest.approx((6, 2, 2, 4))
    assert pool([]) is None


def test_pooling_does_not_depend_on_who_answers_first():
    rng = np.random.default_rng(5)
    sums = [(0.05 * (i + 1), secants(rng, noise=0.3)) for i in range(9)]
    shuffled = [sums[i] for i in rng.permutation(9)]
    assert pool(sums) == pool(shuffled)


LIES = [
    {"product": 1e30},
    {"displacement": 1e30},
    {"noise": 1e30},
    {"noise_variance": 1e30},
    {"noise_variance": 0.0},
    {"product": 1e30, "displacement": 1e30},
    {"product": 1e30, "noise": 1e30},
    {"product": 1e30, "displacement": 1e-30},
    {"product": 1e99, "displacement": 1e-99, "noise_variance": 1e99},
    {"product": math.nan},
    {"displacement": 0.0},
    {"displacement": -1.0},
    {"noise": math.inf},
    {"noise": -1e30},
    {"noise_variance": -1.0},
    {"product": 1e300, "noise_variance": 1e308},
]


@pytest.mark.parametrize("lie", LIES, ids=str)
@pytest.mark.parametrize("clients", [5, 10])
def test_one_liar_does_not_move_it_far(lie, clients):
    rng, state = np.random.default_rng(11), CurvatureEstimate()
    for _ in range(30):
        sums = [(1 / clients, secants(rng, noise=0.03)) for _ in range(clients)]
        fields = {**vars(sums[0][1]), **lie}
        sums[0] = (1 / clients, SecantSums(**fields))
        state = state.observe(pool(sums))
    assert state.value == pytest.approx(CURVATURE, rel=0.15)


def test_a_noise_that_drowns_the_sum_is_drawn_in():
    """Two huge numbers with an honest gap pass the trimming, but must not eat the digits of the rest."""
    honest = [SecantSums(product=s + 1, displacement=1.0, noise=1.0, noise_variance=0.1) for s in (1, 2, 4, 5)]
    liar = SecantSums(product=1e15 + 3, displacement=1.0, noise=1e15, noise_variance=0.1)
    pooled = pool([(0.2, sums) for sums in [*honest, liar]])
    assert pooled.noise == pytest.approx(1.0)
    assert pooled.product - pooled.noise == pytest.approx(3.0)


@pytest.mark.parametrize("seed", range(20))
def test_pooled_sums_can_always_be_observed(seed):
    """A pooled product below 0 would be dropped, and only the high ones would be left."""
    rng = np.random.default_rng(seed)
    numbers = 10 ** rng.uniform(-3, 3, size=(int(rng.integers(1, 12)), 4)) * rng.integers(0, 2, size=(1, 4))
    sums = [
        SecantSums(product=float(a), displacement=float(10**b), noise=float(c), noise_variance=float(d))
        for a, b, c, d in numbers.clip(0, 100)
    ]
    pooled = pool([(float(w), s) for w, s in zip(rng.uniform(0.01, 1, len(sums)), sums, strict=True)])
    assert CurvatureEstimate().observe(pooled).count == 1


def test_a_tenth_of_many_may_lie():
    rng = np.random.default_rng(2)
    sums = [(0.02, secants(rng, noise=0.03)) for _ in range(45)]
    sums += [(0.02, SecantSums(product=1e30, displacement=1.0, noise=0.0, noise_variance=0.0))] * 5
    assert CurvatureEstimate().observe(pool(sums)).value == pytest.approx(CURVATURE, rel=0.15)


@pytest.mark.parametrize("weight", [0.0, -1.0, math.nan, math.inf])
def test_a_weight_that_is_none_counts_for_nothing(weight):
    sums = SecantSums(product=1.0, displacement=1.0, noise=0.0, noise_variance=0.0)
    assert pool([(weight, sums)]) is None


def test_what_cannot_be_used_changes_nothing():
    state = estimate(1, noise=0.05, rounds=3)
    for lie in LIES[9:]:
        honest = {"product": 1.0, "displacement": 1.0, "noise": 0.5, "noise_variance": 0.1}
        assert state.observe(SecantSums(**{**honest, **lie})) == state


def test_a_round_below_its_noise_still_counts():
    """To drop negative signals would bias the average upwards."""
    low = SecantSums(product=1.0, displacement=1.0, noise=4.0, noise_variance=1.0)
    pooled = pool([(0.5, low), (0.5, low)])
    assert pooled.product - pooled.noise == pytest.approx(-3.0)
    assert CurvatureEstimate().observe(pooled).signal == pytest.approx(-0.3)


@pytest.mark.parametrize("noise", [1e-4, 0.1, 1.0])
def test_consecutive_steps_are_not_biased_where_noise_makes_the_move(noise):
    """w' − w = −η(g + n) holds the noise n that g̃' − g̃ holds too: the product gains η s² d, and nothing else."""
    rng, eta, num_params = np.random.default_rng(3), 0.5, 20_000
    point, state = np.full(num_params, 1.0), CurvatureEstimate()
    gradient = CURVATURE * point + noise * rng.standard_normal(num_params)
    for _ in range(8):
        moved = point - eta * gradient
        new = CURVATURE * moved + noise * rng.standard_normal(num_params)
        displacement = float(((moved - point) ** 2).sum())
        state = state.observe(
            SecantSums(
                product=float(((new - gradient) * (moved - point)).sum()),
                displacement=displacement,
                noise=eta * noise**2 * num_params,
                noise_variance=2 * noise**2 * displacement + eta**2 * noise**4 * num_params,
            )
        )
        point, gradient = moved, new
    assert state.value == pytest.approx(CURVATURE, rel=0.1)
