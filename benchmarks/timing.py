"""Attack a vault by its answering times: `python -m benchmarks.timing` (or `make bench-timing`).

Two vaults hold the same records, except that one record of the first is an outlier. The attacker's weights make the
gradient of that record overflow, and of no other. It asks both vaults for the same rounds in random order, and guesses
by the time of an answer which vault it came from. AUC = 0.5 means that it can only guess, and 1 that it always knows.

The vaults are real processes with a real client, on a disk in memory if there is one, because a slow disk would hide
something. Two options show that the measurement can fail. `--unprotected` lets answers leave as soon as they are ready.
`--delay` makes every round of the first vault longer by so many seconds, as a stand-in for any effect of a record.
"""

import argparse
import json
import multiprocessing
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from alidpfl.errors import AliDpflError
from alidpfl.types import ClientUpdate
from alidpfl.vault.client import VaultClient
from alidpfl.vault.enrolment import Enrolment, enrol
from alidpfl.vault.folder import POLICY, SOCKET, VaultFolder, status
from alidpfl.vault.messages import RoundRequest, Shapes, Weights, encode
from alidpfl.vault.policy import PROMPT_ANSWERS, make_policy
from alidpfl.vault.service import serve
from alidpfl.vault.sources import FileSource
from alidpfl.vault.training import RecordTrainer
from benchmarks.report import listed, write_results
from benchmarks.step import environment

RESULTS = Path(__file__).parent / "results" / "timing.json"
NUM_RECORDS, NUM_CLASSES, NOISE = 200, 3, 50.0
OUTLIER = 7
SHAPES = {"linear": (64,), "mlp": (64,), "compact_cnn": (1, 16, 16)}
STEPS = {"linear": 50, "mlp": 20, "compact_cnn": 5}
RATES = (1.0, 0.5, 0.1)
BAR, GROUP = 0.55, 8
WITH, WITHOUT = "with", "without"
_HUGE = 1e30  # finite, and its square is not
_FOUND = ("AUC", "95 %", "of medians", "of minima", "overruns")
_CLEAN = multiprocessing.get_context("forkserver")  # this process has threads of torch, which do not survive a fork
_WARM_UP, _SECONDS_TO_START, _RESAMPLES = 3, 60.0, 2000


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    model: str
    sample_rate: float


@dataclass(frozen=True)
class Outcome:
    """Seconds of every round by vault, and what the attacker makes of them."""

    case: Case
    seconds: dict[str, list[float]]
    overruns: int
    prompt: float | None = None
    """Median seconds of a round without slots."""

    @property
    def auc(self) -> float:
        """Probability that a round with the outlier takes longer than one without."""
        return auc(np.array(self.seconds[WITH]), np.array(self.seconds[WITHOUT]))

    @property
    def interval(self) -> tuple[float, float]:
        """Range of the AUC that holds in 95 of 100 repetitions: a bootstrap over pairs."""
        there, gone = (np.array(self.seconds[name]) for name in (WITH, WITHOUT))
        rows = np.random.default_rng(0).integers(len(there), size=(_RESAMPLES, len(there)))
        low, high = np.quantile([auc(there[row], gone[row]) for row in rows], (0.025, 0.975))
        return float(low), float(high)

    def grouped(self, statistic: Callable[..., NDArray[np.float64]]) -> float:
        """Return the AUC of a statistic of eight rounds, such as their median or their least."""
        there, gone = (statistic(_groups(self.seconds[name]), axis=1) for name in (WITH, WITHOUT))
        return auc(there, gone)


