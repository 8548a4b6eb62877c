"""Read and write files: writes that a kill cannot tear, JSON that may be damaged, TOML, disk errors with remedies."""

import errno
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from alidpfl.errors import ConfigError, DataError
from alidpfl.types import RoundRecord

_MAX_WHOLE = 1 << 64
_COUNTS = ("round", "local_steps", "steps")
_NUMBERS = ("round", "local_steps", "steps", "learning_rate", "clip_norm", "noise_multiplier", "epsilon", "bytes")
_OPTIONAL_NUMBERS = ("curvature", "heterogeneity", "accuracy", "loss")
_REMEDIES = {
    errno.ENOSPC: "the disk is full: free some space, then go on (a run: with --resume)",
    errno.EDQUOT: "your disk quota is used up: free some space, then go on (a run: with --resume)",
    errno.EROFS: "the file system is read-only: choose another folder",
    errno.EACCES: "no permission: choose another folder, or give yourself access",
    errno.EPERM: "no permission: choose another folder, or give yourself access",
    errno.ENOTDIR: "a part of this path is a file, not a folder: choose another path",
    errno.EISDIR: "this is a folder where a file belongs: move it away",
    errno.ENOENT: "it does not exist: was it moved or deleted?",
    errno.ELOOP: "it is a symbolic link, and somebody may have planted it: put the file itself there",
}


@dataclass(frozen=True, kw_only=True)
class RoundTiming:
    """How long a round took. It is not part of RoundRecord, because its bytes must not depend on the clock."""

    round: int
    seconds: float
    seconds_total: float
    """For the run so far, without the time between a crash and its resume."""


@contextmanager
def disk_errors(action: str, path: Path) -> Iterator[None]:
    """Turn an OSError inside the block into a DataError that names `path` and the remedy."""
    try:
        yield
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0, f"{error.strerror or error}: check the disk and the path")
        if error.errno == errno.ENOENT and not path.parent.is_dir():
            remedy = f"there is no folder {path.parent}: create it, or choose another"
        raise DataError(f"cannot {action} {path}: {remedy}") from error


def new_file(path: Path, *, flags: int = os.O_WRONLY, mode: int = 0o600) -> int:
    """Open a new, empty file. Remove what lies at `path` first: nothing is ever written through a planted link."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    return os.open(path, flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)


def without_links(name: str, flags: int) -> int:
    """Open a file like `open` does, but refuse a symbolic link. It is the `opener` of files that are written."""
    return os.open(name, flags | os.O_NOFOLLOW, 0o666)


def write_atomically(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Replace `path` by `content`. At any moment, and after any crash, readers see the old or the new file, whole."""
    # One fixed name: the next write replaces what a kill left behind.
    temporary = path.with_name(f".{path.name}.tmp")
    with disk_errors("write", path):
        try:
            with open(new_file(temporary, mode=mode), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError:
            with suppress(OSError):  # on a full disk, half a file would only waste space
                temporary.unlink()
            raise
        sync_directory(path.parent)


def append_line(path: Path, line: bytes) -> None:
    """Append one line with a single write. A write that fails half-way (disk full) leaves the file as it was."""
    with disk_errors("append to", path), open(path, "ab", buffering=0, opener=without_links) as file:
        size = os.fstat(file.fileno()).st_size
        if os.write(file.fileno(), line) != len(line):
            file.truncate(size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def synced_size(path: Path) -> int:
    """Return the size of a file after all its bytes have reached the disk; 0 if there is no file."""
    with disk_errors("read", path):
        try:
            with open(path, "r+b", buffering=0, opener=without_links) as file:
                os.fsync(file.fileno())
                return os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return 0


def sync_directory(path: Path) -> None:
    """Write the names in a folder to the disk. Without this, a power cut may restore an old name."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def truncate(path: Path, size: int) -> None:
    """Cut a file back to its first `size` bytes, which must be whole lines."""
    if size == 0 and not path.exists():
        return
    with disk_errors("truncate", path), open(path, "r+b", opener=without_links) as file:
        file.seek(max(size - 1, 0))
        if size > 0 and file.read(1) != b"\n":
            raise DataError(
                f"{path} does not have the {size} bytes of whole lines that the checkpoint was written with: it was "
                "edited or cut; restore it from a copy, or start again with another --out"
            )
        file.truncate(size)
        os.fsync(file.fileno())


def read_bytes(path: Path) -> bytes | None:
    """Return the content of a file, or None if there is no file."""
    with disk_errors("read", path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def read_json_object(path: Path) -> dict[str, Any] | None:
    """Return the JSON object in a file, or None if there is no file."""
    content = read_bytes(path)
    if content is None:
        return None
    try:
        values = parse_json(content)
    except ValueError:
        values = None
    if not isinstance(values, dict):
        raise DataError(f"{path} is not a JSON object: it was edited or damaged; restore it from a copy, or delete it")
    return values


def parse_json(content: bytes | str) -> Any:
    """Parse JSON that may be damaged. Anything wrong is a ValueError, also deep nesting and numbers above 2^64."""
    try:
        return json.loads(content, parse_int=_whole)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def json_document(values: Mapping[str, Any]) -> bytes:
    """Return indented JSON that people and programs can read."""
    return (json.dumps(dict(values), indent=2, ensure_ascii=False) + "\n").encode()


def to_toml(values: Mapping[str, Any]) -> str:
    """Return `values` as TOML; `tomllib.loads` returns them unchanged. Keys with the value None are left out."""
    try:
        text = tomli_w.dumps(_without_none(values))
        text.encode()
    except (TypeError, ValueError) as error:
        raise ConfigError(f"the configuration cannot be written as TOML: {error}") from None
    return text


def complete_lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Return line numbers from 1, and lines. Text after the last line break is left out: its write is not complete."""
    return enumerate(content.split(b"\n")[:-1], start=1)


def parse_record(line: bytes, number: int, source: Path) -> RoundRecord:
    """Return the RoundRecord in a line of metrics.jsonl."""
    with _line_errors(source, number, "round record"):
        values = parse_json(line)
        record = RoundRecord.from_json(values)
        _check_numbers(values, _NUMBERS)
        if not all(isinstance(values[name], int) for name in _COUNTS):  # NaN is a float, and no number of a round
            raise TypeError
        _check_numbers({k: v for k, v in values.items() if v is not None}, _OPTIONAL_NUMBERS)
        _check_numbers(record.metrics, record.metrics)
        return record


def parse_timing(line: bytes, number: int, source: Path) -> RoundTiming:
    """Return the RoundTiming in a line of timings.jsonl."""
    with _line_errors(source, number, "timing"):
        values = parse_json(line)
        _check_numbers(values, values)
        return RoundTiming(**values)


def _whole(text: str) -> int:
    value = int(text)
    if abs(value) > _MAX_WHOLE:  # alidpfl writes no such number, and it may not fit a float
        raise ValueError("a number is too large")
    return value


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list | tuple) else value


def _check_numbers(values: Mapping[str, Any], names: Iterable[str]) -> None:
    for name in names:
        if isinstance(values.get(name, 0), bool) or not isinstance(values.get(name, 0), int | float):
            raise TypeError(name)


@contextmanager
def _line_errors(source: Path, number: int, what: str) -> Iterator[None]:
    try:
        yield
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        raise DataError(
            f"{source} line {number} is not a {what}: the file was edited, damaged, or written by another version of "
            "alidpfl; restore it from a copy"
        ) from None
