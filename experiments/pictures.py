"""The pictures of README and docs, from results/ and the program itself: `python experiments/pictures.py`."""

from typing import Any

import best
import stored

from alidpfl.planner.course import Mechanism, courses
from alidpfl.planner.wishes import Wishes
from alidpfl.privacy import ACCOUNTANTS, PrivacyBudget, SampledGaussian, epsilon, max_steps, paper
from alidpfl.reproduction.published import published
from alidpfl.views.drawing import figure_class, save

OUT = best.ROOT / "docs/pictures"
NAMES = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
LINES = {"small": "-", "large": "--"}
BLUE, ORANGE, GREY, RED = "#1f5fa8", "#d1751c", "#777777", "#b04a5a"


def main() -> None:
    """Draw them all."""
    OUT.mkdir(exist_ok=True)
    for name, draw in {"accuracy": accuracy, "budget": budget, "policies": policies}.items():
        save(draw, OUT / f"{name}.svg")


def accuracy() -> Any:
    """Ours, the paper's and plain FedAvg with DP, against ε, for two numbers of rounds."""
    figure, axes = _panels(3, height=3.2)
    lines = stored.lines(best.RESULTS)
    for panel, (dataset, name) in zip(axes, NAMES.items(), strict=True):
        for table, style in LINES.items():
            rounds, epsilons = best.TABLES[table]
            ours = {
                epsilons[line["ratio"]]: line["accuracy"]
                for line in lines
                if (line["table"], line["dataset"], line["seed"]) == (table, dataset, 0)
            }
            _curve(panel, ours, f".{style}", color=BLUE, label=f"our recipe, {rounds} rounds")
            for method, colour, who in (
                ("ali_dpfl", ORANGE, "paper's ALI-DPFL"),
                ("fedavg_dp:tau=1", GREY, "paper's FedAvg + DP, τ = 1"),
            ):
                printed = {e: published(table, dataset, {"rounds_over_steps": r}, method) for r, e in epsilons.items()}
                _curve(panel, printed, f".{style}", color=colour, label=f"{who}, {rounds} rounds")
        panel.set_title(name)
        panel.set_xlabel("ε of every client (δ = 1e-5)")
    axes[0].set_ylabel("test accuracy, %")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="lower center", ncols=3, fontsize=8, frameon=False)
    figure.subplots_adjust(left=0.08, right=0.99, top=0.9, bottom=0.34)
    return figure


def budget() -> Any:
    """ε against steps: the same training, counted by three accountants."""
    figure, (panel,) = _panels(1, height=3.4)
    for accountant, colour in zip(ACCOUNTANTS, (GREY, ORANGE, BLUE), strict=True):
        spent = {steps: epsilon([_steps(steps)], paper.DELTA, accountant) for steps in range(20, 901, 40)}
        _curve(panel, spent, "-", color=colour, label=accountant)
        most = max_steps(PrivacyBudget(epsilon=2.0, delta=paper.DELTA), 0.015, 1.1, accountant=accountant)
        panel.annotate(f"{most} steps", (most, 2.0), (6, -12), textcoords="offset points", ha="left", color=colour)
        panel.plot([most], [2.0], "o", color=colour)
    panel.axhline(2.0, color="black", linewidth=0.8)
    panel.set_xlabel("DP-SGD steps (q = 0.015, σ = 1.1, δ = 1e-5)")
    panel.set_ylabel("ε spent")
    panel.legend(frameon=False)
    figure.tight_layout()
    return figure


def _steps(count: int) -> SampledGaussian:
    return SampledGaussian(sample_rate=paper.SAMPLE_RATE, noise_multiplier=paper.NOISE_MULTIPLIER, steps=count)


def policies() -> Any:
    """Local steps of every round under some policies, and how far both budgets go."""
    figure, (steps_panel, sums_panel) = _panels(2, height=3.2)
    wishes = Wishes(epsilon=2.0, delta=1e-5, clients=10, samples=60_000, max_rounds=158, curvature=0.5)
    found = {c.policy: c.local_steps for c in courses(wishes, _MECHANISM)}
    shown = {"ratio": BLUE, "ali": ORANGE}
    runs = {name: (found[name], colour) for name, colour in shown.items()}
    runs |= {"fixed, τ = 1": ((1,) * 158, GREY), "fixed, τ = 10": ((10,) * (_MECHANISM.max_steps // 10), RED)}
    for name, (steps, colour) in runs.items():
        steps_panel.plot(range(1, len(steps) + 1), steps, color=colour, label=name)
        total = [sum(steps[:k]) for k in range(len(steps) + 1)]
        sums_panel.plot(total, color=colour)
        sums_panel.plot([len(steps)], [total[-1]], "o", color=colour)
    sums_panel.axhline(_MECHANISM.max_steps, color="black", linewidth=0.8)
    sums_panel.axvline(_MECHANISM.max_rounds, color="black", linewidth=0.8)
    sums_panel.annotate(
        f"R_c = {_MECHANISM.max_steps}", (0, _MECHANISM.max_steps), (2, -12), textcoords="offset points"
    )
    sums_panel.annotate(
        f"R_s = {_MECHANISM.max_rounds}", (_MECHANISM.max_rounds, 40), (-60, 0), textcoords="offset points"
    )
    sums_panel.set_ylabel("steps so far")
    steps_panel.set_ylabel("local steps τ")
    for panel in (steps_panel, sums_panel):
        panel.set_xlabel("round, of 158")
    steps_panel.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    return figure


_MECHANISM = Mechanism(sample_rate=0.015, noise_multiplier=1.1, max_steps=716, max_rounds=158)


def _curve(panel: Any, points: dict[float, float | None], style: str, **look: str) -> None:
    known = sorted((x, y) for x, y in points.items() if y is not None)
    if known:
        panel.plot(*zip(*known, strict=True), style, **look)


def _panels(count: int, *, height: float) -> tuple[Any, list[Any]]:
    figure = figure_class()(figsize=(9.0 if count > 1 else 6.0, height))
    panels = [figure.add_subplot(1, count, number + 1) for number in range(count)]
    for panel in panels:
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, panels


if __name__ == "__main__":
    main()
