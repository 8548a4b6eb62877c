"""Bad tables give one error with file, column and row, and without the value."""

import gzip

import numpy as np
import pandas
import polars as pl
import pytest

from alidpfl.errors import DataError
from alidpfl.tables.encode import Encoder
from alidpfl.tables.read import file_header, read_table
from tests.tables.parts import HEADER, schema, table

PRIVATE = "4711"
GOOD = "age,creatinine,sex,smoker,died\n40,1.1,f,yes,no\n50,2,m,no,yes\n"


def refused(path, content, agreed=None):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as caught:
        Encoder(agreed or schema()).encode(path, needs_target=True)
    message = str(caught.value)
    assert str(path) in message
    assert PRIVATE not in message
    assert caught.value.__cause__ is None
    return message


@pytest.mark.parametrize(
    ("line", "column"),
    [
        (f"{PRIVATE}x,1,f,yes,no", "age"),
        ('"4711,5",1,f,yes,no', "age"),
        ("4711e999,1,f,yes,no", "age"),
        ("inf,1,f,yes,no", "age"),
        ("-Infinity,1,f,yes,no", "age"),
        ("0x4711,1,f,yes,no", "age"),
        ("true,1,f,yes,no", "age"),
        (f"40,1,f,{PRIVATE},no", "smoker"),
        ("40,1,f,2,no", "smoker"),
        (f"40,1,f,yes,{PRIVATE}", "died"),
        ("40,1,f,yes,", "died"),
        ("40,1,f,yes,NA", "died"),
    ],
)
def test_a_bad_value_is_named_by_column_and_row(tmp_path, line, column):
    message = refused(tmp_path / "north.csv", f"{GOOD}{line}\n60,1,f,no,no\n")
    assert f"{column!r}, row 3:" in message


def test_the_first_bad_row_and_the_number_of_others(tmp_path):
    message = refused(tmp_path / "north.csv", f"{GOOD}a,1,f,no,no\n60,1,f,no,no\nb,1,f,no,no\nc,1,f,no,no\n")
    assert "row 3 (and 2 more rows)" in message


@pytest.mark.parametrize(
    ("changes", "line", "column"),
    [
        ({"missing": "refuse"}, "40,,f,yes,no", "creatinine"),
        ({"missing": "refuse"}, "40, NA ,f,yes,no", "creatinine"),
        ({"missing_values": []}, "40,NaN,f,yes,no", "creatinine"),
        ({"person": "sex"}, "40,1,,yes,no", "sex"),
    ],
)
def test_missing_values_that_the_schema_refuses(tmp_path, changes, line, column):
    agreed = schema(**changes) if "person" not in changes else person_schema()
    assert f"{column!r}, row 3:" in refused(tmp_path / "north.csv", f"{GOOD}{line}\n", agreed)


def person_schema():
    return schema(person="sex", columns={"age": {"kind": "number", "low": 0, "high": 110}}, extra_columns="ignore")


def test_undeclared_categories_are_other_or_refused(tmp_path):
    (tmp_path / "north.csv").write_text(GOOD + "40,1,4711,yes,no\n")
    encoder = Encoder(schema())
    encoded = encoder.encode(tmp_path / "north.csv")
    assert encoded.inputs[2, encoder.features.index("sex=other")] == 1
    strict = schema(columns={"sex": {"kind": "category", "values": ["f", "m"], "other": False}}, extra_columns="ignore")
    assert "'sex', row 3:" in refused(tmp_path / "north.csv", GOOD + "40,1,4711,yes,no\n", strict)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "empty"),
        ("\n", "column"),
        ("age,creatinine,sex,smoker,died\n", "no rows"),
        (GOOD.replace("creatinine", "age"), "two columns 'age'"),
        (GOOD.replace("creatinine", "kreatinin"), r"no column 'creatinine' (it has 'kreatinin')"),
        (GOOD.replace("died", "dead"), "no column 'died' (it has 'dead')"),
        ("note," + GOOD.replace("\n", "\n4711,", 2), "'note'"),
        (GOOD.replace(",", ";"), "';'"),
        (GOOD.replace(",", "\t"), "tab"),
        (GOOD + "40,1,f,yes\n", "row 3 has 4 fields"),
        (GOOD + "40,1,f,yes,no,4711\n", "row 3 has 6 fields"),
        (GOOD + "40,1", "row 3 has 2 fields"),
        (GOOD + "\n40,1,f,yes,no\n", "row 3 has 0 fields"),
        (GOOD + '"4711', "row 3"),
        (GOOD.encode() + b"40,1,\xe9,yes,no\n", "UTF-8"),
        (b"\xe9" + GOOD.encode(), "UTF-8"),
        (GOOD.encode("utf-16"), "UTF-8"),
        (GOOD.replace("\n", "\r"), "CSV"),
        (gzip.compress(GOOD.encode(), mtime=0), "north.csv"),  # every process collects the same
        (b"\0" * 100, "UTF-8"),
    ],
)
def test_files_that_cannot_be_read(tmp_path, content, told):
    assert told in refused(tmp_path / "north.csv", content)


