"""From a Config to a Federation: load the data, split them, make the model, calibrate the noise."""

import hashlib
import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from alidpfl.config.schema import STATISTICS, STATISTICS_SETTINGS, Config, DataSection, ModelSection
from alidpfl.data import Dataset
from alidpfl.data.partition import small_clients
from alidpfl.errors import ConfigError
from alidpfl.federation.federation import Around, Federation, as_it_is, ledger_for
from alidpfl.federation.server import ServerSettings
from alidpfl.federation.settings import FederationSettings
from alidpfl.inputs.names import named
from alidpfl.methods import METHODS, Method, make_method
from alidpfl.models import make_model
from alidpfl.policies import Policy, heterogeneity_for, make_policy
from alidpfl.privacy import GaussianRelease, Ledger, noise_multiplier_for
from alidpfl.runs.data import load_data, simulation_data
from alidpfl.runs.features import Statistics, featured, map_for, statistics_bytes
from alidpfl.simulation.runner import SimulationData
from alidpfl.types import OnProgress, OnShare, tell_nobody

# Settings of their own, or parts of the method: a configuration must not have un-noised signals sent, say.
_NOT_OPTIONS = frozenset(
    {"adapts_noise", "clip_norm", "name", "needs_public_loss", "noise_multiplier", "release", "signals"}
)
_STEPS_A_ROUND = 2  # that a policy may share out, where nothing was wished for


@dataclass(frozen=True, kw_only=True)
class Parts:
    """What follows from the configuration alone: no data are needed for it."""

    noise_multiplier: float
    method: Method
    policy: Policy
    ledger: Ledger
    server_settings: ServerSettings


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """All that a run needs."""

    dataset: Dataset | None
    """None where a deployment's server has none to look at."""
    federation: Federation
    noise_multiplier: float
    task: tuple[tuple[int, ...], int]
    """Shape of an input, as the data set has it, and number of classes."""
    clients: str
    """Fingerprint of who holds what: a run cannot go on with other data."""
    uncovered: tuple[str, ...]
    """What no ε of this run covers."""
    weakness: str | None
    """Why (ε, δ) hides little, if it does."""
    warnings: tuple[str, ...]
    records: str
    """Whose were trained on: the data set's name, or "in vaults"."""
    randomness: str
    """Of batches and noise: "seeded" or "secure"."""
    statistics: Statistics = field(default_factory=dict)
    """What was released before the first round, and is a part of the model."""
    repeats_rounds: bool
    """True if a lost round can be asked for again and is the same: nothing new is released then."""


def make_parts(config: Config) -> Parts:
    """Fails early: no data are loaded for a budget that pays for nothing."""
    check_choices(config)
    noise_multiplier = _noise_multiplier(config)
    method, privacy = _method(config, noise_multiplier), config.privacy
    return Parts(
        noise_multiplier=noise_multiplier,
        method=method,
        policy=_policy(config),
        ledger=ledger_for(
            method,
            config.budget,
            privacy.sample_rate,
            noise_multiplier,
            privacy.accountant,
            releases=releases_before(config),
        ),
        server_settings=_server_settings(config),
    )


def prepare(
    config: Config,
    *,
    statistics: Statistics | None = None,
    on_progress: OnProgress | None = None,
    on_share: OnShare = tell_nobody,
    around: Around = as_it_is,
) -> Prepared:
    """Everything but the training of a simulated run, with something `around` its engine.

    `statistics` are those that a run which goes on has released: a second release is not paid for.
    """
    parts = make_parts(config)
    dataset = load_data(config, on_progress)
    data = simulation_data(config, dataset)
    shown, clients, task = _shown(config, dataset), _fingerprint(data), (dataset.input_shape, dataset.num_classes)
    exchanged = 0
    if config.has_statistics:
        exchanged = len(data.clients) * statistics_bytes(map_for(config, dataset.input_shape))
        dataset, statistics = featured(config, dataset, data.clients, statistics, on_progress)
        data = simulation_data(config, dataset)
    is_seeded = config.run.randomness == "seeded"
    federation = Federation.simulated(
        model=build_model(config, dataset.input_shape, dataset.num_classes),
        data=data,
        method=parts.method,
        policy=parts.policy,
        ledger=parts.ledger,
        settings=make_settings(config, shows_private_data=bool(shown)),
        server_settings=parts.server_settings,
        seed=config.run.seed if is_seeded else None,
        processes=config.run.processes,
        device=_device(config),
        noise=config.privacy.noise,
        bytes_before=exchanged,
        around=around,
        on_share=on_share,
    )
    return Prepared(
        dataset=dataset,
        federation=federation,
        noise_multiplier=parts.noise_multiplier,
        task=task,
        clients=clients,
        statistics=statistics or {},
        uncovered=(*shown, *uncovered_signals(parts.policy)),
        weakness=weakness_of(config, min(len(rows) for rows in data.clients)),
        warnings=_warnings(config, data.clients),
        records=config.data.name,
        randomness=config.run.randomness,
        repeats_rounds=is_seeded,
    )


