"""Run the cells of a grid that have no result, each in its own process and directory. They can be resumed."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from alidpfl._version import __version__
from alidpfl.config.load import parse_config
from alidpfl.data.directories import find
from alidpfl.data.sources import SOURCES
from alidpfl.errors import ConfigError
from alidpfl.runs import Outcome, execute, load_config, resume, simulated
from alidpfl.simulation.engine import default_processes
from alidpfl.store import RunDirectory
from reproduction.grid import Cell, are_same_run
from reproduction.results import Result, Results
from reproduction.shared_rounds import SharedRounds, rounds_folder

_POLL_SECONDS = 0.2
_ROOT = Path(__file__).parents[1]


@dataclass(kw_only=True)
class Tally:
    """The progress of a grid."""

    total: int
    stored: int
    """The number of cells that had a result before."""
    finished: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """Error messages by the cell's label."""
    seconds: float = 0.0
    """The time that this call has taken."""

    @property
    def seconds_left(self) -> float | None:
        """The estimated time left, or None before the first cell is done."""
        left = self.total - self.stored - self.finished - len(self.failed)
        return self.seconds / self.finished * left if self.finished else None


OnTally = Callable[[Tally, Sequence[Cell]], None]
"""Receives the tally and the cells that are running."""


def reproduce(
    cells: Sequence[Cell],
    results: Results,
    work: Path,
    *,
    jobs: int = 1,
    limit: float | None = None,
    on_progress: OnTally = lambda _tally, _running: None,
) -> Tally:
    """Run every cell that has no result.

    A cell that is stopped continues at its last round in the next call.

    Args:
        cells: The cells.
        results: The store of the results.
        work: The folder for the directories of unfinished runs.
        jobs: The number of cells that run at once.
        limit: Stop after this many seconds.
        on_progress: Called about five times a second.

    Returns:
        The numbers of cells, and the errors of those that failed.

    Raises:
        ConfigError: `jobs` is less than one.
        DataError: A data set is missing.
    """
    if jobs < 1:
        raise ConfigError(f"jobs={jobs} must be at least 1")
    pending = _pending(cells, results)
    _check_data(pending)
    tally = Tally(total=len({cell.key for cell in cells}), stored=len({cell.key for cell in cells}) - len(pending))
    started = time.monotonic()
    with rounds_folder(work) as rounds, _Jobs(work, rounds, processes=max(1, default_processes() // jobs)) as running:
        while pending or running.cells:
            tally.seconds = time.monotonic() - started
            if limit is not None and tally.seconds >= limit:
                break
            while pending and len(running.cells) < jobs:
                running.start(_taken(pending, running.cells))
            for cell, error in running.ended():
                if error is None:
                    results.add(_collected(cell, work / cell.key))
                    shutil.rmtree(work / cell.key, ignore_errors=True)
                    tally.finished += 1
                else:
                    tally.failed[cell.label] = error
            on_progress(tally, running.cells)
            time.sleep(_POLL_SECONDS)
    return tally


def run_cell(settings: Sequence[str], directory: Path, rounds: Path) -> Outcome:
    """Start or resume a run in this process.

    Args:
        settings: The settings, in the form that `--set` takes.
        directory: The run's directory.
        rounds: The folder with the rounds that cells share.
    """
    config = load_config(overrides=list(settings))
    preparation = partial(simulated, wrap=lambda engine: SharedRounds(engine, config, rounds))
    if RunDirectory.is_run(directory):
        if are_same_run(config, parse_config(RunDirectory.open(directory).config())):
            return resume(directory, preparation=preparation)
        shutil.rmtree(directory)  # started by an older version with other defaults
    return execute(config, directory, preparation=preparation)


def _check_data(pending: Sequence[Cell]) -> None:
    """Check once that all data sets are there, before the first cell is started."""
    for dataset, folder in dict.fromkeys((cell.dataset, dict(cell.settings).get("data.data_dir")) for cell in pending):
        if dataset in SOURCES:
            find(SOURCES[dataset], None if folder is None else Path(folder))


def _pending(cells: Sequence[Cell], results: Results) -> list[Cell]:
    """Return the cells without a result. Kin follow each other, because shared rounds are deleted after a while."""
    done = results.keys()
    pending: dict[str, Cell] = {}
    for cell in cells:
        if cell.key not in done:
            pending.setdefault(cell.key, cell)
    order = {kin: place for place, kin in enumerate(dict.fromkeys(cell.kin for cell in pending.values()))}
    return sorted(pending.values(), key=lambda cell: order[cell.kin])


def _taken(pending: list[Cell], running: Sequence[Cell]) -> Cell:
    """Take the first cell, preferably one that has no kin running: two kin would train the same rounds at once."""
    busy = {cell.kin for cell in running}
    place = next((place for place, cell in enumerate(pending) if cell.kin not in busy), 0)
    return pending.pop(place)


def _collected(cell: Cell, directory: Path) -> Result:
    run = RunDirectory.open(directory)
    outcome, records = Outcome.from_json(run.summary() or {}, run.summary_path), run.records()
    if outcome.accuracy is None:
        raise ConfigError(f"{cell.label} was not evaluated: a grid needs data with a test set")
    return Result(
        key=cell.key,
        settings=dict(cell.settings),
        accuracy=outcome.accuracy,
        epsilon=outcome.epsilon,
        delta=outcome.delta,
        rounds=outcome.rounds,
        steps=outcome.steps,
        stop_reason=outcome.stop_reason,
        seconds=round(outcome.seconds, 1),
        covers_everything=outcome.covers_everything,
        noise_multiplier=outcome.noise_multiplier,
        local_steps=[record.local_steps for record in records],
        accuracies=[(record.round + 1, record.accuracy) for record in records if record.accuracy is not None],
        version=__version__,
    )


class _Jobs:
    """Child processes, one for each cell. They end when the context is left."""

    def __init__(self, work: Path, rounds: Path, *, processes: int) -> None:
        self._work, self._rounds, self._processes = work, rounds, processes
        self._children: dict[str, tuple[Cell, subprocess.Popen[bytes]]] = {}

    def __enter__(self) -> "_Jobs":
        self._work.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_error: object) -> None:
        for _, child in self._children.values():
            child.terminate()
        for _, child in self._children.values():
            try:
                child.wait(timeout=10)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()

    @property
    def cells(self) -> list[Cell]:
        """The cells that are running."""
        return [cell for cell, _ in self._children.values()]

    def start(self, cell: Cell) -> None:
        """Start a cell in a process of its own, so that its memory is freed at its end."""
        settings = [f"{key}={json.dumps(value)}" for key, value in cell.settings]
        settings.append(f"run.processes={self._processes}")
        folders = (str(self._work / cell.key), str(self._rounds))
        command = [sys.executable, "-m", "reproduction.job", *folders, *settings]
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        with (self._work / f"{cell.key}.log").open("wb") as log:
            child = subprocess.Popen(  # noqa: S603 - our own module
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": path}
            )
        self._children[cell.key] = (cell, child)

    def ended(self) -> Iterator[tuple[Cell, str | None]]:
        """Yield the cells that have ended, with an error message or None."""
        for key, (cell, child) in list(self._children.items()):
            status = child.poll()
            if status is None:
                continue
            del self._children[key]
            log = self._work / f"{key}.log"
            if status == 0:
                log.unlink(missing_ok=True)
                yield cell, None
            else:
                lines = log.read_text(errors="replace").strip().splitlines()
                yield cell, lines[-1] if lines else f"exit status {status}"
