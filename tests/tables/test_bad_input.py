"""Bad tables and schemas as an owner meets them: one line with the remedy, status 2, and nothing of a value."""

import polars as pl
import pytest

from tests.runs.command import alidpfl
from tests.tables.parts import TOML, hospitals, table

PRIVATE = "4711"
HEADER = "age,creatinine,sex,smoker,died"
GOOD = f"{HEADER}\n40,1.1,f,yes,no\n50,2,m,no,yes\n"
STRICT = TOML.replace('values = ["f", "m"] }', 'values = ["f", "m"], other = false }')
TERMS = ("--epsilon", 2, "--delta", "1e-5")
VAULT = (*TERMS, "--sample-rate", 0.04, "--min-noise-multiplier", 1.1, "--max-steps-per-round", 10)

FILES = {
    "unknown column": (GOOD.replace("\n", ",note\n", 1).replace("no\n", f"no,{PRIVATE}\n"), "'note'"),
    "missing column": (GOOD.replace("creatinine", "kreatinin"), "no column 'creatinine' (it has 'kreatinin')"),
    "missing target": (GOOD.replace("died", "dead"), "no column 'died'"),
    "target left empty": (f"{GOOD}{PRIVATE},1,f,yes,\n", "column 'died', row 3: the value is missing"),
    "undeclared class": (f"{GOOD}40,1,f,yes,{PRIVATE}\n", "column 'died', row 3: the value is a class"),
    "undeclared category": (f"{GOOD}40,1,{PRIVATE},yes,no\n", "column 'sex', row 3: the value is a category"),
    "text in a number": (f"{GOOD}x{PRIVATE},1,f,yes,no\n", "column 'age', row 3: the value is not a number"),
    "decimal comma": (f'{GOOD}"{PRIVATE},5",1,f,yes,no\n', "column 'age', row 3: the value is not a number"),
    "unit": (f"{GOOD}{PRIVATE} years,1,f,yes,no\n", "column 'age', row 3: the value is not a number"),
    "date in a number": (f"{GOOD}{PRIVATE}-01-02,1,f,yes,no\n", "column 'age', row 3: the value is not a number"),
    "integer beyond all floats": (f"{GOOD}{PRIVATE}{'0' * 400},1,f,yes,no\n", "column 'age', row 3: the value is not"),
    "no flag": (f"{GOOD}40,1,f,{PRIVATE},no\n", "column 'smoker', row 3: the value is no flag"),
    "quoted line feed": (f'{GOOD}40,1,"f\nf",yes,no\nx{PRIVATE},1,f,yes,no\n', "column 'age', row 4:"),
    "empty file": ("", "is empty"),
    "header alone": (f"{HEADER}\n", "no rows"),
    "first line empty": (f"\n{GOOD}", "empty line"),
    "short row": (f"{GOOD}{PRIVATE},1,f\n", "row 3 has 3 fields"),
    "long row": (f"{GOOD}{PRIVATE},1,f,yes,no,1,2\n", "row 3 has 7 fields"),
    "cut in a row": (f'{GOOD}{PRIVATE},1,"f', "row 3"),
    "stray quote": (f'{GOOD}40,1,f"{PRIVATE},yes,no\n', "row 3 has a quote"),
    "column twice": (GOOD.replace("creatinine", "age"), "two columns 'age'"),
    "columns of a spreadsheet": (GOOD.replace("\n", ",,\n"), "two columns ''"),
    "semicolons": (GOOD.replace(",", ";"), "';'"),
    "tabs": (GOOD.replace(",", "\t"), "tab"),
    "Latin-1": (f"{GOOD}{PRIVATE},1,é,yes,no\n".encode("latin-1"), "UTF-8"),
    "UTF-16": (GOOD.encode("utf-16"), "UTF-8"),
    "old Mac": (GOOD.replace("\n", "\r"), "line feeds"),
    "not a table": (b"PK\x03\x04" + PRIVATE.encode() * 50, "north.csv"),
}
PARQUET = {
    "cut short": (lambda whole: whole[: len(whole) // 2], "Parquet"),
    "without its end": (lambda whole: whole[:-4], "Parquet"),
    "CSV in disguise": (lambda _: GOOD.encode(), "Parquet"),
    "empty": (lambda _: b"", "is empty"),
}
SCHEMAS = {
    "bounds turned round": (
        TOML.replace("low = 0, high = 110", "low = 110, high = 0"),
        "columns.age: low=110 must be below",
    ),
    "logarithm of 0": (TOML.replace("low = 0.2", "low = 0"), "columns.creatinine: low=0 must be above 0"),
    "no target": (TOML.replace("target =", "tarket ="), "tarket"),
    "target without a name": (TOML.replace('column = "died", ', ""), "target.column is missing"),
    "target among the columns": (TOML + 'died = { kind = "flag" }\n', "'died' has two roles"),
    "one class": (TOML.replace('["no", "yes"]', '["no"]'), "target.values"),
    "a category twice": (TOML.replace('["f", "m"]', '["f", "f"]'), "columns.sex"),
    "unknown kind": (TOML.replace('"flag"', '"bool"'), "columns.smoker.kind='bool' must be one of"),
    "misspelt key": (TOML.replace("high = 110", "hihg = 110"), "did you mean high?"),
    "column twice": (TOML + 'age = { kind = "flag" }\n', "not valid TOML"),
    "no TOML": ("target", "not valid TOML"),
    "Latin-1": (f"# é\n{TOML}".encode("latin-1"), "UTF-8"),
}


def _write(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def _commands(tmp_path, path):
    schema = tmp_path / "schema.toml"
    return [
        ("schema", "check", schema, path),
        ("run", "--schema", schema, "--data", path, *TERMS, "--rounds", 3, "--out", tmp_path / "out"),
        ("vault", "init", "--schema", schema, "--data", path, "--dir", tmp_path / "out", *VAULT),
    ]


def _refused(tmp_path, path, *told):
    """Every command that reads an owner's table says the same line about it, and leaves nothing behind."""
    lines = set()
    for command in _commands(tmp_path, path):
        done = alidpfl(*command)
        assert done.exit_code == 2, done.stdout
        assert done.stdout == ""
        (line,) = done.stderr.splitlines()
        for part in ("alidpfl: ", *told):
            assert part in line
        assert PRIVATE not in line
        assert not (tmp_path / "out").exists()
        lines.add(line)
    assert len(lines) == 1


@pytest.mark.parametrize("name", FILES)
def test_a_bad_csv_file(tmp_path, name):
    content, told = FILES[name]
    _write(tmp_path / "schema.toml", STRICT)
    _refused(tmp_path, _write(tmp_path / "north.csv", content), str(tmp_path / "north.csv"), told)


@pytest.mark.parametrize("name", PARQUET)
def test_a_damaged_parquet_file(tmp_path, name):
    damage, told = PARQUET[name]
    _write(tmp_path / "schema.toml", TOML)
    table(12).with_columns(sex=pl.lit(PRIVATE)).write_parquet(tmp_path / "north.parquet")
    path = _write(tmp_path / "north.parquet", damage((tmp_path / "north.parquet").read_bytes()))
    _refused(tmp_path, path, str(path), told)


@pytest.mark.parametrize(
    "values",
    [
        pl.Series([4711]).cast(pl.Date),
        pl.Series([[4711]]),
        pl.Series([b"4711"]),
        pl.Series(["4711"], dtype=pl.Enum(["4711"])),
        pl.Series([{"4711": 1}]),
    ],
)
def test_a_type_of_parquet_that_does_not_fit(tmp_path, values):
    _write(tmp_path / "schema.toml", TOML)
    table(1).with_columns(values.alias("age")).write_parquet(tmp_path / "north.parquet")
    _refused(tmp_path, tmp_path / "north.parquet", "north.parquet: column 'age' has type")


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_bad_schema(tmp_path, name):
    content, told = SCHEMAS[name]
    _write(tmp_path / "schema.toml", content)
    _refused(tmp_path, _write(tmp_path / "north.csv", GOOD), str(tmp_path / "schema.toml"), told)


def test_a_file_that_is_not_there(tmp_path):
    _write(tmp_path / "schema.toml", TOML)
    _refused(tmp_path, tmp_path / "north.csv", "north.csv does not exist")
    path = _write(tmp_path / "north.xlsx", GOOD)
    for command in _commands(tmp_path, path):
        done = alidpfl(*command)
        assert done.exit_code == 2
        (line,) = done.stderr.splitlines()
        assert "north.xlsx" in line
        assert ".csv" in line


def test_huge_integers_and_dates_as_texts_are_read(tmp_path):
    """A number beyond 64 bits is clamped, a date is one of the other texts."""
    _write(tmp_path / "schema.toml", TOML)
    path = _write(tmp_path / "north.csv", f"{GOOD}{10**30},1,2020-02-30,yes,no\n")
    done = alidpfl("schema", "check", tmp_path / "schema.toml", path)
    assert done.exit_code == 0, done.stderr


def test_rows_to_predict_are_refused_in_one_line_too(tmp_path):
    files = hospitals(tmp_path)
    trained = ("run", "--schema", tmp_path / "schema.toml", "--data", *files, *TERMS, "--rounds", 2)
    assert alidpfl(*trained, "--set", "run.processes=1", "--out", tmp_path / "run").exit_code == 0
    for content, told in (FILES["text in a number"], FILES["short row"], FILES["semicolons"], FILES["empty file"]):
        done = alidpfl("predict", tmp_path / "run", _write(tmp_path / "new.csv", content), "-o", tmp_path / "s.csv")
        assert done.exit_code == 2
        (line,) = done.stderr.splitlines()
        assert told in line
        assert PRIVATE not in line
        assert not (tmp_path / "s.csv").exists()
