"""Rows are held out by a keyed hash: a row's part depends on that row, or its person, and the key alone."""

import numpy as np
import polars as pl
import pytest

from alidpfl.tables.encode import Encoder
from alidpfl.tables.held_out import held_out_key, held_out_rows
from tests.tables.parts import schema, table

KEY = held_out_key(0)


def parts(made, agreed=None, share=0.3, key=KEY):
    return held_out_rows(Encoder(agreed or schema()).encode(made, needs_target=True), share, key)


def test_a_rows_part_does_not_depend_on_other_rows():
    """Each of 100 rows is removed in turn, and the rows are reversed: no other row moves."""
    made = table(100)
    together = parts(made)
    assert 0 < together.sum() < 100
    assert (parts(made.reverse())[::-1] == together).all()
    for gone in range(100):
        left = made.with_row_index().filter(pl.col("index") != gone).drop("index")
        assert (parts(left) == np.delete(together, gone)).all()


def test_all_rows_of_a_person_are_in_one_part():
    persons = [number % 40 for number in range(200)]
    found = parts(table(200).with_columns(patient=pl.Series(persons)), schema(person="patient"))
    assert 0 < found.sum() < 200
    assert len({(person, bool(part)) for person, part in zip(persons, found, strict=True)}) == 40


def test_the_key_decides():
    made = table(200)
    assert (parts(made) == parts(made, key=held_out_key(0))).all()
    assert (parts(made) != parts(made, key=held_out_key(1))).any()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_the_share_is_held_out(share):
    """Within six standard deviations: a false alarm has probability below 1e-8."""
    count = 20_000
    held = parts(table(count), share=share).mean()
    duplicates = 1.5  # equal rows stay together, which widens the spread a little
    assert abs(held - share) <= 6 * duplicates * np.sqrt(share * (1 - share) / count)


def test_the_target_counts_too():
    """Rows that differ in their target alone are different rows."""
    made = table(500)
    other = made.with_columns(died=pl.lit("yes"))
    assert (parts(made) != parts(other)).any()
