"""Show one run as a table in the terminal. The table itself says so if the guarantee does not hold, and why."""

from collections.abc import Callable, Mapping
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, TypeAlias

from rich.table import Column, Table
from rich.text import Text

from alidpfl.reporting.snapshot import NOT_COVERED, RunSnapshot

UNKNOWN = "-"
_SECONDS_PER_MINUTE = 60
_NO_DECIMALS_FROM = 1e12
_FEW_DIGITS_BELOW = 1e-3
_WARNING = "bold red"
_Cell: TypeAlias = Callable[[Mapping[str, Any]], Text]


def summary_table(snapshot: RunSnapshot) -> Table:
    """Return settings and results of one run, a row each."""
    table = Table(Column(), Column(Text(snapshot.name)))  # as Text: a folder name may look like markup
    facts = snapshot.facts()
    for heading, cell in (_SETTINGS | RESULTS).items():
        table.add_row(Text(heading), cell(facts))
    if snapshot.missed_rounds:
        missed = f"in {snapshot.missed_rounds} rounds too few clients answered: charged, and the model did not change"
        table.add_row(Text("WARNING", style=_WARNING), Text(missed))
    if not snapshot.covers_everything:
        table.add_row(Text("WARNING", style=_WARNING), Text(NOT_COVERED, style=_WARNING))
        for reason in snapshot.uncovered:
            table.add_row(Text("not covered", style=_WARNING), Text(reason))
    return table


def cells(snapshot: RunSnapshot) -> dict[str, str]:
    """Return the text of every row of `summary_table`."""
    facts = snapshot.facts()
    return {heading: cell(facts).plain for heading, cell in (_SETTINGS | RESULTS).items()}


def shown(value: object) -> str:
    """Return a setting as short text, and None as unknown."""
    return UNKNOWN if value is None else number(value)


def number(value: object) -> str:
    """Return a value as short text, such as 2 for 2.0."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def rounded_up(epsilon: float) -> str:
    """Return ε with four decimals, or two digits if it is tiny. The text is never below ε."""
    if 0 < epsilon < _FEW_DIGITS_BELOW:
        digits = Decimal(str(epsilon))
        return f"{digits.quantize(Decimal(1).scaleb(digits.adjusted() - 1), rounding=ROUND_CEILING):.2g}"
    return _decimals(epsilon, 4, ROUND_CEILING)


def rounded_down(value: float, decimals: int = 4) -> str:
    """Return a lower bound, or what is left of a budget. The text is never above the value."""
    return _decimals(value, decimals, ROUND_FLOOR)


def _decimals(value: float, decimals: int, rounding: str) -> str:
    if not abs(value) < _NO_DECIMALS_FROM:  # also for NaN
        return str(value)
    return str(Decimal(str(value)).quantize(Decimal(1).scaleb(-decimals), rounding=rounding))


def _plain(key: str) -> _Cell:
    return lambda facts: Text(shown(facts[key]))


def _accuracy(key: str) -> _Cell:
    return lambda facts: Text(f"{facts[key]:.2f} %" if isinstance(facts[key], int | float) else UNKNOWN)


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
    spent, budget = rounded_up(facts["epsilon"]), facts["epsilon_budget"]
    text = spent if budget is None else f"{spent} of {number(budget)}"
    return Text(text) if facts["covers_everything"] else Text(f"{text} (!)", style=_WARNING)


def _noise(facts: Mapping[str, Any]) -> Text:
    """Return σ of the steps, and of the two statistics that were released before them."""
    before = facts.get("statistics_noise")
    steps = _plain("noise_multiplier")(facts)
    if facts.get("noise_kind") == "grid":
        steps.append(" on a grid: exact")
    return steps if before is None else steps.append(f", before: 2 x {number(before)}")


def _rounds(facts: Mapping[str, Any]) -> Text:
    found = _plain("rounds")(facts)
    return found if facts.get("statistics_noise") is None else found.append(", and 2 for statistics")


def _best_round(facts: Mapping[str, Any]) -> Text:
    best = facts["best_round"]
    return Text(UNKNOWN if best is None else str(best + 1))  # people count from 1


def _stop_reason(facts: Mapping[str, Any]) -> Text:
    reason = facts["stop_reason"] or (UNKNOWN if facts["finished"] else "running or interrupted")
    return Text(str(reason).replace("_", " "))


def _seconds(facts: Mapping[str, Any]) -> Text:
    value = facts["seconds"]
    if not isinstance(value, int | float):
        return Text(UNKNOWN)
    return Text(f"{value:.1f}" if value < _SECONDS_PER_MINUTE else f"{value:.0f}")


_SETTINGS: dict[str, _Cell] = {
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
RESULTS: dict[str, _Cell] = {
    "ε spent": _epsilon,
    "steps": _plain("steps"),
    "rounds": _rounds,
    "accuracy": _accuracy("accuracy"),
    "best accuracy": _accuracy("best_accuracy"),
    "best in round": _best_round,
    "stopped by": _stop_reason,
    "seconds": _seconds,
}
