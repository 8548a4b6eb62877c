"""Vaults that protect persons, of .npz files and of small tables."""

from pathlib import Path

import numpy as np
import polars as pl

from alidpfl.vault.enrolment import enrol
from alidpfl.vault.folder import VaultFolder
from alidpfl.vault.policy import make_policy
from alidpfl.vault.sources import FileSource, TableSource
from tests.tables.parts import TARGETS, task_table

from .parts import NUM_CLASSES, NUM_FEATURES, policy_values
from .tables import KEY, schema

MOST = 3
"""k."""
SIZES = (1, 7, 2, 3, 1, 4, 2, 1, 5, 2)
"""Records of each person."""
UNIT = {"data__unit": "person", "data__max_records": MOST}


def made_persons(path: Path, sizes=SIZES, seed: int = 0) -> Path:
    """Write records of persons whose records do not lie together. Persons are named by texts."""
    random = np.random.default_rng(seed)
    persons = random.permutation(np.repeat(np.arange(len(sizes)), sizes))
    classes = random.integers(NUM_CLASSES, size=len(persons))
    inputs = random.normal(size=(len(persons), NUM_FEATURES)) + 2 * np.eye(NUM_FEATURES)[classes]
    np.savez(path, x=inputs.astype(np.float32), y=classes, person=np.array([f"p{number:03}" for number in persons]))
    return path


def person_vault(parent: Path, sizes=SIZES, **changes) -> VaultFolder:
    """Enrol a file of persons. Changes are those of `policy_values`."""
    parent.mkdir(parents=True, exist_ok=True)
    if not (parent / "vault.npz").exists():
        made_persons(parent / "vault.npz", sizes)
    source = FileSource(path=str(parent / "vault.npz"), num_classes=NUM_CLASSES)
    enrol(parent / "vault", source, make_policy(policy_values(**{**UNIT, **changes}), "test"))
    return VaultFolder(path=parent / "vault")


def person_table(kind="class", persons=40, seed=0, most=5) -> pl.DataFrame:
    """A table with a column `patient`: each person has 1 to `most` rows, not side by side."""
    random = np.random.default_rng(500 + seed)
    names = np.repeat(np.arange(persons), random.integers(1, most + 1, persons))
    random.shuffle(names)
    rows = task_table(kind, len(names), seed)
    return rows.with_columns(patient=pl.Series([f"p{number:03}" for number in names]))


def person_table_vault(parent: Path, rows: pl.DataFrame, kind="class", **changes) -> VaultFolder:
    """Write the rows as CSV and enrol them by persons. Changes are those of `policy_values`."""
    parent.mkdir(parents=True, exist_ok=True)
    rows.write_csv(parent / "rows.csv")
    canonical = person_schema(kind).canonical()
    source = TableSource(path=str(parent / "rows.csv"), canonical_schema=canonical, held_out_key=KEY.hex())
    enrol(parent / "vault", source, make_policy(policy_values(**{**UNIT, **changes}), "test"))
    return VaultFolder(path=parent / "vault")


def person_schema(kind="class"):
    return schema(target=TARGETS[kind], person="patient")


def held_out_persons(rows: pl.DataFrame, kind="class") -> set[str]:
    """Return the names that the key holds out."""
    from alidpfl.tables.encode import Encoder
    from alidpfl.tables.held_out import held_out_rows

    own = person_schema(kind)
    mask = held_out_rows(Encoder(own).encode(rows, needs_target=True), own.held_out, KEY)
    return set(rows["patient"].to_numpy()[mask])
