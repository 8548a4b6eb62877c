"""Measure tables: how fast files are read, and which clip norm and step size suit. `python -m benchmarks.tables`.

Speed: a CSV and a Parquet file of a million rows and 12 columns, read and encoded on one core. CPU seconds count, since
other programs may keep the core busy. Defaults: two made-up tables over four clients at ε = 2, the mean over seeds of
the loss and of the area under the ROC curve on held-out rows, against softmax regression on all rows without noise.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
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
from alidpfl.tables import parse_schema
from alidpfl.tables.encode import Encoder
from alidpfl.tables.held_out import held_out_key, held_out_rows

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


def measure_reading(path: Path) -> None:
    """Print CPU seconds and seconds of reading, and of choosing the rows to hold out."""
    encoder = Encoder(parse_schema({"target": _TARGET, "columns": _COLUMNS}))
    for file in (path, path.with_suffix(".parquet")):
        cpu, clock = time.process_time(), time.perf_counter()
        rows = encoder.encode(file, needs_target=True)
        _print(f"read and encode {file.suffix}", len(rows), cpu, clock)
    cpu, clock = time.process_time(), time.perf_counter()
    held_out_rows(rows, 0.1, held_out_key(0))
    _print("choose rows to hold out", len(rows), cpu, clock)


def _print(what: str, rows: int, cpu: float, clock: float) -> None:
    spent, passed = time.process_time() - cpu, time.perf_counter() - clock
    print(f"{what:<28}{rows:>10,} rows {spent:6.2f} CPU seconds {passed:6.2f} seconds", flush=True)


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
            base, _ = planned(with_table_defaults(load_config(overrides=[*own, "run.seed=0", "run.processes=1"])))
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
    options = parser.parse_args()
    if options.file is not None:
        measure_reading(options.file)
        return
    if options.only != "defaults":
        with tempfile.TemporaryDirectory() as name:
            write_many(path := Path(name) / "many.csv", options.rows)
            one_core = {**os.environ, "POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1"}
            subprocess.run([sys.executable, "-m", "benchmarks.tables", "--file", path], env=one_core, check=True)
    if options.only != "speed":
        compare_defaults(options.seeds)


if __name__ == "__main__":
    main()
