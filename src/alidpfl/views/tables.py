"""One run as a table, several runs side by side. A guarantee that does not hold is said in the table itself."""

import math
from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_CEILING, Decimal
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from alidpfl.views.snapshot import NOT_COVERED, RunSnapshot

_UNKNOWN = "-"
_UNFINISHED = "running or interrupted"
_SECONDS_A_MINUTE = 60


def summary_table(snapshot: RunSnapshot) -> Table:
    """Settings and results of one run, a line each."""
    table = Table(Column(), Column(_name(snapshot)))
    facts = snapshot.facts()
    for heading, cell in (_SETTINGS | _RESULTS).items():
        table.add_row(Text(heading), cell(facts))
    if not snapshot.covers_everything:
        table.add_row(Text("WARNING", style="bold red"), _warning())
    return table


def comparison_table(snapshots: Sequence[RunSnapshot]) -> Table:
    """A row for each run. Settings that all runs share go into the caption, so that the difference stands out."""
    all_facts = [snapshot.facts() for snapshot in snapshots]
    shared, differing = {}, {}
    for heading, cell in _SETTINGS.items():
        texts = {cell(facts).plain for facts in all_facts}
        if len(texts) == 1:
            shared[heading] = texts.pop()
        else:
            differing[heading] = cell
    columns = differing | _RESULTS
    table = Table("run", *columns, caption=_shared_caption(shared))
    for snapshot, facts in zip(snapshots, all_facts, strict=True):
        table.add_row(_name(snapshot), *(cell(facts) for cell in columns.values()))
        if not snapshot.covers_everything:
            table.add_row(_warning())
    return table


def _name(snapshot: RunSnapshot) -> Text:
    """The run's name: as Text, because a folder name may hold what rich would take for markup."""
    return Text(snapshot.name)


def _warning() -> Text:
    return Text(NOT_COVERED, style="bold red")


def _shared_caption(shared: Mapping[str, str]) -> Text | None:
    known = [f"{heading} {text}" for heading, text in shared.items() if text != _UNKNOWN]
    return Text(f"in all runs: {', '.join(known)}") if known else None


def _plain(key: str) -> Callable[[Mapping[str, Any]], Text]:
    return lambda facts: Text(_UNKNOWN if facts[key] is None else _number(facts[key]))


def _number(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _dataset(facts: Mapping[str, Any]) -> Text:
    label = " (synthetic)" if facts["is_synthetic"] and facts["dataset"] else ""
    return Text(f"{facts['dataset'] or _UNKNOWN}{label}")


def _partition(facts: Mapping[str, Any]) -> Text:
    beta = facts["dirichlet_beta"]
    has_beta = facts["partition"] == "dirichlet" and beta is not None
    return Text(f"dirichlet({_number(beta)})" if has_beta else str(facts["partition"] or _UNKNOWN))


def _epsilon(facts: Mapping[str, Any]) -> Text:
    if not isinstance(facts["epsilon"], int | float):
        return Text(_UNKNOWN)
    spent = rounded_up(facts["epsilon"])
    budget = facts["epsilon_budget"]
    text = spent if budget is None else f"{spent} of {_number(budget)}"
    return Text(text) if facts["covers_everything"] else Text(f"{text} (!)", style="bold red")


def rounded_up(epsilon: float) -> str:
    """Four decimals, and never less than was spent."""
    if not math.isfinite(epsilon):
        return str(epsilon)
    return str(Decimal(str(epsilon)).quantize(Decimal("0.0001"), rounding=ROUND_CEILING))


def _accuracy(key: str) -> Callable[[Mapping[str, Any]], Text]:
    def cell(facts: Mapping[str, Any]) -> Text:
        value = facts[key]
        if not isinstance(value, int | float):
            return Text(_UNKNOWN)
        at_round = f" (round {facts['best_round']})" if key == "best_accuracy" else ""
        return Text(f"{value:.2f} %{at_round}")

    return cell


def _stop_reason(facts: Mapping[str, Any]) -> Text:
    reason = facts["stop_reason"] or (_UNKNOWN if facts["finished"] else _UNFINISHED)
    return Text(str(reason).replace("_", " "))


def _seconds(facts: Mapping[str, Any]) -> Text:
    value = facts["seconds"]
    if not isinstance(value, int | float):
        return Text(_UNKNOWN)
    return Text(f"{value:.1f}" if value < _SECONDS_A_MINUTE else f"{value:.0f}")


_SETTINGS: dict[str, Callable[[Mapping[str, Any]], Text]] = {
    "dataset": _dataset,
    "model": _plain("model"),
    "method": _plain("method"),
    "policy": _plain("policy"),
    "schedule": _plain("schedule"),
    "clients": _plain("clients"),
    "partition": _partition,
    "R_s": _plain("max_rounds"),
    "δ": _plain("delta"),
    "seed": _plain("seed"),
}
_RESULTS: dict[str, Callable[[Mapping[str, Any]], Text]] = {
    "ε spent": _epsilon,
    "steps": _plain("steps"),
    "rounds": _plain("rounds"),
    "accuracy": _accuracy("accuracy"),
    "best accuracy": _accuracy("best_accuracy"),
    "stopped by": _stop_reason,
    "seconds": _seconds,
}
