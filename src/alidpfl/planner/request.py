"""The planner's input: budgets, clients and limits. All numbers are public. Planning reads no data."""

from dataclasses import dataclass
from types import MappingProxyType
from typing import get_args

from alidpfl.errors import ConfigError
from alidpfl.inputs import checks
from alidpfl.inputs.names import named
from alidpfl.privacy import PrivacyBudget
from alidpfl.privacy.mechanisms import checked_noise_multiplier
from alidpfl.types import Unit

MODEL_SIZES = MappingProxyType({"cnn": 582_026, "compact_cnn": 26_010, "linear": 7_850, "mlp": 101_770})
"""Parameters of the models that ship, for 1x28x28 images and ten classes."""

MIN_STEPS = 100
"""Default of `PlanRequest.min_steps`. Low noise is not enough: a model also needs steps to converge. At equal privacy
and compute (docs/explanation/planning.md), 50 rounds on generated digits, a network gained a point from 100 steps
instead of 50. Softmax regression over very unequal clients, 20 rounds, lost a point from 80 steps instead of 20. No
theory gives the number without knowing the problem."""

_BYTES_PER_PARAMETER = 8  # 4 bytes in each direction
_MAX_COUNT = 10**12
_MAX_ROUNDS = 20_000  # every round is planned one by one, for every policy


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """Budgets, clients and decisions already made. None means that the planner chooses, or that there is no limit."""

    epsilon: float
    """ε that each client may spend in total. A smaller ε reveals less about any one record (or person)."""
    delta: float
    """δ: probability with which ε may fail to hold. Keep it well below one over the number of records."""
    clients: int
    """Number of clients. All take part in every round."""
    samples: int
    """Number of records of all clients together; of persons, if `unit` is "person"."""
    max_rounds: int
    """R_s: maximum number of communication rounds."""
    sample_rate: float | None = None
    """q: probability that a record (or person) joins a batch."""
    noise_multiplier: float | None = None
    """σ: the noise's standard deviation divided by the clip norm."""
    accountant: str = "pld"
    """How ε is computed: "pld" (tightest), "rdp", or "rdp-paper" (as in the paper)."""
    num_params: int = MODEL_SIZES["compact_cnn"]
    """d: number of parameters of the model."""
    smallest_client: int | None = None
    """Records (or persons) of the smallest client; None for an even split."""
    unit: Unit = "record"
    """What ε protects, and so what `samples` counts: "record" or "person"."""
    clip_norm: float = 1.0
    """C: the norm to which a record's gradient is clipped."""
    learning_rate: float = 0.5
    """η; the default is the paper's. It affects only the policy `corrected` and the plotted bounds."""
    heterogeneity: float = 5.0
    """Γ of Lemma 2: 10 for Dir(0.05), 5 for Dir(0.5), 1 for Dir(1), 0 for IID."""
    curvature: float | None = None
    """Curvature μ of the loss, if an earlier run measured it."""
    time_limit: float | None = None
    """Seconds that the whole run may take."""
    seconds_per_round: float | None = None
    """Seconds that one round takes. Required with `time_limit`."""
    traffic_limit: int | None = None
    """Bytes that the whole run may transfer: all clients, both directions."""
    max_epochs: float | None = None
    """Compute limit q·T: how often a client may pass over its data in the whole run."""
    min_steps: int = MIN_STEPS
    """Fewest steps T to consider, however good their signal-to-noise ratio."""

    def __post_init__(self) -> None:
        self._check_counts()
        named("unit", self.unit, dict.fromkeys(get_args(Unit)))
        _ = self.budget  # PrivacyBudget refuses what no budget can be
        checks.real("epsilon", self.epsilon, low=1e-6, high=1e6, rule="must be between 1e-6 and 1e6")
        checks.real("delta", self.delta, above=0, high=0.1, rule="must be above 0 and at most 0.1: it is a probability")
        if self.sample_rate is not None:
            rule = "must be in [1e-09, 1]; did you pass a batch size?"
            checks.real("sample_rate", self.sample_rate, low=1e-9, high=1, rule=rule)
        if self.noise_multiplier is not None:
            checked_noise_multiplier(self.noise_multiplier)
        for name in ("clip_norm", "learning_rate", "curvature"):
            if getattr(self, name) is not None:
                checks.real(name, getattr(self, name), low=1e-9, high=1e9, rule="must be between 1e-9 and 1e9")
        for name in ("time_limit", "seconds_per_round", "traffic_limit", "max_epochs"):
            if getattr(self, name) is not None:
                checks.real(name, getattr(self, name), above=0, rule="must be above 0")
        checks.real("heterogeneity", self.heterogeneity, low=0, high=_MAX_COUNT, rule="must be 0 (IID) or more")
        if self.time_limit is not None and self.seconds_per_round is None:
            raise ConfigError(
                f"time_limit={self.time_limit:g} needs seconds_per_round; set both (--time-limit, --seconds-per-round)"
            )

    @property
    def budget(self) -> PrivacyBudget:
        """ε and δ as one value."""
        return PrivacyBudget(epsilon=self.epsilon, delta=self.delta)

    @property
    def gamma(self) -> float:
        """Γ; 0 for a single client, which has nobody to differ from."""
        return self.heterogeneity if self.clients > 1 else 0.0

    @property
    def client_size(self) -> float:
        """Records of the smallest client. Lemma 2 uses its batch size."""
        return float(self.smallest_client or self.samples / self.clients)

    @property
    def bytes_per_round(self) -> int:
        """Bytes of one round: every client downloads the model and uploads an update."""
        return self.clients * _BYTES_PER_PARAMETER * self.num_params

    def _check_counts(self) -> None:
        checks.whole("clients", self.clients, low=1, high=_MAX_COUNT)
        checks.whole("samples", self.samples, low=self.clients, high=_MAX_COUNT)
        checks.whole("min_steps", self.min_steps, low=1, high=1_000_000)
        checks.whole("num_params", self.num_params, low=1, high=_MAX_COUNT)
        if self.smallest_client is not None:
            checks.whole("smallest_client", self.smallest_client, low=1, high=self.samples // self.clients)
        checks.whole("max_rounds", self.max_rounds, low=1, high=_MAX_ROUNDS)


@dataclass(frozen=True, kw_only=True)
class RoundLimit:
    """How many rounds fit, and the setting that limits them: max_rounds, time_limit or traffic_limit."""

    count: int
    limited_by: str


def affordable_rounds(request: PlanRequest) -> RoundLimit:
    """Return R_s, or fewer where the time or traffic limit allows fewer; ConfigError if not one round fits."""
    rounds = {"max_rounds": request.max_rounds}
    if request.time_limit is not None and request.seconds_per_round is not None:
        quotient = request.time_limit / request.seconds_per_round * (1 + 1e-12)  # rounding: 0.3 / 0.1 is 2.9999
        rounds["time_limit"] = int(min(quotient, _MAX_COUNT))
    if request.traffic_limit is not None:
        rounds["traffic_limit"] = request.traffic_limit // request.bytes_per_round
    tightest = min(rounds, key=lambda limit: rounds[limit])
    if rounds[tightest] == 0:
        raise ConfigError(_no_round_fits(request, tightest))
    return RoundLimit(count=rounds[tightest], limited_by=tightest)


def _no_round_fits(request: PlanRequest, limited_by: str) -> str:
    if limited_by == "time_limit":
        limit, seconds = (checks.exact(value or 0.0) for value in (request.time_limit, request.seconds_per_round))
        return (
            f"time_limit={limit} s is shorter than one round of seconds_per_round={seconds}; set at least {seconds} s"
        )
    needed, most, clients = request.bytes_per_round, request.traffic_limit or 0, request.clients
    remedies = [f"set at least {needed:,} bytes"]
    if (params := most // (_BYTES_PER_PARAMETER * clients)) > 0:
        remedies.append(f"use a model of at most {params:,} parameters")
    if (fewer := most // (_BYTES_PER_PARAMETER * request.num_params)) > 0:
        remedies.append(f"let at most {fewer} of the {clients} clients take part in a round")
    return (
        f"traffic_limit={most:,} bytes is less than one round of {clients} clients with {request.num_params:,} "
        f"parameters in both directions; {', or '.join(remedies)}"
    )
