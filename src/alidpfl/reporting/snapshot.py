"""Read a run as it is on disk now: finished, running or killed. Nothing in its files is trusted."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from alidpfl.config.network import count_of_layers
from alidpfl.metrics import HEADLINES, SMALLER_IS_BETTER, CalibrationBin, Interval, headline
from alidpfl.store import RoundTiming, RunDirectory
from alidpfl.types import RoundRecord, StopReason

NOT_COVERED = "ε does NOT cover all that was shown"
_QUANTITIES = {"local_steps": "local steps τ", "epsilon": "ε spent"}
_SETTINGS = {
    "dataset": "data.name",
    "is_synthetic": "data.is_synthetic",
    "clients": "data.clients",
    "partition": "data.partition",
    "dirichlet_beta": "data.dirichlet_beta",
    "model": "model.name",
    "method": "method.name",
    "policy": "method.policy",
    "schedule": "method.schedule",
    "max_rounds": "federation.max_rounds",
    "epsilon_budget": "privacy.epsilon",
    "accountant": "privacy.accountant",
    "sample_rate": "privacy.sample_rate",
    "noise_multiplier": "privacy.noise_multiplier",
    "statistics_noise": "privacy.statistics_noise",
    "noise_kind": "privacy.noise",
    "unit": "privacy.unit",
    "max_records": "privacy.max_records",
    "clip_norm": "method.clip_norm",
    "learning_rate": "method.learning_rate",
    "seed": "run.seed",
    "randomness": "run.randomness",
}
"""The settings among the facts of a run. An old or hand-made config.toml may lack any of them."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric of a finished run."""

    value: float
    interval: Interval | None = None
    """Its 95 % interval."""
    baseline: float | None = None
    """Its value for a model that ignores the inputs."""


