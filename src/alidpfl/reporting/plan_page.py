"""Make the interactive page of a plan, from the plan's JSON document."""

from typing import Any

from alidpfl.reporting import plan_tables
from alidpfl.reporting.page import ResultChart, ResultTable, render


def plan_page(plan: dict[str, Any]) -> str:
    """Return the page of a plan."""
    epsilon, bounds = _epsilon_chart(plan), _bounds_chart(plan)
    pareto = _pareto_chart(plan) if plan["pareto"] else None
    recommended = [number for number, row in enumerate(plan["pareto"]) if row["recommended"]]
    rounds = plan["max_rounds"]
    policies = plan_tables.policy_rows(plan)
    return render(
        "plan.html",
        [chart for chart in (epsilon, pareto, bounds) if chart],
        question=plan_tables.question(plan),
        headline=_headline(plan),
        notes=plan["notes"],
        epsilon=epsilon,
        accountants=ResultTable(
            title="Every accountant is safe; pld is the tightest",
            head=["accountant", "steps R_c", f"ε if the {rounds} rounds end first (τ = 1)", "ε if R_c ends first"],
            rows=plan_tables.accountant_rows(plan),
        ),
        policies=ResultTable(
            title="A policy chooses τ, the local steps of a round",
            head=list(policies[0]),
            rows=[list(row.values()) for row in policies],
            caption="; ".join(plan_tables.policy_notes(plan)),
            highlighted=list(plan["policies"]).index(plan["policy"]),
        ),
        pareto=pareto,
        settings=ResultTable(
            title="Sampling rate against noise; the recommended setting is highlighted",
            head=plan_tables.PARETO_HEAD,
            rows=plan_tables.pareto_rows(plan),
            highlighted=recommended[-1] if recommended else None,
        ),
        clip_norms=_clip_norms(plan) if "clip_norms" in plan else None,
        bounds=bounds,
    )


def _clip_norms(plan: dict[str, Any]) -> ResultTable:
    head, rows = plan_tables.clip_norm_rows(plan)
    return ResultTable(title=plan_tables.CLIP_NORMS_TITLE, head=head, rows=rows, caption=plan_tables.CLIP_NORMS_CAPTION)


def _headline(plan: dict[str, Any]) -> dict[str, str]:
    row = next(row for row in plan_tables.policy_rows(plan) if row["policy"] == plan["policy"])
    shown = {
        "sampling rate q": f"{plan['sample_rate']:g}",
        "noise σ": f"{plan['noise_multiplier']:g}",
        "local steps τ": row["τ"],
        "compute": f"{plan['sample_rate'] * int(row['steps']):.3g} epochs",
    }
    return shown | {key: row[key] for key in ("rounds", "ε spent", "traffic", "time") if row[key] != "-"}


def _epsilon_chart(plan: dict[str, Any]) -> ResultChart:
    budget, series = plan["request"]["epsilon"], []
    for name, steps in plan["max_steps"].items():
        marks = [[steps, plan["epsilon_if_steps_end"][name], f"R_c = {steps}"]] if steps else []
        series.append({"name": name, "points": plan["curves"]["epsilon"][name], "marks": marks})
    caption = "ε against local steps. Where a line meets the budget, the R_c steps are used up."
    limit = {"y": budget, "text": f"budget ε = {budget:g}"}
    chart = {"label": "epsilon against local steps, by accountant", "series": series, "limit": limit}
    chart |= {"x": "local steps", "y": "ε"}
    return ResultChart(name="epsilon", title="What the budget pays for", caption=caption, chart=chart)


def _bounds_chart(plan: dict[str, Any]) -> ResultChart:
    curves, series = plan["curves"], []
    for name, points in curves["bounds"].items():
        best = curves["best_steps"][name]
        is_drawn = best is not None and points and best <= points[-1][0]
        marks = [[best, 1.0, f"τ* = {best:.3g}"]] if is_drawn else []
        series.append({"name": plan_tables.BOUND_NAMES[name], "points": points, "marks": marks})
    caption = (
        "Convergence bounds against τ, each divided by its smallest value. "
        f"Assumed: {curves['assumed']}. The paper's h and G do not hold; (A) and (B) do."
    )
    chart = {"label": "convergence bounds against local steps of a round", "series": series, "logY": True}
    chart |= {"x": "local steps τ", "y": "bound / its minimum"}
    return ResultChart(name="bounds", title="What theory says about τ", caption=caption, chart=chart)


def _pareto_chart(plan: dict[str, Any]) -> ResultChart:
    points, marks = [], []
    for row in plan["pareto"]:
        note = (
            f"q = {row['sample_rate']:g}, σ = {row['noise_multiplier']:.4g}, τ = {row['local_steps']}\n"
            f"{row['epochs']:.3g} epochs, signal-to-noise {row['signal_to_noise']:.3g}"
        )
        points.append([row["epochs"], row["signal_to_noise"], note])
        if row["recommended"]:
            marks.append([row["epochs"], row["signal_to_noise"], "recommended"])
    caption = f"{plan_tables.same_budget(plan)} Larger batches share the noise among more {plan['request']['unit']}s."
    series = [{"name": "settings", "points": points, "marks": marks, "dots": True}]
    chart = {"label": "signal-to-noise against compute at equal privacy", "series": series, "logX": True}
    chart |= {"x": "epochs (compute)", "y": "signal-to-noise"}
    return ResultChart(name="pareto", title="More compute, more signal", caption=caption, chart=chart)
