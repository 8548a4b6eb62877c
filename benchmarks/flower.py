"""Measure what a round costs besides training: `python -m benchmarks.flower` (or `make bench-flower`).

The deployment has three nodes on this machine with TLS and node keys, the paper's CNN (582,026 parameters), and one
tiny step per round. Two apps take turns: ours, and ours with torch imported in the ClientApp's process, as in most
apps. The benchmark also measures the loop around the training of the default run, in one process.
"""

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from torch import Tensor

from alidpfl.federation.settings import Engine, Evaluation, Part
from alidpfl.flower.demo.loopback import Loopback, tail
from alidpfl.runs import load_config
from alidpfl.runs.prepare import prepare
from alidpfl.store import RunDirectory
from alidpfl.types import ClientPlan, ClientUpdate
from alidpfl.vault.folder import SOCKET
from benchmarks.report import listed, write_results
from benchmarks.step import environment

RESULTS = Path(__file__).parent / "results" / "flower.json"
NODES, WARM_UP_ROUNDS = 3, 1
SECONDS_BAR, SHARE_BAR, TORCH_BAR = 6.5, 0.05, 0.5
OURS, WITH_TORCH = "ours: a relay to the vault", "the same, importing torch"
TINY_RATE, NOISE = 0.0005, 2.0


# ---- the deployment


def deployment_rounds(folder: Path, rounds: int, turns: int) -> dict[str, list[float]]:
    """Return the seconds of each round, by app."""
    times: dict[str, list[float]] = {OURS: [], WITH_TORCH: []}
    root = str(Path(__file__).parent.parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    with Loopback(folder, nodes=NODES) as loopback:
        _start(loopback)
        for turn in range(turns):
            for name in times:
                out = folder / f"out-{turn}-{list(times).index(name)}"
                times[name] += _timed(loopback, out, rounds, with_torch=name == WITH_TORCH)
    return times


def _start(loopback: Loopback) -> None:
    terms = ["--epsilon", "8", "--delta", "1e-5", "--sample-rate", str(TINY_RATE), "--min-noise-multiplier", str(NOISE)]
    limits = ["--max-clip-norm", "1", "--max-steps-per-round", "5", "--accountant", "rdp", "--model", "cnn"]
    for client in range(NODES):
        share = ["--dir", loopback.vault_folder(client), "--client", str(client), "--clients", str(NODES)]
        loopback.alidpfl("vault", "init", "--data", "strokes", *share, *terms, *limits)
        loopback.start_vault(client)
    loopback.start_superlink()
    loopback.register_nodes()
    for client in range(NODES):
        loopback.wait_until(f"serve-{client}", (loopback.vault_folder(client) / SOCKET).exists)
        loopback.start_node(client)


def _timed(loopback: Loopback, out: Path, rounds: int, *, with_torch: bool) -> list[float]:
    settings = {
        "data.clients": NODES,
        "model.name": "cnn",
        "privacy.epsilon": 8.0,
        "privacy.sample_rate": TINY_RATE,
        "privacy.noise_multiplier": NOISE,
        "privacy.accountant": "rdp",
        "method.policy": "fixed",
        "method.learning_rate": 0.01,
        "federation.max_rounds": WARM_UP_ROUNDS + rounds,
    }
    app = out.with_name(f"app-{out.name}")
    changes = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    loopback.alidpfl("flower", "init", app, "--out", out, "--no-evaluate", *changes)
    if with_torch:
        project = app / "pyproject.toml"
        project.write_text(project.read_text().replace("alidpfl.flower.apps:client", "benchmarks.flower_torch:client"))
    loopback.submit(app)
    loopback.wait_until("run", (out / "summary.json").exists, seconds=1200)
    directory = RunDirectory.open(out)
    if any(record.dropped or record.rejected for record in directory.records()):
        raise RuntimeError(
            f"clients were dropped or rejected, so the rounds cannot be compared:\n{tail(loopback.log('run'))}"
        )
    return [timing.seconds for timing in directory.timings()][WARM_UP_ROUNDS:]


# ---- in process


class _Timed:
    """Measures the time of an engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine, self.seconds = engine, 0.0

    def train(self, params: Tensor, plans: Sequence[ClientPlan]) -> list[ClientUpdate]:
        started = time.perf_counter()
        updates = self._engine.train(params, plans)
        self.seconds += time.perf_counter() - started
        return updates

    def evaluate(self, params: Tensor, part: Part) -> Evaluation | None:
        started = time.perf_counter()
        found = self._engine.evaluate(params, part)
        self.seconds += time.perf_counter() - started
        return found


def overhead_shares(rounds: int) -> list[float]:
    """Return for each round of the default run the time of the loop over the time of training."""
    config = load_config(overrides=["processes=1", "method.policy=fixed", "method.local_steps=2"])
    shares = []
    with prepare(config).federation as federation:
        engine = _Timed(federation._engine)
        federation._engine = engine
        for _ in range(WARM_UP_ROUNDS + rounds):
            engine.seconds, started = 0.0, time.perf_counter()
            federation.step()
            shares.append((time.perf_counter() - started - engine.seconds) / engine.seconds)
    return shares[WARM_UP_ROUNDS:]


def main() -> None:
    """Measure, print, and write the results and the section of docs/reference/benchmarks.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=6, help="rounds of each app in a turn")
    parser.add_argument("--turns", type=int, default=2, help="turns of each app")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="alidpfl-bench-"))
    try:
        times = deployment_rounds(folder, arguments.rounds, arguments.turns)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    shares = overhead_shares(10)
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    share, ratio = statistics.median(shares), medians[OURS] / medians[WITH_TORCH]
    measured_on = {**environment(), "load": f"{os.getloadavg()[0]:.1f}"}
    RESULTS.write_text(json.dumps({"environment": measured_on, "seconds": times, "shares": shares}, indent=2) + "\n")
    lines = [
        (name, f"{medians[name]:.1f}", f"{min(seconds):.1f} to {max(seconds):.1f}", str(len(seconds)))
        for name, seconds in times.items()
    ]
    lines.append(("in process: the loop, as a share of the training", f"{100 * share:.1f} %", "", str(len(shares))))
    headings = ("what", "median seconds a round", "range", "rounds")
    bars = [
        ("seconds a round, deployment of 3 nodes", medians[OURS], "<=", SECONDS_BAR, medians[OURS] <= SECONDS_BAR),
        ("divided by an app that imports torch", ratio, "<=", TORCH_BAR, ratio <= TORCH_BAR),
        ("in process, share of the training", share, "<=", SHARE_BAR, share <= SHARE_BAR),
    ]
    table = Table(*headings)
    for line in lines:
        table.add_row(*line)
    Console().print(table)
    write_results("flower", f"Measured on: {listed(measured_on)}.", headings, lines, bars)


if __name__ == "__main__":
    main()
