"""A run as it is on disk right now: finished, running or killed. Everything is read with suspicion."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alidpfl.store import RoundTiming, RunDirectory
from alidpfl.types import RoundRecord, StopReason

NOT_COVERED = "ε does NOT cover all that was shown"


@dataclass(frozen=True, kw_only=True)
class RunSnapshot:
    """All that views need of one run."""

    name: str
    path: Path
    config: Mapping[str, Any]
    records: tuple[RoundRecord, ...] = ()
    timings: tuple[RoundTiming, ...] = ()
    summary: Mapping[str, Any] | None = None
    """None while the run goes on, or after it was killed."""
    environment: Mapping[str, Any] | None = None
    members: Mapping[str, Any] | None = None
    """The nodes of a run over vaults; None for one on one machine."""
    holder: str | None = None
    """The process that writes it now, as far as we may know."""

    @classmethod
    def load(cls, path: str | Path) -> "RunSnapshot":
        """Reads a run directory without locking it, so that a running run can be watched."""
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
        """False as soon as any round used un-noised signals."""
        return (self.summary or {}).get("covers_everything", True) is True and all(
            record.covers_everything for record in self.records
        )

    @property
    def uncovered(self) -> tuple[str, ...]:
        """What no ε of this run covers, as far as the run wrote it down: at its start, and again at its end."""
        told = [(place or {}).get("uncovered") for place in (self.summary, self.environment)]
        found = next((reasons for reasons in told if isinstance(reasons, list) and reasons), [])
        return tuple(map(str, found))

    @property
    def is_seeded(self) -> bool:
        """Whether whoever knows the seed can subtract the noise; where the summary does not say, the settings do."""
        return bool(self._randomness() == "seeded")

    @property
    def missed_rounds(self) -> int:
        """Rounds that were charged and in which too few clients answered: the model stayed as it was."""
        return sum(not record.aggregated for record in self.records)

    def effective_settings(self) -> dict[str, Any]:
        """By keys such as `privacy.epsilon`: what took effect, with σ where it was found for the budget."""
        found = flattened(self.config)
        if (noise := self._noise_multiplier()) is not None:
            found["privacy.noise_multiplier"] = noise
        return {key: value for key, value in found.items() if not (self._is_elsewhere(key) and self.members)}

    @staticmethod
    def _is_elsewhere(key: str) -> bool:
        """Over vaults: the owners' data and their own noise."""
        return key.startswith("data.") or key in ("run.seed", "run.randomness")

    @property
    def can_go_on(self) -> bool:
        """Whether `--resume` has something left to do."""
        return self.summary is None or self.summary.get("stop_reason") == StopReason.INTERRUPTED

    def facts(self) -> dict[str, Any]:
        """Settings and results in the order of the tables; None where unknown. Ready for JSON."""
        return {
            "run": self.name,
            "path": str(self.path),
            "finished": self.summary is not None,
            **self._settings(),
            **self._results(),
        }

    def _settings(self) -> dict[str, Any]:
        return {
            **self._data(),
            "model": self._setting("model", "name"),
            "method": self._setting("method", "name"),
            "policy": self._setting("method", "policy"),
            "schedule": self._setting("method", "schedule"),
            "max_rounds": self._setting("federation", "max_rounds"),
            "epsilon_budget": self._setting("privacy", "epsilon"),
            "accountant": self._setting("privacy", "accountant"),
            "sample_rate": self._setting("privacy", "sample_rate"),
            "noise_multiplier": self._noise_multiplier(),
            "statistics_noise": self._setting("privacy", "statistics_noise"),
            "noise_kind": self._setting("privacy", "noise"),
            "clip_norm": self._setting("method", "clip_norm"),
            "learning_rate": self._setting("method", "learning_rate"),
            "seed": None if self.members else self._setting("run", "seed"),
            "randomness": self._randomness(),
        }

    def _randomness(self) -> Any:
        return (self.summary or {}).get("randomness", None if self.members else self._setting("run", "randomness"))

    def _data(self) -> dict[str, Any]:
        """Whose records: over vaults the owners', of which the configuration knows nothing."""
        if self.members is not None:
            told = {"dataset": "in vaults", "is_synthetic": False, "partition": "by owner", "dirichlet_beta": None}
            clients = self.members.get("clients")
            return {**told, "clients": len(clients) if isinstance(clients, list) else None}
        return {
            "dataset": self._setting("data", "name"),
            "is_synthetic": (self.summary or {}).get("is_synthetic", self._setting("data", "is_synthetic")),
            # Of own data, files tell how many: known when every client's ε is.
            "clients": self._setting("data", "clients") or self._clients_charged(),
            "partition": self._setting("data", "partition"),
            "dirichlet_beta": self._setting("data", "dirichlet_beta"),
        }

    def _clients_charged(self) -> int | None:
        charged = (self.summary or {}).get("client_epsilon")
        return len(charged) if isinstance(charged, Mapping) else None

    def _noise_multiplier(self) -> Any:
        """As set, or as it was found for the budget: then only the run itself tells."""
        told = (self.summary or {}).get("noise_multiplier", self._setting("privacy", "noise_multiplier"))
        return self.records[0].noise_multiplier if told is None and self.records else told

    def _results(self) -> dict[str, Any]:
        summary = self.summary or {}
        last = self.records[-1] if self.records else None
        measured = [(r.accuracy, r.round) for r in self.records if r.accuracy is not None]
        # Of equal accuracies the earliest round counts.
        best_accuracy, best_round = max(measured, key=lambda pair: pair[0], default=(None, None))
        return {
            "epsilon": _number(summary.get("epsilon", last.epsilon if last else None)),
            "delta": _number(summary.get("delta", self._setting("privacy", "delta"))),
            "steps": _number(summary.get("steps", last.steps if last else None)),
            "rounds": _number(summary.get("rounds", len(self.records))),
            "accuracy": _number(summary.get("accuracy", measured[-1][0] if measured else None)),
            "best_accuracy": best_accuracy,
            "best_round": best_round,
            "stop_reason": summary.get("stop_reason"),
            "seconds": _number(summary.get("seconds", self.timings[-1].seconds_total if self.timings else None)),
            "covers_everything": self.covers_everything,
            "uncovered": list(self.uncovered),
        }

    def _setting(self, section: str, key: str) -> Any:
        """A setting, or None: an old or hand-made config.toml may lack it."""
        table = self.config.get(section)
        return table.get(key) if isinstance(table, Mapping) else None


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one, with keys such as `privacy.epsilon`.

    >>> flattened({"privacy": {"epsilon": 2.0}, "method": {"options": {"draws": 1}}})
    {'privacy.epsilon': 2.0, 'method.options.draws': 1}
    """
    found: dict[str, Any] = {}
    for key, value in config.items():
        found |= flattened(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _number(value: Any) -> Any:
    """Itself, or None: whoever edits summary.json may write anything there."""
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None
