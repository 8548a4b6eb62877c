"""`run --plan auto`: choose sampling rate and noise for the clients and the model of a configuration."""

from dataclasses import asdict, replace

from alidpfl.config.schema import Config
from alidpfl.errors import ConfigError
from alidpfl.federation.tensors import num_params, trained
from alidpfl.planner import PlanRequest, Setting, affordable_rounds, choose_setting
from alidpfl.privacy import GaussianRelease, noise_multiplier_for
from alidpfl.runs.data import load_data, simulation_data
from alidpfl.runs.prepare import accountant_of, build_model, check_choices, releases_before
from alidpfl.runs.standardise import learned_shape
from alidpfl.store.cache import cached
from alidpfl.types import OnProgress

_COMPUTED_BY = ("inputs", "planner", "policies", "privacy")
"""Packages that choose the setting: a change in them makes cached ones invalid."""


def planned(
    config: Config,
    *,
    held_out_key: bytes | None,
    max_epochs: float | None = None,
    on_progress: OnProgress | None = None,
) -> tuple[Config, Setting]:
    """Choose q and σ, and τ if the policy is `fixed`. What the configuration sets itself stays.

    The plan is advice: the run's own ledger computes R_c anew and stops at it. Return the completed configuration, and
    the planner's setting.

    Args:
        config: settings of the run.
        held_out_key: the run's own `secret_key`. With another one, the plan would tell sizes of a second split.
        max_epochs: most passes of a client over its data.
        on_progress: told about slow steps.

    Raises:
        ConfigError: settings that leave nothing to plan, or that cannot work.
        DataError: data that cannot be read or trained on.
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
    request, releases = _request(config, held_out_key, max_epochs, on_progress), releases_before(config)
    question = {"request": asdict(request), "releases": [asdict(release) for release in releases]}
    setting = Setting(
        **cached(
            question, lambda: asdict(_setting(request, releases, on_progress)), kind="settings", packages=_COMPUTED_BY
        )
    )
    return _with(config, setting), setting


def _setting(request: PlanRequest, releases: tuple[GaussianRelease, ...], on_progress: OnProgress | None) -> Setting:
    """Return the planner's setting. What is released before the training raises its σ."""
    tell = (lambda share: on_progress("planning", share)) if on_progress is not None else None
    setting, _ = choose_setting(request, affordable_rounds(request).count, tell)
    if not releases:
        return setting
    rate, steps = setting.sample_rate, setting.steps
    sigma = noise_multiplier_for(request.budget, rate, steps, accountant=request.accountant, already_spent=releases)
    return replace(setting, noise_multiplier=sigma)


def _request(
    config: Config, held_out_key: bytes | None, max_epochs: float | None, on_progress: OnProgress | None
) -> PlanRequest:
    """Load the data and return the planner's request, which holds only what is public about them.

    These are the sizes of the training parts. The number of held-out records is private: q and σ must not depend on it
    (docs/explanation/proofs/parallel.md).
    """
    check_choices(config)
    dataset = load_data(config, on_progress, held_out_key)
    sizes = simulation_data(config, dataset).sizes
    model = build_model(config, learned_shape(config, dataset), dataset.num_outputs)
    return PlanRequest(
        epsilon=config.privacy.epsilon,
        delta=config.privacy.delta,
        clients=len(sizes),
        samples=max(sum(sizes), len(sizes)),
        max_rounds=config.training_rounds,
        sample_rate=config.privacy.sample_rate if "sample_rate" in config.privacy.model_fields_set else None,
        accountant=accountant_of(config),
        num_params=num_params(trained(model)),
        traffic_limit=config.federation.traffic_limit,
        unit=config.privacy.unit,
        max_epochs=max_epochs,
    )


def _with(config: Config, setting: Setting) -> Config:
    chosen = {"sample_rate": setting.sample_rate, "noise_multiplier": setting.noise_multiplier}
    method = config.method
    if config.policy == "fixed" and method.local_steps is None:
        method = method.model_copy(update={"local_steps": setting.local_steps})
    return config.model_copy(update={"privacy": config.privacy.model_copy(update=chosen), "method": method})
