"""Learning rate schedules."""

import math

import pytest

from alidpfl.errors import ConfigError
from alidpfl.policies import SCHEDULES, learning_rate


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("steps", [1, 2, 317, 100_000])
def test_schedules_start_at_the_base_never_rise_and_stay_positive(schedule, steps):
    rates = [learning_rate(schedule, 0.5, t / steps) for t in range(0, steps, max(1, steps // 1000))]
    rates.append(learning_rate(schedule, 0.5, (steps - 1) / steps))
    assert rates[0] == 0.5
    assert rates == sorted(rates, reverse=True)
    assert 0 < learning_rate(schedule, 0.5, 1.0) <= rates[-1]


def test_schedules_by_hand():
    assert learning_rate("constant", 0.5, 0.99) == 0.5
    assert [learning_rate("late_decay", 1.0, p) for p in (0.3, 0.6, 0.8, 0.9)] == pytest.approx([1, 1, 0.55, 0.325])
    assert learning_rate("late_decay", 1.0, 1.0) == pytest.approx(0.1, abs=0.003)
    assert [learning_rate("linear", 2.0, p) for p in (0.25, 0.75, 1.0)] == pytest.approx([1.5, 0.5, 0.002])
    assert [learning_rate("cosine", 1.0, p) for p in (0.5, 2 / 3)] == pytest.approx([0.5, 0.25])
    assert learning_rate("cosine", 1.0, 1.0) == pytest.approx((math.pi / 2 * 0.001) ** 2, rel=1e-4)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("late-decay", 0.5, 0.1), "schedule='late-decay'.*'late_decay'"),
        (("linear", 0.0, 0.1), "learning_rate=0.0"),
        (("linear", math.nan, 0.1), "learning_rate=nan"),
        (("linear", 0.5, 1.01), "progress=1.01"),
        (("linear", 0.5, -0.1), "progress=-0.1"),
        (("linear", 0.5, math.nan), "progress=nan"),
    ],
)
def test_schedules_refuse_values_out_of_range(given, message):
    with pytest.raises(ConfigError, match=message):
        learning_rate(*given)
