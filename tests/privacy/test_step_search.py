import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alidpfl.privacy.search import largest_affordable

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
