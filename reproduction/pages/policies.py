"""Comparisons of policies on generated digits and synthetic data, with paired seeds."""

import statistics
from typing import Any

from reproduction.pages.sources import Sources
from reproduction.tables import markdown_lines

_REFERENCE = "ratio + late decay"
_DATA = {
    "strokes-linear": "digits, softmax",
    "strokes-cnn": "digits, network",
    "synthetic": "Synthetic(1, 1), softmax",
}
"""The comparisons, with their names for readers."""
_PAIRS = (
    ("ali", "early"),
    ("ali", "ratio"),
    ("early", "ratio"),
    (_REFERENCE, "ali + late decay"),
    (_REFERENCE, "early + late decay"),
    (_REFERENCE, "ratio at twice the step"),
    ("ali at twice the step", _REFERENCE),
)
"""The pairs of policies that the page compares."""
Runs = dict[str, dict[int, dict[str, Any]]]
"""Lines by policy and seed."""


def blocks(sources: Sources) -> dict[str, str]:
    """Return the generated parts of the page about policies."""
    found = {file: _runs(sources, file) for file in _DATA}
    return {
        "policies": "\n".join(_table(file, runs) for file, runs in found.items()),
        "policy_pairs": "\n".join(_pairs(found)),
    }


def difference(runs: Runs, one: str, other: str) -> str:
    """Return the mean paired difference of two policies, with the number of seeds in which the first is better."""
    changes = [runs[one][seed]["accuracy"] - runs[other][seed]["accuracy"] for seed in sorted(runs[one])]
    return f"{statistics.mean(changes):+.2f} ({sum(change > 0 for change in changes)} of {len(changes)})"


def _pairs(found: dict[str, Runs]) -> list[str]:
    """Return a table with a row for each pair of policies, and a column for each data set and model."""
    rows = [
        [f"{one} minus {other}", *(difference(runs, one, other) for runs in found.values())] for one, other in _PAIRS
    ]
    return markdown_lines(["difference", *_DATA.values()], rows)


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
