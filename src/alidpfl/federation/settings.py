"""The numbers of a federation, and what the loop asks of an engine."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from torch import Tensor

from alidpfl.errors import ConfigError
from alidpfl.inputs import checks
from alidpfl.types import UNACCOUNTED_SIGNALS, ClientId, ClientPlan, ClientUpdate, Release

_LARGEST_RATE = 1e6

Part: TypeAlias = Literal["test", "validation"]


@dataclass(frozen=True, kw_only=True)
class FederationSettings:
    """How long, with whom, and how often to look."""

    max_rounds: int
    """R_s: the most rounds of communication."""
    sample_rate: float
    """q: probability that a record joins a batch, in (0, 1]."""
    learning_rate: float
    """η₀: the clients' step size at the start."""
    schedule: str = "constant"
    """How η falls: constant, late_decay, linear or cosine."""
    max_local_steps: int | None = None
    """The most steps of a round; None for no such limit."""
    client_limits: Mapping[ClientId, int] = field(default_factory=dict)
    """The most steps of a round that a client would run, of those that say so: nobody's plan follows another's word."""
    clients_per_round: int | None = None
    """How many take part in a round, drawn at random; None for all."""
    heterogeneity: float = 1.0
    """Γ of Lemma 2: how far clients' optima lie apart, set by hand; 0 for equal clients."""
    time_limit: float | None = None
    """Seconds: the run stops before the round that would cross them."""
    traffic_limit: int | None = None
    """Bytes, both directions: likewise."""
    dropout_rate: float = 0.0
    """Simulated: probability that a client never answers in a round."""
    straggler_rate: float = 0.0
    """Simulated: probability that a client's answer comes too late."""
    evaluate_every: int = 10
    """Rounds between two looks at the test set; the last round is always evaluated."""
    seed: int = 0
    """Of everything that the server draws: cohorts and simulated failures."""
    shows_private_data: bool = False
    """True where something else than training shows clients' records, such as the accuracy on some of them."""
    unsafe: frozenset[str] = frozenset()
    """{"unaccounted-signals"} admits policies that look at un-noised signals."""

    def __post_init__(self) -> None:
        self._check_limits()
        for name in ("dropout_rate", "straggler_rate"):
            checks.real(name, getattr(self, name), low=0, below=1, rule="must be in [0, 1)")
        rule = f"must be greater than 0 and at most {_LARGEST_RATE:g}"  # beyond, float32 ends soon
        checks.real("learning_rate", self.learning_rate, above=0, high=_LARGEST_RATE, rule=rule)
        checks.real("heterogeneity", self.heterogeneity, low=0, rule="must be 0 (equal clients) or more")
        unknown = self.unsafe - {UNACCOUNTED_SIGNALS}
        if unknown:
            raise ConfigError(f"unsafe={sorted(unknown)} is unknown; it may name {UNACCOUNTED_SIGNALS!r}")

    def _check_limits(self) -> None:
        for name in ("max_rounds", "evaluate_every"):
            checks.whole(name, getattr(self, name), low=1)
        for name in ("clients_per_round", "max_local_steps"):
            if (value := getattr(self, name)) is not None:
                checks.whole(name, value, low=1)
        for name in ("time_limit", "traffic_limit"):
            if (value := getattr(self, name)) is not None:
                checks.real(name, value, above=0, rule="must be greater than 0; leave it out for none")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Of a model on data that is not private."""

    accuracy: float
    """%."""
    loss: float


class Engine(Protocol):
    """How plans reach clients. Everything else is the same everywhere."""

    def train(self, params: Tensor, plans: Sequence[ClientPlan]) -> list[ClientUpdate]:
        """Have these clients trained from `params`; the updates that came, in the plans' order."""

    def evaluate(self, params: Tensor, part: Part) -> Evaluation | None:
        """Accuracy and loss of these weights; None if there is no such data."""


_MANY_PASSES = 100  # over a client's records in one round


@dataclass(frozen=True, kw_only=True)
class Progress:
    """After the rounds so far. JSON can hold all of it."""

    round: int = 0
    """Rounds done; the number of the next one."""
    local_steps: int = 0
    """Σ τ."""
    previous_steps: int = 0
    """τ of the last round."""
    bytes: int = 0
    """Traffic, both directions."""
    seconds: float = 0.0
    slowest_round: float = 0.0
    """Seconds of the slowest round so far."""
    epsilon: float = 0.0
    """Largest ε of any client so far, from above."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """The next round, in numbers that are public before it."""

    charged_by: Release
    """What a budget is counted in: steps, or rounds where the noise goes on the update."""
    left: int
    """So many of them a client can pay for."""
    local_steps: int
    """τ."""
    sample_rate: float
    """q."""

    @property
    def warning(self) -> str | None:
        """Why the round takes very long, if it does: noise that pays for far more steps than there are rounds for.

        >>> Outlook(charged_by="step", left=24, local_steps=4, sample_rate=0.1).warning is None
        True
        """
        passes = self.local_steps * self.sample_rate
        if passes <= _MANY_PASSES:
            return None
        return (
            f"a round takes τ = {self.local_steps:,} local steps, {passes:,.0f} passes of every client over its "
            "records; lower noise_multiplier (or local_steps), allow more rounds, or let alidpfl run --plan auto choose"
        )
