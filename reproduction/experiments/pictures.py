"""The pictures of README and docs, from results/ and the program itself: `python reproduction/experiments/pictures.py`.

They have no background, and other colours where the reader's is dark: the SVG asks (`prefers-color-scheme`), which
browsers answer by the page's own colour scheme, GitHub's or that of the site's switch. Type is large enough for a
telephone, where a picture is 360 pixels wide.
"""

from pathlib import Path
from typing import Any

import best
import stored
from reproduction.published import published

from alidpfl.planner.policy_paths import Mechanism, courses
from alidpfl.planner.requirements import Wishes
from alidpfl.privacy import ACCOUNTANTS, PrivacyBudget, SampledGaussian, epsilon, max_steps
from alidpfl.reporting.figures import figure_class, save
from reproduction import paper

OUT = best.ROOT / "docs/pictures"
NAMES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
LINES = {"small": "-", "large": "--"}
INK, BLUE, ORANGE, GREY, RED = "#24292f", "#1f5fa8", "#c0620c", "#6f6f6f", "#b04a5a"
ON_DARK = {INK: "#e2e4e9", BLUE: "#6cb2f7", ORANGE: "#f2a04e", GREY: "#a8a8a8", RED: "#ee8b9b"}
LOOK = {
    "font.size": 13,
    "lines.linewidth": 2,
    **dict.fromkeys(["text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor"], INK),
    **dict.fromkeys(["xtick.color", "ytick.color", "grid.color"], INK),
}


def main() -> None:
    """Draw them all."""
    import matplotlib as mpl

    OUT.mkdir(exist_ok=True)
    for name, draw in {"accuracy": accuracy, "budget": budget, "policies": policies}.items():
        with mpl.rc_context(LOOK):
            save(draw, OUT / f"{name}.svg")
        _also_on_dark(OUT / f"{name}.svg")


def _also_on_dark(path: Path) -> None:
    """Every colour is drawn for light paper; a rule for each says what it is on dark paper."""
    rules = "".join(
        f'[style*="{kind}: {light}"] {{{kind}: {dark} !important}}\n'
        for light, dark in ON_DARK.items()
        for kind in ("fill", "stroke")
    )
    drawn = path.read_text(encoding="utf-8")
    path.write_text(drawn.replace("</style>", f"\n@media (prefers-color-scheme: dark) {{\n{rules}}}</style>", 1))


def accuracy() -> Any:
    """Ours, the paper's and plain FedAvg with DP, against ε, for two numbers of rounds."""
    figure, axes = _panels(3, height=4.4)
    lines = stored.lines(best.RESULTS)
    methods = (("ali_dpfl", ORANGE, "paper's ALI-DPFL"), ("fedavg_dp:tau=1", GREY, "paper's FedAvg + DP, τ = 1"))
    for panel, (dataset, name) in zip(axes, NAMES.items(), strict=True):
        for table, style in LINES.items():
            _, epsilons = best.TABLES[table]
            ours = {
                epsilons[line["ratio"]]: line["accuracy"]
                for line in lines
                if (line["table"], line["dataset"], line["seed"]) == (table, dataset, 0)
            }
            _curve(panel, ours, f".{style}", color=BLUE)
            for method, colour, _ in methods:
                printed = {e: published(table, dataset, {"rounds_over_steps": r}, method) for r, e in epsilons.items()}
                _curve(panel, printed, f".{style}", color=colour)
        panel.set_title(name, fontsize=13)
        panel.set_xticks([2, 3, 4, 5])
    axes[1].set_xlabel("ε of every client (δ = 1e-5)")
    axes[0].set_ylabel("test accuracy, %")
    who = {"our recipes": BLUE} | {words: colour for _, colour, words in methods}
    _legend(figure, [({"color": colour}, words) for words, colour in who.items()], 0.195)
    rounds = [({"color": INK, "linestyle": LINES[table]}, f"{best.TABLES[table][0]} rounds") for table in LINES]
    _legend(figure, rounds, 0.13)
    figure.text(0.5, 0.08, "ours: one seed, ε by the accountant pld", ha="center", fontsize=12)
    figure.text(0.5, 0.02, "the paper's: as printed, ε by its own accountant", ha="center", fontsize=12)
    figure.subplots_adjust(left=0.105, right=0.99, top=0.92, bottom=0.42, wspace=0.32)
    return figure


def _legend(figure: Any, entries: list[tuple[dict[str, str], str]], height: float) -> None:
    """A row of lines and what they mean."""
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], **look, label=words) for look, words in entries]
    place = {"loc": "lower center", "bbox_to_anchor": (0.5, height), "ncols": len(entries)}
    figure.legend(handles=handles, frameon=False, fontsize=12, columnspacing=1.2, handlelength=1.8, **place)


def budget() -> Any:
    """ε against steps: the same training, counted by three accountants."""
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


def _steps(count: int) -> SampledGaussian:
    return SampledGaussian(sample_rate=paper.SAMPLE_RATE, noise_multiplier=paper.NOISE_MULTIPLIER, steps=count)


def policies() -> Any:
    """Local steps of every round under some policies, a dot each, and how far both budgets go."""
    figure, (steps_panel, sums_panel) = _panels(2, height=4.4)
    wishes = Wishes(epsilon=2.0, delta=1e-5, clients=10, samples=60_000, max_rounds=158, curvature=0.5)
    found = {c.policy: c.local_steps for c in courses(wishes, _MECHANISM)}
    runs = {"fixed, τ = 1": ((1,) * 158, GREY), "fixed, τ = 10": ((10,) * (_MECHANISM.max_steps // 10), RED)}
    runs |= {name: (found[name], colour) for name, colour in {"ratio": BLUE, "ali": ORANGE}.items()}
    for steps, colour in runs.values():
        steps_panel.plot(range(1, len(steps) + 1), steps, ".", markersize=3, color=colour)
        total = [sum(steps[:k]) for k in range(len(steps) + 1)]
        sums_panel.plot(total, color=colour)
        sums_panel.plot([len(steps)], [total[-1]], "o", color=colour)
    _legend(figure, [({"color": colour}, name) for name, (_, colour) in runs.items()], 0.0)
    sums_panel.axhline(_MECHANISM.max_steps, color=INK, linewidth=1)
    sums_panel.axvline(_MECHANISM.max_rounds, color=INK, linewidth=1)
    limits = {
        f"R_c = {_MECHANISM.max_steps}": ((0, _MECHANISM.max_steps), (2, 5), "left"),
        f"R_s = {_MECHANISM.max_rounds}": ((_MECHANISM.max_rounds, 20), (-5, 0), "right"),
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


_MECHANISM = Mechanism(sample_rate=0.015, noise_multiplier=1.1, max_steps=716, max_rounds=158)


def _curve(panel: Any, points: dict[float, float | None], style: str, **look: str) -> None:
    known = sorted((x, y) for x, y in points.items() if y is not None)
    if known:
        panel.plot(*zip(*known, strict=True), style, **look)


def _panels(count: int, *, height: float) -> tuple[Any, list[Any]]:
    figure = figure_class()(figsize=(7.6, height))
    figure.patch.set_visible(False)
    panels = [figure.add_subplot(1, count, number + 1) for number in range(count)]
    for panel in panels:
        panel.patch.set_visible(False)
        panel.grid(alpha=0.2, linewidth=0.8)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, panels


if __name__ == "__main__":
    main()