def test_files_that_are_read(tmp_path):
    """A byte order mark, Windows' line ends, quoted line feeds, spaces, spellings of flags and of whole numbers."""
    path = tmp_path / "north.csv"
    path.write_text(GOOD)
    wanted = Encoder(schema()).encode(path, needs_target=True)
    for content in (
        b"\xef\xbb\xbf" + GOOD.encode(),
        GOOD.replace("\n", "\r\n").encode(),
        GOOD.rstrip().encode(),
        b'"age",creatinine,sex,smoker,died\n"40",1.1,"f",TRUE,no\n 50 ,2e0, m,0, yes\n',
        b"age,creatinine,sex,smoker,died\n40.0,+1.1,f,1.0,no\n5e1,2.,m,f,yes\n",
    ):
        path.write_bytes(content)
        found = Encoder(schema()).encode(path, needs_target=True)
        assert found.inputs.tobytes() == wanted.inputs.tobytes()
        assert found.targets.tolist() == [0, 1]
    path.write_text('age,creatinine,sex,smoker,died\n40,1.1,"f\nf",yes,no\n50,2,m,no,yes\n')
    assert Encoder(schema()).encode(path).counts["sex"].other == 1
    path.write_text('died,age,creatinine,sex,smoker\nno,40,1.1,"f""x",yes\nyes,50,2,m,\n')
    assert Encoder(schema()).encode(path).counts["smoker"].missing == 1


def test_missing_files_and_folders(tmp_path):
    for path in (tmp_path / "none.csv", tmp_path, tmp_path / "x.xlsx"):
        with pytest.raises(DataError, match=str(path)):
            read_table(path, schema())
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(DataError, match=r"folder\.csv"):
        read_table(tmp_path / "folder.csv", schema())


def test_damaged_parquet_files(tmp_path):
    path = tmp_path / "north.parquet"
    table().write_parquet(path)
    whole = path.read_bytes()
    assert file_header(path) == HEADER
    for content in (b"", whole[: len(whole) // 2], whole[:-5], b"PAR1", b"junk" * 50, whole[len(whole) // 2 :]):
        assert refused(path, content)


def test_types_of_parquet_that_do_not_fit(tmp_path):
    path = tmp_path / "north.parquet"
    for name, values in (
        ("age", pl.Series([True])),
        ("age", pl.Series([[4711]])),
        ("age", pl.Series([4711]).cast(pl.Date)),
        ("sex", pl.Series([4711]).cast(pl.Datetime)),
        ("sex", pl.Series([b"4711"])),
    ):
        table(1).with_columns(values.alias(name)).write_parquet(path)
        with pytest.raises(DataError, match=rf"north\.parquet: column '{name}'"):
            Encoder(schema()).encode(path)
    table(1).with_columns(pl.Series("age", [float("inf")])).write_parquet(path)
    with pytest.raises(DataError, match="'age', row 1:"):
        Encoder(schema()).encode(path)


def test_rows_in_python():
    """Frames and mappings of the same rows give the same bytes."""
    frame = table(50)
    encoder = Encoder(schema())
    wanted = encoder.encode(frame, needs_target=True)
    columns = frame.to_dict(as_series=False)
    nan = [np.nan if value is None else value for value in columns["creatinine"]]
    for rows in (
        frame.lazy(),
        columns,
        frame.to_dicts(),
        pandas.DataFrame(columns),
        pandas.DataFrame({**columns, "creatinine": nan}, index=range(7, 57)),
        pandas.DataFrame(columns).convert_dtypes(),
        pandas.DataFrame(columns).astype({"sex": "category"}),
    ):
        found = encoder.encode(rows, needs_target=True)
        assert found.inputs.tobytes() == wanted.inputs.tobytes()
        assert found.targets.tobytes() == wanted.targets.tobytes()
    one = encoder.encode({name: values[0] for name, values in columns.items() if name != "died"})
    assert one.inputs.tobytes() == wanted.inputs[:1].tobytes()
    assert one.targets is None


@pytest.mark.parametrize(
    "rows",
    [[], {}, 7, "x.txt", [1, 2], {"age": [1], "creatinine": 2}, {"age": [1, 2], "creatinine": [1]}, [{"age": 3}]],
)
def test_rows_in_python_that_are_none(rows):
    with pytest.raises(DataError):
        Encoder(schema(extra_columns="ignore")).encode(rows)
