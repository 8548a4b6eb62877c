"""What a user has and can afford. Public numbers only: no data is needed, or looked at."""

from dataclasses import dataclass
from types import MappingProxyType

from alidpfl.errors import ConfigError
from alidpfl.inputs import checks
from alidpfl.privacy import PrivacyBudget
from alidpfl.privacy.mechanisms import MAX_NOISE_MULTIPLIER, MIN_NOISE_MULTIPLIER

MODEL_SIZES = MappingProxyType({"cnn": 582_026, "compact_cnn": 26_010, "linear": 7_850, "mlp": 101_770})
"""Parameters of the models that ship, for 1x28x28 images and ten classes."""

MIN_STEPS = 100
"""Noise is not all: a model must also get there. At equal privacy and compute, 50 rounds and drawn digits, a network
gained a point from 100 steps instead of 50; softmax regression over very unequal clients, 20 rounds, lost one from 80
instead of 20 (docs/how-to/planner.md). Theory cannot tell without knowing the problem."""

_BYTES_PER_NUMBER = 4
_DIRECTIONS = 2
_MOST = 10**12
_MOST_ROUNDS = 20_000  # each is planned one by one, for every policy
_MOST_MIN_STEPS = 1_000_000
_LEAST_RATE = 1e-9


@dataclass(frozen=True, kw_only=True)
class Wishes:
    """Budgets, clients, and what is already decided; None stays for the planner to choose, or sets no limit."""

    epsilon: float
    """ε that every client may spend in all: the smaller, the less a release tells about any one record."""
    delta: float
    """δ: probability with which ε may fail to hold; well below one over the number of records."""
    clients: int
    """Number of clients, all in every round."""
    samples: int
    """Number of records, over all clients together."""
    max_rounds: int
    """R_s: the most rounds of communication."""
    sample_rate: float | None = None
    """q: probability that a record joins a batch."""
    noise_multiplier: float | None = None
    """σ: the noise's standard deviation over the clip norm."""
    accountant: str = "pld"
    """How ε is computed: "pld" (tightest), "rdp", or "rdp-paper", as the paper counts."""
    num_params: int = MODEL_SIZES["compact_cnn"]
    """d: how many weights the model has."""
    smallest_client: int | None = None
    """Records of the smallest client; None for an even split."""
    clip_norm: float = 1.0
    """C: the longest that a record's gradient counts."""
    learning_rate: float = 0.5
    """η, the paper's by default. Only τ of the policy `corrected` and the drawn bounds depend on it."""
    heterogeneity: float = 5.0
    """Γ of Lemma 2: 10 for Dir(0.05), 5 for Dir(0.5), 1 for Dir(1), 0 for IID."""
    curvature: float | None = None
    """Curvature μ of the loss, where an earlier run measured one."""
    time_limit: float | None = None
    """Seconds that the whole run may take."""
    seconds_per_round: float | None = None
    """Seconds that a round takes, where `time_limit` is set."""
    traffic_limit: int | None = None
    """Bytes, all clients, both directions."""
    max_epochs: float | None = None
    """Compute limit: how often a client may go through its data in the whole run, q·T."""
    min_steps: int = MIN_STEPS
    """Fewest steps T that are worth considering, whatever their signal-to-noise."""

    def __post_init__(self) -> None:
        self._check_counts()
        _ = self.budget  # its words for what no budget can be
        checks.real("epsilon", self.epsilon, low=1e-6, high=1e6, rule="must be between 1e-6 and 1e6")
        checks.real("delta", self.delta, above=0, high=0.1, rule="must be above 0 and at most 0.1: it is a probability")
        self._check_mechanism()
        for name in ("clip_norm", "learning_rate", "curvature"):
            if getattr(self, name) is not None:
                checks.real(name, getattr(self, name), low=1e-9, high=1e9, rule="must be between 1e-9 and 1e9")
        for name in ("time_limit", "seconds_per_round", "traffic_limit", "max_epochs"):
            if getattr(self, name) is not None:
                checks.real(name, getattr(self, name), above=0, rule="must be above 0")
        checks.real("heterogeneity", self.heterogeneity, low=0, high=_MOST, rule="must be 0 (IID) or more")
        if self.time_limit is not None and self.seconds_per_round is None:
            raise ConfigError(
                f"time_limit={self.time_limit:g} says nothing without seconds_per_round; give both "
                "(--time-limit and --seconds-per-round)"
            )

    @property
    def budget(self) -> PrivacyBudget:
        """ε and δ in one value."""
        return PrivacyBudget(epsilon=self.epsilon, delta=self.delta)

    @property
    def gamma(self) -> float:
        """Γ: one client differs from none."""
        return self.heterogeneity if self.clients > 1 else 0.0

    @property
    def client_size(self) -> float:
        """Records of the smallest client, on whose batch Lemma 2 looks."""
        return float(self.smallest_client or self.samples / self.clients)

    @property
    def bytes_per_round(self) -> int:
        """Every client takes the model and sends one back."""
        return _DIRECTIONS * self.clients * _BYTES_PER_NUMBER * self.num_params

    def _check_mechanism(self) -> None:
        if self.sample_rate is not None:
            rule = f"must be in [{_LEAST_RATE:g}, 1]; did you pass a batch size?"
            checks.real("sample_rate", self.sample_rate, low=_LEAST_RATE, high=1, rule=rule)
        if self.noise_multiplier is not None:
            least, most = MIN_NOISE_MULTIPLIER, MAX_NOISE_MULTIPLIER
            rule = f"must be between {least:g} and {most:g}: it counts clip norms"
            checks.real("noise_multiplier", self.noise_multiplier, low=least, high=most, rule=rule)

    def _check_counts(self) -> None:
        checks.whole("clients", self.clients, low=1, high=_MOST)
        checks.whole("samples", self.samples, low=self.clients, high=_MOST)
        checks.whole("min_steps", self.min_steps, low=1, high=_MOST_MIN_STEPS)
        checks.whole("num_params", self.num_params, low=1, high=_MOST)
        if self.smallest_client is not None:
            checks.whole("smallest_client", self.smallest_client, low=1, high=self.samples // self.clients)
        if self.max_rounds == 0:
            raise ConfigError(
                "max_rounds=0 leaves nothing to train: one round is the least; then all local steps fall into it, and "
                "what the clients learn is averaged once"
            )
        checks.whole("max_rounds", self.max_rounds, low=1, high=_MOST_ROUNDS)


@dataclass(frozen=True, kw_only=True)
class Rounds:
    """How many rounds there can be, and what says so."""

    count: int
    limited_by: str
    """max_rounds, time_limit or traffic_limit."""


def possible_rounds(wishes: Wishes) -> Rounds:
    """R_s, or fewer where time or traffic ends first; ConfigError with what would do where not one fits."""
    found = [Rounds(count=wishes.max_rounds, limited_by="max_rounds")]
    if wishes.time_limit is not None and wishes.seconds_per_round is not None:
        found.append(Rounds(count=_whole_times(wishes.time_limit, wishes.seconds_per_round), limited_by="time_limit"))
    if wishes.traffic_limit is not None:
        found.append(Rounds(count=wishes.traffic_limit // wishes.bytes_per_round, limited_by="traffic_limit"))
    fewest = min(found, key=lambda rounds: rounds.count)
    if fewest.count == 0:
        raise ConfigError(_not_one_round(wishes, fewest.limited_by))
    return fewest


def _not_one_round(wishes: Wishes, limited_by: str) -> str:
    if limited_by == "time_limit":
        return (
            f"time_limit={wishes.time_limit:g} s is over before the first round of seconds_per_round="
            f"{wishes.seconds_per_round:g}: possible from {wishes.seconds_per_round:g} s on, which is one round"
        )
    assert wishes.traffic_limit is not None  # noqa: S101 - for the type checker
    one, limit = wishes.bytes_per_round, wishes.traffic_limit
    per_client = _DIRECTIONS * _BYTES_PER_NUMBER
    instead = [f"a limit of {one:,} bytes carries one round"]
    if (params := limit // (per_client * wishes.clients)) > 0:
        instead.append(f"this one carries a model of {params:,} parameters")
    if (clients := limit // (per_client * wishes.num_params)) > 0:
        instead.append(f"or {clients} of the {wishes.clients} clients a round")
    return (
        f"traffic_limit={limit:,} bytes does not carry one round of {wishes.clients} clients with "
        f"{wishes.num_params:,} parameters, both ways: {'; '.join(instead)}"
    )


def _whole_times(total: float, each: float) -> int:
    """How often `each` fits, not misled by 0.3 / 0.1 = 2.9999."""
    return int(min(total / each * (1 + 1e-12), _MOST))
