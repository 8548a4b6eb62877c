"""A plan as an interactive page, from its JSON document."""

from html import escape
from typing import Any

from alidpfl.reporting.page import facts, figure, page, table
from alidpfl.reporting.plan_tables import (
    BOUND_NAMES,
    accountant_rows,
    duration,
    question,
    same_budget,
    size,
    steps_range,
    unused,
)
from alidpfl.reporting.tables import rounded_up


def plan_page(plan: dict[str, Any]) -> str:
    """The whole page."""
    charts = _charts(plan)
    body = [
        "<h1>A plan for a privacy budget</h1>",
        f"<p>{escape(question(plan))}</p>",
        facts(_headline(plan)),
        *(f'<p class="note">{escape(note)}</p>' for note in plan["notes"]),
        "<h2>What the budget pays for</h2>",
        figure(
            "epsilon",
            "ε against local steps. Where a line meets the budget, the steps R_c are used up.",
            charts["epsilon"],
        ),
        _accountants(plan),
        "<h2>How each policy would spend it</h2>",
        _policies(plan),
        *_search(plan, charts),
        "<h2>What theory says about τ</h2>",
        figure(
            "bounds",
            f"Convergence bounds against τ, each over its smallest value. Assumed: "
            f"{plan['curves']['assumed']}. h and G are the paper's, and do not hold; (A) and (B) do.",
            charts["bounds"],
        ),
    ]
    return page("alidpfl: a plan", body, charts)


def _headline(plan: dict[str, Any]) -> dict[str, str]:
    default = plan["policies"][plan["policy"]]
    shown = {
        "sampling rate q": f"{plan['sample_rate']:g}",
        "noise σ": f"{plan['noise_multiplier']:g}",
        "local steps τ": steps_range(default),
        "rounds": str(default["rounds"]),
        "ε spent": rounded_up(default["epsilon_spent"]),
        "compute": f"{plan['sample_rate'] * default['steps']:.3g} epochs",
        "traffic": size(default["bytes"]),
    }
    if default["seconds"] is not None:
        shown["time"] = duration(default["seconds"])
    return shown


def _accountants(plan: dict[str, Any]) -> str:
    head = ["accountant", "steps R_c", f"ε if the {plan['max_rounds']} rounds end first (τ = 1)", "ε if R_c ends first"]
    return table("Every accountant is safe; pld is the tightest", head, accountant_rows(plan))


def _policies(plan: dict[str, Any]) -> str:
    head = ["policy", "τ", "rounds", "steps", "ε spent", "ends first", "unused", "time", "traffic"]
    rows = []
    for name, row in plan["policies"].items():
        epsilon = rounded_up(row["epsilon_spent"]) + ("" if row["covered"] else " (does not cover its signals)")
        time = "-" if row["seconds"] is None else duration(row["seconds"])
        counts = [steps_range(row), str(row["rounds"]), str(row["steps"])]
        rows.append([name, *counts, epsilon, row["ends_first"], unused(row), time, size(row["bytes"])])
    return table(
        "Policies choose τ, the local steps of a round", head, rows, list(plan["policies"]).index(plan["policy"])
    )


def _search(plan: dict[str, Any], charts: dict[str, Any]) -> list[str]:
    if not plan["pareto"]:
        return []
    rows, chosen = [], None
    for number, row in enumerate(plan["pareto"]):
        chosen = number if row["recommended"] else chosen
        cells = (row["noise_multiplier"], row["local_steps"], row["epochs"], row["signal_to_noise"])
        rows.append([f"{row['sample_rate']:g}", *(f"{value:.4g}" for value in cells)])
    head = ["q", "σ", "τ", "epochs", "signal-to-noise"]
    return [
        "<h2>More compute, more signal</h2>",
        figure("pareto", f"{same_budget(plan)} Larger batches share the noise among more records.", charts["pareto"]),
        table("Sampling rate against noise; the recommended setting stands out", head, rows, chosen),
    ]


def _charts(plan: dict[str, Any]) -> dict[str, Any]:
    curves, budget = plan["curves"], plan["wishes"]["epsilon"]
    epsilon = [
        {
            "name": name,
            "points": curves["epsilon"][name],
            "marks": [[steps, plan["epsilon_if_steps_end"][name], f"R_c = {steps}"]] if steps else [],
        }
        for name, steps in plan["max_steps"].items()
    ]
    bounds = [
        {"name": BOUND_NAMES[name], "points": points, "marks": _minimum(curves["best_steps"][name], points)}
        for name, points in curves["bounds"].items()
    ]
    charts = {
        "epsilon": {
            "label": "epsilon against local steps, by accountant",
            "x": "local steps",
            "y": "ε",
            "series": epsilon,
            "limit": {"y": budget, "text": f"budget ε = {budget:g}"},
        },
        "bounds": {
            "label": "convergence bounds against local steps of a round",
            "x": "local steps τ",
            "y": "bound / its least",
            "logY": True,
            "series": bounds,
        },
    }
    if plan["pareto"]:
        charts["pareto"] = _pareto_chart(plan)
    return charts


def _minimum(best: float | None, points: list[list[float]]) -> list[list[Any]]:
    """A mark at τ*, where that is on the drawing."""
    if best is None or not points or best > points[-1][0]:
        return []
    return [[best, 1.0, f"τ* = {best:.3g}"]]


def _pareto_chart(plan: dict[str, Any]) -> dict[str, Any]:
    points, marks = [], []
    for row in plan["pareto"]:
        note = (
            f"q = {row['sample_rate']:g}, σ = {row['noise_multiplier']:.4g}, τ = {row['local_steps']}\n"
            f"{row['epochs']:.3g} epochs, signal-to-noise {row['signal_to_noise']:.3g}"
        )
        points.append([row["epochs"], row["signal_to_noise"], note])
        if row["recommended"]:
            marks.append([row["epochs"], row["signal_to_noise"], "recommended"])
    series = [{"name": "settings", "points": points, "marks": marks, "dots": True}]
    return {
        "label": "signal-to-noise against compute at equal privacy",
        "x": "epochs (compute)",
        "y": "signal-to-noise",
        "logX": True,
        "series": series,
    }
