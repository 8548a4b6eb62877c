"""What is audited: a model, a method and the (ε, δ) that they claim; a client's records, to hide canaries among."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from alidpfl.dpsgd import RandomStream, cross_entropy
from alidpfl.errors import ConfigError
from alidpfl.federation.federation import make_ledger
from alidpfl.federation.server import ServerSettings
from alidpfl.federation.settings import FederationSettings, Part
from alidpfl.methods import Method, Objective
from alidpfl.policies import Policy
from alidpfl.privacy import GaussianRelease, Ledger, PrivacyBudget, SampledGaussian, epsilon
from alidpfl.types import NoiseKind

_SCORES = 2  # dimensions of (B, classes)
_LEAST_NOISE, _MOST_NOISE = 0.2, 1e6  # that is accounted for: below, ε is beyond all claims anyway


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A federation of one client, before its first round."""

    model: nn.Module = field(repr=False)
    """What is trained, with the weights that it starts from."""
    inputs: Tensor = field(repr=False)
    """(n, ...) floating point: the client's records."""
    targets: Tensor = field(repr=False)
    """(n,) the classes of these records."""
    method: Method
    """What it changes in plans and in the loss."""
    policy: Policy
    """How the number of local steps is chosen."""
    budget: PrivacyBudget
    """ε and δ, the claim that is audited."""
    settings: FederationSettings
    """Rounds, sampling rate and step sizes."""
    accountant: str = "pld"
    """How ε is computed: "pld" (tightest), "rdp", or "rdp-paper", as the paper counts."""
    noise: NoiseKind = "gaussian"
    """"gaussian", or "grid", which is exact to the last bit."""
    server_settings: ServerSettings | None = None
    """Momentum, averaging, quorum; None for plain averaging."""
    releases: tuple[GaussianRelease, ...] = ()
    """What was charged before the first round."""
    evaluation: Mapping[Part, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)
    """Public data, for methods that look at their loss."""

    def __post_init__(self) -> None:
        if not self.inputs.is_floating_point():
            raise ConfigError(
                f"inputs have type {self.inputs.dtype}: an audit makes records up, and needs floating-point inputs"
            )
        if self.num_classes < 2:  # noqa: PLR2004
            raise ConfigError("the model has a single output: an audit mislabels records, and needs two classes")

    @property
    def num_classes(self) -> int:
        """Classes that the model tells apart."""
        with torch.no_grad():
            outputs = copy.deepcopy(self.model).eval()(self.inputs[:1])
        if outputs.ndim != _SCORES:
            raise ConfigError(f"the model gives shape {tuple(outputs.shape)}, and an audit needs one score a class")
        return int(outputs.shape[1])

    @property
    def noise_multiplier(self) -> float:
        """σ of the first round."""
        return self.method.numbers(self.method.start(), 0).noise_multiplier

    @property
    def clip_norm(self) -> float:
        """C of the first round."""
        return self.method.numbers(self.method.start(), 0).clip_norm

    @property
    def max_steps(self) -> int:
        """R_c; where the noise goes on updates, the rounds that are charged."""
        affordable = self.ledger().affordable_steps(0, self.noise_multiplier)
        return min(affordable, self.settings.max_rounds) if self.method.release == "update" else affordable

    def objective(self) -> Objective:
        """What the client minimises, in a copy of its own."""
        return self.method.objective(copy.deepcopy(self.model).train(), cross_entropy)

    def ledger(self) -> Ledger:
        """Fresh accounts."""
        rate = self.settings.sample_rate
        return make_ledger(
            self.method, self.budget, rate, self.noise_multiplier, self.accountant, releases=self.releases
        )

    def epsilon_at(self, noise_multiplier: float) -> float:
        """ε of the whole run's steps, had they this σ: tight, by `pld`, whichever accountant the run is charged by.

        Other accountants' ε are too large, as a claim may be, and what is measured against a claim may not. What was
        released before the first step is left out for the same reason.
        """
        rate = 1.0 if self.method.release == "update" else self.settings.sample_rate
        steps = SampledGaussian(
            sample_rate=rate,
            noise_multiplier=min(max(noise_multiplier, _LEAST_NOISE), _MOST_NOISE),
            steps=self.max_steps,
        )
        return epsilon([steps], self.budget.delta, "pld")


def stream(seed: int | None, *path: int) -> RandomStream:
    """Repeatable where a seed is given, else of the operating system's entropy."""
    return RandomStream.secure() if seed is None else RandomStream.seeded(seed, *path)
