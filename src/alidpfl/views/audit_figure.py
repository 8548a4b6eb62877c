"""An audit as a picture, from its JSON document: what was observed with canaries and without."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from alidpfl.views.drawing import figure_class, save
from alidpfl.views.tables import rounded_down

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def save_audit_figure(audit: dict[str, Any], path: str | Path) -> None:
    """Draws the audit into `path`, as PNG or SVG by its extension."""
    save(lambda: audit_figure(audit), path)


def audit_figure(audit: dict[str, Any]) -> "Figure":
    """A panel for each audit."""
    panels = [(part, draw) for part, draw in (("one_step", _draw_step), ("one_run", _draw_run)) if audit[part]]
    figure = figure_class()(figsize=(7, 3.2 * len(panels)), layout="constrained")
    for axes, (part, draw) in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
        draw(axes, audit[part])
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
        axes.title.set_fontsize("small")
    return figure


def _draw_step(axes: "Axes", step: dict[str, Any]) -> None:
    _bars(axes, step["histogram"], ("without the canary", "with the canary"))
    axes.axvline(step["threshold"], linestyle="--", color="gray", label="threshold")
    bound, claim = f"μ ≥ {rounded_down(step['lower_bound'])}", f"{step['claimed']:.4f} claimed"
    axes.set(
        xlabel="released along the canary's gradient, over the largest contribution",
        ylabel="steps",
        title=f"one step: {bound} of {claim}{_refuted(step)}",
    )


def _draw_run(axes: "Axes", run: dict[str, Any]) -> None:
    _bars(axes, run["histogram"], ("canaries that were out", "canaries that were in"))
    bound, claim = f"ε ≥ {rounded_down(run['lower_bound'], 3)}", f"{run['claimed_epsilon']:g} claimed"
    axes.set(
        xlabel="score of the canary",
        ylabel="canaries",
        title=f"one run: {bound} of {claim}{_refuted(run)}",
    )


def _refuted(part: dict[str, Any]) -> str:
    return ": REFUTED" if part["refuted"] else ""


def _bars(axes: "Axes", histogram: dict[str, list[float]], labels: tuple[str, str]) -> None:
    for name, label in zip(("without", "with"), labels, strict=True):
        axes.stairs(histogram[name], histogram["edges"], fill=True, alpha=0.5, label=label)
