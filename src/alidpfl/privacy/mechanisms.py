"""What touches the data, as plain values: accountants interpret them, nothing here computes an ε."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import dp_accounting

from alidpfl.errors import ConfigError
from alidpfl.inputs import checks

MAX_STEPS = 10_000_000
"""Most repetitions of one mechanism that are accounted for; searches for a number of steps stop there."""

MIN_NOISE_MULTIPLIER, MAX_NOISE_MULTIPLIER = 1e-3, 1e6
"""Below, one release costs ε > 400,000 and is not private; above, next to nothing. Both mean a wrong unit."""


@dataclass(frozen=True, kw_only=True)
class SampledGaussian:
    """`steps` DP-SGD iterations: Poisson-sample at `sample_rate`, sum with sensitivity C, add N(0, (σC)²).

    Neighbouring data sets differ by one added or removed sample. All three numbers must be public, or chosen by
    what was already released (then account with `RdpFilter`).

    >>> SampledGaussian(sample_rate=0.015, noise_multiplier=1.1, steps=100).steps
    100
    """

    sample_rate: float
    """q, the probability that a sample enters the batch, in (0, 1]."""
    noise_multiplier: float
    """σ, the noise's standard deviation over the clip norm."""
    steps: int = 1
    """How many such iterations, one after another."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sample_rate", checked_sample_rate(self.sample_rate))
        object.__setattr__(self, "noise_multiplier", checked_noise_multiplier(self.noise_multiplier))
        object.__setattr__(self, "steps", checks.whole("steps", self.steps, low=1, high=MAX_STEPS))

    @property
    def event(self) -> dp_accounting.DpEvent:
        """The same in dp-accounting's words."""
        gaussian = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        # At q = 1 nothing is sampled, and k Gaussian releases then compose in closed form.
        step = gaussian if self.sample_rate == 1 else dp_accounting.PoissonSampledDpEvent(self.sample_rate, gaussian)
        return dp_accounting.SelfComposedDpEvent(step, self.steps)


@dataclass(frozen=True, kw_only=True)
class GaussianRelease:
    """`count` releases of a query over the whole data set, each with Gaussian noise of σ times its L2 sensitivity.

    >>> GaussianRelease(noise_multiplier=5.0).count
    1
    """

    noise_multiplier: float
    """σ, the noise's standard deviation over the query's L2 sensitivity."""
    count: int = 1
    """How many such releases, one after another."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_multiplier", checked_noise_multiplier(self.noise_multiplier))
        object.__setattr__(self, "count", checks.whole("count", self.count, low=1, high=MAX_STEPS))

    @property
    def event(self) -> dp_accounting.DpEvent:
        """The same in dp-accounting's words."""
        return dp_accounting.SelfComposedDpEvent(dp_accounting.GaussianDpEvent(self.noise_multiplier), self.count)


Mechanism: TypeAlias = SampledGaussian | GaussianRelease

Composition: TypeAlias = tuple[SampledGaussian, ...]
"""Distinct mechanisms in a fixed order, each with all of its steps: equal compositions are equal values."""


def checked_sample_rate(sample_rate: object) -> float:
    """`sample_rate` as a float in (0, 1]."""
    rule = "must be in (0, 1]; did you pass a batch size?"
    return checks.real("sample_rate", sample_rate, above=0, high=1, rule=rule)


def checked_noise_multiplier(noise_multiplier: object) -> float:
    """`noise_multiplier` as a float that leaves something to account for."""
    rule = (
        f"must be between {MIN_NOISE_MULTIPLIER:g} and {MAX_NOISE_MULTIPLIER:g}; "
        "it is the noise's standard deviation divided by the clip norm"
    )
    low, high = MIN_NOISE_MULTIPLIER, MAX_NOISE_MULTIPLIER
    return checks.real("noise_multiplier", noise_multiplier, low=low, high=high, rule=rule)


def merged(mechanisms: Iterable[Mechanism]) -> Composition:
    """Equal mechanisms added up, in an order that does not depend on the order given.

    >>> merged([SampledGaussian(sample_rate=0.1, noise_multiplier=2.0, steps=3)] * 2)
    (SampledGaussian(sample_rate=0.1, noise_multiplier=2.0, steps=6),)
    """
    if isinstance(mechanisms, SampledGaussian | GaussianRelease | Iterator):
        # An iterator is empty the second time, and nothing would seem to have been spent.
        raise ConfigError(f"mechanisms must be a list or tuple of them, not a {type(mechanisms).__name__}")
    steps: Counter[tuple[float, float]] = Counter()
    for mechanism in mechanisms:
        match mechanism:
            case SampledGaussian():
                steps[mechanism.sample_rate, mechanism.noise_multiplier] += mechanism.steps
            case GaussianRelease():  # the same as sampling everybody
                steps[1.0, mechanism.noise_multiplier] += mechanism.count
            case _:
                raise ConfigError(f"mechanism={mechanism!r} must be a SampledGaussian or a GaussianRelease")
    return tuple(
        SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier, steps=count)
        for (sample_rate, noise_multiplier), count in sorted(steps.items())
    )
