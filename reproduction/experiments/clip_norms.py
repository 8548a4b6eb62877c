"""Record the clip norms of Adap DP-FL by client, in a cell of Table I in which it fails. Takes minutes.

    ALIDPFL_DATA_DIR=... python -m reproduction.experiments.clip_norms

It writes reproduction/results/clip_norms.jsonl.
"""

import json
from typing import Any

from alidpfl.runs import Config
from alidpfl.runs.prepare import prepare, simulation_data
from reproduction.grid import cells, load_grid
from reproduction.results import RESULTS

OUT = RESULTS / "clip_norms.jsonl"
ROUNDS = 40
SEEDS = 3


def clients(config: Config) -> list[dict[str, Any]]:
    """Return for every client its number of records and the largest C of its first rounds."""
    prepared = prepare(config)
    held = simulation_data(config, prepared.dataset).clients
    largest = [0.0] * len(held)
    with prepared.federation as federation:
        for _ in range(ROUNDS):
            for plan in federation.next_plans() or ():
                largest[plan.client] = max(largest[plan.client], plan.clip_norm)
            federation.step()
    return [{"records": len(rows), "largest_clip_norm": norm} for rows, norm in zip(held, largest, strict=True)]


def main() -> None:
    """Record all seeds of MNIST at R_s = R_c/2."""
    lines = []
    listed = cells(load_grid("small"), seeds=SEEDS, datasets=["mnist"], methods=["adap_dpfl"], columns=["R_s = R_c/2"])
    for cell in listed:
        lines.append(json.dumps({"seed": cell.seed, "rounds": ROUNDS, "clients": clients(cell.config)}))
        print(lines[-1])
    OUT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
