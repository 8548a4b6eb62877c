"""The run directory: all results of a run, and all that it needs to resume after a crash.

config.toml             the full configuration; a folder is a run once it has this file
environment.json        versions, platform, seed
statistics.safetensors  statistics released before the first round, for models that need them
held-out.key            secret key of the held-out rows of a table; only its owner can read it
metrics.jsonl           one RoundRecord per line; a rerun or a resumed run writes the same bytes
timings.jsonl           seconds of each round, in a file of their own because they differ between runs
checkpoint.safetensors  tensors and state in one file, so that one rename replaces both
members.json            the clients of a run over nodes with vaults
model.safetensors       the final model
tensorboard/            TensorBoard events, on request
summary.json            written when the run ends
lock                    held by the process that writes
"""

import json
import shlex
import tomllib
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alidpfl.errors import ConfigError, DataError
from alidpfl.store import files
from alidpfl.store.checkpoint import Checkpoint, decode_checkpoint, decode_tensors, encode_checkpoint, encode_tensors
from alidpfl.store.files import RoundTiming, complete_lines, parse_record, parse_timing, to_toml
from alidpfl.types import RoundRecord

if TYPE_CHECKING:
    from torch import Tensor

_CONFIG = "config.toml"
_OWNER_ONLY = 0o600


