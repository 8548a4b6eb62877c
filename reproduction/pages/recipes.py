"""Our recipes next to the paper's ALI-DPFL."""

import statistics
from collections.abc import Sequence
from typing import Any

from alidpfl.privacy import SampledGaussian, epsilon
from reproduction import paper
from reproduction.pages.sources import DATASETS, HEADLINE, Sources
from reproduction.tables import markdown_lines, seeds_of

Lines = Sequence[dict[str, Any]]


def blocks(sources: Sources) -> dict[str, str]:
    """Return the generated parts of the pages about the recipes."""
    found = sources.lines("best")
    headline = headline_runs(found)
    printed = SampledGaussian(
        sample_rate=paper.SAMPLE_RATE, noise_multiplier=paper.NOISE_MULTIPLIER, steps=paper.ITERATIONS[2.0]
    )
    return {
        "recipe_seeds": str(min(len(runs) for runs in headline.values())),
        "recipe_summary": ", ".join(
            f"{DATASETS[name]} {_mean(runs):.2f} % (paper {runs[0]['paper']:.2f} %)" for name, runs in headline.items()
        ),
        "recipe_headline": "\n".join(_headline(sources, headline)),
        "recipe_runs": "\n".join(_runs(headline)),
        "recipe_cells": "\n".join(_cells(found)),
        "paper_steps": str(paper.ITERATIONS[2.0]),
        "paper_epsilon": f"{epsilon([printed], paper.DELTA):.2f}",
        "late_decay": "\n".join(_late_decay(sources)),
    }


def headline_runs(found: Lines) -> dict[str, list[dict[str, Any]]]:
    """Return the runs at ε = 2 in 158 rounds by data set, in the order of their seeds."""
    wanted = [line for line in found if (line["table"], line["ratio"]) == ("small", "1/2")]
    return {
        name: sorted((line for line in wanted if line["dataset"] == name), key=lambda line: int(line["seed"]))
        for name in DATASETS
    }


def _mean(runs: Lines) -> float:
    return statistics.mean(float(run["accuracy"]) for run in runs)


def _headline(sources: Sources, headline: dict[str, list[dict[str, Any]]]) -> list[str]:
    rows = []
    for name, runs in headline.items():
        entry = sources.entry(name, HEADLINE, "ali_dpfl", "rdp-paper")
        ours = "not run" if entry is None else f"{entry.mean:.2f} % ({seeds_of(len(entry.by_seed))})"
        rows.append(
            [DATASETS[name], f"{runs[0]['paper']:.2f} %", ours, f"**{_mean(runs):.2f} %** ({seeds_of(len(runs))})"]
        )
    return markdown_lines(["", "paper's ALI-DPFL, printed", "paper's ALI-DPFL, our run", "our recipe"], rows)


def _runs(headline: dict[str, list[dict[str, Any]]]) -> list[str]:
    rows = [
        [
            DATASETS[name],
            f"{runs[0]['paper']:.2f}",
            ", ".join(f"{run['accuracy']:.2f}" for run in runs),
            f"**{_mean(runs):.2f}**",
            f"{max(run['epsilon'] for run in runs):.4f}",
            ", ".join(f"{run['seconds']:.0f}" for run in runs),
        ]
        for name, runs in headline.items()
    ]
    head = ["data set", "paper's ALI-DPFL", "recipe, by seed", "mean", "largest ε spent", "seconds of training"]
    return markdown_lines(head, rows)


def _cells(found: Lines) -> list[str]:
    """Return a table of seed 0 in every cell of Tables I to III."""
    places: dict[tuple[int, float], dict[str, dict[str, Any]]] = {}
    for line in found:
        if line["seed"] == 0:
            places.setdefault((line["rounds"], line["epsilon_allowed"]), {})[line["dataset"]] = line
    rows = []
    for (rounds, allowed), by_dataset in sorted(places.items()):
        row = [str(rounds), f"{allowed:g}"]
        for name in DATASETS:
            run = by_dataset.get(name)
            row += ["", "not run"] if run is None else [f"{run['paper']:.2f}", f"{run['accuracy']:.2f}"]
        rows.append(row)
    columns = [f"{name}: {source}" for name in DATASETS.values() for source in ("paper", "recipe")]
    return markdown_lines(["rounds R_s", "ε", *columns], rows)


def _late_decay(sources: Sources) -> list[str]:
    """Return a table of the paper's network with a step size that decays late."""
    by_config: dict[str, list[dict[str, Any]]] = {}
    for line in (line for name in DATASETS for line in sources.lines(name)):
        by_config.setdefault(line["config"], []).append(line)
    rows = []
    for config, found in by_config.items():
        accuracies = ", ".join(f"{line['accuracy']:.2f}" for line in sorted(found, key=lambda line: int(line["seed"])))
        first = found[0]
        rows.append([f"`{config}`", first["accountant"], str(first["steps"]), accuracies, str(first["paper"])])
    return markdown_lines(["configuration", "accountant", "steps", "accuracy by seed", "paper's ALI-DPFL"], rows)
