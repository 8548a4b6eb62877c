"""Draw runs, plans, audits and splits as PNG or SVG. matplotlib is the optional extra `report`."""

import io
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from alidpfl.errors import ConfigError
from alidpfl.metrics import CalibrationBin
from alidpfl.reporting.plan_tables import BOUND_NAMES, same_budget
from alidpfl.reporting.snapshot import NOT_COVERED, RunSnapshot, quantities
from alidpfl.reporting.tables import rounded_down
from alidpfl.store.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FORMATS = (".png", ".svg")
_LARGEST_DOT = 260.0  # of a split, in square points


def figure_class() -> "type[Figure]":
    """Return matplotlib's Figure, which has no global state and no window, unlike pyplot."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "drawing a figure needs matplotlib: in a clone of alidpfl run `pip install -c constraints.txt '.[report]'`,"
            " or leave --plot out"
        ) from None
    return Figure


def check_extension(path: Path) -> str:
    """Return the extension in lower case. Refuse others than .png and .svg."""
    kind = path.suffix.lower()
    if kind not in _FORMATS:
        raise ConfigError(f"cannot draw {path}: its extension must be {' or '.join(_FORMATS)}")
    return kind


def save(draw: "Callable[[], Figure]", path: str | Path) -> None:
    """Draw a figure and write it as PNG or SVG, by the extension of `path`. A wrong extension is refused first."""
    target = Path(path)
    kind = check_extension(target)
    figure, content = draw(), io.BytesIO()
    import matplotlib as mpl

    # Without a date and random names in the file, the same values give the same bytes.
    metadata = {"Date": None} if kind == ".svg" else None
    with mpl.rc_context({"svg.hashsalt": "alidpfl"}):
        figure.savefig(content, format=kind.removeprefix("."), dpi=150, metadata=metadata)
    write_atomically(target, content.getvalue())


def run_figure(snapshots: Sequence[RunSnapshot]) -> "Figure":
    """Return a panel for the task's metric, local steps and ε, with a line for each run; and one for calibration."""
    shown, curves = quantities(snapshots), [snapshot.calibration() for snapshot in snapshots]
    count = len(shown) + any(curves)
    figure = figure_class()(figsize=(7, 8 / 3 * count), layout="constrained")
    panels = figure.subplots(count, 1, squeeze=False)[:, 0]
    by_round = panels[: len(shown)]
    for axes, (quantity, title) in zip(by_round, shown.items(), strict=True):
        if axes is not by_round[-1]:
            axes.sharex(by_round[-1])
            axes.tick_params(labelbottom=False)
        for snapshot in snapshots:
            points = snapshot.points(quantity)
            heights = [y if math.isfinite(y) else math.nan for _, y in points]  # NaN leaves a gap in the line
            axes.plot([x for x, _ in points], heights, marker="." if len(points) == 1 else None)
        axes.set_ylabel(title)
        axes.grid(alpha=0.3)
    by_round[-1].set_xlabel("round")
    panels[0].legend(panels[0].get_lines(), [_label(snapshot) for snapshot in snapshots], fontsize="small")
    if any(curves):
        _draw_calibration(panels[-1], curves)
    return figure


def _draw_calibration(axes: "Axes", curves: Sequence[Sequence[CalibrationBin]]) -> None:
    """Draw observed by predicted shares with 95 % intervals, in the colours of the runs."""
    for curve in curves:
        observed = np.array([part.observed for part in curve])
        ends = np.array([[part.observed - part.low, part.high - part.observed] for part in curve]).reshape(-1, 2)
        axes.errorbar([part.predicted for part in curve], observed, yerr=ends.clip(min=0).T, marker=".", elinewidth=1)
    axes.plot([0, 1], [0, 1], linestyle="--", color="gray", label="exact")
    axes.set(xlabel="predicted probability", ylabel="observed share")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")


def plan_figure(plan: dict[str, Any]) -> "Figure":
    """Return a panel for ε, for the convergence bounds and, if settings were searched, for the settings."""
    panels = [_draw_epsilon, _draw_bounds, *([_draw_pareto] if plan["pareto"] else [])]
    return _stacked([(draw, plan) for draw in panels])


def audit_figure(audit: dict[str, Any]) -> "Figure":
    """Return a panel for each part of an audit."""
    panels = {"one_step": _draw_step, "one_run": _draw_run}
    return _stacked([(draw, audit[part]) for part, draw in panels.items() if audit[part]])