class RunDirectory:
    """One run on disk. Get it from `create` or `open`, and hold `lock()` while you write."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config_path = self.path / _CONFIG
        self.metrics_path = self.path / "metrics.jsonl"
        self.timings_path = self.path / "timings.jsonl"
        self.checkpoint_path = self.path / "checkpoint.safetensors"
        self.model_path = self.path / "model.safetensors"
        self.summary_path = self.path / "summary.json"
        self._lock_path = self.path / "lock"
        self._environment_path = self.path / "environment.json"
        self._members_path = self.path / "members.json"
        self._statistics_path = self.path / "statistics.safetensors"
        self._key_path = self.path / "held-out.key"

    @classmethod
    def create(cls, path: str | Path) -> "RunDirectory":
        """Create a run in a folder that is empty or does not exist yet."""
        run = cls(path)
        with files.disk_errors("create", run.path):
            if run.path.exists() and not run.path.is_dir():
                raise ConfigError(f"{run.path} is a file: choose another --out")
            run.path.mkdir(parents=True, exist_ok=True)
            present = set(run.path.iterdir())
        if run.config_path in present:
            remedy = f"continue it with --resume {shlex.quote(str(run.path))}, or choose another --out"
            raise ConfigError(f"{run.path} holds a run already: {remedy}")
        # What a start can leave if it is killed before it writes config.toml.
        left = {run._lock_path, run._members_path, run._statistics_path, run._environment_path, run.checkpoint_path}
        left.add(run._key_path)
        others = sorted(path.name for path in present - left if not fnmatch(path.name, ".*.tmp"))
        if others:
            raise ConfigError(f"{run.path} is not empty (it holds {others[0]!r}): choose another --out")
        return run

    @classmethod
    def open(cls, path: str | Path) -> "RunDirectory":
        """Open an existing run, to read or to resume it."""
        run = cls(path)
        if not run.config_path.exists():
            problem = "is not a folder" if run.path.exists() else "does not exist"
            if run.path.is_dir():
                problem = f"is not a run directory (it has no {_CONFIG})"
            raise ConfigError(f"{run.path} {problem}: give the folder that `alidpfl run --out` made")
        run.config()
        return run

    @staticmethod
    def is_run(path: Path) -> bool:
        """Return True if the folder holds a run."""
        return (path / _CONFIG).is_file()

    def discard(self) -> None:
        """Remove lock file and folder of a run that never began, if it has no other files. Call it under the lock."""
        self._lock_path.unlink(missing_ok=True)
        with suppress(OSError):  # the folder is not empty
            self.path.rmdir()

    def lock(self) -> AbstractContextManager[None]:
        """Keep other processes from writing into this run. A ConfigError names the process that holds the lock."""
        from alidpfl.store.lock import exclusive_lock  # needs fcntl, and reading runs must work without it

        return exclusive_lock(self._lock_path, owner_of=self.path)

    def holder(self) -> str | None:
        """Return the process that writes this run, such as "process 7 on host"; None if none is known."""
        with suppress(ImportError, OSError):
            from alidpfl.store.lock import lock_holder

            return lock_holder(self._lock_path)
        return None

    def write_config(self, config: Mapping[str, Any]) -> None:
        """Write the configuration, which makes the folder a run. Call it once, after writing all that `open` needs."""
        if self.config_path.exists():
            raise ConfigError(f"{self.config_path} exists: another process began a run here; choose another --out")
        files.write_atomically(self.config_path, to_toml(config).encode())

    def config(self) -> dict[str, Any]:
        """Return the configuration, without the keys that were None."""
        content = files.read_bytes(self.config_path)
        try:
            return tomllib.loads((content or b"").decode())
        except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or nested too deeply
            raise DataError(f"{self.config_path} is damaged ({error}): restore it from a copy") from None

    def write_environment(self, environment: Mapping[str, Any]) -> None:
        """Write the result of `describe_environment`."""
        files.write_atomically(self._environment_path, files.json_document(environment))

    def environment(self) -> dict[str, Any] | None:
        """Return the environment, or None before it is written."""
        return files.read_json_object(self._environment_path)

    def write_members(self, members: Mapping[str, Any]) -> None:
        """Write the clients of a run over nodes, and the run's name there. Call it before the first request."""
        files.write_atomically(self._members_path, files.json_document(members))

    def members(self) -> dict[str, Any] | None:
        """Return what `write_members` wrote; None before that, and for a run on one machine."""
        return files.read_json_object(self._members_path)

    def write_statistics(self, statistics: Mapping[str, "Tensor"]) -> None:
        """Write the statistics released before the first round: a resumed run must not release them again."""
        files.write_atomically(self._statistics_path, encode_tensors(statistics, {}))

    def statistics(self) -> dict[str, "Tensor"] | None:
        """Return the released statistics, or None for a run without any."""
        content = files.read_bytes(self._statistics_path)
        return None if content is None else decode_tensors(content, self._statistics_path)[0]

    def write_held_out_key(self, key: bytes) -> None:
        """Write the secret key of the held-out rows. Only its owner can read the file."""
        files.write_atomically(self._key_path, key.hex().encode() + b"\n", mode=_OWNER_ONLY)

    def held_out_key(self) -> bytes | None:
        """Return the key that `write_held_out_key` wrote, or None for a run without any."""
        content = files.read_bytes(self._key_path)
        try:
            return None if content is None else bytes.fromhex(content.decode("ascii"))
        except ValueError:
            raise DataError(f"{self._key_path} is damaged: restore it from a copy") from None

    def append_record(self, record: RoundRecord) -> None:
        """Append a line to metrics.jsonl. Keys have the order of the fields: equal records give equal bytes."""
        files.append_line(self.metrics_path, _line(record.to_json()))

    def append_timing(self, timing: RoundTiming) -> None:
        """Append a line to timings.jsonl."""
        files.append_line(self.timings_path, _line(asdict(timing)))

    def records(self) -> list[RoundRecord]:
        """Return all rounds so far. A last line that a kill cut short is left out; other bad lines are a DataError."""
        content = files.read_bytes(self.metrics_path) or b""
        return [parse_record(line, number, self.metrics_path) for number, line in complete_lines(content)]

    def timings(self) -> list[RoundTiming]:
        """Return the timings of all rounds so far, read like `records`."""
        content = files.read_bytes(self.timings_path) or b""
        return [parse_timing(line, number, self.timings_path) for number, line in complete_lines(content)]

    def write_checkpoint(self, tensors: Mapping[str, "Tensor"], state: Mapping[str, Any]) -> None:
        """Replace the checkpoint in one step that a crash cannot tear.

        `state` is JSON: its keys must be strings, and tuples are read back as lists. The sizes of both jsonl files are
        added as `metrics_bytes` and `timings_bytes`, after their lines have reached the disk.
        """
        sizes = {
            "metrics_bytes": files.synced_size(self.metrics_path),
            "timings_bytes": files.synced_size(self.timings_path),
        }
        files.write_atomically(self.checkpoint_path, encode_checkpoint(tensors, {**state, **sizes}))

    def read_checkpoint(self) -> Checkpoint | None:
        """Return the newest checkpoint, or None before the first. A damaged checkpoint is a DataError."""
        content = files.read_bytes(self.checkpoint_path)
        return None if content is None else decode_checkpoint(content, self.checkpoint_path)

    def truncate_to(self, state: Mapping[str, Any] | None) -> None:
        """Remove the summary and all lines after the checkpoint with this state, or all lines if it is None."""
        sizes = state or {"metrics_bytes": 0, "timings_bytes": 0}
        files.truncate(self.metrics_path, sizes["metrics_bytes"])
        files.truncate(self.timings_path, sizes["timings_bytes"])
        with files.disk_errors("remove", self.summary_path):
            self.summary_path.unlink(missing_ok=True)

    def write_model(self, tensors: Mapping[str, "Tensor"], metadata: Mapping[str, str]) -> None:
        """Write the final model as a safetensors file. Equal models give equal bytes."""
        files.write_atomically(self.model_path, encode_tensors(tensors, metadata))

    def read_model(self) -> tuple[dict[str, "Tensor"], dict[str, str]] | None:
        """Return parameters and metadata of the final model, or None before the run has ended."""
        content = files.read_bytes(self.model_path)
        return None if content is None else decode_tensors(content, self.model_path)

    def write_summary(self, summary: Mapping[str, Any]) -> None:
        """Write the result of a run that has ended. Write it last: it marks all other files as complete."""
        files.write_atomically(self.summary_path, files.json_document(summary))

    def summary(self) -> dict[str, Any] | None:
        """Return the summary, or None if the run has not ended or was killed."""
        return files.read_json_object(self.summary_path)


def _line(values: Mapping[str, Any]) -> bytes:
    return (json.dumps(values, ensure_ascii=False) + "\n").encode()
