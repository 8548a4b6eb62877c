"""Values that pass between server, clients, policies and records. Never imports torch."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from alidpfl.errors import ConfigError
from alidpfl.inputs.checks import exact

if TYPE_CHECKING:
    from torch import Tensor

OnProgress: TypeAlias = Callable[[str, float], None]
"""Called with the name of a step, and the share of it that is done."""
OnShare: TypeAlias = Callable[[float], None]
"""Called with the share of the work that is done."""


def ignore_progress(_: object) -> None:
    """No-op progress callback."""


TaskKind: TypeAlias = Literal["class", "number", "labels"]
"""What a target is: one class of several, a number, or k labels that are 0 or 1."""
LOSS_KINDS: Mapping[str, TaskKind] = {
    "cross_entropy": "class",
    "squared": "number",
    "huber": "number",
    "poisson": "number",
    "quantile": "number",
    "binary": "labels",
}
"""The kind of targets that each shipped loss takes. The first of a kind is its default."""


VaultLoss: TypeAlias = Literal["cross_entropy", "squared", "huber", "poisson", "quantile", "binary"]
"""Losses that a vault can compute: those that ship."""


def default_loss(kind: TaskKind) -> str:
    """Return the name of the loss for targets of a kind, if none is chosen.

    >>> default_loss("class"), default_loss("number"), default_loss("labels")
    ('cross_entropy', 'squared', 'binary')
    """
    return next(name for name, takes in LOSS_KINDS.items() if takes == kind)


def loss_for(kind: TaskKind, name: str | None = None) -> str:
    """Return the name of the loss for targets of a kind. Refuse one that takes another kind.

    Losses of other packages are not in the table, and take any kind.
    """
    if name is None:
        return default_loss(kind)
    if (takes := LOSS_KINDS.get(name, kind)) != kind:
        fitting = ", ".join(other for other, its_kind in LOSS_KINDS.items() if its_kind == kind)
        raise ConfigError(
            f'loss="{name}" takes targets of kind "{takes}", and these are of kind "{kind}"; use {fitting}, or leave '
            "the loss out"
        )
    return name


def loss_text(name: str, quantile: float) -> str:
    """Return a loss in words, for errors.

    >>> loss_text("huber", 0.5), loss_text("quantile", 0.9)
    ('loss="huber"', 'loss="quantile" at 0.9')
    """
    return f'loss="{name}"' + (f" at {exact(quantile)}" if name == "quantile" else "")


def protected(unit: str, where: str = "one client") -> str:
    """Return what the ε of a run holds for, in words.

    >>> protected("person")
    'ε holds for all records of a person at one client'
    """
    whom = "all records of a person" if unit == "person" else "one record"
    return f"ε holds for {whom} at {where}"


ClientId: TypeAlias = int
"""Number of a client, from 0."""
Release: TypeAlias = Literal["step", "update"]
"""What the noise is added to: every local step (DP-SGD), or the whole update of a round."""
NoiseKind: TypeAlias = Literal["gaussian", "grid"]
"""Floating-point Gaussian noise, or whole numbers on a grid: exact, but slower (docs/explanation/floating-point.md)."""
Unit: TypeAlias = Literal["record", "person"]
"""What ε protects: each record, or all records of a person at one client."""
LARGEST_MAX_RECORDS = 10_000
"""The largest k, the most records of a person in a step. Rounding takes 60 % of the clip norm there."""
AccountantName: TypeAlias = Literal["pld", "rdp", "rdp-paper"]
"""Accountants that a vault offers; `pld` is the tightest."""
AccountingKind: TypeAlias = Literal["planned", "filter"]
"""How a vault charges a step: at the q and σ of its terms, or at the step's own by a Rényi filter."""
OnExcess: TypeAlias = Literal["cut", "refuse"]
"""What a vault does with more steps than its policy allows."""
VaultModel: TypeAlias = Literal["cnn", "compact_cnn", "linear", "mlp"]
"""Models that a vault can build and train."""
UNACCOUNTED_SIGNALS = "unaccounted-signals"
"""Value of `unsafe` that allows signals without noise, which ε does not cover."""
Signal: TypeAlias = Literal["secants", "gradient_norm", "raw"]
"""What a client reports besides its weights. All but "raw" are post-processing of noised gradients."""


@dataclass(frozen=True, kw_only=True)
class ClientPlan:
    """What one client does in one round. Public: it depends only on settings and on noised quantities."""

    client: ClientId
    round: int
    """Number of the round, from 0."""
    sample_rate: float
    noise_multiplier: float
    clip_norm: float
    learning_rates: tuple[float, ...]
    """η of each local step. Their number is τ."""
    release: Release = "step"
    signals: frozenset[Signal] = frozenset()

    @property
    def steps(self) -> int:
        """τ, the number of local steps."""
        return len(self.learning_rates)


