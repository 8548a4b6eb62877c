"""Which rule for τ is best? Paired seeds: every policy on the same splits, first weights, batches and noise.

    python experiments/compare_policies.py experiments/policies/synthetic.toml results/policies/synthetic.jsonl

The file is a configuration with one more table, [compare]: `seeds`, and `arms`, a table of settings for each policy.
Results are appended as they come and what is there already is skipped.
"""

import json
import sys
import tempfile
import tomllib
from pathlib import Path

from alidpfl.runs import execute, load_config


def main(compare_file: str, results_file: str) -> None:
    """Run every (seed, arm) that has no result yet; seeds outermost, so that a stopped comparison is still paired."""
    settings = tomllib.loads(Path(compare_file).read_text())
    compare = settings.pop("compare")
    results = Path(results_file)
    lines = results.read_text().splitlines() if results.exists() else []
    done = {(line["seed"], line["arm"]) for line in map(json.loads, lines)}
    common = [f"{s}.{key}={json.dumps(value)}" for s, table in settings.items() for key, value in table.items()]
    for seed in compare["seeds"]:
        for arm, changes in compare["arms"].items():
            if (seed, arm) in done:
                continue
            overrides = [*common, *(f"{k}={json.dumps(v)}" for k, v in changes.items()), f"run.seed={seed}"]
            with tempfile.TemporaryDirectory() as folder:
                outcome = execute(load_config(overrides=overrides), Path(folder) / "run")
                taken = [json.loads(line)["local_steps"] for line in (Path(folder) / "run/metrics.jsonl").open()]
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
            with results.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(line, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