def auc(larger: NDArray[np.float64], smaller: NDArray[np.float64]) -> float:
    """Return the probability that a draw of the first exceeds one of the second. Equal draws count half.

    >>> auc(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    ordered = np.sort(smaller)
    below, at_most = (np.searchsorted(ordered, larger, side) for side in ("left", "right"))
    return float((below + at_most).mean() / (2 * len(smaller)))


def _groups(seconds: Sequence[float]) -> NDArray[np.float64]:
    whole = len(seconds) // GROUP * GROUP
    return np.array(seconds[:whole]).reshape(-1, GROUP)


def attacked(
    case: Case, folder: Path, *, pairs: int, restarts: int, is_protected: bool = True, delay: float = 0.0
) -> Outcome:
    """Enrol two vaults, ask both for `pairs` rounds, and return the times.

    Args:
        case: the model and q.
        folder: a new folder for the vaults.
        pairs: rounds of each vault.
        restarts: how often both vaults start anew, because two processes never run equally fast.
        is_protected: whether answers leave at the end of their slots.
        delay: seconds that a round of the vault with the outlier takes longer.
    """
    folder.mkdir()
    random = np.random.default_rng(0)
    enrolments = {name: _enrolled(case, folder / name, has_it=name == WITH) for name in (WITH, WITHOUT)}
    _set_slots(folder, is_protected=is_protected)
    weights = hostile_weights(case.model, enrolments[WITH].shapes, random)
    seconds: dict[str, list[float]] = {WITH: [], WITHOUT: []}
    number = 0
    for block in range(restarts):
        with ExitStack() as running:
            vaults = {
                name: running.enter_context(_served(folder / name, delay if name == WITH else 0.0))
                for name in random.permutation([WITH, WITHOUT])  # the first to start may be quicker
            }
            for pair in range(-_WARM_UP, (block + 1) * pairs // restarts - block * pairs // restarts):
                content, number = encode(_request(case, number), weights), number + 1
                for name in random.permutation([WITH, WITHOUT]):
                    started = time.perf_counter()
                    vaults[name].train_bytes(content)
                    taken = time.perf_counter() - started
                    if pair >= 0:
                        seconds[name].append(taken)
    overruns = sum(status(folder / name)["overruns"] for name in (WITH, WITHOUT))
    return Outcome(case, seconds, overruns)


def _enrolled(case: Case, folder: Path, *, has_it: bool) -> Enrolment:
    path = folder.with_suffix(".npz")
    inputs, targets = made_records(case.model, has_it=has_it)
    np.savez(path, x=inputs, y=targets)
    values = {
        "budget": {"epsilon": 1e6, "delta": 1e-5},  # the attack is on time, so the budget must not end it
        "accounting": {"kind": "planned", "accountant": "rdp"},
        "terms": {"sample_rate": case.sample_rate, "min_noise_multiplier": NOISE},
        "model": {"name": case.model},
        "limits": {"max_steps_per_round": STEPS[case.model], "max_clip_norm": 1.0},
    }
    return enrol(folder, FileSource(path=str(path), num_classes=NUM_CLASSES), make_policy(values, "attack"))


def made_records(model: str, *, has_it: bool) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return inputs and labels, with or without the outlier."""
    random = np.random.default_rng(0)
    inputs = random.uniform(-1, 1, size=(NUM_RECORDS, *SHAPES[model])).astype(np.float32)
    if model != "compact_cnn":
        inputs[:, 0] = 0  # only the outlier has this feature
    if has_it:
        inputs[OUTLIER] = _HUGE
    return inputs, random.integers(NUM_CLASSES, size=NUM_RECORDS)


