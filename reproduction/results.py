"""Store results by the hash of their settings: a SQLite file for look-ups, JSON lines to commit."""

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


RESULTS = Path(__file__).parent / "results"
"""The committed results."""

STORE = "results.sqlite"
"""The name of the store in a folder of results. The repository keeps the same results as JSON lines, by grid."""


def lines_of(grid: str, folder: Path) -> Path:
    """Return the file in `folder` with the JSON lines of a grid."""
    return folder / f"{grid}.jsonl"


_Accuracy = Annotated[float, Field(ge=0, le=100)]


@dataclass(frozen=True, kw_only=True)
class Result:
    """The result of a run."""

    key: str
    settings: dict[str, Any]
    accuracy: _Accuracy
    """Test accuracy in % after the last round."""
    epsilon: float
    delta: float
    rounds: int
    steps: int
    stop_reason: str
    seconds: float
    covers_everything: bool
    noise_multiplier: float
    local_steps: list[int]
    """The local steps τ of every round."""
    accuracies: list[tuple[int, _Accuracy]]
    """(rounds done, test accuracy in %) for every evaluation."""
    version: str


class Results:
    """A store of results in one SQLite file. Every call opens the file, so that several processes can share it."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self._open() as connection:
            connection.execute(_SCHEMA)

    def add(self, result: Result) -> None:
        """Store a result. It replaces an earlier result with the same key."""
        with self._open() as connection:
            row = (result.key, json.dumps(asdict(result)))
            connection.execute("INSERT OR REPLACE INTO results VALUES (?, ?)", row)

    def get(self, key: str) -> Result | None:
        """Return the result with this key, or None."""
        with self._open() as connection:
            row = connection.execute("SELECT key, result FROM results WHERE key = ?", (key,)).fetchone()
        return self._kept(*row) if row else None

    def all(self) -> dict[str, Result]:
        """Return every result by its key, in one read."""
        with self._open() as connection:
            rows = connection.execute("SELECT key, result FROM results").fetchall()
        return {key: self._kept(key, result) for key, result in rows}

    def keys(self) -> set[str]:
        """Return the keys of all results."""
        with self._open() as connection:
            return {row[0] for row in connection.execute("SELECT key FROM results")}

    def read_lines(self, path: Path) -> int:
        """Read the results of a file into the store; return how many were new or different.

        Where they differ the lines win: they are committed and corrected, and every result of this machine is written
        to them.
        """
        known = self.all()
        new = [result for result in read_results(path) if result != known.get(result.key)]
        for result in new:
            self.add(result)
        return len(new)

    def write_lines(self, path: Path, keys: set[str]) -> None:
        """Write the results with these keys to a file, in the order of their keys.

        Results that the file already has stay in it, so that a changed grid does not lose results.
        """
        with self._open() as connection:
            path.parent.mkdir(parents=True, exist_ok=True)
            connection.execute("BEGIN IMMEDIATE")  # two processes must not write the file at once
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
        return _result(
            content, key, f"a row of {self.path}", "move the file away: it is made again from the JSON lines"
        )


def known_in(folder: Path, grids: Iterable[str]) -> dict[str, Result]:
    """Return all results in a folder by their keys, from its store and from the lines of these grids.

    Where the two differ the lines win. Nothing is written, so that the folder may be read-only.
    """
    store = folder / STORE
    known = Results(store).all() if store.is_file() else {}
    return known | {result.key: result for grid in grids for result in read_results(lines_of(grid, folder))}


def read_results(path: Path) -> Iterator[Result]:
    """Yield the results of a file; nothing if there is no file.

    Raises:
        DataError: A line cannot be the result of a run.
    """
    for number, line in enumerate((read_bytes(path) or b"").splitlines(), start=1):
        remedy = "restore the file, or delete the line and results.sqlite in the same folder"
        yield _result(line, None, f"line {number} of {path}", remedy)


def json_lines(path: Path) -> list[dict[str, Any]]:
    """Return the objects in a file of JSON lines; an empty list if there is no file."""
    return [json.loads(line) for line in (read_bytes(path) or b"").splitlines()]


def _remedy(error: Exception) -> str:
    code = getattr(error, "sqlite_errorcode", None)
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return "move it away: it is made again from the JSON lines in the same folder"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return "another process is writing: try again later"
    return "check the disk and its permissions, then try again: nothing that was stored is lost"


def _result(content: bytes | str, key: str | None, where: str, remedy: str) -> Result:
    """Parse a result. If `key` is given, it must be the result's key."""
    try:
        result = _RESULT.validate_python(parse_json(content))
    except ValueError:
        raise DataError(f"{where} is not a result; {remedy}") from None
    if fault := _fault(result, result.key if key is None else key):
        raise DataError(f"{where} {fault}; {remedy}")
    return result


def _fault(result: Result, key: str) -> str | None:
    if not result.key == key == key_of(result.settings):
        return "has a key that does not match its settings"
    if result.epsilon > result.settings.get("privacy.epsilon", math.inf):
        return f"spent epsilon={result.epsilon:g}, more than its privacy.epsilon={result.settings['privacy.epsilon']:g}"
    if result.stop_reason not in _ENDS:
        return f"did not run to its end (stop_reason={result.stop_reason!r})"
    return None


_RESULT = TypeAdapter(Result)
_ENDS = frozenset(StopReason) - {StopReason.INTERRUPTED}
