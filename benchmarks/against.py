"""Compare a step's time with that of older code: `python -m benchmarks.against FOLDER`, a checkout of another commit.

Make the checkout with `git worktree add FOLDER COMMIT`, and its kernels with `python setup.py build_ext --inplace`.

A busy machine slows everything by changing amounts. So both codes take turns on one pinned processor, and only
processor time counts. A turn is a few steps of each, in an order that alternates. Each figure is the median over turns
of the ratio within a turn. Its 95 % interval is made of order statistics, and assumes nothing about the times.
"""

import argparse
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from scipy.stats import binom

from benchmarks.report import markdown, write_section

HERE = Path(__file__).parent.parent
CASES = (("linear", 90), ("mlp", 90), ("compact_cnn", 90), ("cnn", 90), ("linear", 600), ("mlp", 600))
_CHUNK_SECONDS = 0.1

_WORKER = """
import sys, time, torch
torch.set_num_threads(1)
from alidpfl.dpsgd import PerSampleClipper, RandomStream, StepSettings, dp_sgd_step
from alidpfl.federation.tensors import keep_heap
from alidpfl.models import make_model
name, batch = sys.argv[1], int(sys.argv[2])
keep_heap()
torch.manual_seed(0)
inputs, targets = torch.rand(batch, 1, 28, 28), torch.randint(10, (batch,))
clipper, random = PerSampleClipper(make_model(name, (1, 28, 28), 10, hidden=128, seed=0)), RandomStream.seeded(0)
settings = StepSettings(clip_norm=1.0, noise_multiplier=1.1, learning_rate=0.01, expected_batch_size=batch)
for line in sys.stdin:
    for number in range(int(line) + 1):
        if number == 1:  # the first step fills the processor's caches
            started = time.process_time()
        dp_sgd_step(clipper, inputs, targets, settings, random)
    print(time.process_time() - started, flush=True)
"""


class Worker:
    """A process that runs steps of one checkout."""

    def __init__(self, folder: Path, name: str, batch: int) -> None:
        environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", _WORKER, name, str(batch)]
        self._process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=folder
        )

    def seconds(self, steps: int) -> float:
        """Return the processor time of one step, over `steps` steps after one that is not counted."""
        print(steps, file=self._process.stdin, flush=True)
        return float(next(iter(self._process.stdout or ()))) / steps

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def measured(older: Path, name: str, batch: int, turns: int) -> list[tuple[float, float]]:
    """Return seconds of a step with the older and with this code, for every turn."""
    workers = [Worker(folder, name, batch) for folder in (older, HERE)]
    try:
        for worker in workers:
            worker.seconds(20)
        steps = max(2, math.ceil(_CHUNK_SECONDS / workers[0].seconds(5)))
        found = []
        for turn in range(turns):
            order = workers if turn % 2 else workers[::-1]
            seconds = {worker: worker.seconds(steps) for worker in order}
            found.append((seconds[workers[0]], seconds[workers[1]]))
        return found
    finally:
        for worker in workers:
            worker.close()


def interval(values: list[float]) -> tuple[float, float]:
    """Return order statistics that hold the median with probability 0.95 at least."""
    ordered, rank = sorted(values), int(binom.ppf(0.025, len(values), 0.5))
    return ordered[max(0, rank - 1)], ordered[min(len(values) - 1, len(values) - rank)]


def main() -> None:
    """Measure every case, print it, and rewrite the section of docs/reference/benchmarks.md."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path, help="a checkout of the older code, with its native kernels built")
    options.add_argument("--turns", type=int, default=200)
    arguments = options.parse_args()
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    lines = []
    for name, batch in CASES:
        started = time.monotonic()
        found = measured(arguments.folder.resolve(), name, batch, arguments.turns)
        ratios = [new / old for old, new in found]
        low, high = interval(ratios)
        milliseconds = [f"{1e3 * statistics.median(column):.2f}" for column in zip(*found, strict=True)]
        ratio = f"{statistics.median(ratios):.3f} ({low:.3f} to {high:.3f})"
        lines.append((name, str(batch), *milliseconds, ratio))
        print(lines[-1], f"{time.monotonic() - started:.0f} s", flush=True)
    table = markdown(("model", "batch", "ms, older", "ms, this", "this / older (95 %)"), lines)
    commit = subprocess.run(
        ["git", "-C", arguments.folder, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    write_section("against", f"The older code is commit {commit}, {arguments.turns} turns.\n\n{table}")


if __name__ == "__main__":
    main()
