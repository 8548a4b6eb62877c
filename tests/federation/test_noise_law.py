"""Honest updates stay within their law, and the law is narrow."""

import math
from dataclasses import replace

import pytest
import torch
from scipy import stats

from alidpfl.federation.noise_law import HonestLaw, Seen, largest_batch, longest_sum, shortened, shortest_sum
from alidpfl.types import ClientPlan

PLAN = ClientPlan(client=0, round=0, sample_rate=0.2, noise_multiplier=1.5, clip_norm=0.7, learning_rates=(0.5,))
RECORDS, PARAMS, DRAWS = 300, 400, 4000


def law(plan=PLAN, false_alarm=1e-6, clients=1, num_params=PARAMS):
    return HonestLaw.of(plan, num_params=num_params, num_records=RECORDS, num_clients=clients, false_alarm=false_alarm)


def worst_updates(plan, *, toward: float, draws=DRAWS, seed=0):
    """Draw honest updates in which every record's gradient has norm C, along or against what moved so far."""
    random = torch.Generator().manual_seed(seed)
    moved = torch.zeros(draws, PARAMS, dtype=torch.float64)
    moved[:, 0] = 1e-12
    divisor = plan.sample_rate * RECORDS
    for rate in plan.learning_rates:
        chance = torch.full((draws,), plan.sample_rate, dtype=torch.float64)
        batch = torch.binomial(torch.full_like(chance, RECORDS), chance, generator=random)
        direction = toward * moved / moved.norm(dim=1, keepdim=True)
        noise = torch.randn(draws, PARAMS, dtype=torch.float64, generator=random) * plan.noise_multiplier
        moved = moved + rate * plan.clip_norm / divisor * (batch[:, None] * direction + noise)
    return moved


def most_allowed(chance: float, draws: int = DRAWS) -> int:
    """Return a count that `draws` events of this chance exceed once in a million tests."""
    return int(stats.binom.isf(1e-6, draws, chance))


@pytest.mark.parametrize("rates", [(0.5,), (0.5, 0.3, 0.1)])
def test_the_worst_honest_updates_cross_the_limits_no_more_often_than_promised(rates):
    plan, level = replace(PLAN, learning_rates=rates), 1e-2
    loose = law(plan, false_alarm=level)
    longest = worst_updates(plan, toward=1.0).norm(dim=1)
    assert int((longest > loose.longest()).sum()) <= most_allowed(level)
    shortest = worst_updates(plan, toward=-0.1).norm(dim=1)
    assert int((shortest < loose.shortest()).sum()) <= most_allowed(level)
    directions = torch.nn.functional.normalize(
        torch.randn(3, PARAMS, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    )
    basis = torch.linalg.qr(directions.T).Q
    updates = worst_updates(plan, toward=-0.1, seed=2)
    left = (updates - updates @ basis @ basis.T).norm(dim=1)
    assert int((left < loose.shortest(without=3)).sum()) <= most_allowed(level)
    along = (updates @ directions[0]).abs()
    assert int((along > loose.largest_component()).sum()) <= most_allowed(level)


def test_the_limits_are_close_to_the_exact_quantiles():
    """A limit that is twice too wide would let through what it should stop."""
    for signal, noise, size in [(0.0, 1.0, 400), (10.0, 0.05, 32_200), (3.0, 1.0, 1_000_000)]:
        exact = stats.ncx2 if signal else stats.chi2
        shape = (size, (signal / noise) ** 2) if signal else (size,)
        high = noise * math.sqrt(exact.isf(1e-8, *shape))
        low = noise * math.sqrt(exact.ppf(1e-8, *shape))
        x = math.log(1e8)
        assert high <= longest_sum(signal, noise, size, x) <= high * 1.04
        assert low * 0.85 <= shortest_sum(signal, noise, size, x) <= low


def test_batches_exceed_their_limit_no_more_often_than_promised():
    for records, rate in [(50, 0.02), (300, 0.2), (60_000, 0.25), (100, 1.0)]:
        for chance in (1e-2, 1e-8):
            limit = largest_batch(records, rate, math.log(1 / chance))
            assert stats.binom.sf(math.floor(limit), records, rate) <= chance
            assert limit <= max(4 * stats.binom.isf(chance, records, rate), records * rate)


def test_an_honest_update_is_at_most_a_third_longer_than_typical():
    """Ten times an honest update used to pass."""
    typical = float(worst_updates(PLAN, toward=0.0).norm(dim=1).mean())
    assert law(clients=10).longest() < 2 * math.hypot(typical, 0.5 * 0.7)
    assert law(clients=10).shortest() > typical / 2


def test_noise_on_the_whole_update_has_its_own_law():
    on_update = law(replace(PLAN, release="update", learning_rates=(0.5, 0.5)))
    assert on_update.noise == pytest.approx(2 * 1.5 * 0.7)
    assert on_update.signals == pytest.approx((0.7,))


def test_more_clients_share_the_same_false_alarms():
    assert law(clients=100).log_odds > law(clients=1).log_odds + math.log(100)


def test_strong_signals_are_shortened_to_a_multiple_of_the_median():
    noise, x = 0.01, 18.0
    seen = [Seen(length=math.sqrt(10_000 * noise**2 + s**2), noise=noise) for s in (0.6, 0.5, 0.55, 0.9, 40.0)]
    *kept, cut = shortened(seen, 10_000, x, 2.0)
    assert kept == [1.0] * 4
    allowed = longest_sum(2 * 0.6, noise, 10_000, x) ** 2 - 10_000 * noise**2
    assert cut * 40.0 == pytest.approx(math.sqrt(allowed), rel=1e-6)
    assert 1.2 < cut * 40.0 < 1.5
    assert shortened(seen, 10_000, x, 1e9) == [1.0] * 5


def test_noise_alone_is_never_shortened():
    laws, random = [law(clients=50)] * 50, torch.Generator().manual_seed(3)
    for _ in range(50):
        lengths = (torch.randn(50, PARAMS, generator=random) * laws[0].noise).norm(dim=1).tolist()
        seen = [Seen(length=length, noise=laws[0].noise) for length in lengths]
        assert shortened(seen, PARAMS, laws[0].log_odds, 2.0) == [1.0] * 50
