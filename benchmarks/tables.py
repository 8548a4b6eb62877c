"""Measure tables: how fast files are read, and which clip norm and step size suit. `python -m benchmarks.tables`.

Speed: a CSV and a Parquet file of a million rows and 12 columns, each in a process of its own on one core. CPU seconds
count, since other programs may keep the core busy. Memory is the peak of the process above what it has after imports.
The figures go to benchmarks/results/tables.json and docs/reference/benchmarks.md.

Defaults: two made-up tables over four clients at ε = 2, the mean over seeds of the loss and of the area under the ROC
curve on held-out rows, against softmax regression on all rows without noise.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import nn

from alidpfl.config import Config, load_config
from alidpfl.data import Dataset, load
from alidpfl.runs import execute, load_model
from alidpfl.runs.auto_plan import planned
from alidpfl.runs.tables import gradient_bound, smoothness_bound, with_table_defaults
from alidpfl.tables import parse_schema, read_schema
from alidpfl.tables.encode import Encoder
from benchmarks.report import markdown, memory_status, write_section

_RESULTS = Path(__file__).parent / "results" / "tables.json"
_CLIENTS = (1500, 2500, 1000, 1800)
_TARGET = {"column": "died", "kind": "class", "values": ["no", "yes"]}
_NUMBER = {"kind": "number", "low": 0, "high": 100}
_COLUMNS: dict[str, Any] = {
    **{f"number{i}": _NUMBER for i in range(6)},
    "size": {"kind": "number", "low": 0.1, "high": 1000, "scale": "log"},
    "sex": {"kind": "category", "values": ["f", "m"]},
    "ward": {"kind": "category", "values": list("abcde")},
    "flag0": {"kind": "flag"},
    "flag1": {"kind": "flag"},
}


def write_many(path: Path, rows: int) -> None:
    """Write a CSV file and a Parquet file of 12 columns, a tenth of one missing."""
    random = np.random.default_rng(0)
    columns: dict[str, Any] = {f"number{i}": random.uniform(-1, 101, rows).round(2) for i in range(6)}
    columns |= {"size": np.exp(random.normal(size=rows)).round(3), "sex": random.choice(["f", "m", "x"], rows)}
    columns |= {"ward": random.choice(list("abcde"), rows), "flag0": random.choice(["yes", "no"], rows)}
    columns |= {"flag1": random.choice([0, 1], rows), "died": random.choice(["no", "yes"], rows)}
    is_there = pl.Series(random.random(rows) < 0.9)
    frame = pl.DataFrame(columns).with_columns(pl.when(is_there).then(pl.col("number0")).alias("number0"))
    frame.write_csv(path)
    frame.write_parquet(path.with_suffix(".parquet"))


def measure_reading(path: Path, *, is_whole: bool) -> dict[str, Any]:
    """Return the cost of reading and encoding a file; if `is_whole`, also of choosing rows and of the tensors of a run.

    Args:
        path: the file; its schema is beside it.
        is_whole: whether to load the rows as a run does.
    """
    schema = path.with_name("schema.toml")
    encoder = Encoder(read_schema(schema))
    Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark, which importing torch left high
    before, cpu, clock = memory_status("VmRSS"), time.process_time(), time.perf_counter()
    if is_whole:
        dataset = load("table", schema_file=schema, files=[path])
        rows, width = len(dataset.train) + len(dataset.test), dataset.train.inputs.shape[1]
    else:
        inputs = encoder.encode(path, needs_target=True).inputs
        rows, width = inputs.shape
    return {
        "format": path.suffix.removeprefix("."),
        "what": "load for a run" if is_whole else "read and encode",
        "rows": rows,
        "cpu_seconds": time.process_time() - cpu,
        "seconds": time.perf_counter() - clock,
        "peak_bytes": memory_status("VmHWM") - before,
        "vector_bytes": 4 * rows * width,
    }


def measure_speed(rows: int) -> None:
    """Measure both formats, print the figures, and write them into the docs."""
    found, one_core = [], {**os.environ, "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as name:
        write_many(path := Path(name) / "many.csv", rows)
        columns = "\n".join(f"{column} = {_inline(kind)}" for column, kind in _COLUMNS.items())
        path.with_name("schema.toml").write_text(f"target = {_inline(_TARGET)}\n[columns]\n{columns}\n")
        for file in (path, path.with_suffix(".parquet")):
            for whole in ((), ("--whole",)):
                command = [sys.executable, "-m", "benchmarks.tables", "--file", file, *whole]
                done = subprocess.run(command, env=one_core, check=True, capture_output=True, text=True)
                found.append(json.loads(done.stdout))
                print(found[-1], flush=True)
    machine = {"machine": platform.machine(), "python": platform.python_version(), "polars": pl.__version__}
    document = {"measured": datetime.now(UTC).isoformat(timespec="seconds"), **machine, "results": found}
    _RESULTS.write_text(json.dumps(document, indent=2) + "\n")
    lines = [
        (f"{one['what']}, {one['format']}", f"{one['rows']:,}", f"{one['cpu_seconds']:.1f}",
         *(f"{one[key] / 1e6:.0f}" for key in ("peak_bytes", "vector_bytes")))
        for one in found
    ]  # fmt: skip
    headings = ("what", "rows", "processor seconds", "peak memory, MB", "vectors, MB")
    write_section("tables", markdown(headings, lines))


def write_patients(folder: Path) -> dict[str, Any]:
    """Write tables of numbers, a category and a flag."""
    random = np.random.default_rng(0)
    for number, rows in enumerate(_CLIENTS):
        age, sex = random.normal(60 + 4 * number, 15, rows).clip(18, 105).round(), random.choice(["f", "m", "x"], rows)
        creatinine, smoker = np.exp(random.normal(0.1, 0.5, rows)).round(2), random.random(rows) < 0.25
        risk = (
            -5 + 0.05 * age + 1.35 * np.log(creatinine) + 0.4 * (sex == "m") + 0.5 * smoker + random.logistic(size=rows)
        )
        columns = {
            "age": age,
            "creatinine": creatinine,
            "sex": sex,
            "smoker": smoker,
            "weight": random.normal(75, 15, rows),
        }
        pl.DataFrame({**columns, "died": np.where(risk > 0, "yes", "no")}).write_csv(folder / f"{number}.csv")
    return {
        "age": {"kind": "number", "low": 0, "high": 110},
        "creatinine": {"kind": "number", "low": 0.2, "high": 15, "scale": "log"},
        "sex": {"kind": "category", "values": ["f", "m"]},
        "smoker": {"kind": "flag"},
        "weight": {"kind": "number", "low": 30, "high": 200},
    }


def write_rare_flags(folder: Path) -> dict[str, Any]:
    """Write tables of ten flags, mostly "no", and an age: rows that nearly agree make the curvature large."""
    random = np.random.default_rng(0)
    weights = random.normal(size=10) * 1.5
    for number, rows in enumerate(_CLIENTS):
        flags = random.random((rows, 10)) < np.linspace(0.02, 0.3, 10)
        age = random.normal(60, 15, rows).clip(18, 105).round()
        risk = -1 + flags @ weights + 0.03 * (age - 60) + random.logistic(size=rows)
        columns = {f"flag{i}": flags[:, i] for i in range(10)} | {"age": age, "died": np.where(risk > 0, "yes", "no")}
        pl.DataFrame(columns).write_csv(folder / f"{number}.csv")
    return {"age": {"kind": "number", "low": 0, "high": 110}, **{f"flag{i}": {"kind": "flag"} for i in range(10)}}


def compare_defaults(seeds: int) -> None:
    """Print loss and area under the curve by clip norm and step size."""
    for write in (write_patients, write_rare_flags):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            columns = write(folder)
            schema = parse_schema({"target": _TARGET, "columns": columns, "held_out": 0.2})
            tables = "\n".join(f"{key} = {_inline(column)}" for key, column in columns.items())
            (folder / "schema.toml").write_text(f"held_out = 0.2\ntarget = {_inline(_TARGET)}\n[columns]\n{tables}\n")
            own = [f"data.schema_file={folder / 'schema.toml'}", f"data.data_dir={folder}", "data.name=table"]
            config = with_table_defaults(load_config(overrides=[*own, "run.seed=0", "run.processes=1"]))
            base, _ = planned(config, held_out_key=None)
            pooled = np.mean([_pooled(_dataset(folder, seed)) for seed in range(seeds)], axis=0)
            print(f"{write.__name__}: pooled, without noise: loss {pooled[0]:.3f}, AUC {pooled[1]:.3f}", flush=True)
            for clip in (1.0, gradient_bound(schema)):
                for factor in (1, 2, 4, 8, 16):
                    method = {"clip_norm": clip, "learning_rate": factor / smoothness_bound(schema)}
                    found = np.mean([_trained(base, method, seed) for seed in range(seeds)], axis=0)
                    print(f"  C = {clip:.2f}, η = {factor:>2}/L: loss {found[0]:.3f}, AUC {found[1]:.3f}", flush=True)


def _inline(values: dict[str, Any]) -> str:
    return "{ " + ", ".join(f"{key} = {json.dumps(value)}" for key, value in values.items()) + " }"


def _trained(base: Config, method: dict[str, float], seed: int) -> tuple[float, float]:
    """Train with these settings; every seed holds out other rows."""
    config = base.model_copy(
        update={"method": base.method.model_copy(update=method), "run": base.run.model_copy(update={"seed": seed})}
    )
    with tempfile.TemporaryDirectory() as name:
        execute(config, f"{name}/run")
        return _scored(load_model(f"{name}/run"), _dataset(Path(str(config.data.data_dir)), seed))


def _dataset(folder: Path, seed: int) -> Dataset:
    return load("table", schema_file=folder / "schema.toml", data_dir=folder, seed=seed)


def _pooled(dataset: Dataset) -> tuple[float, float]:
    """Train without noise on all clients' rows together."""
    model, train = nn.Linear(dataset.input_shape[0], 2), dataset.train
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=500)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(train.inputs), train.targets)
        loss.backward()
        return loss

    optimizer.step(closure)
    return _scored(model, dataset)


@torch.no_grad()
def _scored(model: nn.Module, dataset: Dataset) -> tuple[float, float]:
    """Return the loss and the area under the ROC curve on the held-out rows."""
    scores, is_positive = model(dataset.test.inputs), dataset.test.targets == 1
    ranks = (scores[:, 1] - scores[:, 0]).argsort().argsort().double() + 1
    positives, negatives = int(is_positive.sum()), int((~is_positive).sum())
    area = float(ranks[is_positive].sum() - positives * (positives + 1) / 2) / (positives * negatives)
    return float(nn.functional.cross_entropy(scores, dataset.test.targets)), area


def main() -> None:
    """Measure what is asked for, on one core."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=("speed", "defaults"))
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--whole", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.file is not None:
        print(json.dumps(measure_reading(options.file, is_whole=options.whole)))
        return
    if options.only != "defaults":
        measure_speed(options.rows)
    if options.only != "speed":
        compare_defaults(options.seeds)


if __name__ == "__main__":
    main()
