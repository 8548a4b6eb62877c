"""Show runs as tables in the terminal. A table itself says so if the guarantee does not hold, and why."""

from collections.abc import Callable, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any, TypeAlias, TypeGuard

from rich.table import Column, Table
from rich.text import Text

from alidpfl.reporting.snapshot import NOT_COVERED, RunSnapshot

UNKNOWN = "-"
_SECONDS_PER_MINUTE = 60
_NO_DECIMALS_FROM = 1e12
_FEW_DIGITS_BELOW = 1e-3
_WARNING = "bold red"
_BORDER = 3  # a line, and a space on both sides of every cell
_Cell: TypeAlias = Callable[[Mapping[str, Any]], Text]


def summary_table(snapshot: RunSnapshot) -> Table:
    """Return settings and results of one run, a row each."""
    table = Table(Column(), Column(Text(snapshot.name)))  # as Text: a folder name may look like markup
    facts = snapshot.facts()
    for heading, text in ({key: cell(facts) for key, cell in _SETTINGS.items()} | result_cells(snapshot)).items():
        table.add_row(Text(heading), text)
    if snapshot.missed_rounds:
        missed = f"in {snapshot.missed_rounds} rounds too few clients answered: charged, and the model did not change"
        table.add_row(Text("WARNING", style=_WARNING), Text(missed))
    if not snapshot.covers_everything:
        table.add_row(Text("WARNING", style=_WARNING), Text(NOT_COVERED, style=_WARNING))
        for reason in snapshot.uncovered:
            table.add_row(Text("not covered", style=_WARNING), Text(reason))
    return table


def metric_cells(snapshot: RunSnapshot) -> dict[str, str]:
    """Return each metric of a finished run, with its 95 % interval and its trivial value.

    If the metrics have noise, the intervals cover it, and two rows say what training and evaluation spent.
    """
    found = {}
    for name, metric in snapshot.metrics().items():
        trivial = "" if metric.baseline is None else f", trivial {metric_text(name, metric.baseline)}"
        heading = name if name == "accuracy" else f"metric {name}"
        found[heading] = f"{metric_text(name, metric.value, metric.interval)}{trivial}"
    return found | _held_out_cells(snapshot.summary or {})


def _held_out_cells(summary: Mapping[str, Any]) -> dict[str, str]:
    """Return what the steps and the evaluations on held-out records spent, if there were any with noise."""
    held_out, training = summary.get("held_out"), summary.get("training_epsilon")
    if not isinstance(held_out, Mapping) or not _is_number(training):
        return {}
    own, noise, releases = (held_out.get(key) for key in ("epsilon", "noise_multiplier", "releases"))
    if not _is_number(own):
        return {}
    last = f", the last with σ {noise:.4g}" if _is_number(noise) else ""
    evaluations = f"{rounded_up(own)} ({releases} evaluations{last})"
    return {"ε of training rows": rounded_up(training), "ε of held-out rows": evaluations}


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def metric_text(name: str, value: float, interval: Sequence[float] | None = None) -> str:
    """Return a metric, and its interval if it has one, as short text.

    >>> metric_text("accuracy", 85.4, (84.9, 85.9)), metric_text("auc", 0.81234)
    ('85.40 % (84.90 to 85.90)', '0.8123')
    """
    form, unit = (".2f", " %") if name == "accuracy" else (".4g", "")
    within = "" if interval is None else f" ({interval[0]:{form}} to {interval[1]:{form}})"
    return f"{value:{form}}{unit}{within}"


def result_cells(snapshot: RunSnapshot) -> dict[str, Text]:
    """Return ε, steps and the best value of the metric that stands for the task, then all metrics."""
    facts, name, found = snapshot.facts(), snapshot.headline, dict[str, Text]()
    for heading, cell in RESULTS.items():
        if name == "accuracy" or "accuracy" not in heading:
            found[heading] = cell(facts)
        elif heading.startswith("best") and facts["best"] is not None:
            found[f"best {name}"] = Text(metric_text(name, facts["best"]))
    if snapshot.has_persons:
        found |= {f"ε of {group} records": Text(rounded_up(value)) for group, value in snapshot.group_epsilon.items()}
    return found | {heading: Text(text) for heading, text in metric_cells(snapshot).items()}


