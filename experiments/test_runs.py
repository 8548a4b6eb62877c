"""Run chosen settings on the test set: `python experiments/test_runs.py CONFIG.toml RESULTS.jsonl SEED...`.

Only for settings that were chosen on held-out training data. What is there already is skipped.
"""

import json
import sys
import tempfile
from pathlib import Path

from alidpfl.runs import execute, load_config

PAPER = {"mnist": 97.58}  # ALI-DPFL at epsilon = 2, R_s = R_c/2, Dir(0.05): Table I


def main(config_file: str, results_file: str, *seeds: str) -> None:
    """One line for each seed."""
    results, name = Path(results_file), Path(config_file).name
    lines = results.read_text().splitlines() if results.exists() else []
    done = {(line["config"], line["seed"]) for line in map(json.loads, lines)}
    for seed in map(int, seeds):
        if (name, seed) in done:
            continue
        config = load_config(config_file, [f"run.seed={seed}"])
        with tempfile.TemporaryDirectory() as folder:
            outcome = execute(config, Path(folder) / "run")
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
        with results.open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(line, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