def split_figure(counts: NDArray[np.int64], title: str) -> "Figure":
    """Return dots of `counts` (num_clients, num_classes), one for each client and class; the area is the count."""
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


def _label(snapshot: RunSnapshot) -> str:
    # matplotlib reads $ as mathematics, and hides labels that begin with an underscore.
    name = snapshot.name.replace("$", r"\$")
    name = f" {name}" if name.startswith("_") else name
    return name if snapshot.covers_everything else f"{name} ({NOT_COVERED})"


def _stacked(panels: "Sequence[tuple[Callable[[Axes, dict[str, Any]], None], dict[str, Any]]]") -> "Figure":
    figure = figure_class()(figsize=(7, 3.2 * len(panels)), layout="constrained")
    for axes, (draw, values) in zip(figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels, strict=True):
        draw(axes, values)
        axes.grid(alpha=0.3)
        axes.legend(fontsize="small")
        axes.title.set_fontsize("small")
    return figure


def _draw_epsilon(axes: "Axes", plan: dict[str, Any]) -> None:
    for name, points in plan["curves"]["epsilon"].items():
        steps = plan["max_steps"][name]
        (line,) = axes.plot(*zip(*points, strict=True), label=f"{name}: R_c = {steps or 'none'}")
        if steps:
            axes.plot(steps, plan["epsilon_if_steps_end"][name], "o", color=line.get_color())
    budget = plan["request"]["epsilon"]
    axes.axhline(budget, linestyle="--", color="gray", label=f"budget ε = {budget:g}")
    axes.set(xlabel="local steps", ylabel="ε", title=f"q = {plan['sample_rate']:g}, σ = {plan['noise_multiplier']:g}")


def _draw_bounds(axes: "Axes", plan: dict[str, Any]) -> None:
    for name, points in plan["curves"]["bounds"].items():
        best = plan["curves"]["best_steps"][name]
        least = "" if best is None else f": minimum at τ = {best:.3g}"
        (line,) = axes.plot(*zip(*points, strict=True), label=BOUND_NAMES[name] + least)
        if best is not None and best <= points[-1][0]:
            axes.plot(best, 1.0, "o", color=line.get_color())
    axes.set_yscale("log")
    axes.set(xlabel="local steps τ of a round", ylabel="bound / its minimum", title=plan["curves"]["assumed"])


def _draw_pareto(axes: "Axes", plan: dict[str, Any]) -> None:
    rows = plan["pareto"]
    axes.plot([row["epochs"] for row in rows], [row["signal_to_noise"] for row in rows], "o-")
    for row in rows:
        if row["recommended"]:
            text = f"q = {row['sample_rate']:g}, σ = {row['noise_multiplier']:.3g}, τ = {row['local_steps']}"
            axes.plot(row["epochs"], row["signal_to_noise"], "o", color="tab:red", label=f"recommended: {text}")
    axes.set_xscale("log")
    axes.set(xlabel="epochs (compute)", ylabel="signal-to-noise", title=same_budget(plan))


def _draw_step(axes: "Axes", step: dict[str, Any]) -> None:
    axes.axvline(step["threshold"], linestyle="--", color="gray", label="threshold")
    axes.set(xlabel="released along the canary's gradient, over the largest contribution", ylabel="steps")
    bound = f"one step: μ ≥ {rounded_down(step['lower_bound'])} of {step['claimed']:.4f} claimed"
    _draw_bars(axes, step, bound, ("without the canary", "with the canary"))


def _draw_run(axes: "Axes", run: dict[str, Any]) -> None:
    axes.set(xlabel="score of the canary", ylabel="canaries")
    bound = f"one run: ε ≥ {rounded_down(run['lower_bound'], 3)} of {run['claimed_epsilon']:g} claimed"
    _draw_bars(axes, run, bound, ("canaries that were out", "canaries that were in"))


def _draw_bars(axes: "Axes", part: dict[str, Any], bound: str, labels: tuple[str, str]) -> None:
    histogram = part["histogram"]
    for name, label in zip(("without", "with"), labels, strict=True):
        axes.stairs(histogram[name], histogram["edges"], fill=True, alpha=0.5, label=label)
    axes.set_title(f"{bound}: REFUTED" if part["refuted"] else bound)
