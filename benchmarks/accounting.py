"""Measure how long accounting takes: `python -m benchmarks.accounting` (or `make bench-accounting`).

The first part is the time to compute R_c. Cold is the first call in a fresh process, after imports. Warm is the same
call again. The second part, alone with `--tiny`, is the processor time of ε at ordinary and at tiny δ. The benchmark
prints each bar and whether it is met, writes benchmarks/results/accounting.json, and always exits with status 0.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from alidpfl.privacy import ACCOUNTANTS
from benchmarks.report import markdown, write_section
from reproduction import paper

REPETITIONS = 3
COLD_BARS_S = {"pld": 1.5, "rdp": 0.05, "rdp-paper": 0.05}
WARM_BAR_S = 0.005
TINY_SETTINGS = ((0.015, 1.1, 314), (0.25, 6.4, 158), (0.001, 0.8, 10_000), (1e-4, 50.0, 90_000), (0.001, 20.0, 1_000))
DELTAS = (1e-5, 1e-9, 1e-12, 1e-15)
TINY_BAR = 2.0  # times the time at δ = 1e-5
RESULTS = Path(__file__).parent / "results" / "accounting.json"

_CHILD = """
import json, sys, time
from alidpfl.privacy import PrivacyBudget, max_steps
from reproduction import paper
accountant, epsilon = sys.argv[1], float(sys.argv[2])
budget = PrivacyBudget(epsilon=epsilon, delta=paper.DELTA)
seconds = []
for _ in range(2):
    start = time.perf_counter()
    steps = max_steps(budget, paper.SAMPLE_RATE, paper.NOISE_MULTIPLIER, accountant=accountant)
    seconds.append(time.perf_counter() - start)
print(json.dumps({"steps": steps, "cold_s": seconds[0], "warm_s": seconds[1]}))
"""

_TINY_CHILD = """
import json, sys, time
from alidpfl.privacy import SampledGaussian, epsilon
rate, noise, steps, delta = map(float, sys.argv[1:])
start = time.process_time()
epsilon([SampledGaussian(sample_rate=rate, noise_multiplier=noise, steps=int(steps))], delta)
print(json.dumps(time.process_time() - start))
"""


def measure(accountant: str, epsilon: float) -> dict[str, Any]:
    """Return the best and the median time of one setting over fresh processes."""
    runs = [_in_fresh_process(_CHILD, accountant, epsilon) for _ in range(REPETITIONS)]
    cold, warm = [run["cold_s"] for run in runs], [run["warm_s"] for run in runs]
    return {
        "accountant": accountant,
        "epsilon": epsilon,
        "steps": runs[0]["steps"],
        "cold_best_s": min(cold),
        "cold_median_s": statistics.median(cold),
        "cold_bar_s": COLD_BARS_S[accountant],
        "warm_best_s": min(warm),
        "warm_median_s": statistics.median(warm),
        "warm_bar_s": WARM_BAR_S,
        "passed": min(cold) <= COLD_BARS_S[accountant] and min(warm) <= WARM_BAR_S,
    }


def measure_tiny(sample_rate: float, noise_multiplier: float, steps: int) -> list[float]:
    """Return the milliseconds of ε at each of `DELTAS`, cold, the best of some processes."""
    setting = (sample_rate, noise_multiplier, steps)
    return [1e3 * min(_in_fresh_process(_TINY_CHILD, *setting, delta) for _ in range(REPETITIONS)) for delta in DELTAS]


def _in_fresh_process(program: str, *arguments: object) -> Any:
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def show(results: list[dict[str, Any]], console: Console) -> None:
    """Print the results as a table."""
    header = ("accountant", "ε", "R_c", "cold best", "median", "bar (ms)", "warm best", "median", "bar (ms)", "met")
    table = Table(*header, title=f"R_c, milliseconds, {REPETITIONS} fresh processes each; bars apply to the best")
    keys = ("cold_best_s", "cold_median_s", "cold_bar_s", "warm_best_s", "warm_median_s", "warm_bar_s")
    for r in results:
        times = (f"{1000 * r[key]:.4g}" for key in keys)
        table.add_row(r["accountant"], f"{r['epsilon']:g}", str(r["steps"]), *times, "yes" if r["passed"] else "NO")
    console.print(table)


def write_docs(results: list[dict[str, Any]]) -> None:
    """Rewrite the table of docs/reference/benchmarks.md: the best time of the slowest budget of each accountant."""
    lines = []
    for accountant in ACCOUNTANTS:
        rows = [r for r in results if r["accountant"] == accountant]
        cold, warm = (1e3 * max(r[key] for r in rows) for key in ("cold_best_s", "warm_best_s"))
        met = "yes" if all(r["passed"] for r in rows) else "**no**"
        bar = f"{1e3 * COLD_BARS_S[accountant]:g} / {1e3 * WARM_BAR_S:g}"
        lines.append((accountant, f"{cold:.0f}", f"{warm:.2f}", bar, met))
    headings = ("accountant", "cold, ms", "warm, ms", "bar, ms", "reached")
    write_section("accounting", markdown(headings, lines))


def write_tiny_docs() -> None:
    """Measure ε at tiny δ, and rewrite the second table of docs/reference/benchmarks.md."""
    lines = []
    for setting in TINY_SETTINGS:
        milliseconds = measure_tiny(*setting)
        ratio = max(milliseconds[1:]) / milliseconds[0]
        met = "yes" if ratio <= TINY_BAR else "**no**"
        lines.append((*(f"{x:g}" for x in setting), *(f"{x:.0f}" for x in milliseconds), f"{ratio:.2f}", met))
    headings = ("q", "σ", "steps", *(f"δ = {delta:g}, ms" for delta in DELTAS), "largest ratio", f"<= {TINY_BAR:g}")
    write_section("tiny-delta", markdown(headings, lines))


def main() -> None:
    """Measure every budget of the paper with each accountant, and ε at tiny δ."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--tiny", action="store_true", help="measure ε at tiny δ only")
    only_tiny = options.parse_args().tiny
    console = Console(width=None if sys.stdout.isatty() else 120)
    write_tiny_docs()
    if only_tiny:
        return
    settings = [(accountant, epsilon) for accountant in ACCOUNTANTS for epsilon in paper.ITERATIONS]
    progress = track(settings, description="accounting", console=Console(stderr=True))
    results = [measure(accountant, epsilon) for accountant, epsilon in progress]
    RESULTS.parent.mkdir(exist_ok=True)
    machine = {"machine": platform.machine(), "python": platform.python_version(), "system": platform.platform()}
    document = {"measured": datetime.now(UTC).isoformat(timespec="seconds"), **machine, "results": results}
    RESULTS.write_text(json.dumps(document, indent=2) + "\n")
    show(results, console)
    write_docs(results)
    console.print(f"written to {RESULTS} and docs/reference/benchmarks.md")


if __name__ == "__main__":
    main()
