"""Search settings on a held-out part of the training set; the test set is never looked at.

    python experiments/tune.py experiments/tuning/mnist.toml results/tuning/mnist.jsonl

The search file is a configuration with one more table, [search], whose keys are settings and whose values are lists to
try, each combination once; [[search.also]] tables add single points. Results are appended as they come, and a
combination that is there already is skipped: kill it and start it again at will.
"""

import itertools
import json
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

from alidpfl.runs import execute, load_config


def combinations(search: dict) -> Iterator[dict]:
    """The grid, then the single points."""
    also = search.pop("also", [])
    if search:
        for values in itertools.product(*search.values()):
            yield dict(zip(search, values, strict=True))
    yield from also


def overrides(point: dict) -> list[str]:
    """As for `alidpfl run --set`."""
    return [f"{key}={json.dumps(value)}" for key, value in point.items()]


def main(search_file: str, results_file: str) -> None:
    """Run every combination that has no result yet."""
    settings = tomllib.loads(Path(search_file).read_text())
    search = settings.pop("search")
    results = Path(results_file)
    lines = results.read_text().splitlines() if results.exists() else []
    done = [json.loads(line)["point"] for line in lines]
    common = [
        f"{section}.{key}={json.dumps(value)}" for section, table in settings.items() for key, value in table.items()
    ]
    for point in combinations(search):
        if point in done:
            continue
        config = load_config(overrides=[*common, *overrides(point)])
        if config.run.evaluate_on != "validation":
            sys.exit('tuning must not look at the test set: set run.evaluate_on = "validation"')
        with tempfile.TemporaryDirectory() as folder:
            outcome = execute(config, Path(folder) / "run")
        line = {
            "point": point,
            "validation_accuracy": outcome.accuracy,
            "epsilon": outcome.epsilon,
            "steps": outcome.steps,
        }
        with results.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(line, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
