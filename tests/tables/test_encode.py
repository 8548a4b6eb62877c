"""Encoding is a function of one row: bounded, of a fixed width, and the same from every kind of file."""

import string

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from alidpfl.errors import DataError
from alidpfl.tables import parse_schema
from alidpfl.tables.encode import Encoder
from tests.tables.parts import COLUMNS, HEADER, TARGET, schema, table

QUICK = settings(max_examples=60, deadline=None)

missing = st.none() | st.sampled_from(["", "NA"])
rows = st.fixed_dictionaries(
    {
        "age": missing | st.floats(-1e6, 1e6).map(str) | st.integers(-5, 120).map(str),
        "creatinine": missing | st.floats(0, 1e3).map(str),
        "sex": missing | st.sampled_from(["f", "m", "x", " f", "other"]) | st.text(string.ascii_letters),
        "smoker": missing | st.sampled_from(["yes", "No", "TRUE", "false", "1", "0", "1.0", "y"]),
        "died": st.sampled_from(["no", "yes"]),
    }
)
tables = st.lists(rows, min_size=1, max_size=12)


def frame(made):
    return pl.DataFrame(made, schema=dict.fromkeys(made[0], pl.String))


def encode(made, **changes):
    return Encoder(schema(**changes)).encode(frame(made), needs_target=True)


def test_values_by_hand():
    made = [
        {"age": "55", "creatinine": "0.2", "sex": "f", "smoker": "yes", "died": "no"},
        {"age": "-3", "creatinine": "15", "sex": "x", "smoker": "no", "died": "yes"},
        {"age": None, "creatinine": str(np.sqrt(0.2 * 15)), "sex": None, "smoker": None, "died": "no"},
    ]
    found = encode(made)
    assert found.inputs.round(6).tolist() == [
        [0, 0, -1, 0, 1, 0, 0, 0, 1, 0],
        [-1, 0, 1, 0, 0, 0, 1, 0, -1, 0],
        [0, 1, 0, 0, 0, 0, 0, 1, 0, 1],
    ]
    assert (found.targets.tolist(), found.targets.dtype, found.inputs.dtype) == ([0, 1, 0], np.int64, np.float32)
    assert found.counts["age"] == (1, 0, 1)
    assert found.counts["sex"] == (0, 1, 1)


@QUICK
@given(tables)
def test_every_row_is_encoded_alone(made):
    """Together, in reverse, and without any other row: always the same bytes."""
    together = encode(made)
    assert together.inputs.shape == (len(made), schema().width)
    assert encode(made[::-1]).inputs[::-1].tobytes() == together.inputs.tobytes()
    for number, row in enumerate(made):
        alone = encode([row])
        assert alone.inputs.tobytes() == together.inputs[number : number + 1].tobytes()
        assert alone.targets.tolist() == together.targets[number : number + 1].tolist()


@QUICK
@given(st.lists(st.sampled_from(["-999", "0", "5", " 5", "NA", "1e3", ""]), min_size=1, max_size=6))
def test_numbers_that_mean_missing_do_not_depend_on_other_rows(values):
    """One row with a space must not change what -999 means in all the others."""
    encoder = Encoder(schema(missing_values=["-999", "1e3", "NA"]))
    made = [[value, "1.0", "f", "yes", "no"] for value in values]

    def rows(some):
        return encoder.encode(pl.DataFrame(some, schema=HEADER, orient="row")).inputs

    together = rows(made)
    assert all(rows([row]).tobytes() == together[n : n + 1].tobytes() for n, row in enumerate(made))
    assert [bool(row[1]) for row in together] == [v.strip() in ("-999", "1e3", "NA", "") for v in values]


def test_numbers_that_mean_missing_mean_it_in_columns_of_numbers_too():
    encoder = Encoder(schema(missing_values=["-999"]))
    made = pl.DataFrame([[-999, 1.0, "f", "yes", "no"], [5, 1.0, "f", "yes", "no"]], schema=HEADER, orient="row")
    assert encoder.encode(made).inputs[:, 1].tolist() == [1.0, 0.0]


@QUICK
@given(tables, st.data())
def test_neighbouring_tables_differ_in_the_removed_row_alone(made, data):
    gone = data.draw(st.integers(0, len(made) - 1))
    left = made[:gone] + made[gone + 1 :]
    if left:
        assert encode(left).inputs.tobytes() == np.delete(encode(made).inputs, gone, axis=0).tobytes()


