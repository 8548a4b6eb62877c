"""The interface of a policy: the situation before a round, and the decision. A policy keeps no state of its own."""

import math
from dataclasses import dataclass
from typing import ClassVar, Protocol

from alidpfl.inputs import checks

MAX_COUNT = 10**12
"""Largest number accepted as a count. A larger one suggests a wrong unit."""

_MIN_NORM, _MAX_NORM = 1e-9, 1e9
"""Range of a clip norm. Formulas multiply and divide by its square, which must neither vanish nor overflow."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """Everything a policy may read before a round.

    All values are public or post-processing of noised quantities, except `raw_curvature` and `raw_heterogeneity`.
    Settings are checked here. The signals `curvature`, `raw_curvature` and `raw_heterogeneity` are not, because they
    are measured: a policy must accept any value of them.
    """

    round: int
    """Number k of the round to plan, from 0."""
    max_rounds: int
    """R_s, already reduced where a time or traffic limit is tighter."""
    max_steps: int
    """R_c: the Σ τ that the clients' budgets pay for. R_c / share if only a share of the clients joins each round."""
    steps_spent: int
    """Local steps so far, Σ τ."""
    previous_steps: int
    """τ of the last round; 0 before the first."""
    num_params: int
    """d: number of parameters of the model."""
    clip_norm: float
    """C: the norm to which a record's gradient is clipped."""
    noise_multiplier: float
    """σ: the noise's standard deviation divided by the clip norm; 0 in a run without privacy."""
    sample_rate: float
    """q: probability that a record joins a batch."""
    learning_rate: float
    """η of the next step."""
    expected_batch_size: float
    """B̂: the smallest q·n of all clients. Formulas use `batch_size`, which is at least 1."""
    weight_concentration: float
    """Σ p_i² over the clients' shares p_i of the average; 1/N if all N clients count alike."""
    heterogeneity: float
    """Γ of Lemma 2, as configured: how far apart the clients' optima lie."""
    curvature: float | None = None
    """Private estimate of the loss's curvature μ; None while noise hides it."""
    raw_curvature: float | None = None
    """Un-noised μ, NOT private: for `paper` and `reference` only."""
    raw_heterogeneity: float | None = None
    """Un-noised Γ, NOT private: for `reference` only."""

    def __post_init__(self) -> None:
        for name in ("round", "steps_spent", "previous_steps"):
            checks.whole(name, getattr(self, name), low=0, high=MAX_COUNT)
        for name in ("max_rounds", "max_steps", "num_params"):
            checks.whole(name, getattr(self, name), low=1, high=MAX_COUNT)
        unit = f"must be between {_MIN_NORM:g} and {_MAX_NORM:g}; is its unit right?"
        checks.real("clip_norm", self.clip_norm, low=_MIN_NORM, high=_MAX_NORM, rule=unit)
        checks.real("noise_multiplier", self.noise_multiplier, low=0, high=_MAX_NORM, rule="must be 0 or more")
        for name in ("sample_rate", "weight_concentration"):
            checks.real(name, getattr(self, name), above=0, high=1, rule="must be in (0, 1]")
        checks.real("learning_rate", self.learning_rate, above=0, rule="must be above 0")
        rule = "must be above 0; it is q·n, not a rate"
        checks.real("expected_batch_size", self.expected_batch_size, above=0, high=MAX_COUNT, rule=rule)
        checks.real("heterogeneity", self.heterogeneity, low=0, high=MAX_COUNT, rule="must be 0 (IID) or more")

    @property
    def steps_left(self) -> int:
        """Local steps that the budget still pays for."""
        return max(0, self.max_steps - self.steps_spent)

    @property
    def rounds_left(self) -> int:
        """Rounds to come, including this one: at least 1."""
        return max(1, self.max_rounds - self.round)

    @property
    def batch_size(self) -> float:
        """B̂, but at least 1. Below 1 the noise power V explodes, and every policy would answer τ = 1."""
        return max(1.0, self.expected_batch_size)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A policy's answer: τ, the reason, and the signals it used."""

    local_steps: int
    """τ: number of steps that each client takes in the round."""
    why: str
    """The reason in a few words, stored in the metrics."""
    curvature: float | None = None
    """Curvature μ that the policy used; None if it used none."""
    heterogeneity: float | None = None
    """Heterogeneity Γ that the policy used; None if it used none."""


class Policy(Protocol):
    """Chooses τ before every round. Pure: equal situations get equal decisions."""

    name: ClassVar[str]
    """The policy's name in configurations and records, such as "ratio"."""
    needs_raw_signals: ClassVar[bool]
    """True if the policy reads un-noised signals, which no (ε, δ) covers."""
    needs_curvature: ClassVar[bool]
    """True if the policy reads the private `curvature`, so that clients must send it."""

    def decide(self, situation: Situation) -> Decision:
        """Return τ of the round, with 1 <= τ <= steps_left; ConfigError if no step is left."""


def usable(signal: float | None) -> float | None:
    """Return a measured signal if it is finite and above 0, else None.

    >>> usable(0.07), usable(float("nan")), usable(-1.0)
    (0.07, None, None)
    """
    return signal if signal is not None and 0 < signal < math.inf else None
