"""Run a configuration on the test set: `python -m reproduction.experiments.on_test_set CONFIG.toml OUT.jsonl SEED ...`.

Use it only for settings that were chosen on held-out training data. Runs that have a result are skipped.
"""

import sys
from pathlib import Path

from alidpfl.runs import load_config
from reproduction.experiments import stored
from reproduction.paper import published
from reproduction.results import json_lines


def main(config_file: str, results_file: str, *seeds: str) -> None:
    """Append one line for each seed, with the paper's figure for ALI-DPFL at ε = 2 and R_s = R_c/2."""
    results, name = Path(results_file), Path(config_file).name
    done = {(line["config"], line["seed"]) for line in json_lines(results)}
    for seed in map(int, seeds):
        if (name, seed) in done:
            continue
        config = load_config(config_file, [f"run.seed={seed}"])
        with stored.run(config) as (outcome, _):
            line = {
                "config": name,
                "seed": seed,
                "accuracy": outcome.accuracy,
                "epsilon": outcome.epsilon,
                "accountant": config.privacy.accountant,
                "steps": outcome.steps,
                "noise_multiplier": outcome.noise_multiplier,
                "paper": published("small", config.data.name, {"rounds_over_steps": "1/2"}, "ali_dpfl"),
            }
        stored.append(results, line)


if __name__ == "__main__":
    main(*sys.argv[1:])
