"""From a configuration to what is audited: the federation of its first client."""

from dataclasses import replace
from typing import Any

from alidpfl.audit.findings import Audit
from alidpfl.audit.one_run import audit_run, check_canaries
from alidpfl.audit.one_step import audit_step, check_confidence, check_draws
from alidpfl.audit.subject import Subject
from alidpfl.inputs import checks
from alidpfl.runs import Config
from alidpfl.runs.data import load_data, simulation_data
from alidpfl.runs.features import featured
from alidpfl.runs.prepare import accountant_of, build_model, make_parts, make_settings, releases_before
from alidpfl.types import OnProgress


def audit_config(
    config: Config,
    *,
    one_step: bool = True,
    one_run: bool = True,
    draws: int | None = None,
    canaries: int = 1000,
    confidence: float | None = None,
    seed: int | None = None,
    on_progress: OnProgress | None = None,
) -> Audit:
    """Audit what `alidpfl run` would train; `confidence` None: as strict as each audit is by itself."""
    check_draws(draws)  # before any data are loaded
    check_canaries(canaries)
    if confidence is not None:
        check_confidence(confidence)
    if seed is not None:
        checks.whole("seed", seed, low=0)
    subject = subject_of(config, on_progress)
    asked: dict[str, Any] = {"seed": seed, "on_progress": on_progress}
    if confidence is not None:
        asked["confidence"] = confidence
    return Audit(
        claimed_epsilon=subject.budget.epsilon,
        delta=subject.budget.delta,
        step=audit_step(subject, draws=draws, **asked) if one_step else None,
        run=audit_run(subject, canaries=canaries, **asked) if one_run else None,
    )


def subject_of(config: Config, on_progress: OnProgress | None = None) -> Subject:
    """What `alidpfl run` would train, with the records of the first client only."""
    parts = make_parts(config)
    dataset = load_data(config, on_progress)
    data = simulation_data(config, dataset)
    if config.has_statistics:
        dataset, _ = featured(config, dataset, data.clients, None, on_progress)
        data = simulation_data(config, dataset)
    own = data.clients[0]
    return Subject(
        model=build_model(config, dataset.input_shape, dataset.num_classes),
        inputs=data.inputs[own],
        targets=data.targets[own],
        method=parts.method,
        policy=parts.policy,
        budget=config.budget,
        settings=replace(
            make_settings(config, shows_private_data=False),
            clients_per_round=None,
            time_limit=None,
            traffic_limit=None,
            dropout_rate=0.0,
            straggler_rate=0.0,
        ),
        accountant=accountant_of(config),
        noise=config.privacy.noise,
        server_settings=parts.server_settings,
        releases=releases_before(config),
        evaluation={part: pair for part, pair in data.evaluation.items() if part == "validation"},
    )
