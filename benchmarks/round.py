"""Measure what a federated round costs: `python -m benchmarks.round` (or `make bench-round`).

Every contender is a process with two worker processes. All are alive at once, and only one works at a time. A turn is
one round of each, in an order that rotates. Ratios are medians of ratios within a turn. The peer, Flower with Opacus,
is measured afterwards, in turns with ours and the yardstick, because its idle processes would disturb the others.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks.report import DOCS, listed, write_results
from benchmarks.step import MALLOC, environment

HERE = Path(__file__).parent
RESULTS = HERE / "results" / "round.json"
MARK = "round took "
PEERS = {
    "Flower + Opacus": "default",
    "Flower + Opacus, tuned malloc": "tuned",
}
FLOWER_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # the default of 15 makes the peer wait for other programs
}
SGD_BAR, PEER_BAR = 1.25, 15.0
WARM_UP_ROUNDS = 2
Times = dict[str, list[float]]


# ---- in the contenders' processes


def _wait_for_turn() -> None:
    if not sys.stdin.readline():
        raise EOFError("the parent asks for no more rounds")


def _report(seconds: float) -> None:
    print(f"{MARK}{seconds}", flush=True)


def _serve(contender: str, num_rounds: int) -> None:
    """Make a round for every line on standard input, and report how long it took."""
    if contender in PEERS:
        from benchmarks import flower_peer

        flower_peer.serve(num_rounds, _wait_for_turn, _report)
        return
    from benchmarks.round_contenders import CONTENDERS

    one_round = CONTENDERS[contender]()
    for _ in sys.stdin:
        start = time.perf_counter()
        one_round()
        _report(time.perf_counter() - start)


# ---- in the parent process


class Contender:
    """A process that makes a round on request. As a context manager it ends the process."""

    def __init__(self, name: str, num_rounds: int) -> None:
        from benchmarks.round_contenders import EXTRA_ENVIRONMENT

        self.name = name
        self._directory = tempfile.TemporaryDirectory(prefix="alidpfl-bench-")
        self._log = Path(self._directory.name) / "log"
        extra = EXTRA_ENVIRONMENT.get(name, {})
        if name in PEERS:
            extra = FLOWER_ENVIRONMENT | MALLOC[PEERS[name]] | {"FLWR_HOME": self._directory.name}
        command = [sys.executable, "-m", "benchmarks.round", "--contender", name, "--rounds", str(num_rounds)]
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                cwd=HERE.parent,
                env={**os.environ, **extra, "PYTHONWARNINGS": "ignore"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    def __enter__(self) -> "Contender":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: S101, PT018
        with suppress(BrokenPipeError):
            self._process.stdin.close()  # the process ends at the end of its input
        self._process.stdout.read()
        self._process.wait()
        self._directory.cleanup()

    def one_round(self) -> float:
        """Return the seconds of one round."""
        assert self._process.stdin is not None and self._process.stdout is not None  # noqa: S101, PT018
        with suppress(BrokenPipeError):  # it died, and its last words are in the log
            print(file=self._process.stdin, flush=True)
        for line in self._process.stdout:
            if line.startswith(MARK):
                return float(line.removeprefix(MARK))
        raise RuntimeError(f"{self.name} ended:\n{self._log.read_text()[-3000:]}")

    def peak_bytes(self) -> int:
        """Return the peak memory of all its processes during one more round. Shared pages count once."""
        found, done = [0], threading.Event()

        def look() -> None:
            while not done.wait(0.05):
                found.append(_resident_bytes(self._process.pid))

        thread = threading.Thread(target=look)
        thread.start()
        self.one_round()
        done.set()
        thread.join()
        return max(found)


def _resident_bytes(root: int) -> int:
    """Return the proportional set size of a process and all its descendants."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it ended meanwhile
            continue
    family = {root}
    while new := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= new
    return sum(map(_proportional_bytes, family))


