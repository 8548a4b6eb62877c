"""Measure how fast a DP step of softmax regression is: `python -m benchmarks.softmax` (or `make bench-softmax`).

A step is Poisson sampling, exact clipping of every record, noise and update, in one thread. Every turn measures all
contenders one after another on the same client, so that a busy machine slows all of them.
"""

import argparse
import time
from collections.abc import Callable

import torch
from torch import nn

from alidpfl.dpsgd import (
    PerSampleClipper,
    RandomStream,
    SoftmaxClipper,
    StepSettings,
    dp_sgd_step,
    native,
    poisson_sample,
)
from alidpfl.federation.tensors import steady_arithmetic

_CLASSES, _RATE, _BAR = 10, 0.25, 100_000


def contenders(records: int, features: int) -> dict[str, Callable[[], int]]:
    """Return functions that make one step and return the number of records in it."""
    inputs = nn.functional.normalize(torch.randn(records, features))
    targets = torch.randint(_CLASSES, (records,))
    model = nn.Linear(features, _CLASSES, bias=False)
    random = RandomStream.secure()
    settings = StepSettings(clip_norm=0.1, noise_multiplier=6.4, learning_rate=1.0, expected_batch_size=_RATE * records)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def plain() -> int:
        rows = poisson_sample(records, _RATE, random)
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()
        optimizer.step()
        return len(rows)

    def private(clipper: PerSampleClipper | SoftmaxClipper) -> Callable[[], int]:
        def step() -> int:
            rows = poisson_sample(records, _RATE, random)
            dp_sgd_step(clipper, inputs, targets, settings, random, rows=rows)
            return len(rows)

        return step

    closed = private(SoftmaxClipper(model))

    def without_kernels() -> int:
        with native.disabled():
            return closed()

    return {
        "closed form": closed,
        "closed form, PyTorch only": without_kernels,
        "per-sample clipper": private(PerSampleClipper(model)),
        "plain SGD": plain,
    }


def speeds(steps: dict[str, Callable[[], int]], turns: int) -> dict[str, list[float]]:
    """Return the records per second of every contender in every turn."""
    found: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(turns + 1):
        for name, step in steps.items():
            started, samples = time.perf_counter(), 0
            while time.perf_counter() - started < 1.0:
                samples += step()
            if turn:  # the first only warms up
                found[name].append(samples / (time.perf_counter() - started))
    return found


def main() -> None:
    """Measure and print the speeds."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--features", type=int, default=4000, help="features of a record")
    options.add_argument("--records", type=int, default=12_000, help="records of the client")
    options.add_argument("--turns", type=int, default=5, help="turns to measure")
    chosen = options.parse_args()
    with steady_arithmetic():
        found = speeds(contenders(chosen.records, chosen.features), chosen.turns)
    print(f"one thread, {chosen.features:,} features, {_CLASSES} classes, kernels: {native.instruction_set()}")
    for name, values in found.items():
        median = sorted(values)[len(values) // 2]
        print(f"  {name:26} {median:9,.0f} samples/s   ({min(values):,.0f} to {max(values):,.0f})")
    best = max(found["closed form"])
    print(f"bar {_BAR:,} samples/s: {'met' if best >= _BAR else 'NOT met'} by the best turn ({best:,.0f})")


if __name__ == "__main__":
    main()
