"""Measure what an exact DP-SGD step costs: `python -m benchmarks.step` (or `make bench`).

All contenders take turns in one process with one thread, so that a busy machine slows all of them. A turn is four steps
of each contender, without counting the first. Ratios are medians of ratios within a turn. The benchmark uses two
settings of malloc. glibc's default returns large blocks to the system after every step, which costs page faults.
"tuned" keeps them (see docs/reference/benchmarks.md). Memory is measured separately, with a process for each contender.
"""

import argparse
import ctypes
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.report import DOCS, listed, memory_status, write_results

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "step.json"
MALLOC = {
    "default": {},
    "tuned": {"MALLOC_MMAP_THRESHOLD_": str(1 << 30), "MALLOC_TRIM_THRESHOLD_": str(1 << 30)},
}
STEPS_PER_TURN = 3
PAPER_CNNS = ("paper CNN, 1x28x28", "paper CNN, 3x32x32")


# ---- in the worker processes


def _time(model_name: str, turns: int) -> dict[str, list[float]]:
    from benchmarks.contenders import CONTENDERS, build
    from benchmarks.models import fresh

    steps = {name: build(name, *fresh(model_name)) for name in CONTENDERS}
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(turns + 2):
        for name, step in steps.items():
            step()  # not counted: in training, a step follows another of the same contender
            start = time.perf_counter()
            for _ in range(STEPS_PER_TURN):
                step()
            if turn >= 2:  # the first turns warm up
                times[name].append((time.perf_counter() - start) / STEPS_PER_TURN)
    return times


def _peak_bytes(model_name: str, contender: str) -> int:
    """Return the peak resident memory during full steps, above model and batch."""
    from benchmarks.contenders import build
    from benchmarks.models import fresh

    warm_up = build(contender, *fresh(model_name, batch_size=2))  # loads code and libraries
    warm_up()
    warm_up()
    del warm_up
    arguments = fresh(model_name)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = memory_status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
    step = build(contender, *arguments)
    for _ in range(3):
        step()
    return memory_status("VmHWM") - before


def _work(arguments: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(1)
    if arguments.contender:
        print(json.dumps(_peak_bytes(arguments.model, arguments.contender)))
    else:
        print(json.dumps(_time(arguments.model, arguments.turns)))


# ---- in the parent process


def _worker(malloc: str, *arguments: str) -> Any:
    environment = {**os.environ, **MALLOC[malloc], "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-m", "benchmarks.step", "--worker", *arguments]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def _summarise(times: dict[str, list[float]], yardstick: str) -> dict[str, dict[str, float]]:
    return {
        name: {
            "milliseconds": round(1e3 * statistics.median(values), 3),
            "ratio": round(statistics.median(t / y for t, y in zip(values, times[yardstick], strict=True)), 4),
        }
        for name, values in times.items()
    }


def measure(turns: int) -> dict[str, Any]:
    """Run everything. It takes about five minutes."""
    from benchmarks.contenders import CONTENDERS, YARDSTICK
    from benchmarks.models import MODELS

    models: dict[str, Any] = {name: {} for name in MODELS}
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("measuring", total=len(MODELS) * len(MALLOC) * (len(CONTENDERS) + 1))
        for model in MODELS:
            for malloc in MALLOC:
                progress.update(task, description=f"{model}, malloc {malloc}")
                found = _summarise(_worker(malloc, "--model", model, "--turns", str(turns)), YARDSTICK)
                progress.advance(task)
                for name in CONTENDERS:
                    found[name]["peak_bytes"] = _worker(malloc, "--model", model, "--contender", name)
                    progress.advance(task)
                models[model][malloc] = found
    return {"environment": {"threads": "1", **environment()}, "turns": turns, "yardstick": YARDSTICK, "models": models}


def environment(*more_packages: str) -> dict[str, str]:
    """Return what the figures depend on: processor, kernels and versions."""
    from alidpfl.dpsgd import native

    def installed(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    cpu = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    return {
        "cpu": cpu,
        "native": native.instruction_set(),
        **{package: installed(package) for package in ("torch", "opacus", "alidpfl", *more_packages)},
    }


def bars(result: dict[str, Any]) -> list[tuple[str, float, str, float, bool]]:
    """Return the bars for the paper's CNN with tuned malloc: what, figure, relation, bar, reached."""
    found = []
    for model in PAPER_CNNS:
        rows = result["models"][model]["tuned"]
        mine = rows["ours"]["milliseconds"]
        memory = rows["ours"]["peak_bytes"] / rows[result["yardstick"]]["peak_bytes"]
        hooks, ghost = (rows[name]["milliseconds"] / mine for name in ("opacus hooks", "opacus ghost"))
        for what, figure, relation, bar in (
            ("step / SGD, pure torch", rows["ours, pure torch"]["ratio"], "<=", 1.25),
            ("step / SGD, native", rows["ours"]["ratio"], "<=", 1.05),
            ("step / SGD, native, beyond the bar", rows["ours"]["ratio"], "<=", 0.85),
            ("Opacus hooks / step", hooks, ">=", 3.0),
            ("Opacus ghost / step", ghost, ">=", 2.2),
            ("memory above the model / SGD's", memory, "<=", 1.5),
        ):
            reached = figure <= bar if relation == "<=" else figure >= bar
            found.append((f"{model}: {what}", figure, relation, bar, reached))
    return found


def _lines(result: dict[str, Any]) -> list[tuple[str, ...]]:
    lines = []
    for model, settings in result["models"].items():
        for name in settings["default"]:
            cells = [settings[malloc][name] for malloc in MALLOC]
            lines.append(
                (
                    model,
                    name,
                    *(f"{cell['milliseconds']:.1f}" for cell in cells),
                    *(f"{cell['ratio']:.2f}" for cell in cells),
                    *(f"{cell['peak_bytes'] / 2**20:.0f}" for cell in cells),
                )
            )
    return lines


HEADINGS = (
    "model", "contender", "ms, default malloc", "ms, tuned", "ratio, default", "ratio, tuned",
    "MiB, default", "MiB, tuned",
)  # fmt: skip


def write_docs(result: dict[str, Any]) -> None:
    """Rewrite the table of docs/reference/benchmarks.md."""
    about = f"{listed(result['environment'])}; {result['turns']} turns of {STEPS_PER_TURN} counted steps."
    write_results("step", about, HEADINGS, _lines(result), bars(result))


def main() -> None:
    """Measure, write the results, print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=12, help="turns to measure")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--model", help=argparse.SUPPRESS)
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        _work(arguments)
        return
    result = measure(arguments.turns)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    write_docs(result)
    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table(*HEADINGS, title="one full step, one thread")
    for line in _lines(result):
        table.add_row(*line)
    console.print(table)
    for what, figure, relation, bar, reached in bars(result):
        console.print(f"{'reached' if reached else 'MISSED '}  {what}: {figure:.2f} (bar {relation} {bar})")
    console.print(f"written: {RESULTS.relative_to(HERE.parent)}, {DOCS.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
