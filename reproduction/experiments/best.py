"""Run the recipes in all cells of Tables I to III: `python -m reproduction.experiments.best [TABLE ...] [DATASET ...]`.

A cell is the recipe of its data set with the cell's ε and R_s; the noise multiplier follows from them. η is scaled with
sqrt(ε) / steps, because both noise and signal add up over the steps. Nothing else changes. Results are appended to
reproduction/results/best.jsonl. Cells that have a result are skipped.
"""

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from alidpfl.runs import Config, load_config
from reproduction.experiments import stored
from reproduction.paper import published
from reproduction.results import RESULTS as FOLDER
from reproduction.results import json_lines

RESULTS = FOLDER / "best.jsonl"
RECIPES = FOLDER / "recipes.json"
DATASETS = ("mnist", "fashion_mnist", "cifar10")
TABLES = {
    "small": (158, {"2": 1.55, "1": 1.75, "1/2": 2.0, "1/5": 2.75}),
    "medium": (231, {"2": 1.75, "1": 2.0, "1/2": 2.5, "1/5": 3.75}),
    "large": (317, {"2": 2.0, "1": 2.5, "1/2": 3.25, "1/5": 5.25}),
}
HEADLINE, HEADLINE_SEEDS = ("small", "1/2"), range(6)  # ε = 2, R_s = 158


def main(names: Sequence[str]) -> None:
    """Run every cell that has no result; first the headline, with six seeds."""
    tables = [table for table in TABLES if table in names] or list(TABLES)
    datasets = [dataset for dataset in DATASETS if dataset in names] or list(DATASETS)
    wanted = [(*HEADLINE, dataset, seed) for seed in HEADLINE_SEEDS for dataset in datasets]
    wanted += [(table, ratio, dataset, 0) for table in tables for ratio in TABLES[table][1] for dataset in datasets]
    done = {(line["table"], line["ratio"], line["dataset"], line["seed"]) for line in json_lines(RESULTS)}
    for cell in dict.fromkeys(wanted):
        if cell not in done:
            stored.append(RESULTS, _result(*cell))
    RECIPES.write_text(json.dumps(recipes(), indent=2) + "\n")


def recipe(dataset: str, changes: Sequence[str] = ()) -> Config:
    """Return the recipe of a data set. If you change a recipe, delete its results."""
    return load_config(FOLDER.parent / f"recipes/best-{dataset.replace('_', '-')}.toml", changes)


def recipes() -> dict[str, dict[str, Any]]:
    """Return all recipes, to be stored with their results. Filter files are named without their folder."""
    found = {name: recipe(name).to_dict() for name in DATASETS}
    for settings in found.values():
        settings["model"]["learned"] = [Path(text).name for text in settings["model"]["learned"]]
    return found


def _result(table: str, ratio: str, dataset: str, seed: int) -> dict[str, object]:
    max_rounds, epsilons = TABLES[table]
    headline = recipe(dataset)
    steps = max_rounds - (headline.federation.max_rounds - headline.training_rounds)
    scale = headline.training_rounds / steps * math.sqrt(epsilons[ratio] / headline.privacy.epsilon)
    changes = {
        "privacy.epsilon": epsilons[ratio],
        "federation.max_rounds": max_rounds,
        "method.learning_rate": float(f"{headline.method.learning_rate * scale:.4g}"),
        "run.seed": seed,
    }
    config = recipe(dataset, stored.overrides(changes))
    with stored.run(config) as (outcome, _):
        return {
            "table": table,
            "ratio": ratio,
            "dataset": dataset,
            "seed": seed,
            "accuracy": outcome.accuracy,
            "paper": published(table, dataset, {"rounds_over_steps": ratio}, "ali_dpfl"),
            "epsilon_allowed": epsilons[ratio],
            "epsilon": outcome.epsilon,
            "covers_everything": outcome.covers_everything,
            "noise_multiplier": outcome.noise_multiplier,
            "learning_rate": config.method.learning_rate,
            "rounds": max_rounds,
            "steps": outcome.steps,
            "seconds": round(outcome.seconds, 1),
        }


if __name__ == "__main__":
    main(sys.argv[1:])