def _proportional_bytes(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def _take_turns(contenders: list[Contender], turns: int, progress: Progress) -> Times:
    """Return the seconds of each contender in each turn, after rounds to warm up."""
    task = progress.add_task(", ".join(c.name for c in contenders)[:60], total=(turns + WARM_UP_ROUNDS))
    times: Times = {contender.name: [] for contender in contenders}
    for turn in range(turns + WARM_UP_ROUNDS):
        shift = turn % len(contenders)
        for contender in contenders[shift:] + contenders[:shift]:
            seconds = contender.one_round()
            if turn >= WARM_UP_ROUNDS:
                times[contender.name].append(seconds)
        progress.advance(task)
    return times


def _run(names: list[str], turns: int, progress: Progress) -> tuple[Times, dict[str, int]]:
    """Return the times of each contender, and its memory in one more round."""
    with ExitStack() as stack:
        rounds = turns + WARM_UP_ROUNDS + 1
        contenders = [stack.enter_context(Contender(name, rounds)) for name in names]
        times = _take_turns(contenders, turns, progress)
        return times, {contender.name: contender.peak_bytes() for contender in contenders}


def _ratio(times: Times, name: str, to: str) -> float:
    return statistics.median(a / b for a, b in zip(times[name], times[to], strict=True))


def _row(times: Times, memory: dict[str, int], name: str) -> dict[str, Any]:
    from benchmarks.round_contenders import YARDSTICK

    return {
        "seconds": round(statistics.median(times[name]), 4),
        "ratio to SGD": round(_ratio(times, name, YARDSTICK), 4),
        "ratio to ours": round(_ratio(times, name, "ours"), 4),
        "peak_bytes": memory[name],
        "rounds": [round(seconds, 4) for seconds in times[name]],
    }


def measure(turns: int, peer_turns: int) -> dict[str, Any]:
    """Run everything. It takes about five minutes, mostly for the peer."""
    from benchmarks.round_contenders import CONTENDERS, YARDSTICK

    with Progress(console=Console(stderr=True)) as progress:
        times, memory = _run(list(CONTENDERS), turns, progress)
        rows = {name: _row(times, memory, name) for name in CONTENDERS}
        for peer in PEERS:
            times, memory = _run([YARDSTICK, "ours", peer], peer_turns, progress)
            rows[peer] = _row(times, memory, peer) | {"ours meanwhile": [round(t, 4) for t in times["ours"]]}
    return {
        "environment": environment("flwr", "ray"),
        "turns": turns,
        "peer_turns": peer_turns,
        "yardstick": YARDSTICK,
        "contenders": rows,
    }


def bars(result: dict[str, Any]) -> list[tuple[str, float, str, float, bool]]:
    """Return the bars for a round: what, figure, relation, bar, reached."""
    rows = result["contenders"]
    to_sgd, peer = rows["ours"]["ratio to SGD"], rows["Flower + Opacus"]["ratio to ours"]
    return [
        ("ours / the same steps of plain SGD", to_sgd, "<=", SGD_BAR, to_sgd <= SGD_BAR),
        ("Flower + Opacus / ours", peer, ">=", PEER_BAR, peer >= PEER_BAR),
    ]


HEADINGS = ("contender", "s a round", "/ plain SGD", "/ ours", "MiB, all processes")


def _lines(result: dict[str, Any]) -> list[tuple[str, ...]]:
    return [
        (
            name,
            f"{row['seconds']:.2f}",
            f"{row['ratio to SGD']:.2f}",
            f"{row['ratio to ours']:.2f}",
            f"{row['peak_bytes'] / 2**20:.0f}",
        )
        for name, row in result["contenders"].items()
    ]


def write_docs(result: dict[str, Any]) -> None:
    """Rewrite the table of docs/reference/benchmarks.md."""
    about = f"{listed(result['environment'])}; {result['turns']} turns, {result['peer_turns']} with each peer."
    write_results("round", about, HEADINGS, _lines(result), bars(result))


def main() -> None:
    """Measure, write the results, print them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=16, help="rounds of each contender")
    parser.add_argument("--peer-turns", type=int, default=4, help="rounds of each peer")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        _serve(arguments.contender, arguments.rounds)
        return
    result = measure(arguments.turns, arguments.peer_turns)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    write_docs(result)
    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table(*HEADINGS, title="one round, 10 clients, 3 local steps, 2 processes")
    for line in _lines(result):
        table.add_row(*line)
    console.print(table)
    for what, figure, relation, bar, reached in bars(result):
        console.print(f"{'reached' if reached else 'MISSED '}  {what}: {figure:.2f} (bar {relation} {bar})")
    console.print(f"written: {RESULTS.relative_to(HERE.parent)}, {DOCS.relative_to(HERE.parent)}")


if __name__ == "__main__":
    main()
