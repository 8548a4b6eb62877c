"""Run what a grid lacks: one process a job, each in a directory from which it goes on after kill -9."""

import json
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


@dataclass(kw_only=True)
class Tally:
    """How far a grid is."""

    total: int
    stored: int
    """There before."""
    finished: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    """What went wrong, by the cell's label."""
    seconds: float = 0.0
    """Of this session."""

    @property
    def seconds_left(self) -> float | None:
        """At the pace of this session; None before the first cell is done."""
        left = self.total - self.stored - self.finished - len(self.failed)
        return self.seconds / self.finished * left if self.finished else None


OnTally = Callable[[Tally, Sequence[Cell]], None]
"""Called with the tally and the cells that are running."""


def reproduce(
    cells: Sequence[Cell],
    results: Results,
    work: Path,
    *,
    jobs: int = 1,
    limit: float | None = None,
    on_progress: OnTally = lambda _tally, _running: None,
) -> Tally:
    """Run every cell that has no result, until all have, or `limit` seconds are over; then running cells are stopped.

    What was stopped goes on next time where it was.
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
    """In a job's own process: begin, or go on. `rounds` holds what cells have in common."""
    config = load_config(overrides=list(settings))
    preparation = partial(simulated, around=lambda engine: SharedRounds(engine, config, rounds))
    if RunDirectory.is_run(directory):
        if are_same_run(config, parse_config(RunDirectory.open(directory).config())):
            return resume(directory, preparation=preparation)
        shutil.rmtree(directory)  # begun under other defaults, by an older version: half of each is a run of neither
    return execute(config, directory, preparation=preparation)


def _check_data(pending: Sequence[Cell]) -> None:
    """Once, before the first of many cells fails for want of them."""
    for dataset, folder in dict.fromkeys((cell.dataset, dict(cell.settings).get("data.data_dir")) for cell in pending):
        if dataset in SOURCES:
            find(SOURCES[dataset], None if folder is None else Path(folder))


def _pending(cells: Sequence[Cell], results: Results) -> list[Cell]:
    """Cells without a result, kin after kin: what they have in common is forgotten when it is long ago."""
    done = results.keys()
    pending: dict[str, Cell] = {}
    for cell in cells:
        if cell.key not in done:
            pending.setdefault(cell.key, cell)
    order = {kin: place for place, kin in enumerate(dict.fromkeys(cell.kin for cell in pending.values()))}
    return sorted(pending.values(), key=lambda cell: order[cell.kin])


def _taken(pending: list[Cell], running: Sequence[Cell]) -> Cell:
    """The first, if possible one whose kin are not at the same rounds at this very moment."""
    busy = {cell.kin for cell in running}
    place = next((place for place, cell in enumerate(pending) if cell.kin not in busy), 0)
    return pending.pop(place)


def _collected(cell: Cell, directory: Path) -> Result:
    run = RunDirectory.open(directory)
    outcome, records = Outcome.from_json(run.summary() or {}, run.summary_path), run.records()
    if outcome.accuracy is None:
        raise ConfigError(f"{cell.label} was not evaluated: a grid needs a test set")
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
    """Child processes, one a cell; leaving the context ends them."""

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
        """That are running."""
        return [cell for cell, _ in self._children.values()]

    def start(self, cell: Cell) -> None:
        """In a process of its own: its memory goes with it."""
        settings = [f"{key}={json.dumps(value)}" for key, value in cell.settings]
        settings.append(f"run.processes={self._processes}")
        folders = (str(self._work / cell.key), str(self._rounds))
        command = [sys.executable, "-m", "reproduction.job", *folders, *settings]
        with (self._work / f"{cell.key}.log").open("wb") as log:
            child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603
        self._children[cell.key] = (cell, child)

    def ended(self) -> Iterator[tuple[Cell, str | None]]:
        """Cells whose process is over, with what went wrong."""
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
