"""`run --plan auto`: choose sampling rate and noise for the clients and the model of a configuration."""

from dataclasses import dataclass, replace

from alidpfl.config.schema import Config
from alidpfl.errors import ConfigError
from alidpfl.features import vector_size
from alidpfl.federation.tensors import num_params, trained
from alidpfl.planner import PlanRequest, Setting, affordable_rounds, choose_setting
from alidpfl.privacy import GaussianRelease, noise_multiplier_for
from alidpfl.runs.data import load_data, simulation_data
from alidpfl.runs.features import map_for
from alidpfl.runs.prepare import accountant_of, build_model, check_choices, releases_before
from alidpfl.types import OnProgress


@dataclass(frozen=True, kw_only=True)
class PublicFacts:
    """Public numbers of a run that the planner needs."""

    clients: int
    samples: int
    num_params: int
    accountant: str


def public_facts(config: Config, *, on_progress: OnProgress | None = None) -> PublicFacts:
    """Load the data and return what is public about it."""
    check_choices(config)
    dataset = load_data(config, on_progress)
    clients = simulation_data(config, dataset).clients
    shape = dataset.input_shape
    if config.has_statistics:
        shape = (vector_size(map_for(config, shape)),)
    model = build_model(config, shape, dataset.num_classes)
    return PublicFacts(
        clients=len(clients),
        samples=sum(len(rows) for rows in clients),
        num_params=num_params(trained(model)),
        accountant=accountant_of(config),
    )


def planned(
    config: Config, *, max_epochs: float | None = None, on_progress: OnProgress | None = None
) -> tuple[Config, Setting]:
    """Choose q and σ, and τ if the policy is `fixed`. What the configuration sets itself stays.

    The plan is advice: the run's own ledger computes R_c anew and stops at it.

    Returns:
        The completed configuration, and the planner's setting.

    Raises:
        ConfigError: settings that the planner would have to choose, or that it does not plan for.
    """
    if config.release == "update":
        raise ConfigError('--plan auto plans noise on every step; variant "output" adds it to the update: leave it out')
    if config.federation.clients_per_round is not None:
        raise ConfigError(
            f"federation.clients_per_round={config.federation.clients_per_round}: --plan auto plans for all clients in "
            "every round; leave one of them out"
        )
    if config.privacy.noise_multiplier is not None:
        raise ConfigError(
            f"privacy.noise_multiplier={config.privacy.noise_multiplier} is for --plan auto to choose; leave it out"
        )
    if config.privacy.max_steps is not None:
        raise ConfigError(f"privacy.max_steps={config.privacy.max_steps} is for --plan auto to choose; leave it out")
    facts = public_facts(config, on_progress=on_progress)
    decided = config.privacy.model_fields_set
    request = PlanRequest(
        epsilon=config.privacy.epsilon,
        delta=config.privacy.delta,
        clients=facts.clients,
        samples=facts.samples,
        max_rounds=config.training_rounds,
        sample_rate=config.privacy.sample_rate if "sample_rate" in decided else None,
        accountant=facts.accountant,
        num_params=facts.num_params,
        traffic_limit=config.federation.traffic_limit,
        max_epochs=max_epochs,
    )
    rounds = affordable_rounds(request).count
    tell = (lambda share: on_progress("planning", share)) if on_progress is not None else None
    setting, _ = choose_setting(request, rounds, tell)
    setting = replace(setting, noise_multiplier=_noise_beside(releases_before(config), config, setting))
    return _with(config, setting), setting


def _noise_beside(releases: tuple[GaussianRelease, ...], config: Config, setting: Setting) -> float:
    """Return σ of the plan, raised by what is released before the training."""
    if not releases:
        return setting.noise_multiplier
    return noise_multiplier_for(
        config.budget, setting.sample_rate, setting.steps, accountant=accountant_of(config), already_spent=releases
    )


def _with(config: Config, setting: Setting) -> Config:
    privacy = config.privacy.model_copy(
        update={"sample_rate": setting.sample_rate, "noise_multiplier": setting.noise_multiplier}
    )
    method = config.method
    if config.policy == "fixed" and method.local_steps is None:
        method = method.model_copy(update={"local_steps": setting.local_steps})
    return config.model_copy(update={"privacy": privacy, "method": method})
