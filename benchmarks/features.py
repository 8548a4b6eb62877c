"""Measure how long the fixed features take: `python -m benchmarks.features` (or `make bench-features`).

Several processes have one thread each, as clients do. Every turn measures all contenders one after another, so that a
busy machine slows all of them. The benchmark reports wall-clock time and processor time of the best turn. Processor
time is about the wall-clock time of an idle machine. Both are extrapolated from `--images` images.

kymatio is measured too if it is installed. It can only compute the scattering part.
"""

import argparse
import importlib.util
import multiprocessing
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from alidpfl.features import FeatureMap, LearnedFilters
from alidpfl.features.scattering import Scattering

LEAVES = (
    "reproduction/filters/leaves.safetensors#sha256=07391e16f6d7522484bf013d36fb325a2dc8df8ac1e962883f68949c7e9f0ef5"
)


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set, and the seconds that its features may take on two cores."""

    name: str
    shape: tuple[int, int, int]
    images: int
    bar_s: float


DATA_SETS = (
    DataSet(name="MNIST", shape=(1, 28, 28), images=70_000, bar_s=40),
    DataSet(name="CIFAR-10", shape=(3, 32, 32), images=60_000, bar_s=120),
)


def _all_blocks(shape: tuple[int, int, int]) -> Callable[[Tensor], Any]:
    """Build all features, as in the recipes for MNIST and CIFAR-10."""
    is_photograph = shape[0] > 1
    learned = (LearnedFilters.parse(LEAVES),) if is_photograph else ()
    more = {"learned": learned, "sets_upright": not is_photograph}
    return FeatureMap(image_shape=shape, scattering_frequencies=6, **more).compute


def _scattering(shape: tuple[int, int, int]) -> Callable[[Tensor], Any]:
    transform = Scattering(shape[-1])
    return lambda images: transform(images.float() / 255)


def _kymatio(shape: tuple[int, int, int]) -> Callable[[Tensor], Any]:
    import scipy.special

    scipy.special.sph_harm = None  # kymatio's 3-D part imports this name, which SciPy no longer has
    from kymatio.torch import Scattering2D

    transform = Scattering2D(J=2, shape=shape[1:], L=8)
    return lambda images: [transform((part.float() / 255).contiguous()) for part in images.split(256)]


CONTENDERS = {"all blocks": _all_blocks, "scattering": _scattering, "kymatio's scattering": _kymatio}
_ready: dict[tuple[str, tuple[int, int, int]], Callable[[Tensor], Any]] = {}  # in the workers


def _work(contender: str, shape: tuple[int, int, int], count: int) -> float:
    """Return the processor time of one worker for `count` images, without building the filters."""
    torch.set_num_threads(1)
    images = torch.randint(0, 256, (count, *shape), dtype=torch.uint8)
    if (contender, shape) not in _ready:
        _ready[contender, shape] = CONTENDERS[contender](shape)
    start = time.process_time()
    _ready[contender, shape](images)
    return time.process_time() - start


def _turn(
    pool: Executor, processes: int, contender: str, shape: tuple[int, int, int], count: int
) -> tuple[float, float]:
    """Return wall-clock time and total processor time for `count` images in each process."""
    start = time.perf_counter()
    work = [pool.submit(_work, contender, shape, count) for _ in range(processes)]
    used = [one.result() for one in work]
    return time.perf_counter() - start, sum(used)


def measure(data_set: DataSet, *, images: int, processes: int, turns: int) -> dict[str, tuple[float, float]]:
    """Return for each contender the seconds for the whole data set: wall-clock, and processor time per process.

    Args:
        data_set: what to compute features of.
        images: images to compute in every turn.
        processes: processes of one thread each.
        turns: turns to measure; the best one counts.
    """
    contenders = [name for name in CONTENDERS if name != "kymatio's scattering" or importlib.util.find_spec("kymatio")]
    share = images // processes
    best = dict.fromkeys(contenders, (float("inf"), float("inf")))
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        for turn in range(turns + 1):
            for name in contenders:
                seconds = _turn(pool, processes, name, data_set.shape, share if turn else 16)
                if turn:  # the first only warms up
                    best[name] = (min(best[name][0], seconds[0]), min(best[name][1], seconds[1]))
    scale = data_set.images / (share * processes)
    return {name: (clock * scale, used * scale / processes) for name, (clock, used) in best.items()}


def main() -> None:
    """Measure and print the times."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--images", type=int, default=4096, help="images of each data set in every turn")
    options.add_argument("--processes", type=int, default=2, help="processes of one thread each")
    options.add_argument("--turns", type=int, default=3, help="turns to measure; the best one counts")
    chosen = options.parse_args()
    print(f"{chosen.processes} processes of one thread, best of {chosen.turns} turns of {chosen.images} images")
    for data_set in DATA_SETS:
        times = measure(data_set, images=chosen.images, processes=chosen.processes, turns=chosen.turns)
        print(f"\n{data_set.name}, {data_set.images:,} images of {'x'.join(map(str, data_set.shape))}")
        for name, (clock, used) in times.items():
            speed = data_set.images / clock
            print(f"  {name:22} {speed:7,.0f} images/s   {clock:6.1f} s wall-clock   {used:6.1f} s processor time")
        by_clock, by_processor = ("met" if seconds <= data_set.bar_s else "NOT met" for seconds in times["all blocks"])
        print(f"  bar for all blocks, {data_set.bar_s:g} s: wall-clock {by_clock}, processor time {by_processor}")
        if "kymatio's scattering" in times:
            ratio = times["kymatio's scattering"][1] / times["scattering"][1]
            print(f"  kymatio takes {ratio:.1f} times as long for the same scattering")


if __name__ == "__main__":
    main()
