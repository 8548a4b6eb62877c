"""The subject of an audit: a model, a method, the (ε, δ) that they claim, and a client's records."""

import copy
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from alidpfl.config import Config
from alidpfl.data.dataset import kind_of
from alidpfl.dpsgd import Groups, RandomStream, cross_entropy
from alidpfl.errors import ConfigError
from alidpfl.federation.planning import make_ledger
from alidpfl.federation.server import ServerSettings
from alidpfl.federation.settings import FederationSettings, Part
from alidpfl.methods import Loss, Method, Objective
from alidpfl.policies import Policy
from alidpfl.privacy import GaussianRelease, Ledger, PrivacyBudget, SampledGaussian, epsilon
from alidpfl.runs.data import load_data, simulation_data
from alidpfl.runs.prepare import (
    accountant_of,
    build_model,
    configured_loss,
    make_parts,
    make_settings,
    releases_before,
)
from alidpfl.runs.standardise import with_statistics
from alidpfl.types import NoiseKind, OnProgress, Unit

_LEAST_NOISE, _MOST_NOISE = 0.2, 1e6  # σ is kept within these; below, ε is beyond all claims


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A federation of one client before its first round."""

    model: nn.Module = field(repr=False)
    """The model with its initial weights."""
    inputs: Tensor = field(repr=False)
    """(n, ...) floating point: the inputs of the client's records."""
    targets: Tensor = field(repr=False)
    """(n,) classes, (n,) numbers, or (n, k) labels of the records."""
    method: Method
    """Sets C, σ and the local loss."""
    policy: Policy
    """Chooses the number of local steps."""
    budget: PrivacyBudget
    """ε and δ of the claim."""
    settings: FederationSettings
    """Rounds, sampling rate and step sizes."""
    accountant: str = "pld"
    """The accountant of the claim: "pld" (tightest), "rdp", or "rdp-paper" as in the paper."""
    noise: NoiseKind = "gaussian"
    """"gaussian", or "grid", which is exact to the last bit."""
    loss: Loss = cross_entropy
    """The loss of each record."""
    server_settings: ServerSettings | None = None
    """Momentum, averaging and quorum; None for plain averaging."""
    releases: tuple[GaussianRelease, ...] = ()
    """Releases that were charged before the first round."""
    evaluation: Mapping[Part, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)
    """Public data, for methods that use the loss on them."""
    groups: Groups | None = field(default=None, repr=False)
    """The client's records of each person, if the unit of privacy is a person. None means that it is a record."""
    max_records: int = 1
    """k: the most records of a person in a step."""

    def __post_init__(self) -> None:
        if not self.inputs.is_floating_point():
            raise ConfigError(f"inputs.dtype={self.inputs.dtype} must be floating point: canaries are made-up numbers")
        if len(self.wrong_targets) < 2:  # noqa: PLR2004
            raise ConfigError(
                "the model has one output; an audit needs two or more classes, because it gives canaries wrong labels"
            )

    @property
    def wrong_targets(self) -> Tensor:
        """Return the made-up targets (m, ...) of canaries. The first and the last are opposites.

        They are all classes, by the shape of the model's output; the numbers -1 and 1; or no label and all labels.
        """
        if (kind := kind_of(self.targets)) == "number":
            return torch.tensor([-1.0, 1.0])
        if kind == "labels":
            width = self.targets.shape[1]
            return torch.stack([torch.zeros(width), torch.ones(width)])
        with torch.no_grad():
            outputs = copy.deepcopy(self.model).eval()(self.inputs[:1])
        if outputs.ndim != 2:  # noqa: PLR2004
            raise ConfigError(f"the model's output has shape {tuple(outputs.shape)}; an audit needs (B, classes)")
        return torch.arange(outputs.shape[1], dtype=self.targets.dtype)

    @property
    def noise_multiplier(self) -> float:
        """Return σ of the first round."""
        return self.method.clip_and_noise(self.method.start(), 0).noise_multiplier

    @property
    def clip_norm(self) -> float:
        """Return C of the first round."""
        return self.method.clip_and_noise(self.method.start(), 0).clip_norm

    @property
    def unit(self) -> Unit:
        """Return what the claim protects."""
        return "record" if self.groups is None else "person"

    def canary_groups(self, rows: Tensor) -> Groups | None:
        """Return canaries as persons: each has one of these rows k + 1 times. None if canaries are records.

        The row more than k shows a client that does not hold a person to k records.
        """
        if self.groups is None:
            return None
        each = self.max_records + 1
        return Groups(rows=rows.repeat_interleave(each), offsets=torch.arange(len(rows) + 1) * each)

    @property
    def max_steps(self) -> int:
        """Return R_c, or the number of charged rounds if the noise is added to updates."""
        affordable = self.ledger().affordable_steps(0, self.noise_multiplier)
        return min(affordable, self.settings.max_rounds) if self.method.release == "update" else affordable

    def objective(self) -> Objective:
        """Return what the client minimises, with a copy of the model."""
        return self.method.objective(copy.deepcopy(self.model).train(), self.loss)

    def ledger(self) -> Ledger:
        """Return a new ledger."""
        sigma, rate = self.noise_multiplier, self.settings.sample_rate
        return make_ledger(self.method, self.budget, rate, sigma, self.accountant, releases=self.releases)

    def epsilon_at(self, noise_multiplier: float) -> float:
        """Return ε of all steps of the run at another σ, by the tight accountant `pld`.

        A claim may be too large, but what is measured against it must not be. So this never uses a looser accountant,
        and it leaves out what was released before the first step.
        """
        rate = 1.0 if self.method.release == "update" else self.settings.sample_rate
        sigma = min(max(noise_multiplier, _LEAST_NOISE), _MOST_NOISE)
        steps = SampledGaussian(sample_rate=rate, noise_multiplier=sigma, steps=self.max_steps)
        return epsilon([steps], self.budget.delta, "pld")


