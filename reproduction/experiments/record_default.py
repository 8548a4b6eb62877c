"""Run the embedded default and keep what came of it: `python reproduction/experiments/record_default.py`.

The README quotes this result; tests hold the two together, and the record to the defaults that it was made with.
"""

import json
from dataclasses import asdict
from pathlib import Path

import stored

from alidpfl.runs import Config

RECORD = Path(__file__).parent.parent / "reproduction/results/default.json"


def main() -> None:
    """Half a minute on two idle cores."""
    config = Config()
    with stored.run(config) as (outcome, _):
        told = {key: value for key, value in asdict(outcome).items() if key not in ("out", "seconds", "client_epsilon")}
    RECORD.write_text(json.dumps({"config": config.to_dict(), "outcome": told}, indent=2) + "\n")


if __name__ == "__main__":
    main()
