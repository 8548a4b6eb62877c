"""One run as a table. A guarantee that does not hold is said in the table itself, with the reasons."""

from collections.abc import Callable, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from alidpfl.reporting.snapshot import NOT_COVERED, RunSnapshot

UNKNOWN = "-"
_UNFINISHED = "running or interrupted"
_SECONDS_A_MINUTE = 60


def summary_table(snapshot: RunSnapshot) -> Table:
    """Settings and results of one run, a line each."""
    table = Table(Column(), Column(_name(snapshot)))
    facts = snapshot.facts()
    for heading, cell in (_SETTINGS | RESULTS).items():
        table.add_row(Text(heading), cell(facts))
    if snapshot.missed_rounds:
        told = f"in {snapshot.missed_rounds} rounds too few clients answered: charged, and the model stayed as it was"
        table.add_row(Text("WARNING", style="bold red"), Text(told))
    if not snapshot.covers_everything:
        table.add_row(Text("WARNING", style="bold red"), Text(NOT_COVERED, style="bold red"))
        for reason in snapshot.uncovered:
            table.add_row(Text("not covered", style="bold red"), Text(reason))
    return table


def _name(snapshot: RunSnapshot) -> Text:
    """The run's name: as Text, because a folder name may hold what rich would take for markup."""
    return Text(snapshot.name)


def _plain(key: str) -> Callable[[Mapping[str, Any]], Text]:
    return lambda facts: Text(UNKNOWN if facts[key] is None else number(facts[key]))


def number(value: object) -> str:
    """Short: 2 for 2.0."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def _dataset(facts: Mapping[str, Any]) -> Text:
    label = " (synthetic)" if facts["is_synthetic"] and facts["dataset"] else ""
    return Text(f"{facts['dataset'] or UNKNOWN}{label}")


def _partition(facts: Mapping[str, Any]) -> Text:
    beta = facts["dirichlet_beta"]
    has_beta = facts["partition"] == "dirichlet" and beta is not None
    return Text(f"dirichlet({number(beta)})" if has_beta else str(facts["partition"] or UNKNOWN))


def _epsilon(facts: Mapping[str, Any]) -> Text:
    if facts["epsilon"] is None:
        return Text(UNKNOWN)
    spent = rounded_up(facts["epsilon"])
    budget = facts["epsilon_budget"]
    text = spent if budget is None else f"{spent} of {number(budget)}"
    return Text(text) if facts["covers_everything"] else Text(f"{text} (!)", style="bold red")


_NO_DECIMALS_FROM = 1e12  # and what is not a number
_FEW_DIGITS_BELOW = 1e-3


def rounded_up(epsilon: float) -> str:
    """Four decimals, of very little two digits, and never less than was spent."""
    if 0 < epsilon < _FEW_DIGITS_BELOW:
        digits = Decimal(str(epsilon))
        return f"{digits.quantize(Decimal(1).scaleb(digits.adjusted() - 1), rounding=ROUND_CEILING):.2g}"
    return _decimals(epsilon, 4, ROUND_CEILING)


def rounded_down(value: float, decimals: int = 4) -> str:
    """Never more than is left, or than was shown: for lower bounds."""
    return _decimals(value, decimals, ROUND_FLOOR)


def _decimals(value: float, decimals: int, rounding: str) -> str:
    if not abs(value) < _NO_DECIMALS_FROM:
        return str(value)
    return str(Decimal(str(value)).quantize(Decimal(1).scaleb(-decimals), rounding=rounding))


def _accuracy(key: str) -> Callable[[Mapping[str, Any]], Text]:
    def cell(facts: Mapping[str, Any]) -> Text:
        value = facts[key]
        if not isinstance(value, int | float):
            return Text(UNKNOWN)
        return Text(f"{value:.2f} %")

    return cell


def _noise(facts: Mapping[str, Any]) -> Text:
    """Of the steps, and of what was released before them; and whether it is exact."""
    before = facts.get("statistics_noise")
    steps = _plain("noise_multiplier")(facts)
    if facts.get("noise_kind") == "grid":
        steps.append(" on a grid: exact")
    return steps if before is None else steps.append(f", before: 2 x {number(before)}")


def _rounds(facts: Mapping[str, Any]) -> Text:
    """Of training; two more release the statistics that fixed features are scaled by."""
    found = _plain("rounds")(facts)
    return found if facts.get("statistics_noise") is None else found.append(", and 2 for statistics")


def _best_round(facts: Mapping[str, Any]) -> Text:
    best = facts["best_round"]
    return Text(UNKNOWN if best is None else str(best + 1))  # people count from 1


def _stop_reason(facts: Mapping[str, Any]) -> Text:
    reason = facts["stop_reason"] or (UNKNOWN if facts["finished"] else _UNFINISHED)
    return Text(str(reason).replace("_", " "))


def _seconds(facts: Mapping[str, Any]) -> Text:
    value = facts["seconds"]
    if not isinstance(value, int | float):
        return Text(UNKNOWN)
    return Text(f"{value:.1f}" if value < _SECONDS_A_MINUTE else f"{value:.0f}")


_SETTINGS: dict[str, Callable[[Mapping[str, Any]], Text]] = {
    "dataset": _dataset,
    "model": _plain("model"),
    "method": _plain("method"),
    "policy": _plain("policy"),
    "schedule": _plain("schedule"),
    "clients": _plain("clients"),
    "partition": _partition,
    "rounds at most, R_s": _plain("max_rounds"),
    "sample rate q": _plain("sample_rate"),
    "noise σ": _noise,
    "clip norm C": _plain("clip_norm"),
    "step size η": _plain("learning_rate"),
    "accountant": _plain("accountant"),
    "δ": _plain("delta"),
    "seed": _plain("seed"),
    "batches and noise": _plain("randomness"),
}
RESULTS: dict[str, Callable[[Mapping[str, Any]], Text]] = {
    "ε spent": _epsilon,
    "steps": _plain("steps"),
    "rounds": _rounds,
    "accuracy": _accuracy("accuracy"),
    "best accuracy": _accuracy("best_accuracy"),
    "best in round": _best_round,
    "stopped by": _stop_reason,
    "seconds": _seconds,
}
