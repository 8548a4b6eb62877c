"""The schema: what is refused, and the hash that owners compare."""

import copy
import subprocess
import sys

import pytest

from alidpfl.errors import ConfigError
from alidpfl.tables import parse_schema, read_schema
from alidpfl.tables.schema import Schema
from tests.tables.parts import COLUMNS, TARGET, TOML, schema

VALUES = {"target": TARGET, "columns": COLUMNS}


def changed(path, value):
    values = copy.deepcopy(VALUES)
    *parents, last = path.split("/")
    part = values
    for name in parents:
        part = part[name]
    part[last] = value
    return values


def test_the_width_counts_categories_other_and_indicators():
    assert schema().width == 2 + 2 + 4 + 2
    assert schema(missing="refuse").width == 1 + 1 + 3 + 1
    columns = {"sex": {"kind": "category", "values": ["f", "m"], "other": False, "missing": "refuse"}}
    assert schema(columns=columns).features("sex") == ("sex=f", "sex=m")


def test_a_file_is_read(tmp_path):
    (tmp_path / "schema.toml").write_text(TOML)
    assert read_schema(tmp_path / "schema.toml") == schema(held_out=0.2)


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("columns/age/low", 120, r"columns\.age: low=120 .*high=110"),
        ("columns/age/low", "0", r"columns\.age\.low='0'"),
        ("columns/age/low", True, r"columns\.age\.low=true"),
        ("columns/age/low", float("nan"), r"columns\.age\.low=nan"),
        ("columns/age/high", 1e200, r"columns\.age\.high=1e\+200"),
        ("columns/age/scale", "lg", r"columns\.age\.scale='lg' .*'log'"),
        ("columns/age/scale", "log", r"columns\.age: low=0 "),
        ("columns/age/hihg", 5, r"columns\.age\.hihg .*high"),
        ("columns/age/kind", "nummer", r"columns\.age\.kind='nummer' .*\"number\""),
        ("columns/age", 7, r"columns\.age=7"),
        ("columns/age", {"kind": "number", "low": 1}, r"columns\.age\.high "),
        ("columns/sex/values", [], r"columns\.sex\.values=\[\]"),
        ("columns/sex/values", ["f", "f"], r"columns\.sex: values=.*twice"),
        ("columns/sex/values", [" f"], r"columns\.sex: values="),
        ("columns/sex/values", "f", r"columns\.sex\.values='f'"),
        ("columns/sex/other", "yes", r"columns\.sex\.other='yes'"),
        ("columns/died", {"kind": "flag"}, "'died'"),
        ("columns/", {"kind": "flag"}, "columns"),
        ("columns", {}, "columns={}"),
        ("columns", 3, "columns=3"),
        ("columns", {"x": {"kind": "category", "values": list(map(str, range(100_001)))}}, "100,00"),
        ("target", 3, "target=3"),
        ("target", {"column": "died"}, r"target\.kind"),
        ("target/values", ["no"], r"target\.values=\['no'\]"),
        ("target/values", [0.5, 1], r"target\.values"),
        ("target", {"kind": "number", "column": "days", "low": 3, "high": 1}, "target: low=3 .*high=1"),
        ("target", {"kind": "labels", "columns": []}, r"target\.columns=\[\]"),
        ("target", {"kind": "labels", "columns": ["a", "age"]}, "'age'"),
        ("person", "age", "'age'"),
        ("held_out", 1.0, "held_out=1.0"),
        ("missing", "drop", "missing='drop'"),
        ("missin", "refuse", "missin .*missing"),
        ("format", "alidpfl-table-2", "format='alidpfl-table-2'"),
        ("missing_values", "NA", "missing_values='NA'"),
    ],
)
def test_mistakes_are_named(path, value, told):
    with pytest.raises(ConfigError, match=rf"^mine\.toml: .*{told}"):
        parse_schema(changed(path, value), "mine.toml")


def test_files_that_are_no_schema(tmp_path):
    path = tmp_path / "schema.toml"
    with pytest.raises(ConfigError, match=r"schema\.toml"):
        read_schema(path)
    for content in (b"[", b"\xff", b"", b"a = 1"):
        path.write_bytes(content)
        with pytest.raises(ConfigError, match=r"schema\.toml"):
            read_schema(path)
    with pytest.raises(ConfigError, match=str(tmp_path)):
        read_schema(tmp_path)


def test_whole_numbers_are_texts():
    assert schema(target={**TARGET, "values": [0, 1]}).target.values == ("0", "1")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("columns/age/low", 1),
        ("columns/age/high", 111),
        ("columns/creatinine/scale", "linear"),
        ("columns/sex/values", ["m", "f"]),
        ("columns/sex/other", False),
        ("columns/smoker/missing", "refuse"),
        ("columns", dict(reversed(COLUMNS.items()))),
        ("target/values", ["yes", "no"]),
        ("person", "patient"),
        ("held_out", 0.2),
        ("missing", "refuse"),
        ("missing_values", []),
        ("extra_columns", "ignore"),
    ],
)
def test_any_change_changes_the_hash(path, value):
    assert parse_schema(changed(path, value)).sha256 != parse_schema(VALUES).sha256


def test_the_hash_is_that_of_the_meaning():
    """Defaults may be written or left out, and 0 is 0.0. The value is fixed: owners with other versions compare it."""
    same = changed("columns/age", {"high": 110.0, "kind": "number", "low": 0.0, "scale": "linear"}) | {
        "missing": "indicator",
        "format": "alidpfl-table-1",
    }
    assert parse_schema(same).sha256 == parse_schema(VALUES).sha256
    assert schema().sha256 == "810ad3411afc15160e666061c54ea89b864df9859ce823fd3d858e39458076a3"


def test_it_can_be_stored_as_text():
    kept = schema(person="patient", held_out=0.3)
    assert Schema.from_canonical(kept.canonical(), "model") == kept
    assert list(Schema.from_canonical(kept.canonical(), "model").columns) == list(kept.columns)
    for damaged in ("", "[]", "{}", '{"columns": 3}', kept.canonical().replace("110.0", "-1")):
        with pytest.raises(ConfigError, match="model"):
            Schema.from_canonical(damaged, "model")


def test_neither_torch_nor_polars_is_imported_for_a_schema():
    code = "import sys, alidpfl.tables; print(sorted({'torch', 'polars', 'pandas'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
