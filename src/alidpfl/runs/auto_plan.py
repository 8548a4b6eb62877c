"""`run --plan auto`: choose sampling rate and noise for the clients and the model of a configuration."""

from dataclasses import replace

from alidpfl.config.schema import Config
from alidpfl.errors import ConfigError
from alidpfl.features import vector_size
from alidpfl.federation.tensors import num_params, trained
from alidpfl.planner import PlanRequest, Setting, affordable_rounds, choose_setting
from alidpfl.privacy import noise_multiplier_for
from alidpfl.runs.data import load_data, simulation_data
from alidpfl.runs.features import map_for
from alidpfl.runs.prepare import accountant_of, build_model, check_choices, releases_before
from alidpfl.types import OnProgress


def planned(
    config: Config, *, max_epochs: float | None = None, on_progress: OnProgress | None = None
) -> tuple[Config, Setting]:
    """Choose q and σ, and τ if the policy is `fixed`. What the configuration sets itself stays.

    The plan is advice: the run's own ledger computes R_c anew and stops at it. Return the completed configuration, and
    the planner's setting.
    """
    if config.release == "update":
        raise ConfigError('--plan auto plans noise on every step; variant "output" adds it to the update: leave it out')
    if config.federation.clients_per_round is not None:
        raise ConfigError(
            f"federation.clients_per_round={config.federation.clients_per_round}: --plan auto plans for all clients in "
            "every round; leave one of them out"
        )
    for name in ("noise_multiplier", "max_steps"):
        if (value := getattr(config.privacy, name)) is not None:
            raise ConfigError(f"privacy.{name}={value} is for --plan auto to choose; leave it out")
    request = _request(config, max_epochs, on_progress)
    rounds = affordable_rounds(request).count
    tell = (lambda share: on_progress("planning", share)) if on_progress is not None else None
    setting, _ = choose_setting(request, rounds, tell)
    if releases := releases_before(config):  # what is released before the training raises σ
        sigma = noise_multiplier_for(
            config.budget, setting.sample_rate, setting.steps, accountant=request.accountant, already_spent=releases
        )
        setting = replace(setting, noise_multiplier=sigma)
    return _with(config, setting), setting


def _request(config: Config, max_epochs: float | None, on_progress: OnProgress | None) -> PlanRequest:
    """Load the data and return the planner's request, which holds only what is public about them."""
    check_choices(config)
    dataset = load_data(config, on_progress)
    sizes = simulation_data(config, dataset).sizes
    shape = (vector_size(map_for(config, dataset.input_shape)),) if config.has_statistics else dataset.input_shape
    model = build_model(config, shape, dataset.num_outputs)
    return PlanRequest(
        epsilon=config.privacy.epsilon,
        delta=config.privacy.delta,
        clients=len(sizes),
        samples=sum(sizes),
        max_rounds=config.training_rounds,
        sample_rate=config.privacy.sample_rate if "sample_rate" in config.privacy.model_fields_set else None,
        accountant=accountant_of(config),
        num_params=num_params(trained(model)),
        traffic_limit=config.federation.traffic_limit,
        max_epochs=max_epochs,
    )


def _with(config: Config, setting: Setting) -> Config:
    chosen = {"sample_rate": setting.sample_rate, "noise_multiplier": setting.noise_multiplier}
    method = config.method
    if config.policy == "fixed" and method.local_steps is None:
        method = method.model_copy(update={"local_steps": setting.local_steps})
    return config.model_copy(update={"privacy": config.privacy.model_copy(update=chosen), "method": method})
