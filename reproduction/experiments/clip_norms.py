"""Where Adap DP-FL's clip norms go, client by client, in the cells of Table I that it fails in.

ALIDPFL_DATA_DIR=... python -m reproduction.experiments.clip_norms; writes results/clip_norms.jsonl. Minutes.
"""

import json
from pathlib import Path

from reproduction.grid import cells, load_grid

from alidpfl.runs import Config
from alidpfl.runs.prepare import prepare, simulation_data

OUT = Path(__file__).parents[1] / "results" / "clip_norms.jsonl"
ROUNDS = 40
SEEDS = 3


def looked_at(config: Config) -> list[dict]:
    """Of every client, the records that it holds and the largest C of its first rounds."""
    prepared = prepare(config)
    held = simulation_data(config, prepared.dataset).clients
    largest = [0.0] * len(held)
    with prepared.federation as federation:
        for _ in range(ROUNDS):
            for plan in federation.training.next_plans() or ():
                largest[plan.client] = max(largest[plan.client], plan.clip_norm)
            federation.step()
    return [{"records": len(rows), "largest_clip_norm": norm} for rows, norm in zip(held, largest, strict=True)]


def main() -> None:
    """All seeds of MNIST at R_s = R_c/2."""
    chosen = {"datasets": ["mnist"], "methods": ["adap_dpfl"], "columns": ["R_s = R_c/2"]}
    lines = []
    for cell in cells(load_grid("small"), seeds=SEEDS, **chosen):
        lines.append(json.dumps({"seed": cell.seed, "rounds": ROUNDS, "clients": looked_at(cell.config)}))
        print(lines[-1])
    OUT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
