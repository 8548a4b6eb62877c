"""Audit a configuration, and keep the findings: the claim, the measured bounds, and the verdict."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from alidpfl.audit.one_run import RunAudit, audit_run
from alidpfl.audit.one_step import StepAudit, audit_step, check_options
from alidpfl.audit.subject import subject_of
from alidpfl.config import Config
from alidpfl.errors import ConfigError
from alidpfl.inputs import checks
from alidpfl.types import OnProgress, Unit

_BARS = 60


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The audit of one claim (ε, δ)."""

    claimed_epsilon: float
    """ε that the run claims."""
    delta: float
    """δ of the claim."""
    unit: Unit = "record"
    """What the claim protects, and what a canary is."""
    step: StepAudit | None
    """The audit of single steps; None if it was left out."""
    run: RunAudit | None
    """The audit of one whole training; None if it was left out."""

    def __post_init__(self) -> None:
        if self.step is None and self.run is None:
            raise ConfigError("step=None and run=None: nothing was audited; give at least one of them")

    @property
    def lower_bound(self) -> float:
        """Return the larger lower bound on ε of the two audits."""
        return max(self.step.epsilon_lower_bound if self.step else 0.0, self.run.lower_bound if self.run else 0.0)

    @property
    def confidence(self) -> float:
        """Return the probability that both bounds hold, and that correct noise is not refuted."""
        parts = (self.step, self.step and self.step.noise, self.run)
        return 1 - sum(1 - part.confidence for part in parts if part is not None)

    @property
    def is_refuted(self) -> bool:
        """Return whether an audit shows more than is claimed."""
        return any(part.is_refuted for part in (self.step, self.run) if part is not None)

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`, with histograms instead of all observations."""
        return {
            "claimed_epsilon": self.claimed_epsilon,
            "delta": self.delta,
            "unit": self.unit,
            "lower_bound": self.lower_bound,
            "confidence": self.confidence,
            "refuted": self.is_refuted,
            "one_step": None if self.step is None else _step_json(self.step),
            "one_run": None if self.run is None else _run_json(self.run),
        }


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
    """Audit what `alidpfl run` would train.

    Args:
        config: the configuration; only its first client is audited.
        one_step: whether to audit single steps.
        one_run: whether to audit one whole training.
        draws: single steps with the canary, and as many without; None chooses by the size of the model.
        canaries: canaries of the whole training.
        confidence: probability that each bound holds; None for the default of each audit.
        seed: repeats an audit; None for fresh entropy.
        on_progress: called with the current task and the share that is done.

    Returns:
        The findings. `Audit.is_refuted` is the verdict.

    Raises:
        ConfigError: an argument is out of range, or the configuration cannot be audited.
    """
    given = {} if confidence is None else {"confidence": confidence}
    check_options(draws=draws, canaries=canaries, **given)  # before any data are loaded
    options: dict[str, Any] = {"seed": seed, "on_progress": on_progress, **given}
    if seed is not None:
        checks.whole("seed", seed, low=0)
    subject = subject_of(config, on_progress)
    return Audit(
        claimed_epsilon=subject.budget.epsilon,
        delta=subject.budget.delta,
        unit=subject.unit,
        step=audit_step(subject, draws=draws, **options) if one_step else None,
        run=audit_run(subject, canaries=canaries, **options) if one_run else None,
    )


def _step_json(step: StepAudit) -> dict[str, Any]:
    values = asdict(step)
    seen = _histogram(values.pop("without"), values.pop("with_canary"))
    values["noise"]["problem"] = step.noise.problem
    return {"refuted": step.is_refuted, "claimed": step.claimed, **values, "histogram": seen}


def _run_json(run: RunAudit) -> dict[str, Any]:
    values = asdict(run)
    seen = _histogram(values.pop("scores_out"), values.pop("scores_in"))
    return {"refuted": run.is_refuted, **values, "histogram": seen}


def _histogram(without: Sequence[float], with_canary: Sequence[float]) -> dict[str, list[float]]:
    """Return counts of both arms over the same bars, without values that are not finite or far out."""
    both = np.asarray([*without, *with_canary], dtype=np.float64)
    finite = both[np.isfinite(both)]
    low, high = np.quantile(finite, (0.001, 0.999)) if len(finite) else (0.0, 1.0)
    edges = np.linspace(low, high if high > low else low + 1.0, _BARS + 1)
    counts = [np.histogram(np.asarray(values), edges)[0].tolist() for values in (without, with_canary)]
    return {"edges": edges.tolist(), "without": counts[0], "with": counts[1]}