def hostile_weights(model: str, shapes: Shapes, random: np.random.Generator) -> Weights:
    """Return weights under which the outlier's gradient overflows, and no other."""
    weights = {name: (0.1 * random.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()}
    first = weights[next(iter(shapes))]
    if model == "compact_cnn":
        first /= _HUGE  # tanh hides what is huge; so let only the gradient of these weights be huge
    else:
        first[:, 0] *= _HUGE
    return weights


def _request(case: Case, number: int) -> RoundRequest:
    return RoundRequest(
        run="attack",
        round=number,
        steps=STEPS[case.model],
        learning_rates=[1e-6],  # the weights stay hostile
        sample_rate=case.sample_rate,
        noise_multiplier=NOISE,
        clip_norm=1.0,
    )


def _set_slots(folder: Path, *, is_protected: bool) -> None:
    """Give both vaults the slots that one of them measures, or none.

    Each would measure for itself, and the difference would tell them apart without telling anything about records.
    """
    changes: dict[str, Any] = {"unsafe": [PROMPT_ANSWERS]}
    if is_protected:
        with _served(folder / WITHOUT):
            slot = status(folder / WITHOUT)["slot"]
        changes = {"service": {"seconds_per_round": slot["round"], "seconds_per_step": slot["step"]}}
    for name in (WITH, WITHOUT):
        policy = VaultFolder(path=folder / name).policy()
        changed = make_policy({**policy.model_dump(), **changes}, "attack")
        (folder / name / POLICY).write_text(changed.to_toml())


@contextmanager
def _served(folder: Path, delay: float = 0.0) -> Iterator[VaultClient]:
    process = _CLEAN.Process(target=_serve, args=(folder, delay))
    process.start()
    try:
        end = time.monotonic() + _SECONDS_TO_START
        with VaultClient(folder / SOCKET) as client:
            while not _answers(client):
                if not process.is_alive() or time.monotonic() > end:
                    raise RuntimeError(f"the vault in {folder} does not start")
                time.sleep(0.01)
            yield client
    finally:
        process.terminate()
        process.join()


def _serve(folder: Path, delay: float) -> None:
    train = RecordTrainer._trained

    def delayed(*arguments: Any) -> ClientUpdate:
        end = time.perf_counter() + delay
        while time.perf_counter() < end:
            pass
        return train(*arguments)

    RecordTrainer._trained = delayed  # type: ignore[method-assign]
    serve(folder, on_ready=lambda _vault, _where: None)


def _answers(client: VaultClient) -> bool:
    with suppress(AliDpflError):
        client.info()
        return True
    return False


def main() -> None:
    """Attack, print, and write the results and the section of docs/reference/benchmarks.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=200, help="rounds of each vault, for each model and q")
    parser.add_argument("--restarts", type=int, default=20, help="starts of both vaults, for each model and q")
    parser.add_argument("--models", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES))
    parser.add_argument("--unprotected", action="store_true", help="without time slots; writes no results")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds for the outlier; writes no results")
    arguments = parser.parse_args()
    _CLEAN.set_forkserver_preload(["alidpfl.vault.service"])
    memory = Path("/dev/shm")  # noqa: S108
    parent = Path(tempfile.mkdtemp(prefix="alidpfl-timing-", dir=memory if os.access(memory, os.W_OK) else None))
    outcomes = []
    try:
        for case in [Case(model, rate) for model in arguments.models for rate in arguments.rates]:
            place = Path(tempfile.mkdtemp(dir=parent))
            numbers = {name: getattr(arguments, name) for name in ("pairs", "restarts", "delay")}
            outcome = attacked(case, place / "attack", **numbers, is_protected=not arguments.unprotected)
            outcomes.append(replace(outcome, prompt=_prompt_seconds(case, place / "prompt")))
            shutil.rmtree(place)
    finally:
        shutil.rmtree(parent, ignore_errors=True)
    _report(outcomes, is_kept=not (arguments.unprotected or arguments.delay))


def _prompt_seconds(case: Case, folder: Path) -> float:
    without_slots = attacked(case, folder, pairs=GROUP, restarts=1, is_protected=False)
    return statistics.median(without_slots.seconds[WITHOUT])


def _report(outcomes: list[Outcome], *, is_kept: bool) -> None:
    headings = ("model", "q", "steps", "ms a round", "without slots", *_FOUND)
    lines = [_line(outcome) for outcome in outcomes]
    table = Table(*headings)
    for line in lines:
        table.add_row(*line)
    Console().print(table)
    if not is_kept:
        return
    measured_on = {**environment(), "load": f"{os.getloadavg()[0]:.1f}"}
    found = [{"model": o.case.model, "sample_rate": o.case.sample_rate, "seconds": o.seconds} for o in outcomes]
    RESULTS.write_text(json.dumps({"environment": measured_on, "attacks": found}) + "\n")
    worst = max(outcome.auc for outcome in outcomes)
    write_results(
        "timing",
        f"Measured on: {listed(measured_on)}.",
        headings,
        lines,
        [("largest AUC", worst, "<=", BAR, worst <= BAR)],
    )


def _line(outcome: Outcome) -> tuple[str, ...]:
    case, (low, high) = outcome.case, outcome.interval
    middle = 1000 * statistics.median(outcome.seconds[WITHOUT])
    grouped = (f"{outcome.grouped(statistic):.3f}" for statistic in (np.median, np.min))
    found = (f"{outcome.auc:.3f}", f"{low:.3f} to {high:.3f}", *grouped, str(outcome.overruns))
    prompt = "" if outcome.prompt is None else f"{1000 * outcome.prompt:.1f}"
    return (case.model, f"{case.sample_rate:g}", str(STEPS[case.model]), f"{middle:.1f}", prompt, *found)


if __name__ == "__main__":
    main()
