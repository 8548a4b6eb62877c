"""Draw the pictures of README and docs, from the results and from the program itself.

The pictures have no background, and other colours on a dark page: the SVG uses `prefers-color-scheme`. The type is
large enough for a telephone, where a picture is 360 pixels wide.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alidpfl.planner import PlanRequest
from alidpfl.planner.policy_paths import PlannedRun, policy_paths
from alidpfl.privacy import ACCOUNTANTS, PrivacyBudget, SampledGaussian, epsilon, max_steps
from alidpfl.reporting.figures import figure_class, save
from reproduction import paper
from reproduction.pages import adaptivity as rules
from reproduction.pages.sources import DATASETS, Sources, load

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OUT = Path(__file__).parents[2] / "docs" / "pictures"
LINES = {"small": "-", "large": "--"}
INK, BLUE, ORANGE, GREY, RED = "#24292f", "#1f5fa8", "#c0620c", "#6f6f6f", "#b04a5a"
ON_DARK = {INK: "#e2e4e9", BLUE: "#6cb2f7", ORANGE: "#f2a04e", GREY: "#a8a8a8", RED: "#ee8b9b"}
LOOK: dict[Any, Any] = {
    "font.size": 13,
    "lines.linewidth": 2,
    **dict.fromkeys(["text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor"], INK),
    **dict.fromkeys(["xtick.color", "ytick.color", "grid.color"], INK),
}
_RUN = PlannedRun(sample_rate=0.015, noise_multiplier=1.1, max_steps=716, max_rounds=158)


def draw_all(out: Path = OUT) -> list[Path]:
    """Draw all pictures into a folder; return their paths."""
    import matplotlib as mpl

    sources = load()
    drawings: dict[str, Callable[[], Figure]] = {
        "accuracy": lambda: accuracy(sources),
        "adaptivity": lambda: adaptivity(sources),
        "budget": budget,
        "policies": policies,
        "reproduced": lambda: reproduced(sources),
    }
    out.mkdir(exist_ok=True)
    for name, draw in drawings.items():
        with mpl.rc_context(LOOK):
            save(draw, out / f"{name}.svg")
        _add_dark_colours(out / f"{name}.svg")
    return [out / f"{name}.svg" for name in drawings]


def _add_dark_colours(path: Path) -> None:
    """Add a rule for every colour that replaces it on a dark page."""
    rules_of = "".join(
        f'[style*="{kind}: {light}"] {{{kind}: {dark} !important}}\n'
        for light, dark in ON_DARK.items()
        for kind in ("fill", "stroke")
    )
    drawn = path.read_text(encoding="utf-8")
    path.write_text(drawn.replace("</style>", f"\n@media (prefers-color-scheme: dark) {{\n{rules_of}}}</style>", 1))


def accuracy(sources: Sources) -> "Figure":
    """Draw our recipes, the paper's ALI-DPFL and the paper's FedAvg with DP against ε, for two numbers of rounds."""
    figure, axes = _panels(3, height=4.4)
    runs = [line for line in sources.lines("best") if line["seed"] == 0]
    rounds = {line["table"]: line["rounds"] for line in runs}
    methods = (("ali_dpfl", ORANGE, "paper's ALI-DPFL"), ("fedavg_dp:tau=1", GREY, "paper's FedAvg + DP, τ = 1"))
    for panel, (dataset, name) in zip(axes, DATASETS.items(), strict=True):
        for table, style in LINES.items():
            found = [line for line in runs if (line["table"], line["dataset"]) == (table, dataset)]
            _curve(panel, {line["epsilon_allowed"]: line["accuracy"] for line in found}, f".{style}", color=BLUE)
            for method, colour, _ in methods:
                printed = {
                    line["epsilon_allowed"]: paper.published(
                        table, dataset, {"rounds_over_steps": line["ratio"]}, method
                    )
                    for line in found
                }
                _curve(panel, printed, f".{style}", color=colour)
        panel.set_title(name, fontsize=13)
        panel.set_xticks([2, 3, 4, 5])
    axes[1].set_xlabel("ε of every client (δ = 1e-5)")
    axes[0].set_ylabel("test accuracy, %")
    names = {"our recipes": BLUE} | {words: colour for _, colour, words in methods}
    _legend(figure, [({"color": colour}, words) for words, colour in names.items()], 0.195)
    _legend(figure, [({"color": INK, "linestyle": LINES[name]}, f"{rounds[name]} rounds") for name in LINES], 0.13)
    figure.text(0.5, 0.08, "ours: one seed, ε by the accountant pld", ha="center", fontsize=12)
    figure.text(0.5, 0.02, "the paper's: as printed, ε by its own accountant", ha="center", fontsize=12)
    figure.subplots_adjust(left=0.105, right=0.99, top=0.92, bottom=0.42, wspace=0.32)
    return figure


def reproduced(sources: Sources) -> "Figure":
    """Draw our runs of the paper's methods against the accuracies that the paper prints, by the paper's accountant."""
    figure, (panel,) = _panels(1, height=4.6)
    for (dataset, name), colour in zip(DATASETS.items(), (BLUE, ORANGE, GREY), strict=True):
        found = [
            (entry.paper, entry.mean)
            for table in sources.tables
            for entry in table.entries
            if entry.dataset == dataset and entry.accountant == table.grid.accountants[0]
            if entry.paper is not None and entry.mean is not None
        ]
        panel.plot(*zip(*found, strict=True), "o", markersize=5, alpha=0.75, color=colour, label=name)
    panel.plot([15, 100], [15, 100], color=INK, linewidth=1)
    panel.annotate("our run = the paper's", (60, 60), (-8, 6), textcoords="offset points", ha="right")
    panel.set_xlabel("test accuracy that the paper prints, %")
    panel.set_ylabel("our run, %")
    panel.legend(frameon=False, loc="upper left")
    figure.subplots_adjust(left=0.09, right=0.98, top=0.97, bottom=0.14)
    return figure


def adaptivity(sources: Sources) -> "Figure":
    """Draw the paired differences of policies as dots, with their mean over cells as a line."""
    figure, (panel,) = _panels(1, height=4.4)
    _, tallies = rules.compared(sources.grids, sources.known)
    _, controls = rules.control(sources.grids[0], sources.control, sources.known)
    rows = [
        ("ali - ratio", tallies[rules.ALI, rules.RATIO], BLUE),
        ("ali - best fixed τ", tallies[rules.ALI, rules.BEST], ORANGE),
        ("ali - early", controls[rules.ALI, rules.EARLY], RED),
        ("early - best fixed τ", controls[rules.EARLY, rules.BEST], GREY),
    ]
    panel.axvline(0.0, color=INK, linewidth=1)
    for place, (_, tally, colour) in enumerate(rows):
        mean = tally.all.mean or 0.0
        panel.plot(tally.differences, _spread(len(tally.differences), place), "o", markersize=4, color=colour)
        panel.plot([mean, mean], [place - 0.34, place + 0.34], color=colour, linewidth=3)
    panel.set_yticks(range(len(rows)), [f"{words}\n{len(tally.differences)} pairs" for words, tally, _ in rows])
    panel.set_ylim(len(rows) - 0.5, -0.5)
    panel.set_xlabel("difference in test accuracy, points")
    figure.subplots_adjust(left=0.25, right=0.98, top=0.97, bottom=0.15)
    return figure


def budget() -> "Figure":
    """Draw ε against steps: the same training, counted by three accountants."""
    figure, (panel,) = _panels(1, height=4.2)
    panel.axhline(2.0, color=INK, linewidth=1)
    for accountant, colour in zip(ACCOUNTANTS, (GREY, ORANGE, BLUE), strict=True):
        spent = {steps: epsilon([_steps(steps)], paper.DELTA, accountant) for steps in (1, 3, 10, *range(20, 901, 40))}
        _curve(panel, spent, "-", color=colour)
        panel.annotate(accountant, max(spent.items()), (6, -4), textcoords="offset points", color=colour)
        most = max_steps(PrivacyBudget(epsilon=2.0, delta=paper.DELTA), 0.015, 1.1, accountant=accountant)
        panel.plot([most, most], [0.0, 2.0], ":", color=colour, linewidth=1.5)
        panel.plot([most], [2.0], "o", color=colour)
        panel.annotate(f"{most} steps", (most, 0.0), (-4, 5), textcoords="offset points", ha="right", color=colour)
    panel.set_ylim(0, 3.2)
    panel.set_xlim(0, 900)
    panel.set_xlabel("DP-SGD steps (q = 0.015, σ = 1.1, δ = 1e-5)")
    panel.set_ylabel("ε spent")
    figure.subplots_adjust(left=0.1, right=0.86, top=0.97, bottom=0.15)
    return figure


def policies() -> "Figure":
    """Draw the local steps of every round under some policies, and the steps so far with both budgets."""
    figure, (steps_panel, sums_panel) = _panels(2, height=4.4)
    request = PlanRequest(epsilon=2.0, delta=1e-5, clients=10, samples=60_000, max_rounds=158, curvature=0.5)
    found = {path.policy: path.local_steps for path in policy_paths(request, _RUN)}
    runs = {"fixed, τ = 1": ((1,) * 158, GREY), "fixed, τ = 10": ((10,) * (_RUN.max_steps // 10), RED)}
    runs |= {name: (found[name], colour) for name, colour in {"ratio": BLUE, "ali": ORANGE}.items()}
    for steps, colour in runs.values():
        steps_panel.plot(range(1, len(steps) + 1), steps, ".", markersize=3, color=colour)
        total = [sum(steps[:k]) for k in range(len(steps) + 1)]
        sums_panel.plot(total, color=colour)
        sums_panel.plot([len(steps)], [total[-1]], "o", color=colour)
    _legend(figure, [({"color": colour}, name) for name, (_, colour) in runs.items()], 0.0)
    sums_panel.axhline(_RUN.max_steps, color=INK, linewidth=1)
    sums_panel.axvline(_RUN.max_rounds, color=INK, linewidth=1)
    limits = {
        f"R_c = {_RUN.max_steps}": ((0, _RUN.max_steps), (2, 5), "left"),
        f"R_s = {_RUN.max_rounds}": ((_RUN.max_rounds, 20), (-5, 0), "right"),
    }
    for words, (point, offset, side) in limits.items():
        sums_panel.annotate(words, point, offset, textcoords="offset points", ha=side)
    sums_panel.set_ylim(0, 800)
    steps_panel.set_ylim(0, 11)
    steps_panel.set_title("local steps τ of a round", fontsize=13)
    sums_panel.set_title("steps so far", fontsize=13)
    for panel in (steps_panel, sums_panel):
        panel.set_xlabel("round, of 158")
    figure.subplots_adjust(left=0.06, right=0.98, top=0.92, bottom=0.27, wspace=0.22)
    return figure


def _steps(count: int) -> SampledGaussian:
    return SampledGaussian(sample_rate=paper.SAMPLE_RATE, noise_multiplier=paper.NOISE_MULTIPLIER, steps=count)


def _spread(count: int, place: int) -> list[float]:
    """Return heights around `place`, so that dots do not cover each other."""
    return [place + 0.06 * (number % 7 - 3) for number in range(count)]


def _legend(figure: "Figure", entries: Sequence[tuple[Mapping[str, str], str]], height: float) -> None:
    """Draw a row of lines with their names."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **look, label=words) for look, words in entries]  # type: ignore[arg-type]
    place: dict[str, Any] = {"loc": "lower center", "bbox_to_anchor": (0.5, height), "ncols": len(entries)}
    figure.legend(handles=handles, frameon=False, fontsize=12, columnspacing=1.2, handlelength=1.8, **place)


def _curve(panel: "Axes", points: Mapping[float, float | None], style: str, *, color: str) -> None:
    known = sorted((x, y) for x, y in points.items() if y is not None)
    if known:
        panel.plot(*zip(*known, strict=True), style, color=color)


def _panels(count: int, *, height: float) -> "tuple[Figure, list[Axes]]":
    figure = figure_class()(figsize=(7.6, height))
    figure.patch.set_visible(False)
    panels = [figure.add_subplot(1, count, number + 1) for number in range(count)]
    for panel in panels:
        panel.patch.set_visible(False)
        panel.grid(alpha=0.2, linewidth=0.8)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, panels
