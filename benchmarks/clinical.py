"""Compare private training on two real tables with a model on all rows without noise: `make bench-clinical`.

Each table is trained by the command that docs/tutorials/clinical.md shows, with nothing chosen by hand but ε, δ and the
rounds. The other model is linear too, trained on the rows of all owners together. Both are measured on the same
held-out rows. A seed decides which rows are held out, and all noise.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from alidpfl.data import Dataset, load
from alidpfl.dpsgd import make_loss
from alidpfl.metrics import measure
from alidpfl.runs.tables import default_clip_norm, gradient_bound
from alidpfl.tables import read_schema
from alidpfl.types import loss_for
from benchmarks.report import markdown, write_section
from examples.clinical.write_tables import write

CALIBRATION = Path(__file__).parent / "results" / "calibration.json"
RESULTS = Path(__file__).parent / "results" / "clinical.json"
SCHEMAS = Path(__file__).parent.parent / "examples" / "clinical"
TABLES = {
    "flchain": ("flchain", "auc", "who dies during the study"),
    "visits": ("randhie", "r2", "how often a person sees a doctor"),
    "care": ("randhie", "auc", "whether a person uses each of three kinds of care"),
}
"""For each schema: the folder of its files, the metric of its bar, and what is predicted."""
BAR = 0.01


def trained(schema: str, files: list[Path], seed: int, out: Path, *more: str) -> dict[str, Any]:
    """Run the command of the tutorial with a seed, and more options. Return its summary."""
    command = ["run", "--schema", SCHEMAS / f"{schema}.toml", "--data", *files]
    command += ["--epsilon", "2", "--delta", "1e-5", "--rounds", "50", "--set", f"run.seed={seed}", "--out", out, *more]
    found = subprocess.run(
        [sys.executable, "-m", "alidpfl", *map(str, command)], capture_output=True, text=True, check=False
    )
    if found.returncode != 0:
        sys.exit(found.stderr)
    return dict(json.loads((out / "summary.json").read_text()))


def pooled(dataset: Dataset) -> dict[str, float]:
    """Return the metrics of a linear model that minimises the mean loss over the rows of all owners."""
    train, loss = dataset.train, make_loss(loss_for(dataset.kind))
    inputs, targets = train.inputs.double(), _double(train.targets)
    model = nn.Linear(inputs.shape[1], dataset.num_outputs, dtype=torch.float64)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2000, history_size=50, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        mean = loss(model(inputs), targets).mean()
        mean.backward()
        return mean

    optimizer.step(closure)
    with torch.no_grad():
        outputs = model(dataset.test.inputs.double())
    return dict(measure(dataset.kind, outputs.numpy(), dataset.test.targets.numpy()).values)


def _double(targets: Tensor) -> Tensor:
    return targets.double() if targets.is_floating_point() else targets


def compare(schema: str, folder: Path, seed: int) -> dict[str, Any]:
    """Train both models on one table. Return the metrics of both, and the private model's ε."""
    files = sorted((folder / TABLES[schema][0]).glob("*.csv"))
    with tempfile.TemporaryDirectory() as out:
        summary = trained(schema, files, seed, Path(out) / "run")
    dataset = load("table", schema_file=SCHEMAS / f"{schema}.toml", files=files, seed=seed)
    return {
        "table": schema,
        "seed": seed,
        "epsilon": summary["epsilon"],
        "private": summary["metrics"],
        "pooled": pooled(dataset),
    }


def calibrations(folder: Path) -> list[dict[str, Any]]:
    """Return the calibration curves of `flchain` at C = 1, at the default and at the public bound on gradients."""
    schema, files, found = SCHEMAS / "flchain.toml", sorted((folder / "flchain").glob("*.csv")), []
    table = read_schema(schema)
    for clip_norm in (1.0, default_clip_norm(table, "linear"), gradient_bound(table)):
        with tempfile.TemporaryDirectory() as out:
            summary = trained("flchain", files, 0, Path(out) / "run", "--set", f"method.clip_norm={clip_norm}")
        kept = {key: summary["metrics"][key] for key in ("log_loss", "calibration", "auc")}
        found.append({"clip_norm": clip_norm, "metrics": kept, "curve": summary["calibration"]})
    return found


def differences(results: list[dict[str, Any]]) -> list[float]:
    """Return by how much each private model is better than the pooled one in the metric of its bar."""
    metrics = [TABLES[row["table"]][1] for row in results]
    return [row["private"][metric] - row["pooled"][metric] for row, metric in zip(results, metrics, strict=True)]


def report(results: list[dict[str, Any]]) -> None:
    """Write the table of results into docs/reference/benchmarks.md."""
    lines = []
    for schema, (_, metric, what) in TABLES.items():
        rows = [row for row in results if row["table"] == schema]
        for row in rows:
            ours, theirs = row["private"][metric], row["pooled"][metric]
            cells = (f"{ours:.4f}", f"{theirs:.4f}", f"{ours - theirs:+.4f}")
            lines.append((f"{schema}: {what}", metric, str(row["seed"]), f"{row['epsilon']:.4f}", *cells))
    headings = ("table", "metric", "seed", "ε", "private", "pooled", "difference")
    told = ""
    for schema in TABLES:
        found = differences([row for row in results if row["table"] == schema])
        mean, near = sum(found) / len(found), sum(difference >= -BAR for difference in found)
        told += f"- `{schema}`: {mean:+.4f} on average, and {near} of {len(found)} runs within {BAR}\n"
    write_section("clinical", f"{markdown(headings, lines)}\n\n{told}")


def main() -> None:
    """Measure all tables and seeds, print a line each, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--tables", nargs="+", choices=list(TABLES), default=list(TABLES))
    parser.add_argument("--dry", action="store_true", help="print only; for development, on seeds from 100")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as name:
        write(Path(name))
        for schema in options.tables:
            for seed in options.seeds:
                results.append(row := compare(schema, Path(name), seed))
                metric = TABLES[schema][1]
                ours, theirs = row["private"][metric], row["pooled"][metric]
                told = f"{schema} {metric} seed {seed}: private {ours:.4f}, pooled {theirs:.4f}, {ours - theirs:+.4f}"
                print(told, flush=True)
        curves = [] if options.dry else calibrations(Path(name))
    if not options.dry:
        CALIBRATION.write_text(json.dumps(curves, indent=1) + "\n")
        RESULTS.write_text(json.dumps(results, indent=1) + "\n")
        report(results)


if __name__ == "__main__":
    main()
