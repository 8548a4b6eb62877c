"""Run chosen settings on the test set: `python reproduction/experiments/on_test_set.py CONFIG.toml RESULTS.jsonl SEED...`.

Only for settings that were chosen on held-out training data. What is there already is skipped.
"""

import sys
from pathlib import Path

import stored

from alidpfl.runs import load_config

# ALI-DPFL at epsilon = 2, R_s = R_c/2, Dir(0.05): Table I
PAPER = {"mnist": 97.58, "fashion_mnist": 83.44, "cifar10": 51.92}


def main(config_file: str, results_file: str, *seeds: str) -> None:
    """One line for each seed."""
    results, name = Path(results_file), Path(config_file).name
    done = {(line["config"], line["seed"]) for line in stored.lines(results)}
    for seed in map(int, seeds):
        if (name, seed) in done:
            continue
        config = load_config(config_file, [f"run.seed={seed}"])
        with stored.run(config) as (outcome, _):
            pass
        line = {
            "config": name,
            "seed": seed,
            "accuracy": outcome.accuracy,
            "epsilon": outcome.epsilon,
            "accountant": config.privacy.accountant,
            "steps": outcome.steps,
            "noise_multiplier": outcome.noise_multiplier,
            "paper": PAPER.get(config.data.name),
        }
        stored.append(results, line)


if __name__ == "__main__":
    main(*sys.argv[1:])
