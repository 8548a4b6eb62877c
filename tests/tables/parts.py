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

TARGETS = {
    "class": TARGET,
    "number": {"column": "days", "kind": "number", "low": 0, "high": 30},
    "labels": {"columns": ["sepsis", "stroke", "pain"], "kind": "labels"},
}
_INLINE = {
    "class": 'column = "died", kind = "class", values = ["no", "yes"]',
    "number": 'column = "days", kind = "number", low = 0, high = 30',
    "labels": 'kind = "labels", columns = ["sepsis", "stroke", "pain"]',
}


def toml(kind="class"):
    """The text of a schema with a target of this kind."""
    return TOML.replace(_INLINE["class"], _INLINE[kind])


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


def task_table(kind, rows=200, seed=0):
    """Made-up patients with a target of this kind. Some stays are longer than the schema's bound."""
    found = table(rows, seed)
    if kind == "class":
        return found
    random = np.random.default_rng(1000 + seed)
    age, smoker = found["age"].to_numpy(), (found["smoker"] == "yes").to_numpy()
    found = found.drop("died")
    if kind == "number":
        days = 2 + 0.3 * (age - 18) + 8.0 * smoker + random.normal(size=rows)
        return found.with_columns(days=pl.Series(days.clip(0).round(1)))
    risks = {"sepsis": 0.1 * (age - 60), "stroke": 4.0 * smoker - 2, "pain": np.zeros(rows)}
    flags = {name: risk + random.logistic(size=rows) > 0 for name, risk in risks.items()}
    return found.with_columns(**{name: pl.Series(np.where(flag, "yes", "no")) for name, flag in flags.items()})


def hospitals(folder, sizes=(150, 250), seed=0, kind="class", has_persons=False):
    """Write a schema and one CSV file for each client. With persons, a column `patient` names the person of each row.

    A client then has half as many persons as rows, or a few less, and the rows of one do not lie together.
    """
    (folder / "schema.toml").write_text('person = "patient"\n' * has_persons + toml(kind))
    files = []
    for number, size in enumerate(sizes):
        files.append(folder / f"{['north', 'south', 'east', 'west'][number]}.csv")
        rows = task_table(kind, size, seed + number)
        if has_persons:
            names = np.random.default_rng(seed + number).integers(size // 2, size=size)
            rows = rows.with_columns(patient=pl.Series([f"p{name}" for name in names]))
        rows.write_csv(files[-1])
    return files