def comparison(snapshots: Sequence[RunSnapshot], width: int) -> list[Table | Text]:
    """Return tables of runs side by side, at most `width` characters wide: results and the settings that differ.

    Columns have the names of the runs. If names make the table too wide, columns have numbers and a legend. If that
    is still too wide, the runs are shown in several tables.
    """
    found = effective_settings(snapshots)
    settings = {key: values for key, values in found.items() if any(value != values[0] for value in values)}
    rows = {key: [Text(shown(value)) for value in values] for key, values in settings.items()}
    results = [result_cells(snapshot) for snapshot in snapshots]
    headings = dict.fromkeys(heading for cells in results for heading in cells)
    rows |= {heading: [cells.get(heading, Text(UNKNOWN)) for cells in results] for heading in headings}
    if not all(snapshot.covers_everything for snapshot in snapshots):
        no = Text("NO (!)", style=_WARNING)
        rows["ε covers all"] = [Text("yes") if snapshot.covers_everything else no for snapshot in snapshots]
    names = [snapshot.name for snapshot in snapshots]
    parts: list[Table | Text] = []
    if len(_blocks(rows, names, width)) > 1:
        parts.append(Text("\n".join(f"run {place}: {name}" for place, name in enumerate(names, 1))))
        names = [str(place) for place in range(1, len(names) + 1)]
    parts += [_table(rows, names, block, len(settings)) for block in _blocks(rows, names, width)]
    if len(snapshots) > 1:
        count = len(settings)
        differ = {0: "no setting differs", 1: "1 setting differs"}.get(count, f"{count} settings differ")
        parts.append(Text(f"{differ}, {len(found) - count} are the same (config.toml of each run has all)"))
    return parts


def effective_settings(snapshots: Sequence[RunSnapshot]) -> dict[str, list[Any]]:
    """Return for each key its value in every run; None for a key that a run lacks.

    Options of a data set's loader are left out: they may hold a password, and pages are shared.
    """
    configs = [snapshot.effective_settings() for snapshot in snapshots]
    keys = dict.fromkeys(key for config in configs for key in config if not key.startswith("data.loader_options"))
    return {key: [config.get(key) for config in configs] for key in keys}


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


def _blocks(rows: Mapping[str, Sequence[Text]], names: Sequence[str], width: int) -> list[range]:
    """Return the runs of each table, as many as fit. A run that is too wide gets a table with folded cells."""
    first = max(map(len, rows)) + _BORDER + 1
    blocks, start, room = [], 0, width - first
    for i, name in enumerate(names):
        needed = _BORDER + max(len(name), *(len(cells[i].plain) for cells in rows.values()))
        if needed > room and i > start:
            blocks.append(range(start, i))
            start, room = i, width - first
        room -= needed
    return [*blocks, range(start, len(names))] if names else []


def _table(rows: Mapping[str, Sequence[Text]], names: Sequence[str], block: range, num_settings: int) -> Table:
    # As Text, because a folder name may look like markup.
    table = Table(Column("run"), *(Column(Text(names[i]), overflow="fold") for i in block))
    for place, (heading, cells) in enumerate(rows.items(), 1):
        table.add_row(Text(heading), *(cells[i] for i in block), end_section=place == num_settings)
    return table


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
    """Return σ of the steps, and of the statistics that were released before them."""
    before = facts.get("statistics_noise")
    steps = _plain("noise_multiplier")(facts)
    if facts.get("noise_kind") == "grid":
        steps.append(" on a grid: exact")
    return steps if before is None else steps.append(f", before: {_num_statistics(facts)} x {number(before)}")


def _unit(facts: Mapping[str, Any]) -> Text:
    """Return what ε protects."""
    if facts["unit"] != "person":
        return Text(str(facts["unit"]))
    return Text(f"person: all records at one client, at most {shown(facts['max_records'])} in a step")


def _rounds(facts: Mapping[str, Any]) -> Text:
    found = _plain("rounds")(facts)
    return (
        found
        if facts.get("statistics_noise") is None
        else found.append(f", and {_num_statistics(facts)} for statistics")
    )


def _num_statistics(facts: Mapping[str, Any]) -> int:
    """Return the number of releases before the first round: two of features, or one of a table's rows."""
    return 2 if facts["model"] == "scatter_linear" else 1


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
    "unit of privacy": _unit,
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
    "best in round": lambda facts: Text(str(facts["best_round"] + 1) if facts["best_round"] is not None else UNKNOWN),
    "stopped by": _stop_reason,
    "seconds": _seconds,
}
