"""Show a plan in the terminal, from the plan's JSON document. Nothing is computed here."""

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
PARETO_HEAD = ["q", "σ", "τ", "epochs", "signal-to-noise"]
_SIZES = (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3))
_TIMES = (("d", 86400), ("h", 3600), ("min", 60))


def plan_view(plan: dict[str, Any]) -> RenderableType:
    """Return the question, what the budget pays for, what each policy does with it, and the alternatives."""
    parts: list[RenderableType] = [Text(question(plan), style="bold"), _accountants(plan), _policies(plan)]
    if plan["pareto"]:
        parts.append(_pareto(plan))
    if "clip_norms" in plan:
        parts.append(_clip_norms(plan))
    parts += [Text(f"note: {note}") for note in plan["notes"]]
    return Group(*parts)


def question(plan: dict[str, Any]) -> str:
    """Return what the plan was asked for, in one line."""
    request, limited = plan["request"], plan["rounds_limited_by"]
    rounds = f"{plan['max_rounds']} rounds"
    if limited != "max_rounds":
        rounds += f" (by the {limited.replace('_', ' ')}, of {request['max_rounds']})"
    return (
        f"ε = {request['epsilon']:g}, δ = {request['delta']:g}, {request['clients']} clients with "
        f"{request['samples']:,} {request['unit']}s, {request['num_params']:,} parameters, {rounds}"
    )


def accountant_rows(plan: dict[str, Any]) -> list[list[str]]:
    """Return for each accountant: its name, R_c, ε if the rounds end first, ε if R_c ends first."""
    rows = []
    for name, steps in plan["max_steps"].items():
        early, late = plan["epsilon_if_rounds_end"][name], plan["epsilon_if_steps_end"][name]
        shown = "beyond the budget" if early is None else rounded_up(early)
        rows.append([name, str(steps) if steps else "none", shown, rounded_up(late) if steps else "-"])
    return rows


def policy_rows(plan: dict[str, Any]) -> list[dict[str, str]]:
    """Return for each policy the text of every column."""
    return [
        {
            "policy": name,
            "τ": "-".join(map(str, sorted({row["least_steps"], row["most_steps"]}))),
            "rounds": str(row["rounds"]),
            "steps": str(row["steps"]),
            "ε spent": rounded_up(row["epsilon_spent"]) + ("" if row["covered"] else " *"),
            "ends first": row["ends_first"],
            "unused": _unused(row),
            "time": "-" if row["seconds"] is None else duration(row["seconds"]),
            "traffic": size(row["bytes"]),
        }
        for name, row in plan["policies"].items()
    ]


def policy_notes(plan: dict[str, Any]) -> list[str]:
    """Return what a reader of the policies' table must know."""
    notes = ["fixed: at the largest τ that pays for every round"] if "fixed" in plan["policies"] else []
    if not all(row["covered"] for row in plan["policies"].values()):
        notes.append("* uses un-noised signals, which ε does not cover")
    return notes


def pareto_rows(plan: dict[str, Any]) -> list[list[str]]:
    """Return for each setting that the search kept the text under `PARETO_HEAD`."""
    keys = ("sample_rate", "noise_multiplier", "local_steps", "epochs", "signal_to_noise")
    formats = dict(zip(keys, ("g", ".4g", "", ".3g", ".3g"), strict=True))
    return [[format(row[key], spec) for key, spec in formats.items()] for row in plan["pareto"]]


CLIP_NORMS_TITLE = "Clip norm C: less noise, or less bias"
CLIP_NORMS_CAPTION = (
    "Trained on rows made up from the schema, with the noise of this plan. At the public bound no gradient is clipped. "
    "A log loss or calibration error that grows as C falls is the bias of clipping."
)


def clip_norm_rows(plan: dict[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the rows of the trials of clip norms."""
    trials = plan["clip_norms"]
    names = list(trials[0]["metrics"])
    rows = [
        [trial["name"], "" if trial["clip_norm"] is None else f"{trial['clip_norm']:.4g}"]
        + [f"{trial['metrics'][name]:.4f}" for name in names]
        for trial in trials
    ]
    return ["", "C", *(name.replace("_", " ") for name in names)], rows


def same_budget(plan: dict[str, Any]) -> str:
    """Return what all settings of the search have in common."""
    epsilon, given = plan["request"]["epsilon"], plan["request"]["noise_multiplier"]
    if given is None:
        return f"Every setting spends ε = {epsilon:g}."
    return f"Every setting has σ = {given:g} and as many steps as ε = {epsilon:g} pays for, within the compute limit."


def size(count: int) -> str:
    """Return a number of bytes with its unit.

    >>> size(46_562_080), size(512)
    ('46.6 MB', '512 B')
    """
    for unit, scale in _SIZES:
        if count >= scale:
            return f"{count / scale:.3g} {unit}"
    return f"{count} B"


def duration(seconds: float) -> str:
    """Return a time with its unit.

    >>> duration(2054), duration(40)
    ('34 min', '40 s')
    """
    for unit, scale in _TIMES:
        if seconds >= scale:
            return f"{seconds / scale:.2g} {unit}" if seconds < 100 * scale else f"{seconds / scale:.0f} {unit}"
    return f"{seconds:.3g} s"


def _accountants(plan: dict[str, Any]) -> Table:
    origin = "recommended" if plan["pareto"] else "as given"
    title = (
        f"What the budget pays for at q = {plan['sample_rate']:g}, σ = {plan['noise_multiplier']:g} ({origin}), "
        f"up to {plan['epochs']:.3g} epochs"
    )
    head = ("accountant", "steps R_c", f"ε after {plan['max_rounds']} steps (τ = 1)", "ε after R_c steps")
    table = Table(*head, title=title)
    for row in accountant_rows(plan):
        table.add_row(*row)
    return table


def _policies(plan: dict[str, Any]) -> Table:
    left_out = {"ends first"} if plan["seconds"] is not None else {"ends first", "time"}
    rows = [{key: cell for key, cell in row.items() if key not in left_out} for row in policy_rows(plan)]
    caption = "\n".join(policy_notes(plan)) or None
    table = Table(*rows[0], title="How each policy would spend it", caption=caption)
    for row in rows:
        table.add_row(*row.values())
    return table


def _pareto(plan: dict[str, Any]) -> Table:
    caption = f"{same_budget(plan)} Epochs: passes of every client over its data."
    table = Table(*PARETO_HEAD, "", title="More compute, more signal: sampling rate and noise", caption=caption)
    for row, cells in zip(plan["pareto"], pareto_rows(plan), strict=True):
        is_best = row["recommended"]
        table.add_row(*cells, "recommended" if is_best else "", style="bold" if is_best else "")
    return table


def _clip_norms(plan: dict[str, Any]) -> Table:
    head, rows = clip_norm_rows(plan)
    table = Table(*head, title=CLIP_NORMS_TITLE, caption=CLIP_NORMS_CAPTION)
    for row in rows:
        table.add_row(*row)
    return table


def _unused(row: dict[str, Any]) -> str:
    parts = [f"{row[f'unused_{what}']} {what}" for what in ("rounds", "steps") if row[f"unused_{what}"]]
    return ", ".join(parts) or "nothing"
