"""Both audits together: the claim, what was measured against it, and the verdict."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from alidpfl.audit.one_run import RunAudit
from alidpfl.audit.one_step import StepAudit
from alidpfl.errors import ConfigError

_BARS = 60


@dataclass(frozen=True, kw_only=True)
class Audit:
    """Of one claim, (ε, δ)."""

    claimed_epsilon: float
    """ε of the run, the claim."""
    delta: float
    """δ at which ε is claimed."""
    step: StepAudit | None
    """What one step showed; None where that was not audited."""
    run: RunAudit | None
    """What one whole training showed; None where that was not audited."""

    def __post_init__(self) -> None:
        if self.step is None and self.run is None:
            raise ConfigError("nothing was audited: ask for one step, for one run, or for both")

    @property
    def lower_bound(self) -> float:
        """ε of the run, at least: the larger of what both audits show."""
        found = [self.step.epsilon_lower_bound] if self.step else []
        return max([*found, self.run.lower_bound] if self.run else found)

    @property
    def confidence(self) -> float:
        """Probability that an honest engine is not refuted, and that neither bound is too high."""
        parts = (self.step, self.step and self.step.noise, self.run)
        return 1 - sum(1 - part.confidence for part in parts if part is not None)

    @property
    def is_refuted(self) -> bool:
        """True if either audit shows more than was claimed."""
        return any(part.is_refuted for part in (self.step, self.run) if part is not None)

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`, with histograms in place of thousands of observations."""
        return {
            "claimed_epsilon": self.claimed_epsilon,
            "delta": self.delta,
            "lower_bound": self.lower_bound,
            "confidence": self.confidence,
            "refuted": self.is_refuted,
            "one_step": None if self.step is None else _step_json(self.step),
            "one_run": None if self.run is None else _run_json(self.run),
        }


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
    """Counts of both over the same bars; what is not finite, or far out, is left out."""
    both = np.asarray([*without, *with_canary], dtype=np.float64)
    finite = both[np.isfinite(both)]
    low, high = np.quantile(finite, (0.001, 0.999)) if len(finite) else (0.0, 1.0)
    edges = np.linspace(low, high if high > low else low + 1.0, _BARS + 1)
    counts = [np.histogram(np.asarray(values), edges)[0].tolist() for values in (without, with_canary)]
    return {"edges": edges.tolist(), "without": counts[0], "with": counts[1]}
