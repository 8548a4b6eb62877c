"""Measure what noise on a grid costs: `python -m benchmarks.grid` (or `make bench-grid`).

The benchmark compares a whole step with `noise="grid"`, one record at a time, with the ordinary step on the same batch
and model, in one thread. A turn is one step of each. Ratios are medians over turns. Times are processor times.
"""

import argparse
import copy
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from alidpfl.dpsgd import OneByOneClipper, PerSampleClipper, RandomStream, SoftmaxClipper, StepSettings, dp_sgd_step
from alidpfl.dpsgd.grid_noise import thresholds
from alidpfl.federation.tensors import keep_heap, steady_arithmetic
from alidpfl.models import make_model
from benchmarks.report import listed, markdown, write_section
from benchmarks.step import environment

_CLASSES = 10
_CASES = (
    ("softmax on 3220 features", "scatter_linear", (3220,), 300),
    ("linear, 1x28x28", "linear", (1, 28, 28), 90),
    ("mlp, 1x28x28, 128 wide", "mlp", (1, 28, 28), 90),
    ("compact CNN, 1x28x28", "compact_cnn", (1, 28, 28), 90),
    ("paper CNN, 1x28x28", "cnn", (1, 28, 28), 90),
)


def steps_of(name: str, shape: tuple[int, ...], batch: int) -> tuple[int, tuple[Callable[[], object], ...]]:
    """Return the number of parameters, and the two contenders: ordinary, grid."""
    model = make_model(name, shape, _CLASSES, hidden=128, seed=0)
    inputs, targets = torch.randn(batch, *shape), torch.randint(_CLASSES, (batch,))
    settings = StepSettings(clip_norm=1.0, noise_multiplier=2.0, learning_rate=0.1, expected_batch_size=batch)
    random = RandomStream.secure()
    ordinary = SoftmaxClipper(copy.deepcopy(model)) if isinstance(model, nn.Linear) else None
    clippers = (ordinary or PerSampleClipper(copy.deepcopy(model)), OneByOneClipper(copy.deepcopy(model)))

    def stepper(clipper: PerSampleClipper | SoftmaxClipper | OneByOneClipper) -> Callable[[], object]:
        return lambda: dp_sgd_step(clipper, inputs, targets, settings, random)

    return clippers[1].num_params, tuple(stepper(clipper) for clipper in clippers)


def measured(steps: tuple[Callable[[], object], ...], turns: int) -> list[tuple[float, ...]]:
    """Return the seconds of each contender in each turn, after one turn to warm up."""
    found = []
    for _ in range(turns + 1):
        seconds = []
        for step in steps:
            started = time.process_time()
            step()
            seconds.append(time.process_time() - started)
        found.append(tuple(seconds))
    return found[1:]


def main() -> None:
    """Measure, print, and rewrite the section of docs/reference/benchmarks.md."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--turns", type=int, default=9, help="turns to measure")
    turns = options.parse_args().turns
    keep_heap()
    started = time.process_time()
    thresholds()
    table_seconds = time.process_time() - started
    lines = []
    with steady_arithmetic():
        for what, name, shape, batch in _CASES:
            num_params, steps = steps_of(name, shape, batch)
            found = measured(steps, turns)
            ordinary, grid = (statistics.median(column) for column in zip(*found, strict=True))
            ratio = statistics.median(g / o for o, g in found)
            lines.append(
                (what, f"{num_params:,}", str(batch), f"{1e3 * ordinary:.1f}", f"{1e3 * grid:.1f}", f"{ratio:.1f}")
            )
            print(lines[-1], flush=True)
    about = f"{listed(environment())}; processor time, medians of {turns} turns."
    about += f" The sampler's table is made once, in {table_seconds:.1f} s."
    headings = ("model", "parameters", "batch", "ms, gaussian", "ms, grid", "grid / gaussian")
    write_section("grid", f"{about}\n\n{markdown(headings, lines)}")


if __name__ == "__main__":
    main()