@dataclass(frozen=True, kw_only=True)
class SecantSums:
    """Sums over pairs of noised gradients g̃, g̃' at weights w, w', from which the curvature is estimated.

    All four are post-processing of noised gradients and public settings, so they cost no privacy.
    """

    product: float
    """Σ ⟨g̃' − g̃, w' − w⟩."""
    displacement: float
    """Σ ‖w' − w‖²."""
    noise: float
    """What noise and sampling contribute to `product` on average."""
    noise_variance: float
    """Variance of what the added noise contributes to `product`. Sampling adds some more."""


@dataclass(frozen=True, kw_only=True)
class RawSignals:
    """Un-noised signals of the paper's policy. NOT private: only with unsafe=["unaccounted-signals"]."""

    curvature: float
    """‖∇F_i(w_i) − ∇F_i(w)‖ / ‖w_i − w‖."""
    loss_before: float
    """F_i(w)."""
    loss_after: float
    """F_i(w_i)."""


@dataclass(frozen=True, kw_only=True)
class ClientUpdate:
    """What one client sends back: the trained weights, and signals that (ε, δ) covers."""

    client: ClientId
    params: "Tensor" = field(repr=False)
    """(num_params,) float32: the weights after the local steps."""
    secants: SecantSums | None = None
    """Secants of consecutive noised gradients of this round; None after a single step."""
    gradient_norm: float | None = None
    """De-biased mean norm of the noised gradients of this round: Adap DP-FL's signal."""
    raw: RawSignals | None = None
    steps: int | None = None
    """Local steps that were run, if the client's own policy cut its plan; None: all of them."""


@dataclass(frozen=True, kw_only=True)
class HeldOutFacts:
    """What an evaluation on held-out records cost, and how much noise it has."""

    epsilon: float
    """ε of every client's held-out records so far. It does not add to that of the steps."""
    noise_multiplier: float | None
    """σ of this evaluation; None if a lost round had it."""
    clients: int
    """Clients that answered."""
    releases: int
    """Evaluations so far."""


class StopReason(StrEnum):
    """Why a run ended. A run always ends before it crosses a limit."""

    MAX_ROUNDS = "max_rounds"
    BUDGET = "privacy_budget"
    TIME_LIMIT = "time_limit"
    TRAFFIC_LIMIT = "traffic_limit"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, kw_only=True)
class RoundRecord:
    """The facts of one round: one line of `metrics.jsonl`. Without times, so that a rerun writes the same bytes."""

    round: int
    """Number of the round, from 0, as in every file. People read `number`, which counts from 1."""
    local_steps: int
    """τ of this round, before a client's own budget cut it."""
    steps: int
    """Local steps so far of the client that ran most."""
    why: str
    """The policy's reason for τ."""
    learning_rate: float
    """η of the round's first step."""
    clip_norm: float
    """C, averaged over the round's clients."""
    noise_multiplier: float
    """σ of the round's first client: standard deviation of the noise divided by the clip norm."""
    epsilon: float
    """Largest ε spent by any client so far."""
    client_epsilon: Mapping[ClientId, float]
    """ε spent so far by each client of this round. A client that sat out keeps its last value."""
    covers_everything: bool
    """False if un-noised signals were used. Then ε does not cover the run."""
    dropped: tuple[ClientId, ...] = ()
    """Clients that were charged but sent no update in time."""
    cut: Mapping[ClientId, int] = field(default_factory=dict)
    """Clients that cut their plan by their own policy, and the steps that they ran."""
    rejected: Mapping[ClientId, str] = field(default_factory=dict)
    """Updates that the server rejected, with the reason."""
    aggregated: bool = True
    """False if too few updates came, so that the model stayed as it was."""
    bytes: int = 0
    """Traffic so far in both directions."""
    curvature: float | None = None
    """Curvature μ of the loss that the policy used, if any."""
    heterogeneity: float | None = None
    """Heterogeneity Γ that the policy used, if any."""
    accuracy: float | None = None
    """Accuracy on the test set in percent, if it was evaluated."""
    loss: float | None = None
    """Mean loss on the test set, if it was evaluated."""
    metrics: Mapping[str, float] = field(default_factory=dict)
    """All metrics of the task on the test set by name, if it was evaluated."""
    held_out: HeldOutFacts | None = None
    """Cost and noise of the evaluation, if it was on records that clients hold out; see `metrics` for its results."""
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """95 % intervals of the metrics of an evaluation with noise. They cover the noise too."""

    @property
    def number(self) -> int:
        """Number of the round from 1, for tables, curves and messages."""
        return self.round + 1

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`. What only evaluations with noise have is left out of other rounds."""
        values = asdict(self)
        return values if self.held_out else {k: v for k, v in values.items() if k not in ("held_out", "intervals")}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "RoundRecord":
        """Rebuild a record from JSON, where keys are strings."""
        restored = {"cut": {}, **values, "dropped": tuple(values["dropped"])}
        restored["metrics"] = dict(values.get("metrics", {}))
        if (held_out := values.get("held_out")) is not None:
            restored["held_out"] = HeldOutFacts(**held_out)
            restored["intervals"] = {name: (ends[0], ends[1]) for name, ends in values["intervals"].items()}
        for name in ("client_epsilon", "rejected", "cut"):
            restored[name] = {int(client): value for client, value in restored[name].items()}
        return cls(**restored)
