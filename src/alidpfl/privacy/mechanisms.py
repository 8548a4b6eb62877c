"""Mechanisms that touch the data, as plain values. Accountants interpret them; nothing here computes ε."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import dp_accounting

from alidpfl.errors import ConfigError
from alidpfl.inputs import checks

MAX_STEPS = 10_000_000
"""Largest number of repetitions of one mechanism. Searches for a number of steps stop there."""

MIN_NOISE_MULTIPLIER, MAX_NOISE_MULTIPLIER = 1e-3, 1e6
"""Accepted range of σ. Below it one release costs ε > 400,000, above it almost nothing: both suggest a wrong unit."""


@dataclass(frozen=True, kw_only=True)
class SampledGaussian:
    """`steps` DP-SGD steps: Poisson-sample at `sample_rate`, sum with sensitivity C, add N(0, (σC)²).

    Neighbouring data sets differ by one added or removed record. All three numbers must be public, or depend only on
    what was already released (then account with `RdpFilter`).
    """

    sample_rate: float
    """q, the probability that a record joins the batch, in (0, 1]."""
    noise_multiplier: float
    """σ, the noise's standard deviation divided by the clip norm."""
    steps: int = 1
    """Number of steps, T."""

    def __post_init__(self) -> None:
        rule = "must be in (0, 1]; did you pass a batch size?"
        sample_rate = checks.real("sample_rate", self.sample_rate, above=0, high=1, rule=rule)
        object.__setattr__(self, "sample_rate", sample_rate)
        object.__setattr__(self, "noise_multiplier", checked_noise_multiplier(self.noise_multiplier))
        object.__setattr__(self, "steps", checks.whole("steps", self.steps, low=1, high=MAX_STEPS))

    @property
    def event(self) -> dp_accounting.DpEvent:
        """The same mechanism as an event of dp-accounting."""
        gaussian = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        # At q = 1 nothing is sampled, and k Gaussian releases then compose in closed form.
        step = gaussian if self.sample_rate == 1 else dp_accounting.PoissonSampledDpEvent(self.sample_rate, gaussian)
        return dp_accounting.SelfComposedDpEvent(step, self.steps)


@dataclass(frozen=True, kw_only=True)
class GaussianRelease:
    """`count` releases of a query over the whole data set, each with Gaussian noise of σ times its L2 sensitivity."""

    noise_multiplier: float
    """σ, the noise's standard deviation divided by the query's L2 sensitivity."""
    count: int = 1
    """Number of releases with this noise."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", checked_noise_multiplier(self.noise_multiplier))
        object.__setattr__(self, "count", checks.whole("count", self.count, low=1, high=MAX_STEPS))


Mechanism: TypeAlias = SampledGaussian | GaussianRelease

Composition: TypeAlias = tuple[SampledGaussian, ...]
"""Distinct mechanisms in a fixed order, each with all of its steps: equal compositions are equal values."""


def checked_noise_multiplier(noise_multiplier: object) -> float:
    """Return `noise_multiplier` as a float in the accepted range; ConfigError otherwise."""
    low, high = MIN_NOISE_MULTIPLIER, MAX_NOISE_MULTIPLIER
    rule = f"must be between {low:g} and {high:g}; it is the noise's standard deviation divided by the clip norm"
    return checks.real("noise_multiplier", noise_multiplier, low=low, high=high, rule=rule)


def merged(mechanisms: Iterable[Mechanism]) -> Composition:
    """Return the mechanisms with equal ones added up. The order of the input does not matter.

    >>> merged([SampledGaussian(sample_rate=0.1, noise_multiplier=2.0, steps=3)] * 2)
    (SampledGaussian(sample_rate=0.1, noise_multiplier=2.0, steps=6),)
    """
    if isinstance(mechanisms, SampledGaussian | GaussianRelease | Iterator):
        # An iterator is empty when it is read again. Then nothing would seem to have been spent.
        raise ConfigError(f"mechanisms must be a list or tuple of them, not a {type(mechanisms).__name__}")
    steps: Counter[tuple[float, float]] = Counter()
    for mechanism in mechanisms:
        match mechanism:
            case SampledGaussian():
                steps[mechanism.sample_rate, mechanism.noise_multiplier] += mechanism.steps
            case GaussianRelease():  # the same as sampling every record
                steps[1.0, mechanism.noise_multiplier] += mechanism.count
            case _:
                raise ConfigError(f"mechanism={mechanism!r} must be a SampledGaussian or a GaussianRelease")
    return tuple(
        SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier, steps=count)
        for (sample_rate, noise_multiplier), count in sorted(steps.items())
    )