def subject_of(config: Config, on_progress: OnProgress | None = None) -> Subject:
    """Return what `alidpfl run` would train, with the records of the first client only."""
    parts = make_parts(config)
    dataset = load_data(config, on_progress)
    data = simulation_data(config, dataset)
    if config.has_statistics:
        dataset, _ = with_statistics(config, dataset, data, None, on_progress)
        data = simulation_data(config, dataset)
    own, settings = data.clients[0], make_settings(config, shows_private_data=False)
    settings = replace(settings, clients_per_round=None, time_limit=None, traffic_limit=None)
    return Subject(
        model=build_model(config, dataset.input_shape, dataset.num_outputs),
        inputs=data.inputs[own],
        targets=data.targets[own],
        method=parts.method,
        policy=parts.policy,
        budget=config.budget,
        settings=replace(settings, dropout_rate=0.0, straggler_rate=0.0),
        accountant=accountant_of(config),
        noise=config.privacy.noise,
        loss=configured_loss(config, dataset.kind),
        server_settings=parts.server_settings,
        releases=releases_before(config),
        evaluation={part: pair for part, pair in data.evaluation.items() if part == "validation"},
        groups=_own_groups(data.groups[0], own, len(data.inputs)) if data.groups else None,
        max_records=data.max_records,
    )


def _own_groups(groups: Groups, own: Tensor, count: int) -> Groups:
    """Return the groups with rows counted among the client's own rows, not among all `count` rows."""
    places = torch.zeros(count, dtype=torch.int64)
    places[own] = torch.arange(len(own))
    return Groups(rows=places[groups.rows], offsets=groups.offsets)


def stream(seed: int | None, *path: int) -> RandomStream:
    """Return a repeatable random stream, or for seed None a secure one."""
    return RandomStream.secure() if seed is None else RandomStream.seeded(seed, *path)
