import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alidpfl.privacy.step_search import largest_affordable, nearly_least

COSTS = {
    "linear": lambda n: 0.37 * n,
    "square root": math.sqrt,
    "square": lambda n: n**2,
    "steps of stairs": lambda n: n // 1000,
    "cliff": lambda n: 0.0 if n <= 4321 else math.inf,
    "not a number beyond": lambda n: 1.0 if n <= 77 else math.nan,
    "exponential": lambda n: math.exp(min(n, 700)),
}


@pytest.mark.parametrize("name", COSTS)
@given(limit=st.floats(0, 1e5), guess=st.integers(-5, 10**7))
def test_the_end_is_safe_whatever_the_cost_and_the_guess(name, limit, guess):
    cost, probed = COSTS[name], set()

    def counted(n):
        assert 1 <= n <= 10**6
        probed.add(n)
        return cost(n)

    found = largest_affordable(counted, limit, low=0, high=10**6, guess=guess)
    assert found == 0 or cost(found) <= limit
    assert found == 10**6 or not cost(found + 1) <= limit
    assert {found, found + 1} - probed <= {0, 10**6 + 1}
    assert len(probed) <= 120


def test_a_right_guess_takes_two_probes():
    probes = []
    largest_affordable(lambda n: probes.append(n) or float(n), 500.5, low=0, high=10**7, guess=500)
    assert probes == [500, 501]


FALLING = {
    "inverse": lambda x: 3 / x,
    "steep": lambda x: 5 / x**6,
    "shallow": lambda x: 9 / x**0.3,
    "a cliff": lambda x: 100.0 if x < 7.5 else 1e-3,
    "not a number below": lambda x: math.nan if x < 20 else 1 / x,
    "endless below": lambda x: math.inf if x < 2 else 4 / x,
}


@pytest.mark.parametrize("name", FALLING)
@given(limit=st.floats(1e-2, 100), guess=st.floats(1e-6, 1e9))
def test_what_nearly_least_returns_was_probed_and_fits(name, limit, guess):
    cost, probed = FALLING[name], set()

    def counted(x):
        assert 1e-3 <= x <= 1e6
        probed.add(x)
        return cost(x)

    found = nearly_least(counted, limit, low=1e-3, high=1e6, guess=guess, tolerance=1e-2)
    if found is None:
        assert not cost(1e6) <= limit
        return
    assert found in probed
    assert cost(found) <= limit
    # Near the limit, or at the end, or at a jump of the cost: then a little less does not fit.
    assert cost(found) >= 0.99 * limit or found == 1e-3 or not cost(found * 0.999) <= limit
    assert len(probed) <= 60
