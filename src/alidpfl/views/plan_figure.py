"""A plan as a picture, from its JSON document: ε against steps, bounds against τ, signal-to-noise against compute."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from alidpfl.views.drawing import figure_class, save

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def save_plan_figure(plan: dict[str, Any], path: str | Path) -> None:
    """Draws the plan into `path`, as PNG or SVG by its extension."""
    save(lambda: plan_figure(plan), path)


def plan_figure(plan: dict[str, Any]) -> "Figure":
    """Two panels, three where sampling rate or noise were searched."""
    panels = [_draw_epsilon, _draw_bounds, *([_draw_pareto] if plan["pareto"] else [])]
    figure = figure_class()(figsize=(7, 3.2 * len(panels)), layout="constrained")
    for axes, draw in zip(figure.subplots(len(panels), 1), panels, strict=True):
        draw(axes, plan)
        axes.grid(alpha=0.3)
    return figure


def _draw_epsilon(axes: "Axes", plan: dict[str, Any]) -> None:
    for name, points in plan["curves"]["epsilon"].items():
        (line,) = axes.plot(*zip(*points, strict=True), label=name)
        if steps := plan["max_steps"][name]:
            spent = plan["epsilon_if_steps_end"][name]
            axes.plot(steps, spent, "o", color=line.get_color())
            axes.annotate(f"R_c = {steps}", (steps, spent), textcoords="offset points", xytext=(0, 6), ha="center")
    budget = plan["wishes"]["epsilon"]
    axes.axhline(budget, linestyle="--", color="gray", label=f"budget ε = {budget:g}")
    axes.set(xlabel="local steps", ylabel="ε", title=f"q = {plan['sample_rate']:g}, σ = {plan['noise_multiplier']:g}")
    axes.legend(fontsize="small")


def _draw_bounds(axes: "Axes", plan: dict[str, Any]) -> None:
    names = {"paper": "G of the paper (does not hold)", "U (A)": "U of bound (A)", "U (B)": "U of bound (B)"}
    for name, points in plan["curves"]["bounds"].items():
        (line,) = axes.plot(*zip(*points, strict=True), label=names[name])
        best = plan["curves"]["best_steps"][name]
        if best is not None and best <= points[-1][0]:
            axes.plot(best, 1.0, "o", color=line.get_color())
            axes.annotate(f"τ* = {best:.3g}", (best, 1.0), textcoords="offset points", xytext=(0, 6), ha="center")
    axes.set_yscale("log")
    axes.set(xlabel="local steps τ of a round", ylabel="bound / its least", title=plan["curves"]["assumed"])
    axes.title.set_fontsize("small")
    axes.legend(fontsize="small")


def _draw_pareto(axes: "Axes", plan: dict[str, Any]) -> None:
    rows = plan["pareto"]
    axes.plot([row["epochs"] for row in rows], [row["signal_to_noise"] for row in rows], "o-")
    for row in rows:
        if row["recommended"]:
            text = f"q = {row['sample_rate']:g}, σ = {row['noise_multiplier']:.3g}, τ = {row['local_steps']}"
            place = (row["epochs"], row["signal_to_noise"])
            axes.plot(*place, "o", color="tab:red")
            axes.annotate(text, place, textcoords="offset points", xytext=(-6, -14), ha="right")
    axes.set_xscale("log")
    axes.set(xlabel="epochs (compute)", ylabel="signal-to-noise", title=f"the same ε = {plan['wishes']['epsilon']:g}")
