"""Measure what the trials of a new model cost: `python -m benchmarks.first_look`.

Before its first step a model runs on made-up batches, which shows whether it mixes records. An empty batch runs these
trials and hardly anything else. Times are processor times in one thread, the least of some models of each kind.
"""

import argparse
import time

import torch
from torch import nn

from alidpfl.dpsgd import PerSampleClipper
from alidpfl.federation.tensors import keep_heap, steady_arithmetic
from alidpfl.models import make_model
from benchmarks.models import resnet
from benchmarks.report import markdown, write_section

_REPETITIONS = 3


def wide_mlp() -> nn.Sequential:
    """Build a perceptron of widths 784-2048-2048-1024-10."""
    layers = [nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.ReLU()]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(1024, 10))


_MODELS = {
    "linear": (lambda: make_model("linear", (1, 28, 28), 10, hidden=0, seed=0), (1, 28, 28)),
    "compact CNN": (lambda: make_model("compact_cnn", (1, 28, 28), 10, hidden=0, seed=0), (1, 28, 28)),
    "paper CNN": (lambda: make_model("cnn", (1, 28, 28), 10, hidden=0, seed=0), (1, 28, 28)),
    "ResNet-8 with GroupNorm": (resnet, (3, 32, 32)),
    "MLP 784-2048-2048-1024-10": (wide_mlp, (1, 28, 28)),
}


def seconds(model: nn.Module, shape: tuple[int, ...]) -> tuple[float, float]:
    """Return the processor time of the first call with an empty batch, and of a step with 90 records."""
    clipper, found = PerSampleClipper(model), []
    for size in (0, 90, 90):
        inputs, targets = torch.rand(size, *shape), torch.zeros(size, dtype=torch.int64)
        started = time.process_time()
        clipper.clipped_sum(inputs, targets, clip_norm=1.0, seed=0)
        found.append(time.process_time() - started)
    return found[0], found[-1]


def main() -> None:
    """Measure, print, and rewrite the section of docs/reference/benchmarks.md."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    keep_heap()
    lines = []
    with steady_arithmetic():
        for name, (build, shape) in _MODELS.items():
            first, step = map(min, zip(*(seconds(build(), shape) for _ in range(_REPETITIONS)), strict=True))
            size = sum(parameter.numel() for parameter in build().parameters())
            lines.append((name, f"{size:,}", f"{first:.2f}", f"{step:.3f}"))
            print(lines[-1], flush=True)
    headings = ("model", "parameters", "s, trials before the first step", "s, sum of 90 records")
    write_section("first-look", markdown(headings, lines))


if __name__ == "__main__":
    main()