@dataclass(frozen=True, kw_only=True)
class RunSnapshot:
    """Everything that tables, figures and pages need of one run."""

    name: str
    path: Path
    config: Mapping[str, Any]
    records: tuple[RoundRecord, ...] = ()
    timings: tuple[RoundTiming, ...] = ()
    summary: Mapping[str, Any] | None = None
    """None while the run goes on, or after it was killed."""
    environment: Mapping[str, Any] | None = None
    members: Mapping[str, Any] | None = None
    """The nodes of a run over vaults; None for a simulation."""
    holder: str | None = None
    """The process that writes the run now; None if there is none, or if it is unknown."""

    @classmethod
    def load(cls, path: str | Path) -> "RunSnapshot":
        """Read a run directory without locking it, so that a running run can be watched."""
        run = RunDirectory.open(path)
        return cls(
            name=run.path.resolve().name,
            path=run.path,
            config=run.config(),
            records=tuple(run.records()),
            timings=tuple(run.timings()),
            summary=run.summary(),
            environment=run.environment(),
            members=run.members(),
            holder=run.holder(),
        )

    @property
    def covers_everything(self) -> bool:
        """Return False if any round used un-noised signals."""
        is_said = (self.summary or {}).get("covers_everything", True) is True
        return is_said and all(record.covers_everything for record in self.records)

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Return what ε does not cover. A run writes it down at its start, and again at its end."""
        lists = [(source or {}).get("uncovered") for source in (self.summary, self.environment)]
        return tuple(map(str, next((reasons for reasons in lists if isinstance(reasons, list) and reasons), [])))

    @property
    def is_seeded(self) -> bool:
        """Return whether anyone who knows the seed can subtract the noise."""
        return bool(self._randomness(flattened(self.config)) == "seeded")

    @property
    def missed_rounds(self) -> int:
        """Return the number of rounds that were charged although too few clients answered to change the model."""
        return sum(not record.aggregated for record in self.records)

    @property
    def group_epsilon(self) -> dict[str, float]:
        """Return ε of several records of one person, by their number, for a run that protects single records."""
        found = {str(group): _number(value) for group, value in self._table("group_epsilon").items()}
        return {group: value for group, value in found.items() if value is not None}

    @property
    def has_persons(self) -> bool:
        """Return whether the data say which records are a person's."""
        return bool((self.summary or {}).get("has_persons", self.group_epsilon))  # older ones have groups only then

    @property
    def can_go_on(self) -> bool:
        """Return whether `--resume` has something left to do."""
        return self.summary is None or self.summary.get("stop_reason") == StopReason.INTERRUPTED

    @property
    def headline(self) -> str:
        """Return the metric that stands for the run's task; the accuracy before any is known."""
        measured = (record.metrics for record in reversed(self.records) if record.metrics)
        return headline(self.metrics()) or headline(next(measured, {})) or "accuracy"

    def metrics(self) -> dict[str, Metric]:
        """Return the metrics of a finished run by name."""
        values, baselines, intervals = (self._table(key) for key in ("metrics", "baselines", "intervals"))
        return {
            str(name): Metric(
                value=value, interval=_interval(intervals.get(name)), baseline=_number(baselines.get(name))
            )
            for name, value in values.items()
            if _number(value) is not None
        }

    def calibration(self) -> list[CalibrationBin]:
        """Return the calibration curve of a finished run on classes or labels, by predicted probability."""
        names, found = [part.name for part in fields(CalibrationBin)], (self.summary or {}).get("calibration")
        parts = [part for part in found if isinstance(part, Mapping)] if isinstance(found, list) else []
        curve: list[dict[str, Any]] = [{name: part.get(name) for name in names} for part in parts]
        is_whole = [all(_is_finite(value) for value in part.values()) for part in curve]
        bins = [CalibrationBin(**part) for part, whole in zip(curve, is_whole, strict=True) if whole]
        return sorted(bins, key=lambda part: part.predicted)

    def points(self, quantity: str) -> list[tuple[int, float]]:
        """Return (round from 1, value) of the rounds that have one of the `quantities`."""
        return [(record.number, value) for record, value in self._measured(quantity)]

    def _measured(self, quantity: str) -> list[tuple[RoundRecord, float]]:
        """Return the rounds that have a quantity, with its values."""
        values: list[tuple[RoundRecord, Any]] = [
            (record, getattr(record, quantity, record.metrics.get(quantity))) for record in self.records
        ]
        return [(record, value) for record, value in values if _number(value) is not None]

    def _table(self, key: str) -> Mapping[str, Any]:
        found = (self.summary or {}).get(key)
        return found if isinstance(found, Mapping) else {}

    def effective_settings(self) -> dict[str, Any]:
        """Return the settings by keys such as `privacy.epsilon`, with σ if the run found it for the budget.

        A run over vaults leaves out the settings of data and seed, which are the owners' own.
        """
        found = flattened(self.config)
        if (noise := self._noise_multiplier(found)) is not None:
            found["privacy.noise_multiplier"] = noise
        if self.members:
            owned = ("run.seed", "run.randomness")
            return {key: value for key, value in found.items() if not (key.startswith("data.") or key in owned)}
        return found

    def facts(self) -> dict[str, Any]:
        """Return settings and results, ready for JSON; None where unknown."""
        settings = flattened(self.config)
        return {
            "run": self.name,
            "path": str(self.path),
            "finished": self.summary is not None,
            **{name: settings.get(key) for name, key in _SETTINGS.items()},
            "model": _model(settings),
            **self._corrected(settings),
            **self._results(settings),
        }

    def _corrected(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """Return the facts about which the run knows more than its configuration."""
        summary = self.summary or {}
        found = {"noise_multiplier": self._noise_multiplier(settings), "randomness": self._randomness(settings)}
        found["unit"] = settings.get("privacy.unit", "record")  # left out at its default
        if self.members is not None:  # the records are the owners', and the configuration knows nothing of them
            clients = self.members.get("clients")
            found |= {"dataset": "in vaults", "is_synthetic": False, "partition": "by owner", "dirichlet_beta": None}
            return {**found, "clients": len(clients) if isinstance(clients, list) else None, "seed": None}
        charged = summary.get("client_epsilon")
        # Files of your own decide the number of clients. It is known once every client has its ε.
        clients = settings.get("data.clients") or (len(charged) if isinstance(charged, Mapping) else None)
        return {**found, "clients": clients} | {key: summary[key] for key in ("is_synthetic",) if key in summary}

    def _results(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        summary = self.summary or {}
        last = self.records[-1] if self.records else None
        measured = [(value, record.round) for record, value in self._measured(self.headline)]
        if any(record.held_out is not None for record in self.records):  # the best of noised values is mostly noise
            measured = []
        choose = min if self.headline in SMALLER_IS_BETTER else max
        # The earliest of equally good rounds counts.
        best, best_round = choose(measured, key=lambda pair: pair[0], default=(None, None))
        is_accuracy = self.headline == "accuracy"
        return {
            "epsilon": _number(summary.get("epsilon", last.epsilon if last else None)),
            "delta": _number(summary.get("delta", settings.get("privacy.delta"))),
            "steps": _number(summary.get("steps", last.steps if last else None)),
            "rounds": _number(summary.get("rounds", len(self.records))),
            "accuracy": _number(summary.get("accuracy", measured[-1][0] if measured and is_accuracy else None)),
            "best_accuracy": best if is_accuracy else None,
            "headline": self.headline,
            "best": best,
            "best_round": best_round,
            "stop_reason": summary.get("stop_reason"),
            "seconds": _number(summary.get("seconds", self.timings[-1].seconds_total if self.timings else None)),
            "covers_everything": self.covers_everything,
            "uncovered": list(self.uncovered),
        }

    def _randomness(self, settings: Mapping[str, Any]) -> Any:
        return (self.summary or {}).get("randomness", None if self.members else settings.get("run.randomness"))

    def _noise_multiplier(self, settings: Mapping[str, Any]) -> Any:
        """Return σ as configured, or as the run found it for the budget."""
        sigma = (self.summary or {}).get("noise_multiplier", settings.get("privacy.noise_multiplier"))
        return self.records[0].noise_multiplier if sigma is None and self.records else sigma


def quantities(snapshots: Iterable[RunSnapshot]) -> dict[str, str]:
    """Return what is drawn by round, with titles: the headlines of the runs, local steps and ε."""
    headlines = {snapshot.headline for snapshot in snapshots}
    return {name: f"test {title}" for name, title in HEADLINES.items() if name in headlines} | _QUANTITIES


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one table with dotted keys.

    >>> flattened({"privacy": {"epsilon": 2.0}, "method": {"options": {"draws": 1}}})
    {'privacy.epsilon': 2.0, 'method.options.draws': 1}
    """
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= flattened(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _model(settings: Mapping[str, Any]) -> Any:
    """Return the network in one word: its name, its factory, or how many layers are declared."""
    layers = settings.get("model.layers")
    if isinstance(layers, list):
        return count_of_layers(len(layers))
    return settings.get("model.name", settings.get("model.factory"))


def _number(value: Any) -> Any:
    """Return the value if it is a number, else None: summary.json may have been edited."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _is_finite(value: object) -> bool:
    return _number(value) is not None and math.isfinite(value)  # type: ignore[arg-type]


def _interval(ends: object) -> Interval | None:
    """Return two finite ends in order, or None."""
    if not isinstance(ends, list) or len(ends) != 2 or not all(map(_is_finite, ends)):  # noqa: PLR2004
        return None
    return (ends[0], ends[1])
