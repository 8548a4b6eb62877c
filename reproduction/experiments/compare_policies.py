"""Which rule for τ is best? Paired seeds: every policy on the same splits, first weights, batches and noise.

    python reproduction/experiments/compare_policies.py reproduction/experiments/policies/synthetic.toml reproduction/results/policies/synthetic.jsonl

The file is a configuration with one more table, [compare]: `seeds`, and `arms`, a table of settings for each policy.
Results are appended as they come and what is there already is skipped.
"""

import sys
import tomllib
from pathlib import Path

import stored

from alidpfl.runs import load_config


def main(compare_file: str, results_file: str) -> None:
    """Run every (seed, arm) that has no result yet; seeds outermost, so that a stopped comparison is still paired."""
    settings = tomllib.loads(Path(compare_file).read_text())
    compare = settings.pop("compare")
    results = Path(results_file)
    done = {(line["seed"], line["arm"]) for line in stored.lines(results)}
    for seed in compare["seeds"]:
        for arm, changes in compare["arms"].items():
            if (seed, arm) in done:
                continue
            overrides = [*stored.overrides(settings), *stored.overrides(changes), f"run.seed={seed}"]
            with stored.run(load_config(overrides=overrides)) as (outcome, folder):
                taken = [line["local_steps"] for line in stored.lines(folder / "metrics.jsonl")]
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
