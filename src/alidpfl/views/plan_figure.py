"""A plan as a picture, from its JSON document: ε against steps, bounds against τ, signal-to-noise against compute."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from alidpfl.views.drawing import figure_class, save
from alidpfl.views.plan_tables import BOUND_NAMES, same_budget

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
        steps = plan["max_steps"][name]
        (line,) = axes.plot(*zip(*points, strict=True), label=f"{name}: R_c = {steps or 'none'}")
        if steps:
            axes.plot(steps, plan["epsilon_if_steps_end"][name], "o", color=line.get_color())
    budget = plan["wishes"]["epsilon"]
    axes.axhline(budget, linestyle="--", color="gray", label=f"budget ε = {budget:g}")
    axes.set(xlabel="local steps", ylabel="ε", title=f"q = {plan['sample_rate']:g}, σ = {plan['noise_multiplier']:g}")
    axes.legend(fontsize="small")


def _draw_bounds(axes: "Axes", plan: dict[str, Any]) -> None:
    for name, points in plan["curves"]["bounds"].items():
        best = plan["curves"]["best_steps"][name]
        least = "" if best is None else f": least at τ = {best:.3g}"
        (line,) = axes.plot(*zip(*points, strict=True), label=BOUND_NAMES[name] + least)
        if best is not None and best <= points[-1][0]:
            axes.plot(best, 1.0, "o", color=line.get_color())
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
            axes.plot(row["epochs"], row["signal_to_noise"], "o", color="tab:red", label=f"recommended: {text}")
    axes.set_xscale("log")
    axes.legend(fontsize="small")
    axes.set(xlabel="epochs (compute)", ylabel="signal-to-noise", title=same_budget(plan))
    axes.title.set_fontsize("small")
