"""Results by the hash of their configuration: SQLite to look up, JSON lines to commit."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from alidpfl.errors import DataError
from alidpfl.reproduction.grid import key_of
from alidpfl.store.files import parse_json, read_bytes, write_atomically

_SCHEMA = "CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, result TEXT NOT NULL)"


STORE = "results.sqlite"
"""In a folder of results; the same as JSON lines beside it, by grid, is what a repository keeps."""


def lines_of(grid: str, folder: Path) -> Path:
    """Where `folder` has the JSON lines of the grid of this name."""
    return folder / f"{grid}.jsonl"


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run gave."""

    key: str
    settings: dict[str, Any]
    accuracy: float
    """Test accuracy of the last round, in %."""
    epsilon: float
    delta: float
    rounds: int
    steps: int
    stop_reason: str
    seconds: float
    covers_everything: bool
    noise_multiplier: float
    local_steps: list[int]
    """τ of every round."""
    accuracies: list[tuple[int, float]]
    """(rounds done, test accuracy in %) where it was evaluated."""
    version: str


class Results:
    """A store of results in one file. Every call opens it anew: several processes may share it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self._open() as connection:
            connection.execute(_SCHEMA)

    def add(self, result: Result) -> None:
        """Keep it; a second one with the same key replaces the first."""
        with self._open() as connection:
            row = (result.key, json.dumps(asdict(result)))
            connection.execute("INSERT OR REPLACE INTO results VALUES (?, ?)", row)

    def get(self, key: str) -> Result | None:
        """The result of the run with this key."""
        with self._open() as connection:
            row = connection.execute("SELECT result FROM results WHERE key = ?", (key,)).fetchone()
        return self._kept(row[0]) if row else None

    def all(self) -> dict[str, Result]:
        """Every result by its key, in one read."""
        with self._open() as connection:
            rows = connection.execute("SELECT key, result FROM results").fetchall()
        return {key: self._kept(result) for key, result in rows}

    def keys(self) -> set[str]:
        """Of all results."""
        with self._open() as connection:
            return {row[0] for row in connection.execute("SELECT key FROM results")}

    def read_lines(self, path: Path) -> int:
        """Take in what another machine, or the repository, has; returns how many were new or other than here.

        Lines win: they are what is committed and corrected, and every result of this machine is written to them.
        """
        known = self.all()
        new = [result for result in read_results(path) if result != known.get(result.key)]
        for result in new:
            self.add(result)
        return len(new)

    def write_lines(self, path: Path, keys: set[str]) -> None:
        """The results with these keys, in the order of their keys: small, and the same bytes every time.

        What the file holds already stays in it, whatever its key: a grid that was changed must not lose results.
        """
        with self._open() as connection:
            path.parent.mkdir(parents=True, exist_ok=True)
            connection.execute("BEGIN IMMEDIATE")  # two processes that wrote one file at once would spoil it
            self._write_lines(path, keys)

    def _write_lines(self, path: Path, keys: set[str]) -> None:
        kept = {result.key: result for result in read_results(path)}
        known = kept | self.all()
        found = [known[key] for key in sorted((keys | kept.keys()) & known.keys())]
        write_atomically(path, "".join(json.dumps(asdict(result)) + "\n" for result in found).encode())

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with closing(sqlite3.connect(self.path, timeout=60)) as connection, connection:
                yield connection
        except (sqlite3.Error, OSError) as error:
            raise DataError(f"cannot use the results in {self.path}: {error}; {_remedy(error)}") from None

    def _kept(self, content: str) -> Result:
        try:
            return _result(content)
        except ValueError:
            raise DataError(f"{self.path} holds what is not a result; move it away to begin anew") from None


def read_results(path: Path) -> Iterator[Result]:
    """Of a file of results; none where there is no file. A line whose key is not that of its settings is refused."""
    for number, line in enumerate((read_bytes(path) or b"").splitlines(), start=1):
        remedy = "restore the file, or delete the line and results.sqlite beside it"
        try:
            result = _result(line)
        except ValueError:
            raise DataError(f"line {number} of {path} is not a result; {remedy}") from None
        if result.key != key_of(result.settings):
            raise DataError(f"line {number} of {path} has the key of other settings than its own; {remedy}")
        yield result


def _remedy(error: Exception) -> str:
    code = getattr(error, "sqlite_errorcode", None)
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return "move it away to begin anew: the JSON lines beside it are read again"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return "another process is writing: try again when it is done"
    return "see to the disk and its permissions, then try again: nothing that was stored is lost"


def _result(content: bytes | str) -> Result:
    """Back from a line; a ValueError if it is none."""
    return _RESULT.validate_python(parse_json(content))


_RESULT = TypeAdapter(Result)
