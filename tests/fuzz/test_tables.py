"""Damaged tables and schemas are read, or refused with one line that quotes no value."""

import io

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from alidpfl.tables import read_schema
from alidpfl.tables.encode import Encoder
from tests.tables.parts import TOML, schema, table

from .damage import damaged
from .harness import examples, fine_or_refused

MARK = "PATIENT731"


def _csv() -> bytes:
    made = table(12).with_columns(sex=pl.lit(MARK))
    return made.write_csv().encode()


def _parquet(compression: str) -> bytes:
    file = io.BytesIO()
    table(12).with_columns(sex=pl.lit(MARK)).write_parquet(file, compression=compression)
    return file.getvalue()


def _read(path) -> None:
    fine_or_refused(lambda: Encoder(schema()).encode(path, needs_target=True), never=(MARK[:8], MARK[1:9]))


@examples(60)
@given(data=st.data())
def test_a_damaged_csv_file(tmp_path, data):
    (tmp_path / "north.csv").write_bytes(data.draw(damaged(_csv())))
    _read(tmp_path / "north.csv")


@pytest.mark.parametrize("compression", ["uncompressed", "zstd"])
@examples(60)
@given(data=st.data())
def test_a_damaged_parquet_file(tmp_path, compression, data):
    (tmp_path / "north.parquet").write_bytes(data.draw(damaged(_parquet(compression))))
    _read(tmp_path / "north.parquet")


@examples(60)
@given(data=st.data())
def test_a_damaged_schema(tmp_path, data):
    (tmp_path / "schema.toml").write_bytes(data.draw(damaged(TOML.encode())))
    fine_or_refused(lambda: read_schema(tmp_path / "schema.toml"))