@QUICK
@given(tables)
def test_vectors_are_bounded(made):
    """Clamped values, and a norm that the public bound holds for: the clip norm of runs depends on it."""
    inputs = encode(made).inputs.astype(np.float64)
    assert np.isfinite(inputs).all()
    assert (np.abs(inputs) <= 1).all()
    assert (np.sqrt((inputs**2).sum(1)) <= schema().norm_bound).all()


@QUICK
@given(tables, st.permutations([*COLUMNS, "died"]))
def test_the_order_of_a_files_columns_does_not_matter(made, order):
    encoder = Encoder(schema())
    assert encoder.encode(frame(made).select(order)).inputs.tobytes() == encoder.encode(frame(made)).inputs.tobytes()


@QUICK
@given(tables)
def test_decoded_rows_encode_to_the_same_vectors(made):
    encoder = Encoder(schema())
    inputs = encoder.encode(frame(made)).inputs
    again = encoder.encode(encoder.decode(inputs)).inputs
    np.testing.assert_allclose(again, inputs, atol=1e-6)
    assert encoder.encode(encoder.decode(again)).counts["age"].clamped == 0


@QUICK
@given(values=st.lists(st.none() | st.floats(allow_infinity=False), min_size=1, max_size=20))
def test_csv_and_parquet_give_the_same_bytes(tmp_path_factory, values):
    folder, count = tmp_path_factory.mktemp("files"), len(values)
    made = table(count).with_columns(
        pl.Series("age", values, dtype=pl.Float64),
        pl.Series("sex", [None if value is None else float(number % 3) for number, value in enumerate(values)]),
        pl.Series("smoker", [number % 2 == 0 for number in range(count)]),
    )
    made.write_csv(folder / "a.csv")
    made.write_parquet(folder / "a.parquet")
    columns = {**COLUMNS, "sex": {"kind": "category", "values": [1, 2]}}
    encoder = Encoder(schema(columns=columns))
    one, other = (encoder.encode(folder / name, needs_target=True) for name in ("a.csv", "a.parquet"))
    assert one.inputs.tobytes() == other.inputs.tobytes()
    assert one.targets.tobytes() == other.targets.tobytes()
    assert one.counts == other.counts


def test_a_number_as_target():
    agreed = schema(target={"kind": "number", "column": "days", "low": 0, "high": 30})
    encoder, made = Encoder(agreed), table(4).drop("died").with_columns(pl.Series("days", [0, 15, 30, 99]))
    found = encoder.encode(made, needs_target=True)
    assert (found.targets.tolist(), found.targets.dtype) == ([-1, 0, 1, 1], np.float32)
    assert encoder.decode_numbers(found.targets).tolist() == [0, 15, 30, 30]
    assert encoder.classes == ()
    with pytest.raises(DataError, match="class"):
        Encoder(schema()).decode_numbers(found.targets)
    with pytest.raises(DataError, match="'days', row 2 "):
        encoder.encode(made.with_columns(pl.Series("days", [0, None, 1, None])))


def test_labels_as_target():
    agreed = schema(target={"kind": "labels", "columns": ["stroke", "sepsis"]})
    labels = {"stroke": ["yes", "no", "1"], "sepsis": [0, 0, 1]}
    found = Encoder(agreed).encode(table(3).drop("died").with_columns(**{k: pl.Series(v) for k, v in labels.items()}))
    assert (found.targets.tolist(), found.targets.dtype) == ([[1, 0], [0, 0], [1, 1]], np.float32)


def test_texts_that_mean_missing_unless_they_are_declared():
    """NA is Namibia in one column and missing in another."""
    land = {"kind": "category", "values": ["NA", "ZA"]}
    encoder = Encoder(parse_schema({"target": TARGET, "columns": {"land": land, "age": COLUMNS["age"]}}))
    found = encoder.encode({"land": ["NA", "null"], "age": ["NA", "7"]})
    assert found.inputs[:, encoder.features.index("land=NA")].tolist() == [1, 0]
    assert found.inputs[:, encoder.features.index("land missing")].tolist() == [0, 1]
    assert found.inputs[:, encoder.features.index("age missing")].tolist() == [1, 0]


def test_persons_are_kept_and_values_are_not_shown():
    agreed = schema(person="patient")
    found = Encoder(agreed).encode(table(3).with_columns(patient=pl.Series([7, 7, 8])), needs_target=True)
    assert found.persons == ("7", "7", "8")
    assert repr(found) == "Encoded(3 rows of 10 values)"
