"""Results by the hash of their configuration: SQLite to look up, JSON lines to commit."""

import json
import math
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from alidpfl.errors import DataError
from alidpfl.store.files import parse_json, read_bytes, write_atomically
from alidpfl.types import StopReason
from reproduction.grid import key_of

_SCHEMA = "CREATE TABLE IF NOT EXISTS results (key TEXT PRIMARY KEY, result TEXT NOT NULL)"


STORE = "results.sqlite"
"""In a folder of results; the same as JSON lines beside it, by grid, is what a repository keeps."""


def lines_of(grid: str, folder: Path) -> Path:
    """Where `folder` has the JSON lines of the grid of this name."""
    return folder / f"{grid}.jsonl"


_Accuracy = Annotated[float, Field(ge=0, le=100)]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a run gave."""

    key: str
    settings: dict[str, Any]
    accuracy: _Accuracy
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
    accuracies: list[tuple[int, _Accuracy]]
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
            row = connection.execute("SELECT key, result FROM results WHERE key = ?", (key,)).fetchone()
        return self._kept(*row) if row else None

    def all(self) -> dict[str, Result]:
        """Every result by its key, in one read."""
        with self._open() as connection:
            rows = connection.execute("SELECT key, result FROM results").fetchall()
        return {key: self._kept(key, result) for key, result in rows}

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

    def _kept(self, key: str, content: str) -> Result:
        return _result(content, key, f"a row of {self.path}", "move the file away: the JSON lines are read again")


def known_in(folder: Path, grids: Iterable[str]) -> dict[str, Result]:
    """All results that a folder holds, of its store and of the lines of these grids; where they differ the lines win.

    Only looks: a folder that cannot be written to, a reader's or a published one, stays as it is.
    """
    store = folder / STORE
    known = Results(store).all() if store.is_file() else {}
    return known | {result.key: result for grid in grids for result in read_results(lines_of(grid, folder))}


def read_results(path: Path) -> Iterator[Result]:
    """Of a file of results; none where there is no file. A line that no run can have given is refused."""
    for number, line in enumerate((read_bytes(path) or b"").splitlines(), start=1):
        remedy = "restore the file, or delete the line and results.sqlite beside it"
        yield _result(line, None, f"line {number} of {path}", remedy)


def _remedy(error: Exception) -> str:
    code = getattr(error, "sqlite_errorcode", None)
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return "move it away to begin anew: the JSON lines beside it are read again"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return "another process is writing: try again when it is done"
    return "see to the disk and its permissions, then try again: nothing that was stored is lost"


def _result(content: bytes | str, key: str | None, where: str, remedy: str) -> Result:
    """Back from a line, which may stand under a `key`; refused if no run of these settings can have given it."""
    try:
        result = _RESULT.validate_python(parse_json(content))
    except ValueError:
        raise DataError(f"{where} is not a result; {remedy}") from None
    if fault := _fault(result, result.key if key is None else key):
        raise DataError(f"{where} {fault}; {remedy}")
    return result


def _fault(result: Result, key: str) -> str | None:
    if not result.key == key == key_of(result.settings):
        return "has the key of other settings than its own"
    if result.epsilon > result.settings.get("privacy.epsilon", math.inf):
        return f"spent ε = {result.epsilon:g}, more than its privacy.epsilon={result.settings['privacy.epsilon']:g}"
    if result.stop_reason not in _ENDS:
        return f"did not run to its end (stop_reason={result.stop_reason!r})"
    return None


_RESULT = TypeAdapter(Result)
_ENDS = frozenset(StopReason) - {StopReason.INTERRUPTED}
