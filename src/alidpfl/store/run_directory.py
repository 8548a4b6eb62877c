"""The run directory: everything that a run leaves behind, and all that it needs to go on after a crash.

config.toml             the full effective configuration; its presence makes the folder a run
environment.json        versions, platform, seed
statistics.safetensors  what was released before the first round, where the model needs it
metrics.jsonl           one RoundRecord a line; a rerun or a resumed run writes the same bytes
timings.jsonl           seconds of each round, apart because no two runs agree on them
checkpoint.safetensors  tensors and state: one file, so that one rename replaces both
members.json            who the clients are, where they are nodes with vaults
model.safetensors       the final model
tensorboard/            the rounds again, where they were asked for in that form
summary.json            written when the run ends
lock                    held by the one process that writes
"""

import json
import shlex
import tomllib
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alidpfl.errors import ConfigError, DataError
from alidpfl.store import files
from alidpfl.store.checkpoint import Checkpoint, decode_checkpoint, decode_tensors, encode_checkpoint, encode_tensors
from alidpfl.store.files import RoundTiming, complete_lines, parse_record, parse_timing
from alidpfl.store.toml_writer import to_toml
from alidpfl.types import RoundRecord

if TYPE_CHECKING:
    from torch import Tensor

_CONFIG, _LOCK, _MEMBERS, _STATISTICS = "config.toml", "lock", "members.json", "statistics.safetensors"