def uncovered_signals(policy: Policy) -> tuple[str, ...]:
    """What a policy has clients show without noise."""
    return ("un-noised signals of the clients",) if policy.needs_raw_signals else ()


def check_choices(config: Config) -> None:
    """Refuse settings that the chosen data set or model would not read: they were meant to do something."""
    data, model = config.data, config.model
    read_by = (
        ("data.alpha", data.alpha != DataSection().alpha, data.name, "synthetic", ""),
        ("data.beta", data.beta != DataSection().beta, data.name, "synthetic", "; did you mean data.dirichlet_beta?"),
        ("data.num_classes", data.num_classes is not None, data.name, "npz", ""),
        ("model.hidden", model.hidden != ModelSection().hidden, model.name, "mlp", ""),
        *(
            (f"{section}.{key}", _is_set(config, section, key), model.name, "scatter_linear", "")
            for section, key in STATISTICS_SETTINGS
        ),
    )
    for key, is_set, chosen, reader, hint in read_by:
        if is_set and chosen != reader:
            raise ConfigError(f"{key} is for {reader}, and {chosen} would not read it; leave it out{hint}")
    if config.training_rounds < 1:
        raise ConfigError(
            f"federation.max_rounds={config.federation.max_rounds}: {model.name} needs {STATISTICS} rounds for its "
            f"statistics before the first of training; set at least {STATISTICS + 1}"
        )


def _is_set(config: Config, section: str, key: str) -> bool:
    return bool(getattr(getattr(config, section), key) != getattr(getattr(Config(), section), key))


def _noise_multiplier(config: Config) -> float:
    """σ as set, or the least that pays for the steps that are wished for."""
    privacy = config.privacy
    if privacy.noise_multiplier is not None:
        if privacy.max_steps is not None:
            raise ConfigError(
                f"privacy.noise_multiplier={privacy.noise_multiplier} and privacy.max_steps={privacy.max_steps}: "
                "each follows from the other; leave one out"
            )
        return privacy.noise_multiplier
    per_round = config.local_steps if config.policy == "fixed" else _STEPS_A_ROUND
    steps = privacy.max_steps or config.training_rounds * per_round
    rate = privacy.sample_rate
    if config.release == "update":  # charged by the round, over all records
        steps, rate = config.training_rounds, 1.0
    return noise_multiplier_for(
        config.budget, rate, steps, accountant=accountant_of(config), already_spent=releases_before(config)
    )


def releases_before(config: Config) -> tuple[GaussianRelease, ...]:
    """What every client is charged before the first round: the statistics that its features are standardised by."""
    if not config.has_statistics:
        return ()
    return (GaussianRelease(noise_multiplier=config.privacy.statistics_noise, count=STATISTICS),)


def accountant_of(config: Config) -> str:
    """The one that has the last word: noise that depends on outputs needs a Rényi filter."""
    return "rdp" if config.method.name == "adap_dpfl" else config.privacy.accountant


def _policy(config: Config) -> Policy:
    name, options = config.policy, dict(config.method.policy_options)
    if name == "fixed":
        options.setdefault("local_steps", config.local_steps)
    elif config.method.local_steps is not None:
        raise ConfigError(
            f"method.local_steps={config.method.local_steps} is for policy fixed, not for {name}; leave it out"
        )
    try:
        return make_policy(name, **options)
    except TypeError as error:  # a value of the wrong type
        raise ConfigError(f"method.policy_options={options}: {error}") from None


def method_options(name: str) -> dict[str, inspect.Parameter]:
    """What `method.options` may hold for this method.

    >>> list(method_options("pe_dpfl")), list(method_options("ali_dpfl"))
    (['regularisation', 'perturbation', 'draws', 'variant'], [])
    """
    parameters = inspect.signature(METHODS[name]).parameters
    return {option: parameter for option, parameter in parameters.items() if option not in _NOT_OPTIONS}


