"""Comparisons of policies on generated digits and synthetic data, with paired seeds."""

import statistics
from typing import Any

from reproduction.pages.sources import Sources
from reproduction.tables import markdown_lines

_REFERENCE = "ratio + late decay"
_DATA = {"digits": "strokes-linear", "network": "strokes-cnn", "synthetic": "synthetic"}
"""The comparisons: softmax and a small network on generated digits, and softmax on Synthetic(1, 1)."""
_PAIRS = {
    "ali_early": ("ali", "early"),
    "ali_ratio": ("ali", "ratio"),
    "early_ratio": ("early", "ratio"),
    "decay": (_REFERENCE, "ratio at twice the step"),
    "twice": ("ali at twice the step", _REFERENCE),
    "ratio_late_ali": (_REFERENCE, "ali + late decay"),
    "ratio_late_early": (_REFERENCE, "early + late decay"),
}
_ON_SYNTHETIC = ("ali_early", "decay")
"""The pairs that the page quotes for synthetic data. Its seeds differ too much for the others."""
Runs = dict[str, dict[int, dict[str, Any]]]
"""Lines by policy and seed."""


def blocks(sources: Sources) -> dict[str, str]:
    """Return the generated parts of the page about policies."""
    found = {name: _runs(sources, file) for name, file in _DATA.items()}
    tables = [_table(_DATA[name], runs) for name, runs in found.items()]
    compared = {
        f"{pair}_{name}": difference(runs, *arms)
        for pair, arms in _PAIRS.items()
        for name, runs in found.items()
        if name != "synthetic" or pair in _ON_SYNTHETIC
    }
    return {"policies": "\n".join(tables), **compared}


def difference(runs: Runs, one: str, other: str) -> str:
    """Return the mean paired difference of two policies, with the number of seeds in which the first is better."""
    changes = [runs[one][seed]["accuracy"] - runs[other][seed]["accuracy"] for seed in sorted(runs[one])]
    return f"{statistics.mean(changes):+.2f} ({sum(change > 0 for change in changes)} of {len(changes)} seeds)"


def _runs(sources: Sources, file: str) -> Runs:
    found: Runs = {}
    for line in sources.lines(f"policies/{file}"):
        found.setdefault(line["arm"], {})[line["seed"]] = line
    return found


def _table(name: str, runs: Runs) -> str:
    seeds = sorted(set.intersection(*(set(arm) for arm in runs.values())))
    rows = []
    for arm, results in runs.items():
        accuracies = [results[seed]["accuracy"] for seed in seeds]
        wins = sum(results[seed]["accuracy"] > runs[_REFERENCE][seed]["accuracy"] for seed in seeds)
        steps = [step for seed in seeds for step in results[seed]["local_steps"]]
        rows.append(
            [
                arm,
                f"{statistics.mean(accuracies):.2f} ± {statistics.stdev(accuracies):.2f} %",
                f"{statistics.mean(results[seed]['loss'] for seed in seeds):.3f}",
                "-" if arm == _REFERENCE else f"{wins} of {len(seeds)}",
                f"{min(steps)} to {max(steps)}",
                f"{statistics.mean(results[seed]['rounds'] for seed in seeds):.0f}",
            ]
        )
    head = ["policy", "accuracy, mean ± sd", "loss, mean", "wins", "least and most τ", "rounds"]
    return "\n".join([f"### {name}, {len(seeds)} seeds\n", *markdown_lines(head, rows), ""])