@dataclass(frozen=True)
class RunDirectory:
    """One run on disk. Make one with `create` or `open`; hold `lock()` while writing."""

    path: Path
    """The folder itself."""

    @classmethod
    def create(cls, path: str | Path) -> "RunDirectory":
        """A new run in a folder that is empty or does not exist yet."""
        run = cls(Path(path))
        with files.disk_errors("create", run.path):
            if run.path.exists() and not run.path.is_dir():
                raise ConfigError(f"{run.path} is a file: choose another --out")
            run.path.mkdir(parents=True, exist_ok=True)
            present = {entry.name for entry in run.path.iterdir()}
        if run.config_path.name in present:
            quoted = shlex.quote(str(run.path))
            raise ConfigError(
                f"{run.path} holds a run already: continue it with --resume {quoted}, or choose another --out"
            )
        if left := sorted(name for name in present if not _is_left_by_a_killed_start(name)):
            raise ConfigError(f"{run.path} is not empty (it holds {left[0]!r}): choose another --out")
        return run

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        """An existing run, to read or to resume."""
        run = cls(Path(path))
        if not run.path.is_dir():
            what = "is not a folder" if run.path.exists() else "does not exist"
            raise ConfigError(f"{run.path} {what}: give the folder that `alidpfl run --out` made")
        if not run.config_path.exists():
            raise ConfigError(
                f"{run.path} is not a run directory (it has no {run.config_path.name}): "
                "give the folder that `alidpfl run --out` made"
            )
        run.config()
        return run

    @staticmethod
    def is_run(path: Path) -> bool:
        """True if a run has begun there."""
        return (path / _CONFIG).is_file()

    def discard(self) -> None:
        """Take back a folder in which no run began; what else is in it stays. Call it while holding the lock.

        The lock file goes too: nobody waits for one of a run that never began.
        """
        (self.path / _LOCK).unlink(missing_ok=True)
        with suppress(OSError):  # something else is in it
            self.path.rmdir()

    def lock(self) -> AbstractContextManager[None]:
        """Keeps other processes from writing into this run; a ConfigError that names the one which does."""
        from alidpfl.store.lock import exclusive_lock  # fcntl: a system without it can still read runs

        return exclusive_lock(self.path / _LOCK, owner_of=self.path)

    def holder(self) -> str | None:
        """Who writes this run now, such as "process 7 on host"; None: nobody, or somebody whom we may not know."""
        with suppress(ImportError, OSError):
            from alidpfl.store.lock import lock_holder

            return lock_holder(self.path / _LOCK)
        return None

    # Settings

    @property
    def config_path(self) -> Path:
        """The effective configuration."""
        return self.path / _CONFIG

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Makes the folder a run: write everything else that `open` should find before it. Once only."""
        if self.config_path.exists():
            raise ConfigError(f"{self.config_path} exists: another process began a run here; choose another --out")
        files.write_atomically(self.config_path, to_toml(config).encode())

    def config(self) -> dict[str, Any]:
        """What `write_config` wrote, without the keys that were None."""
        content = files.read_bytes(self.config_path)
        try:
            return tomllib.loads((content or b"").decode())
        except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or nested beyond all measure
            raise DataError(f"{self.config_path} is damaged ({error}): restore it from a copy") from None

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        """What the run ran on; see `describe_environment`."""
        files.write_atomically(self.path / "environment.json", files.json_document(dict(environment)))

    def environment(self) -> dict[str, Any] | None:
        """What `write_environment` wrote; None before."""
        return files.read_json_object(self.path / "environment.json")

    def write_members(self, members: Mapping[str, Any]) -> None:
        """Who takes part in a run over nodes, and the run's name there. Before the first question is sent."""
        files.write_atomically(self.path / _MEMBERS, files.json_document(dict(members)))

    def members(self) -> dict[str, Any] | None:
        """What `write_members` wrote; None before, and for a run on one machine."""
        return files.read_json_object(self.path / _MEMBERS)

    def write_statistics(self, statistics: Mapping[str, "Tensor"]) -> None:
        """What was released before the first round: a run that goes on must not release it again with other noise."""
        files.write_atomically(self.path / _STATISTICS, encode_tensors(statistics, {}))

    def statistics(self) -> dict[str, "Tensor"] | None:
        """What `write_statistics` wrote; None for a run without."""
        content = files.read_bytes(self.path / _STATISTICS)
        return None if content is None else decode_tensors(content, self.path / _STATISTICS)[0]

    # Rounds

    @property
    def metrics_path(self) -> Path:
        """One RoundRecord a line."""
        return self.path / "metrics.jsonl"

    @property
    def timings_path(self) -> Path:
        """One RoundTiming a line."""
        return self.path / "timings.jsonl"

    def append_record(self, record: RoundRecord) -> None:
        """Adds a line to metrics.jsonl: keys in the order of the fields, so that equal records give equal bytes."""
        files.append_line(self.metrics_path, _line(record.to_json()))

    def append_timing(self, timing: RoundTiming) -> None:
        """Adds a line to timings.jsonl."""
        files.append_line(self.timings_path, _line(asdict(timing)))

    def records(self) -> list[RoundRecord]:
        """All rounds so far. A last line that a kill cut short is left out; any other bad line is a DataError."""
        content = files.read_bytes(self.metrics_path) or b""
        return [parse_record(line, number, self.metrics_path) for number, line in complete_lines(content)]

    def timings(self) -> list[RoundTiming]:
        """Seconds of all rounds so far, read as `records` reads."""
        content = files.read_bytes(self.timings_path) or b""
        return [parse_timing(line, number, self.timings_path) for number, line in complete_lines(content)]

    # Checkpoint

    @property
    def checkpoint_path(self) -> Path:
        """The newest checkpoint."""
        return self.path / "checkpoint.safetensors"

    def write_checkpoint(self, tensors: Mapping[str, "Tensor"], state: Mapping[str, Any]) -> None:
        """Replaces the checkpoint, in one step that a crash cannot tear.

        `state` is JSON: its keys must be strings, and tuples come back as lists. The sizes of both jsonl files are
        added as `metrics_bytes` and `timings_bytes`, after their lines have reached the disk.
        """
        sizes = {
            "metrics_bytes": files.synced_size(self.metrics_path),
            "timings_bytes": files.synced_size(self.timings_path),
        }
        files.write_atomically(self.checkpoint_path, encode_checkpoint(tensors, {**state, **sizes}))

    def read_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint; None before the first; a DataError if it is not exactly what was written."""
        content = files.read_bytes(self.checkpoint_path)
        return None if content is None else decode_checkpoint(content, self.checkpoint_path)

    def truncate_to(self, state: Mapping[str, Any] | None) -> None:
        """Puts the directory back to the checkpoint with this state (None: to the start), for a resumed run.

        Lines after the checkpoint go, and so does the summary of a run that is about to go on.
        """
        sizes = state or {"metrics_bytes": 0, "timings_bytes": 0}
        files.truncate(self.metrics_path, sizes["metrics_bytes"])
        files.truncate(self.timings_path, sizes["timings_bytes"])
        with files.disk_errors("remove", self.summary_path):
            self.summary_path.unlink(missing_ok=True)

    # Results

    @property
    def model_path(self) -> Path:
        """The final model."""
        return self.path / "model.safetensors"

    def write_model(self, tensors: Mapping[str, "Tensor"], metadata: Mapping[str, str]) -> None:
        """The final model by parameter name; any safetensors reader opens it. Equal models give equal bytes."""
        files.write_atomically(self.model_path, encode_tensors(tensors, metadata))

    def read_model(self) -> tuple[dict[str, "Tensor"], dict[str, str]] | None:
        """Parameters and metadata of the final model; None before the run has ended."""
        content = files.read_bytes(self.model_path)
        return None if content is None else decode_tensors(content, self.model_path)

    @property
    def summary_path(self) -> Path:
        """The final summary."""
        return self.path / "summary.json"

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """The run has ended, with this result. Write it last: its presence says that all else is complete."""
        files.write_atomically(self.summary_path, files.json_document(dict(summary)))

    def summary(self) -> dict[str, Any] | None:
        """What `write_summary` wrote; None while the run goes on or after it was killed."""
        return files.read_json_object(self.summary_path)


def _line(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, ensure_ascii=False) + "\n").encode()


def _is_left_by_a_killed_start(name: str) -> bool:
    """Without config.toml, these files are all that an attempt which died at once can have left."""
    return name in {_LOCK, _MEMBERS, _STATISTICS, "environment.json", "checkpoint.safetensors"} or (
        name.startswith(".") and name.endswith(".tmp")
    )
