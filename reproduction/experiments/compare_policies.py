"""Compare policies with paired seeds: every policy has the same splits, first weights, batches and noise.

    python -m reproduction.experiments.compare_policies reproduction/experiments/policies/synthetic.toml out.jsonl

The first file is a configuration with one more table, [compare]. It has `seeds`, and `arms`: settings for each policy.
Results are appended to the second file, and runs that have a result are skipped.
"""

import sys
import tomllib
from pathlib import Path

from alidpfl.runs import load_config
from reproduction.experiments import stored
from reproduction.results import json_lines


def main(compare_file: str, results_file: str) -> None:
    """Run every (seed, policy) that has no result, seed by seed, so that a stopped comparison is still paired."""
    settings = tomllib.loads(Path(compare_file).read_text())
    compare = settings.pop("compare")
    results = Path(results_file)
    done = {(line["seed"], line["arm"]) for line in json_lines(results)}
    for seed in compare["seeds"]:
        for arm, changes in compare["arms"].items():
            if (seed, arm) in done:
                continue
            overrides = [*stored.overrides(settings), *stored.overrides(changes), f"run.seed={seed}"]
            with stored.run(load_config(overrides=overrides)) as (outcome, folder):
                taken = [line["local_steps"] for line in json_lines(folder / "metrics.jsonl")]
            line = {
                "seed": seed,
                "arm": arm,
                "accuracy": outcome.accuracy,
                "loss": outcome.loss,
                "epsilon": outcome.epsilon,
                "covers_everything": outcome.covers_everything,
                "rounds": outcome.rounds,
                "steps": outcome.steps,
                "local_steps": [min(taken), max(taken)],
            }
            stored.append(results, line)


if __name__ == "__main__":
    main(*sys.argv[1:])
