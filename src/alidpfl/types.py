"""The values that travel between server, clients, policies and records. Hardly any behaviour, no torch at import."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

OnProgress: TypeAlias = Callable[[str, float], None]
"""Told what is being done, and the share of it that is done."""

OnShare: TypeAlias = Callable[[float], None]
"""Told the share that is done, by work that has one name only."""


def tell_nobody(_: object) -> None:
    """For who is not to be told."""


ClientId: TypeAlias = int
"""Number of a client, from 0."""

Release: TypeAlias = Literal["step", "update"]
"""What the noise goes on: every local step (DP-SGD), or the whole update of a round, once."""

NoiseKind: TypeAlias = Literal["gaussian", "grid"]
"""Floating-point Gaussian noise, or whole numbers on a grid: exact, and slower (docs/explanation/floating-point.md)."""

AccountantName: TypeAlias = Literal["pld", "rdp", "rdp-paper"]
"""Who computes ε; `pld` is the tightest."""

AccountingKind: TypeAlias = Literal["planned", "filter"]
"""Of a vault: every step is charged at the terms' q and σ, or at its own by a Rényi filter."""

OnExcess: TypeAlias = Literal["cut", "refuse"]
"""Of a vault: what becomes of more steps than its policy allows."""

VaultModel: TypeAlias = Literal["cnn", "compact_cnn", "linear", "mlp"]
"""What a vault builds by itself and trains."""

UNACCOUNTED_SIGNALS = "unaccounted-signals"
"""In `unsafe`: un-noised signals may be looked at, which no ε covers."""

Signal: TypeAlias = Literal["secants", "gradient_norm", "raw"]
"""What a client reports beside its weights. All but "raw" are post-processing of noised gradients."""


@dataclass(frozen=True, kw_only=True)
class ClientPlan:
    """What one client is to do in one round. Public: it depends on settings and on noised quantities only."""

    client: ClientId
    round: int
    """k, from 0."""
    sample_rate: float
    noise_multiplier: float
    clip_norm: float
    learning_rates: tuple[float, ...]
    """η of each local step: their number is τ."""
    release: Release = "step"
    signals: frozenset[Signal] = frozenset()

    @property
    def steps(self) -> int:
        """τ, the local steps."""
        return len(self.learning_rates)


@dataclass(frozen=True, kw_only=True)
class SecantSums:
    """Sums over pairs of noised gradients g̃, g̃' at weights w, w': what an estimate of the curvature needs.

    All four are computed from noised gradients and public settings: post-processing, free of charge.
    """

    product: float
    """Σ ⟨g̃' − g̃, w' − w⟩."""
    displacement: float
    """Σ ‖w' − w‖²."""
    noise: float
    """What noise and sampling alone contribute to `product` on average."""
    noise_variance: float
    """Variance of what the added noise contributes; sampling has some of its own."""


@dataclass(frozen=True, kw_only=True)
class RawSignals:
    """Un-noised signals that the paper's rule asks for. NOT private: only with unsafe=["unaccounted-signals"]."""

    curvature: float
    """‖∇F_i(w_i) − ∇F_i(w)‖ / ‖w_i − w‖."""
    loss_before: float
    """F_i(w)."""
    loss_after: float
    """F_i(w_i)."""


@dataclass(frozen=True, kw_only=True)
class ClientUpdate:
    """What one client sends back: the trained weights and signals that (ε, δ) covers."""

    client: ClientId
    params: "Tensor" = field(repr=False)
    """(num_params,) float32: the weights after the local steps."""
    secants: SecantSums | None = None
    """From consecutive noised gradients of this round; None after a single step."""
    gradient_norm: float | None = None
    """De-biased mean norm of the noised gradients of this round: Adap DP-FL's signal."""
    raw: RawSignals | None = None
    steps: int | None = None
    """Local steps that were run, where the client's own policy cut its plan; None: all of them."""


class StopReason(StrEnum):
    """Why a run ended. It always ends before the limit would be crossed."""

    MAX_ROUNDS = "max_rounds"
    BUDGET = "privacy_budget"
    TIME_LIMIT = "time_limit"
    TRAFFIC_LIMIT = "traffic_limit"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """What is known after a round: one line of `metrics.jsonl`. No clock, so that a rerun writes the same bytes."""

    round: int
    """k, from 0: so in every record, JSON and program. What a person reads counts from 1: `number`."""
    local_steps: int
    """τ of this round, before any client's own budget cut it."""
    steps: int
    """Local steps so far of the client who ran most."""
    why: str
    """The policy's reason for τ, in a few words."""
    learning_rate: float
    """η of the round's first step."""
    clip_norm: float
    """C, the mean over the round's clients."""
    noise_multiplier: float
    """σ of the round's steps, as its first client has it: the noise's standard deviation over the clip norm."""
    epsilon: float
    """Largest ε spent by any client so far."""
    client_epsilon: Mapping[ClientId, float]
    """ε spent so far by each client of this round; a client that sat out keeps its last value."""
    covers_everything: bool
    """False where un-noised signals were used: ε then does not cover the run."""
    dropped: tuple[ClientId, ...] = ()
    """Clients that were charged but whose update never came, or came too late."""
    cut: Mapping[ClientId, int] = field(default_factory=dict)
    """Clients whose own policy cut their plan, and the steps that they ran."""
    rejected: Mapping[ClientId, str] = field(default_factory=dict)
    """Updates that the server refused, with the reason."""
    aggregated: bool = True
    """False where too few updates came: the model stayed as it was."""
    bytes: int = 0
    """Traffic so far, both directions."""
    curvature: float | None = None
    """Curvature μ of the loss, as the policy saw it; None where it used none."""
    heterogeneity: float | None = None
    """Heterogeneity Γ, as the policy saw it; None where it used none."""
    accuracy: float | None = None
    """% of the test set, where it was evaluated."""
    loss: float | None = None
    """Mean loss on the test set, where it was evaluated."""

    @property
    def number(self) -> int:
        """Of the round, from 1, for tables, curves and messages."""
        return self.round + 1

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "RoundRecord":
        """Back from what `to_json` wrote and JSON stored (whose keys are strings)."""
        restored = dict(values)
        restored["client_epsilon"] = {int(k): v for k, v in values["client_epsilon"].items()}
        restored["rejected"] = {int(k): v for k, v in values["rejected"].items()}
        restored["cut"] = {int(k): v for k, v in values.get("cut", {}).items()}
        restored["dropped"] = tuple(values["dropped"])
        return cls(**restored)
