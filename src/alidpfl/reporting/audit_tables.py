"""Show an audit in the terminal, from the audit's JSON document."""

from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from alidpfl.reporting.tables import rounded_down

_WEAK = 0.9  # share of the largest contribution; a weaker canary makes a pass less meaningful


def audit_view(audit: dict[str, Any]) -> Group:
    """Return a table for each part of an audit, and the verdict."""
    tables = {"one_step": _step_table, "one_run": _run_table}
    shown = [table(audit[part]) for part, table in tables.items() if audit[part] is not None]
    about = [Text("Each canary is a whole person with more records than a step takes.")]
    return Group(*shown, *(about if audit.get("unit") == "person" else []), *_verdict(audit))


def model_view(name: str, found: dict[str, Any]) -> Group:
    """Return the table of a search for mixing, and the verdict."""
    rows = {
        "batches": str(found["trials"]),
        "sum moved": f"{found['moved']:.4g} C at most by one record; 1 C is allowed",
        "others moved": f"{found['others_moved']:.2g} C at most by one record, in a batch of {found['batch_size']}; "
        f"{found['allowed']:.2g} C is rounding",
        "at first sight": "refused" if found["refusal"] else "accepted",
    }
    if found["mixing"]:
        verdict = Text(f"REFUTED: {name} mixes records, so that no ε covers its training", style="bold red")
    elif found["refusal"]:
        verdict = Text(f"REFUTED: {found['refusal']}", style="bold red")
    else:
        verdict = Text(f"not refuted: no batch was found in which {name} mixes records. This is no proof.")
    return Group(_table("One record left out of made-up batches", rows), verdict)


def _step_table(step: dict[str, Any]) -> Table:
    caught = step["catches"]
    rows = {
        "claimed": f"σ = {step['noise_multiplier']:g}, so μ = 1/σ = {step['claimed']:.4f} at most",
        "measured": f"μ ≈ {step['estimate']:.4f}",
        "lower bound": f"μ ≥ {rounded_down(step['lower_bound'])} with confidence {step['confidence']:g}",
        "for the run": f"ε ≥ {rounded_down(step['epsilon_lower_bound'], 3)} of {step['claimed_epsilon']:g} claimed",
        "canary": f"{step['copies']} x {step['strength']:.4f} of the largest contribution that is allowed",
        "errors": f"{step['false_positives']} false positives, {step['false_negatives']} false negatives in "
        f"{step['draws']} steps each",
        "catches": "no σ, however small: raise --draws" if caught is None else f"σ too small by a factor {caught:.3g}",
        "noise": _noise(step["noise"]),
    }
    return _table("One step, with the canary and without", rows)


def _noise(noise: dict[str, Any]) -> str:
    if noise["problem"]:
        return str(noise["problem"])
    if noise["least"] is None:
        return "not measured: the weights are too large for so little noise to show"
    unread = f"; {noise['unread']} weights are too large for their noise to show" if noise["unread"] else ""
    return f"at least {noise['least']:.3f} σC on each weight; below {noise['refuted_below']:.3f} is refuted{unread}"


def _run_table(run: dict[str, Any]) -> Table:
    rows = {
        "claimed": f"ε = {run['claimed_epsilon']:g} at δ = {run['delta']:g} at most",
        "lower bound": f"ε ≥ {rounded_down(run['lower_bound'], 3)} with confidence {run['confidence']:g}",
        "canaries": f"{run['canaries']}, each {run['strength']:.4f} C at first, root mean square cosine "
        f"{run['overlap']:.3f}",
        "guesses": f"{run['correct']} of {run['guesses']} right, after {run['steps']} releases",
    }
    return _table("One run, each canary included by a coin toss", rows)


def _table(title: str, rows: dict[str, str]) -> Table:
    table = Table(title=title, show_header=False, title_justify="left")
    for name, value in rows.items():
        table.add_row(name, value)
    return table


def _verdict(audit: dict[str, Any]) -> list[Text]:
    parts = [part for part in (audit["one_step"], audit["one_run"]) if part is not None]
    lines = []
    if min(part["strength"] for part in parts) < _WEAK:
        lines.append(Text("The canary is weak here: a worse record could fail where it passes.", style="yellow"))
    unit = audit.get("unit", "record")
    claim = f"ε = {audit['claimed_epsilon']:g} at δ = {audit['delta']:g}"
    if audit["refuted"]:
        step, reason = audit["one_step"], f"the training shows more of a {unit} than {claim} allows"
        if step is not None and step["noise"]["problem"] and step["lower_bound"] <= step["claimed"]:
            reason = f"{step['noise']['problem']}, and {claim} relies on that noise"
        lines.append(Text(f"REFUTED: {reason}", style="bold red"))
    else:
        bound = f"measured ε ≥ {rounded_down(audit['lower_bound'], 3)} (confidence {audit['confidence']:.4g})"
        lines.append(Text(f"not refuted: {claim}, {bound}. This is no proof: an attack may show less than there is."))
    return lines
