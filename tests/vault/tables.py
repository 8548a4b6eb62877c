"""Vaults of small tables for the tests, with a known key of the held-out rows."""

from pathlib import Path

from alidpfl.tables import parse_schema
from alidpfl.tables.encode import Encoder
from alidpfl.tables.held_out import held_out_rows
from alidpfl.vault.enrolment import enrol
from alidpfl.vault.folder import VaultFolder
from alidpfl.vault.policy import make_policy
from alidpfl.vault.sources import TableSource
from tests.tables.parts import COLUMNS, TARGET, TARGETS

from .parts import policy_values

KEY = bytes(range(32))
SHARE = 0.25


def schema(**changes):
    return parse_schema({"target": TARGET, "columns": COLUMNS, "held_out": SHARE, **changes})


def held_out(rows, key=KEY, kind="class"):
    """Return which rows the key holds out."""
    return held_out_rows(Encoder(schema(target=TARGETS[kind])).encode(rows, needs_target=True), SHARE, key)


def table_source(path: Path, **changes) -> TableSource:
    return TableSource(path=str(path), canonical_schema=schema(**changes).canonical(), held_out_key=KEY.hex())


def table_vault(parent: Path, rows, kind="class", **changes) -> VaultFolder:
    """Write the rows as CSV and enrol them. Changes are those of `policy_values`."""
    parent.mkdir(parents=True, exist_ok=True)
    rows.write_csv(parent / "rows.csv")
    source = table_source(parent / "rows.csv", target=TARGETS[kind])
    enrol(parent / "vault", source, make_policy(policy_values(**changes), "test"))
    return VaultFolder(path=parent / "vault")
