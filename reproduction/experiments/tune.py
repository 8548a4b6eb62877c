"""Search settings on a held-out part of the training set. The test set is never used.

    python -m reproduction.experiments.tune reproduction/experiments/tuning/mnist.toml out.jsonl

The search file is a configuration with one more table, [search]. Its keys are settings, and its values are lists of
values to try in all combinations. [[search.also]] tables add further grids, or single points. Results are appended to
the second file, and combinations that have a result are skipped, so that the search can be stopped at any time.
"""

import itertools
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from alidpfl.runs import load_config
from reproduction.experiments import stored
from reproduction.results import json_lines


def combinations(search: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the points of the grid, then those of [[search.also]]. A value that is not a list is a list of one."""
    also = search.pop("also", [])
    for grid in [search, *also] if search else also:
        lists = [value if isinstance(value, list) else [value] for value in grid.values()]
        for values in itertools.product(*lists):
            yield dict(zip(grid, values, strict=True))


def main(search_file: str, results_file: str) -> None:
    """Run every combination that has no result."""
    settings = tomllib.loads(Path(search_file).read_text())
    search = settings.pop("search")
    results = Path(results_file)
    done = [line["point"] for line in json_lines(results)]
    for point in combinations(search):
        if point in done:
            continue
        config = load_config(overrides=[*stored.overrides(settings), *stored.overrides(point)])
        if config.run.evaluate_on != "validation":
            sys.exit('a search must not use the test set: set run.evaluate_on = "validation"')
        with stored.run(config) as (outcome, _):
            found = {"validation_accuracy": outcome.accuracy, "epsilon": outcome.epsilon, "steps": outcome.steps}
        stored.append(results, {"point": point, **found})


if __name__ == "__main__":
    main(*sys.argv[1:])