def _method(config: Config, noise_multiplier: float) -> Method:
    name, options = config.method.name, config.method.options
    for option in options:
        named(f"method.options of {name}: the option", option, method_options(name))
    settings = {"clip_norm": config.method.clip_norm, "noise_multiplier": noise_multiplier}
    method = make_method(name, **settings, **options)
    if method.needs_public_loss and config.data.validation == 0:
        raise ConfigError(
            f"{method.name} looks at the loss on public data: set data.validation, such as 0.02, to hold that share of "
            "the training set out as public"
        )
    return method


def build_model(config: Config, input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """With its first weights."""
    name, hidden = config.model.name, config.model.hidden
    return make_model(name, input_shape, num_classes, hidden=hidden, seed=config.run.seed)


def make_settings(config: Config, *, shows_private_data: bool) -> FederationSettings:
    """Rounds, limits and step sizes."""
    federation, method = config.federation, config.method
    return FederationSettings(
        max_rounds=config.training_rounds,
        sample_rate=config.privacy.sample_rate,
        learning_rate=method.learning_rate,
        schedule=method.schedule,
        clients_per_round=federation.clients_per_round,
        heterogeneity=_heterogeneity(config) if method.heterogeneity is None else method.heterogeneity,
        time_limit=federation.time_limit,
        traffic_limit=federation.traffic_limit,
        dropout_rate=federation.dropout_rate,
        straggler_rate=federation.straggler_rate,
        evaluate_every=config.run.evaluate_every,
        seed=config.run.seed,
        shows_private_data=shows_private_data,
        unsafe=frozenset(config.privacy.unsafe),
    )


def _heterogeneity(config: Config) -> float:
    """Γ as the paper sets it; for clients that come with the data nobody knows, and 1 is the paper's mild case."""
    if config.partition == "natural":
        return 1.0
    return heterogeneity_for(config.data.dirichlet_beta if config.partition == "dirichlet" else None)


def _server_settings(config: Config) -> ServerSettings:
    federation = config.federation
    return ServerSettings(
        momentum=federation.momentum,
        averaging=federation.averaging,
        quorum=federation.quorum,
        weight_exponent=federation.weight_exponent,
        max_client_weight=1.0 if federation.max_client_weight is None else federation.max_client_weight,
    )


def _device(config: Config) -> str:
    if config.run.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError('run.device="cuda": this machine or this build of torch has no CUDA; use "cpu"')
    return config.run.device


def weakness_of(config: Config, smallest_client: int) -> str | None:
    """Why the claim hides little of a client with so many records, if it does."""
    return config.budget.weakness(smallest_client)


def _warnings(config: Config, clients: Sequence[Tensor]) -> tuple[str, ...]:
    found = []
    small = small_clients([rows.numpy() for rows in clients], config.privacy.sample_rate)
    if small:
        names = ", ".join(map(str, small[:5])) + (" ..." if len(small) > 5 else "")  # noqa: PLR2004
        found.append(
            f"{len(small)} of {len(clients)} clients expect less than one record a batch (clients {names}): their "
            "updates are mostly noise; raise privacy.sample_rate or data.min_samples"
        )
    if config.data.name == "npz" and config.run.randomness == "seeded":
        found.append(
            f"whoever knows run.seed={config.run.seed} can subtract the noise from the model; for data that are really "
            'private set run.randomness="secure"'
        )
    return tuple(found)


def _shown(config: Config, dataset: Dataset) -> tuple[str, ...]:
    """What shows the clients' own records without noise. Data sets that are public anyway show nothing."""
    if config.data.name != "npz" or config.data.validation == 0:
        return dataset.shown
    return (*dataset.shown, "loss and accuracy on data.validation, which are records of the clients")


def digest(tensor: Tensor) -> str:
    """Of a tensor's values."""
    return hashlib.sha256(tensor.contiguous().reshape(-1).view(torch.uint8).numpy().data).hexdigest()


def _fingerprint(data: SimulationData) -> str:
    found = hashlib.sha256(data.targets.numpy().tobytes())
    found.update(data.inputs.contiguous().numpy().data)  # without a copy: these may be gigabytes
    for rows in data.clients:
        found.update(len(rows).to_bytes(8, "little") + rows.numpy().tobytes())
    return found.hexdigest()
