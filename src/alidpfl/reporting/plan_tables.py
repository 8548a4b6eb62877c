"""A plan in the terminal, from its JSON document: nothing is computed here."""

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from alidpfl.reporting.tables import rounded_up

BOUND_NAMES = {
    "h": "h of the paper, steps fixed",
    "G": "G of the paper, rounds fixed",
    "U (A)": "U of (A), rounds fixed",
    "U (B)": "U of (B), rounds fixed",
}

_UNITS = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
_TIMES = (("d", 86400), ("h", 3600), ("min", 60))


def plan_view(plan: dict[str, Any]) -> RenderableType:
    """What is asked, what the budget pays for, what each policy does with it, and what else would be possible."""
    parts: list[RenderableType] = [Text(question(plan), style="bold"), _accountants(plan), _policies(plan)]
    if plan["pareto"]:
        parts.append(_pareto(plan))
    parts += [Text(f"note: {note}") for note in plan["notes"]]
    return Group(*parts)


def question(plan: dict[str, Any]) -> str:
    """What was asked, in a sentence."""
    wishes, limited = plan["wishes"], plan["rounds_limited_by"]
    rounds = f"{plan['max_rounds']} rounds"
    if limited != "max_rounds":
        rounds += f" (by the {limited.replace('_', ' ')}, of {wishes['max_rounds']})"
    return (
        f"ε = {wishes['epsilon']:g}, δ = {wishes['delta']:g}, {wishes['clients']} clients with "
        f"{wishes['samples']:,} records, {wishes['num_params']:,} parameters, {rounds}"
    )


def _accountants(plan: dict[str, Any]) -> Table:
    found = "recommended" if plan["pareto"] else "as given"
    title = (
        f"What the budget pays for at q = {plan['sample_rate']:g}, σ = {plan['noise_multiplier']:g} ({found}), "
        f"up to {plan['epochs']:.3g} epochs"
    )
    rounds = plan["max_rounds"]
    table = Table("accountant", "steps R_c", f"ε after {rounds} steps (τ = 1)", "ε after R_c steps", title=title)
    for row in accountant_rows(plan):
        table.add_row(*row)
    return table


def accountant_rows(plan: dict[str, Any]) -> list[list[str]]:
    """By accountant: its name, R_c, ε if the rounds end first, ε if R_c ends first."""
    rows = []
    for name, steps in plan["max_steps"].items():
        early, late = plan["epsilon_if_rounds_end"][name], plan["epsilon_if_steps_end"][name]
        shown = "beyond the budget" if early is None else rounded_up(early)
        rows.append([name, str(steps) if steps else "none", shown, rounded_up(late) if steps else "-"])
    return rows


def _policies(plan: dict[str, Any]) -> Table:
    head = ["policy", "τ", "rounds", "steps", "ε spent", "unused"]
    timed = plan["seconds"] is not None
    table = Table(*head, *(["time"] if timed else []), "traffic", title="How each policy would spend it")
    for name, row in plan["policies"].items():
        time = [duration(row["seconds"])] if timed else []
        epsilon = rounded_up(row["epsilon_spent"]) + ("" if row["covered"] else " *")
        counts = (steps_range(row), str(row["rounds"]), str(row["steps"]))
        table.add_row(name, *counts, epsilon, unused(row), *time, size(row["bytes"]))
    notes = ["fixed: at the largest τ that pays for every round"] if "fixed" in plan["policies"] else []
    if not all(row["covered"] for row in plan["policies"].values()):
        notes.append("* looks at un-noised signals, which ε does not cover")
    table.caption = "\n".join(notes) or None
    return table


def steps_range(row: dict[str, Any]) -> str:
    """τ of the rounds, least to most."""
    least, most = row["least_steps"], row["most_steps"]
    return str(most) if least == most else f"{least}-{most}"


def unused(row: dict[str, Any]) -> str:
    """What one of the budgets has left when the other ends."""
    parts = [f"{row['unused_rounds']} rounds"] if row["unused_rounds"] else []
    parts += [f"{row['unused_steps']} steps"] if row["unused_steps"] else []
    return ", ".join(parts) or "nothing"


def _pareto(plan: dict[str, Any]) -> Table:
    table = Table(
        "q",
        "σ",
        "τ",
        "epochs",
        "signal-to-noise",
        "",
        title="More compute, more signal: sampling rate and noise",
        caption=f"{same_budget(plan)} Epochs: passes of every client over its data.",
    )
    for row in plan["pareto"]:
        mark = "recommended" if row["recommended"] else ""
        cells = (f"{row['sample_rate']:g}", f"{row['noise_multiplier']:.4g}", str(row["local_steps"]))
        table.add_row(
            *cells, f"{row['epochs']:.3g}", f"{row['signal_to_noise']:.3g}", mark, style="bold" if mark else ""
        )
    return table


def same_budget(plan: dict[str, Any]) -> str:
    """What the points of the front have in common."""
    epsilon, decided = plan["wishes"]["epsilon"], plan["wishes"]["noise_multiplier"]
    if decided is None:
        return f"Every line spends ε = {epsilon:g}."
    return f"Every line has σ = {decided:g} and as many steps as ε = {epsilon:g} pays for, within the compute limit."


def size(count: int) -> str:
    """Bytes as people say them.

    >>> size(46_562_080), size(512)
    ('46.6 MB', '512 B')
    """
    for unit, scale in _UNITS:
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} B"


def duration(seconds: float) -> str:
    """Seconds as people say them.

    >>> duration(2054), duration(40)
    ('34 min', '40 s')
    """
    for unit, scale in _TIMES:
        if seconds >= scale:
            return f"{seconds / scale:.2g} {unit}" if seconds < 100 * scale else f"{seconds / scale:.0f} {unit}"
    return f"{seconds:.3g} s"
