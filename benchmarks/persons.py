"""Measure what the unit of privacy costs: `python -m benchmarks.persons` (or `make bench-persons`).

A step over B persons with k records each is compared with a step over the same B x k records one by one. Both clip the
same model on the same batch, in one thread. A turn is a few steps of each, without counting the first. Ratios are
medians of ratios within a turn, of processor time. Memory is measured with a process for each contender.
"""

import argparse
import ctypes
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from alidpfl.dpsgd import PerSampleClipper, RandomStream, SoftmaxClipper, StepSettings, dp_sgd_step
from alidpfl.federation.tensors import keep_heap, steady_arithmetic
from alidpfl.models import make_model
from benchmarks.report import listed, memory_status, write_results
from benchmarks.step import environment

RESULTS = Path(__file__).parent / "results" / "persons.json"
TIME_BAR, MEMORY_BAR = 1.15, 1.3
_CLASSES = 10
_IMAGE = (1, 28, 28)
_MODELS = {
    "softmax": ("scatter_linear", (3220,)),
    "linear": ("linear", _IMAGE),
    "mlp": ("mlp", _IMAGE),
    "compact_cnn": ("compact_cnn", _IMAGE),
    "cnn": ("cnn", _IMAGE),
}
_BATCHES = ((30, 3), (100, 3), (30, 10))
_LEVELS = ("records", "persons")


class Case(NamedTuple):
    """A line of the table."""

    model: str
    persons: int
    records: int


CASES = [Case(model, *batch) for model in _MODELS for batch in _BATCHES]


def step_of(case: Case, level: str, *, is_small: bool = False) -> Callable[[], object]:
    """Return a function that makes one step, by persons or by records."""
    name, shape = _MODELS[case.model]
    count, records = (2, case.records) if is_small else case[1:]
    torch.manual_seed(0)
    model = make_model(name, shape, _CLASSES, hidden=128, seed=0)
    inputs, targets = torch.randn(count * records, *shape), torch.randint(_CLASSES, (count * records,))
    settings = StepSettings(clip_norm=1.0, noise_multiplier=2.0, learning_rate=0.01, expected_batch_size=count)
    clipper = SoftmaxClipper(model) if case.model == "softmax" else PerSampleClipper(model)
    rows, weights, random = torch.arange(count * records), None, RandomStream.secure()
    if level == "persons":
        rows, weights = rows.view(count, records), torch.full((count, records), 1 / records)
    return lambda: dp_sgd_step(clipper, inputs, targets, settings, random, rows=rows, weights=weights)


def times_of(case: Case, turns: int) -> dict[str, list[float]]:
    """Return the seconds of a step of each contender in each turn, after two turns to warm up."""
    keep_heap()
    steps = {level: step_of(case, level) for level in _LEVELS}
    at_once = 2 if case.model == "cnn" else 8
    found: dict[str, list[float]] = {level: [] for level in _LEVELS}
    for turn in range(turns + 2):
        for level in _LEVELS if turn % 2 else reversed(_LEVELS):
            steps[level]()  # not counted: in training, a step follows another of its own kind
            started = time.process_time()
            for _ in range(at_once):
                steps[level]()
            if turn >= 2:
                found[level].append((time.process_time() - started) / at_once)
    return found


def peak_of(case: Case, level: str) -> int:
    """Return the peak resident memory of full steps, above the model and the batch."""
    warm_up = step_of(case, level, is_small=True)  # loads code and libraries
    warm_up()
    step = step_of(case, level)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = memory_status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    for _ in range(3):
        step()
    return memory_status("VmHWM") - before


def _worker(*arguments: str) -> Any:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "benchmarks.persons", "--worker", *arguments]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(cases: list[Case], turns: int) -> list[dict[str, Any]]:
    """Measure all cases, a process for each. It takes some minutes."""
    found = []
    for case in cases:
        name = str(CASES.index(case))
        seconds = _worker("--case", name, "--turns", str(turns))
        ratios = [p / r for p, r in zip(seconds["persons"], seconds["records"], strict=True)]
        line = {
            "case": case,
            **{level: 1e3 * statistics.median(seconds[level]) for level in _LEVELS},
            "ratio": statistics.median(ratios),
            "quartiles": statistics.quantiles(ratios, n=4)[::2],
            **{f"{level} bytes": _worker("--case", name, "--level", level) for level in _LEVELS},
        }
        line["memory"] = line["persons bytes"] / line["records bytes"]
        found.append(line)
        print(*_cells(line), flush=True)
    return found


def _cells(line: dict[str, Any]) -> tuple[str, ...]:
    model, persons, records = line["case"]
    low, high = line["quartiles"]
    mib = (f"{line[f'{level} bytes'] / 2**20:.1f}" for level in _LEVELS)
    times = (f"{line[level]:.2f}" for level in _LEVELS)
    ratio = f"{line['ratio']:.3f} ({low:.3f} to {high:.3f})"
    return (model, str(persons), str(records), *times, ratio, *mib, f"{line['memory']:.2f}")


HEADINGS = (
    "model", "persons", "records each", "ms by record", "ms by person", "ratio (quartiles)", "MiB by record",
    "MiB by person", "ratio",
)  # fmt: skip


def main() -> None:
    """Measure, print, and rewrite the section of docs/reference/benchmarks.md."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--turns", type=int, default=40, help="turns to measure")
    options.add_argument("--only", default="", help="measure one model, and write nothing")
    options.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options.add_argument("--case", type=int, help=argparse.SUPPRESS)
    options.add_argument("--level", help=argparse.SUPPRESS)
    chosen = options.parse_args()
    if chosen.worker:
        torch.set_num_threads(1)
        with steady_arithmetic():
            case = CASES[chosen.case]
            print(json.dumps(peak_of(case, chosen.level) if chosen.level else times_of(case, chosen.turns)))
        return
    found = measure([case for case in CASES if case.model.startswith(chosen.only)], chosen.turns)
    if chosen.only:
        return
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    bars = []
    for model in _MODELS:
        lines = [line for line in found if line["case"].model == model]
        for what, key, bar in (("time", "ratio", TIME_BAR), ("memory", "memory", MEMORY_BAR)):
            worst = max(line[key] for line in lines)
            bars.append((f"{model}: {what}, persons / records, worst batch", worst, "<=", bar, worst <= bar))
    about = f"{listed(environment())}; processor time of one thread, {chosen.turns} turns."
    write_results("persons", about, HEADINGS, [_cells(line) for line in found], bars)


if __name__ == "__main__":
    main()
