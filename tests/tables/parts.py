"""Schemas and tables that the tests share."""

import numpy as np
import polars as pl

from alidpfl.tables import parse_schema

COLUMNS = {
    "age": {"kind": "number", "low": 0, "high": 110},
    "creatinine": {"kind": "number", "low": 0.2, "high": 15, "scale": "log"},
    "sex": {"kind": "category", "values": ["f", "m"]},
    "smoker": {"kind": "flag"},
}
TARGET = {"column": "died", "kind": "class", "values": ["no", "yes"]}
HEADER = ["age", "creatinine", "sex", "smoker", "died"]
TOML = """\
held_out = 0.2
target = { column = "died", kind = "class", values = ["no", "yes"] }

[columns]
age = { kind = "number", low = 0, high = 110 }
creatinine = { kind = "number", low = 0.2, high = 15, scale = "log" }
sex = { kind = "category", values = ["f", "m"] }
smoker = { kind = "flag" }
"""


def schema(**changes):
    return parse_schema({"target": TARGET, "columns": COLUMNS, **changes})


def table(rows=200, seed=0):
    """Made-up patients: older ones and smokers die more often."""
    random = np.random.default_rng(seed)
    age, smoker = random.integers(18, 100, rows), random.random(rows) < 0.3
    creatinine = np.exp(random.normal(size=rows)).round(2)
    risk = 0.08 * (age - 60) + 2.0 * smoker + random.logistic(size=rows)
    found = pl.DataFrame(
        {
            "age": age,
            "creatinine": creatinine,
            "sex": random.choice(["f", "m", "x"], rows),
            "smoker": np.where(smoker, "yes", "no"),
            "died": np.where(risk > 0, "yes", "no"),
        }
    )
    is_gone = pl.Series(random.random(rows) < 0.1)
    return found.with_columns(pl.when(~is_gone).then(pl.col("creatinine")).alias("creatinine"))


def hospitals(folder, sizes=(150, 250), seed=0):
    """Write a schema and one CSV file for each client."""
    (folder / "schema.toml").write_text(TOML)
    files = []
    for number, size in enumerate(sizes):
        files.append(folder / f"{['north', 'south', 'east', 'west'][number]}.csv")
        table(size, seed + number).write_csv(files[-1])
    return files
