"""What a policy sees before a round and what it answers. Plain values: a policy keeps no state of its own."""

import math
from dataclasses import dataclass
from typing import Protocol

from alidpfl.inputs import checks

MOST = 10**12
"""Largest count that is taken for a count; above it is a wrong unit."""

_TINIEST, _LARGEST = 1e-9, 1e9
"""Scale of a clip norm. Its square divides and multiplies, and must neither vanish nor overflow."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """All that a policy may look at before a round: public, or post-processing of noised quantities (but for raw_*).

    The settings are checked here. The signals (`curvature`, `raw_curvature`, `raw_heterogeneity`) are not, because
    they are measured: a policy must live with any value of them.
    """

    round: int
    """Number k of the round that is being planned, from 0."""
    max_rounds: int
    """R_s, already reduced where a time or traffic limit is tighter."""
    max_steps: int
    """R_c: the Σ τ that the clients' budgets pay for. Where a share of them takes part in a round, R_c / share."""
    steps_spent: int
    """Local steps so far, Σ τ."""
    previous_steps: int
    """τ of the last round; 0 before the first."""
    num_params: int
    """d: how many weights the model has."""
    clip_norm: float
    """C: the longest that a record's gradient counts."""
    noise_multiplier: float
    """σ: the noise's standard deviation over the clip norm; 0 where nothing is private."""
    sample_rate: float
    """q: probability that a record joins a batch."""
    learning_rate: float
    """η: the step size of the next step."""
    expected_batch_size: float
    """B̂, the smallest q·n over the clients; floored at 1 where it is used."""
    weight_concentration: float
    """Σ p_i² over the clients' shares p_i of the average: 1/N where all N count alike."""
    heterogeneity: float
    """Γ of Lemma 2: how far clients' optima lie apart, as it was set."""
    curvature: float | None = None
    """Curvature μ of the loss, privately estimated; None while it is not resolved above its own noise."""
    raw_curvature: float | None = None
    """Un-noised μ, NOT private: for `paper` and `reference` only."""
    raw_heterogeneity: float | None = None
    """Un-noised Γ, NOT private: for `reference` only."""

    def __post_init__(self) -> None:
        for name, low in (("round", 0), ("max_rounds", 1), ("max_steps", 1), ("steps_spent", 0)):
            checks.whole(name, getattr(self, name), low=low, high=MOST)
        checks.whole("previous_steps", self.previous_steps, low=0, high=MOST)
        checks.whole("num_params", self.num_params, low=1, high=MOST)
        unit = f"must be between {_TINIEST:g} and {_LARGEST:g}; is its unit right?"
        checks.real("clip_norm", self.clip_norm, low=_TINIEST, high=_LARGEST, rule=unit)
        checks.real("noise_multiplier", self.noise_multiplier, low=0, high=_LARGEST, rule="must be 0 or more")
        for name in ("sample_rate", "weight_concentration"):
            checks.real(name, getattr(self, name), above=0, high=1, rule="must be in (0, 1]")
        checks.real("learning_rate", self.learning_rate, above=0, rule="must be above 0")
        rule = "must be above 0: q·n, not a rate"
        checks.real("expected_batch_size", self.expected_batch_size, above=0, high=MOST, rule=rule)
        checks.real("heterogeneity", self.heterogeneity, low=0, high=MOST, rule="must be 0 (IID) or more")

    @property
    def steps_left(self) -> int:
        """Local steps that can still be paid for."""
        return max(0, self.max_steps - self.steps_spent)

    @property
    def rounds_left(self) -> int:
        """Rounds to come, this one included: at least 1, since this one is being planned."""
        return max(1, self.max_rounds - self.round)

    @property
    def batch_size(self) -> float:
        """B̂ floored at 1: below, V explodes and every rule answers 1 whatever the rest says."""
        return max(1.0, self.expected_batch_size)


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What a policy answers: τ, and the reason in a few words for the record."""

    local_steps: int
    """τ: how many steps each client takes in the round."""
    why: str
    """The reason in a few words, for the record."""
    curvature: float | None = None
    """Curvature μ as the policy used it; None where it used none."""
    heterogeneity: float | None = None
    """Heterogeneity Γ as the policy used it; None where it used none."""


class Policy(Protocol):
    """Chooses τ. Pure: equal situations get equal decisions."""

    @property
    def name(self) -> str:
        """What settings and records call it, such as "ratio"."""
        ...

    @property
    def needs_raw_signals(self) -> bool:
        """True where it reads un-noised signals, which no (ε, δ) covers."""
        ...

    @property
    def needs_curvature(self) -> bool:
        """True where it reads the private `curvature`, which must then be estimated."""
        ...

    def decide(self, situation: Situation) -> Decision:
        """τ of the round, with 1 <= τ <= steps_left; ConfigError where no step is left."""
        ...


def usable(signal: float | None) -> float | None:
    """A measured μ that can be computed with, else None: it must be finite and above 0.

    >>> usable(0.07), usable(float("nan")), usable(-1.0)
    (0.07, None, None)
    """
    return signal if signal is not None and 0 < signal < math.inf else None
