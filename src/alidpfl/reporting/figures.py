"""What every drawing needs of matplotlib, which is an extra (`report`)."""

import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from alidpfl.errors import ConfigError
from alidpfl.reporting.plan_tables import BOUND_NAMES, same_budget
from alidpfl.reporting.snapshot import NOT_COVERED, RunSnapshot
from alidpfl.reporting.tables import rounded_down
from alidpfl.store.files import write_atomically
from alidpfl.types import RoundRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FORMATS = (".png", ".svg")


def figure_class() -> "type[Figure]":
    """The Figure of matplotlib. Not pyplot: no global state, no window."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "drawing a figure needs matplotlib: in a clone of alidpfl run `pip install -c constraints.txt '.[report]'`,"
            " or leave --plot out"
        ) from None
    return Figure


def check_extension(path: Path) -> str:
    """The extension, in small letters; refuses what cannot be drawn."""
    kind = path.suffix.lower()
    if kind not in _FORMATS:
        raise ConfigError(f"cannot draw {path}: its extension must be {' or '.join(_FORMATS)}")
    return kind


def save(draw: "Callable[[], Figure]", path: str | Path) -> None:
    """Writes the figure to `path`, as PNG or SVG by its extension, which is looked at before anything is drawn."""
    target = Path(path)
    kind = check_extension(target)
    figure, content = draw(), io.BytesIO()
    import matplotlib as mpl

    # Without date and random names inside, the same values give the same bytes.
    metadata = {"Date": None} if kind == ".svg" else None
    with mpl.rc_context({"svg.hashsalt": "alidpfl"}):
        figure.savefig(content, format=kind.removeprefix("."), dpi=150, metadata=metadata)
    write_atomically(target, content.getvalue())


_PANELS: dict[str, Callable[[RoundRecord], float | None]] = {
    "test accuracy (%)": lambda record: record.accuracy,
    "local steps τ": lambda record: record.local_steps,
    "ε spent": lambda record: record.epsilon,
}


def run_figure(snapshots: Sequence[RunSnapshot]) -> "Figure":
    """Three panels over one another with a line for each run; rounds that were not evaluated are left out."""
    figure = figure_class()(figsize=(7, 8), layout="constrained")
    panels = figure.subplots(len(_PANELS), 1, sharex=True)
    for axes, (label, value) in zip(panels, _PANELS.items(), strict=True):
        for snapshot in snapshots:
            known = [(r.number, y) for r in snapshot.records if (y := value(r)) is not None]
            heights = [y if math.isfinite(y) else math.nan for _, y in known]  # NaN: a gap in the line
            axes.plot([x for x, _ in known], heights, marker="." if len(known) == 1 else None)
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    panels[-1].set_xlabel("round")
    panels[0].legend(panels[0].get_lines(), [_label(snapshot) for snapshot in snapshots], fontsize="small")
    return figure


def save_figure(snapshots: Sequence[RunSnapshot], path: str | Path) -> None:
    """Draws the runs into `path`, as PNG or SVG by its extension."""
    save(lambda: run_figure(snapshots), path)


def _label(snapshot: RunSnapshot) -> str:
    # matplotlib takes $ for mathematics, and hides what begins with an underscore.
    name = snapshot.name.replace("$", r"\$")
    name = f" {name}" if name.startswith("_") else name
    return name if snapshot.covers_everything else f"{name} ({NOT_COVERED})"


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


_LARGEST_DOT = 260.0  # square points


def save_split_figure(counts: NDArray[np.int64], path: str | Path, title: str) -> None:
    """Draws `counts` (num_clients, num_classes) into `path`, as PNG or SVG by its extension."""
    save(lambda: split_figure(counts, title), path)


def split_figure(counts: NDArray[np.int64], title: str) -> "Figure":
    """The figure, unsaved."""
    num_clients, num_classes = counts.shape
    size = (min(2.5 + 0.32 * num_clients, 40), 1.5 + 0.32 * num_classes)
    figure = figure_class()(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    clients, classes = np.nonzero(counts)
    areas = _LARGEST_DOT * counts[clients, classes] / max(int(counts.max()), 1)
    axes.scatter(clients, classes, s=areas, c=classes, cmap="tab10", vmin=-0.5, vmax=9.5)
    axes.set(xlabel="client", ylabel="class", title=title, yticks=range(num_classes), axisbelow=True)
    axes.set_xlim(-0.6, num_clients - 0.4)
    axes.set_ylim(num_classes - 0.4, -0.6)
    axes.grid(alpha=0.3)
    return figure
