"""Settings and progress of a federation, and the protocol of an engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeAlias

from torch import Tensor

from alidpfl.errors import ConfigError
from alidpfl.inputs import checks
from alidpfl.metrics import Measures
from alidpfl.releases.queries import Released, ReleasePlan
from alidpfl.types import UNACCOUNTED_SIGNALS, ClientId, ClientPlan, ClientUpdate, HeldOutFacts, Release

_LARGEST_RATE = 1e6

Part: TypeAlias = Literal["test", "validation"]


@dataclass(frozen=True, kw_only=True)
class FederationSettings:
    """Rounds, limits, step sizes, and how often to evaluate."""

    max_rounds: int
    """R_s: the maximum number of communication rounds."""
    sample_rate: float
    """q: probability that a record joins a batch, in (0, 1]."""
    learning_rate: float
    """η₀: the clients' step size at the start."""
    schedule: str = "constant"
    """How η falls: constant, late_decay, linear or cosine."""
    max_local_steps: int | None = None
    """Maximum local steps of a round; None for no limit."""
    client_limits: Mapping[ClientId, int] = field(default_factory=dict)
    """Maximum local steps per round that each client accepts. Never applied to other clients."""
    clients_per_round: int | None = None
    """Number of clients drawn at random for each round; None for all."""
    heterogeneity: float = 1.0
    """Γ of Lemma 2: how far the clients' optima lie apart; 0 for equal clients."""
    time_limit: float | None = None
    """Seconds. The run stops before the round that would cross the limit."""
    traffic_limit: int | None = None
    """Bytes in both directions. The run stops before the round that would cross the limit."""
    dropout_rate: float = 0.0
    """Simulated probability that a client never answers in a round."""
    straggler_rate: float = 0.0
    """Simulated probability that a client answers too late."""
    evaluate_every: int = 10
    """Rounds between two evaluations. The last round is always evaluated."""
    seed: int = 0
    """Seed of what the server draws: cohorts and simulated failures."""
    shows_private_data: bool = False
    """True if something besides training shows clients' records, such as the accuracy on some of them."""
    unsafe: frozenset[str] = frozenset()
    """{"unaccounted-signals"} admits policies that use un-noised signals."""

    def __post_init__(self) -> None:
        for name in ("max_rounds", "evaluate_every"):
            checks.whole(name, getattr(self, name), low=1)
        for name in ("clients_per_round", "max_local_steps"):
            if (value := getattr(self, name)) is not None:
                checks.whole(name, value, low=1)
        for name in ("time_limit", "traffic_limit"):
            if (value := getattr(self, name)) is not None:
                checks.real(name, value, above=0, rule="must be greater than 0; leave it out for none")
        for name in ("dropout_rate", "straggler_rate"):
            checks.real(name, getattr(self, name), low=0, below=1, rule="must be in [0, 1)")
        rule = f"must be greater than 0 and at most {_LARGEST_RATE:g}"  # float32 overflows soon beyond it
        checks.real("learning_rate", self.learning_rate, above=0, high=_LARGEST_RATE, rule=rule)
        checks.real("heterogeneity", self.heterogeneity, low=0, rule="must be 0 (equal clients) or more")
        unknown = self.unsafe - {UNACCOUNTED_SIGNALS}
        if unknown:
            raise ConfigError(f"unsafe={sorted(unknown)} is unknown; it may name {UNACCOUNTED_SIGNALS!r}")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How good a model is: on data that is not private, or by noised releases of held-out records."""

    accuracy: float | None
    """In percent; None where the targets are not classes."""
    loss: float | None
    """None where noised releases do not tell it."""
    measures: Measures = field(default_factory=Measures)
    """All metrics of the task, with trivial values and intervals."""
    held_out: HeldOutFacts | None = None
    """What noised releases cost; None without noise."""


class Engine(Protocol):
    """How plans reach clients. Everything else is the same in every federation."""

    def train(self, params: Tensor, plans: Sequence[ClientPlan]) -> list[ClientUpdate]:
        """Have these clients train from `params`; return the updates that came, in the plans' order."""

    def evaluate(self, params: Tensor, part: Part) -> Evaluation | None:
        """Return loss and metrics of these weights, or None if there is no such data."""

    def release(self, params: Tensor, plans: Sequence[ReleasePlan]) -> list[Released]:
        """Have clients release noised sums on their records; return those that came, in the plans' order."""

    def seconds_for(self, params: Tensor, plans: Sequence[ClientPlan]) -> float:
        """Return about how long training these plans takes; 0 where only the first round can tell."""

    def close(self) -> None:
        """End processes and connections."""


class EngineWrapper:
    """Base class for engine wrappers. Forwards every call; subclasses override `train`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def train(self, params: Tensor, plans: Sequence[ClientPlan]) -> list[ClientUpdate]:
        """Forward to the wrapped engine."""
        return self._engine.train(params, plans)

    def evaluate(self, params: Tensor, part: Part) -> Evaluation | None:
        """Forward to the wrapped engine."""
        return self._engine.evaluate(params, part)

    def release(self, params: Tensor, plans: Sequence[ReleasePlan]) -> list[Released]:
        """Forward to the wrapped engine."""
        return self._engine.release(params, plans)

    def seconds_for(self, params: Tensor, plans: Sequence[ClientPlan]) -> float:
        """Forward to the wrapped engine."""
        return self._engine.seconds_for(params, plans)

    def close(self) -> None:
        """Close the wrapped engine."""
        self._engine.close()


_MANY_PASSES = 100  # over a client's records in one round


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What the rounds so far have used. All of it fits into JSON."""

    round: int = 0
    """Number of finished rounds, which is the number of the next one."""
    local_steps: int = 0
    """Sum of τ over the rounds so far."""
    previous_steps: int = 0
    """τ of the last round."""
    bytes: int = 0
    """Traffic in both directions."""
    seconds: float = 0.0
    slowest_round: float = 0.0
    """Seconds of the slowest round so far."""
    epsilon: float = 0.0
    """Upper bound of the largest ε of any client so far."""


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """Public numbers about the next round."""

    charged_by: Release
    """What the budget is counted in: steps, or rounds ("update") if the noise goes on the update."""
    left: int
    """How many of them a client can still pay for."""
    local_steps: int
    sample_rate: float

    @property
    def warning(self) -> str | None:
        """Why the round takes very long, or None. The noise then pays for far more steps than the rounds need.

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
