"""Noise on a grid is the rounding of real Gaussian noise: its exact δ is never above what the accountants say.

Computed here directly, over every outcome of a few steps, from the probabilities of round(N(0, s²)).
"""

import math
from functools import reduce

import numpy as np
import pytest
from scipy.special import ndtr

from alidpfl.privacy import SampledGaussian, epsilon


def rounded(deviation, shift, reach):
    """P(shift + round(N(0, s²)) = k) for |k| <= reach: tails as differences of small numbers."""
    k = -np.abs(np.arange(-reach, reach + 1) - shift)
    return ndtr((k + 0.5) / deviation) - ndtr((k - 0.5) / deviation)


def exact_delta(eps, *, deviation, shift, sample_rate, steps):
    """δ(ε) of `steps` Poisson-sampled releases where the record adds the vector `shift`; the worse direction."""
    reach = math.ceil(8 * deviation) + 2 * max(shift)
    without = reduce(np.multiply.outer, [rounded(deviation, 0, reach) for _ in shift]).ravel()
    present = reduce(np.multiply.outer, [rounded(deviation, z, reach) for z in shift]).ravel()
    one, other = without, (1 - sample_rate) * without + sample_rate * present
    one, other = (reduce(np.multiply.outer, [p] * steps).ravel() for p in (one, other))
    return max(float(np.maximum(a - math.exp(eps) * b, 0).sum()) for a, b in ((one, other), (other, one)))


CASES = [
    # s, the record's vector, steps; σ = s / |vector|
    (4.0, (2,), 3),
    (4.0, (4,), 2),
    (2.0, (1,), 3),
    (7.5, (3, 4), 1),
    (4.0, (1, 2, 2), 1),
]


@pytest.mark.parametrize(("deviation", "shift", "steps"), CASES)
@pytest.mark.parametrize("sample_rate", [0.1, 0.5, 1.0])
def test_the_exact_delta_is_within_the_claim(deviation, shift, steps, sample_rate):
    sigma, delta = deviation / math.hypot(*shift), 1e-5
    known = {"shift": shift, "sample_rate": sample_rate, "steps": steps}
    for accountant in ("pld", "rdp", "rdp-paper"):
        claimed = epsilon(
            [SampledGaussian(sample_rate=sample_rate, noise_multiplier=sigma, steps=steps)], delta, accountant
        )
        assert exact_delta(claimed, deviation=deviation, **known) <= delta
        if accountant == "pld":  # and no further off than rounding makes it
            assert exact_delta(0.8 * claimed, deviation=deviation, **known) > delta
            assert exact_delta(claimed, deviation=deviation / 1.25, **known) > delta
