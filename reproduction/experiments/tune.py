"""Search settings on a held-out part of the training set; the test set is never looked at.

    python reproduction/experiments/tune.py reproduction/experiments/tuning/mnist.toml reproduction/results/tuning/mnist.jsonl

The search file is a configuration with one more table, [search], whose keys are settings and whose values are lists to
try, each combination once; [[search.also]] tables add further grids, or single points. Results are appended as they
come, and a combination that is there already is skipped: kill it and start it again at will.
"""

import itertools
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import stored

from alidpfl.runs import load_config


def combinations(search: dict) -> Iterator[dict]:
    """The grid, then those of [[search.also]]; a value that is no list is one to try."""
    also = search.pop("also", [])
    for grid in [search, *also] if search else also:
        lists = [value if isinstance(value, list) else [value] for value in grid.values()]
        for values in itertools.product(*lists):
            yield dict(zip(grid, values, strict=True))


def main(search_file: str, results_file: str) -> None:
    """Run every combination that has no result yet."""
    settings = tomllib.loads(Path(search_file).read_text())
    search = settings.pop("search")
    results = Path(results_file)
    done = [line["point"] for line in stored.lines(results)]
    for point in combinations(search):
        if point in done:
            continue
        config = load_config(overrides=[*stored.overrides(settings), *stored.overrides(point)])
        if config.run.evaluate_on != "validation":
            sys.exit('tuning must not look at the test set: set run.evaluate_on = "validation"')
        with stored.run(config) as (outcome, _):
            found = {"validation_accuracy": outcome.accuracy, "epsilon": outcome.epsilon, "steps": outcome.steps}
        stored.append(results, {"point": point, **found})


if __name__ == "__main__":
    main(*sys.argv[1:])
