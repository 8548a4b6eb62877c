"""The schema of a table: a TOML file that the owners agree on, written from public knowledge.

The schema alone decides how a row becomes a vector. Never imports torch or polars.
"""

import hashlib
import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from alidpfl.config.wording import refused, shortened, shown, together
from alidpfl.errors import ConfigError
from alidpfl.inputs.names import nearest

Missing: TypeAlias = Literal["indicator", "refuse"]

MAX_WIDTH = 100_000
"""Most numbers in a row's vector."""


def _texts(values: object) -> object:
    """Turn whole numbers in a list into texts: a file cannot tell `0` from `"0"`."""
    if isinstance(values, list | tuple):
        return tuple(str(value) if type(value) is int else value for value in values)
    return values


def _distinct(values: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(values)) < len(values):
        raise ValueError("a value stands twice; remove one")
    if any(value != value.strip() or not value for value in values):
        raise ValueError("a value is empty, or begins or ends with a space; correct it")
    return values


Texts = Annotated[tuple[str, ...], BeforeValidator(_texts), AfterValidator(_distinct), Field(strict=False)]
"""Different texts, none of them empty. Whole numbers are read as texts."""
Name = Annotated[str, Field(min_length=1)]


def _key(default: Any, meaning: str, *, example: Any = None, **limits: Any) -> Any:
    """Return a field with its default (`...` if it is required), its meaning and an example."""
    return Field(default, description=meaning, examples=None if example is None else [example], **limits)


def _missing() -> Any:
    return _key(
        None, "What happens to missing values of this column. Default: the table's `missing`.", example="refuse"
    )


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class _Bounded(_Part):
    """Base of numbers with public bounds."""

    low: float = _key(..., "The lower bound. Smaller values become this one.", example=0, ge=-1e100, le=1e100)
    high: float = _key(..., "The upper bound. Larger values become this one.", example=110, ge=-1e100, le=1e100)

    @model_validator(mode="after")
    def _in_order(self) -> "_Bounded":
        if not self.low < self.high:
            raise ValueError(f"low={self.low:g} must be below high={self.high:g}; exchange them, or correct one")
        return self


class NumberColumn(_Bounded):
    """`kind = "number"`: one value, clamped to its bounds and scaled to [-1, 1]."""

    kind: Literal["number"] = _key(..., "A number.", example="number")
    scale: Literal["linear", "log"] = _key(
        "linear", "`log` scales the logarithm, for values of very different size. `low` must then be above 0."
    )
    missing: Missing | None = _missing()

    @model_validator(mode="after")
    def _has_logarithm(self) -> "NumberColumn":
        if self.scale == "log" and self.low <= 0:
            raise ValueError(f'low={self.low:g} must be above 0 with scale = "log"; raise it, or leave scale out')
        return self


class CategoryColumn(_Part):
    """`kind = "category"`: one value for each category, 1 for the row's own and 0 for the others."""

    kind: Literal["category"] = _key(..., "A text out of a list.", example="category")
    values: Texts = _key(..., "The categories.", example=["f", "m"], min_length=1)
    other: bool = _key(True, "`true` adds a category for all other texts. `false` refuses them.")
    missing: Missing | None = _missing()


class FlagColumn(_Part):
    """`kind = "flag"`: one value, 1 for yes and -1 for no."""

    kind: Literal["flag"] = _key(..., "Yes or no, spelled yes/no, y/n, true/false, t/f or 1/0.", example="flag")
    missing: Missing | None = _missing()


class ClassTarget(_Part):
    """`kind = "class"`: one class out of a list."""

    kind: Literal["class"] = _key(..., "A class.", example="class")
    column: Name = _key(..., "The column.", example="died")
    values: Texts = _key(..., "The classes, in the order of the model's outputs.", example=["no", "yes"], min_length=2)


class NumberTarget(_Bounded):
    """`kind = "number"`: a number, clamped to its bounds and scaled to [-1, 1]."""

    kind: Literal["number"] = _key(..., "A number.", example="number")
    column: Name = _key(..., "The column.", example="days")


class LabelsTarget(_Part):
    """`kind = "labels"`: several flags at once."""

    kind: Literal["labels"] = _key(..., "Several flags.", example="labels")
    columns: Texts = _key(..., "The columns, each a flag.", example=["sepsis", "stroke"], min_length=1)


Column: TypeAlias = NumberColumn | CategoryColumn | FlagColumn
Target: TypeAlias = ClassTarget | NumberTarget | LabelsTarget
KINDS: Mapping[str, Mapping[str, type[_Part]]] = {
    "columns": {"number": NumberColumn, "category": CategoryColumn, "flag": FlagColumn},
    "target": {"class": ClassTarget, "number": NumberTarget, "labels": LabelsTarget},
}
"""The models of columns and of targets, by their `kind`."""


class Schema(_Part):
    """All that owners agree on about their tables.

    >>> died = {"column": "died", "kind": "class", "values": ["no", "yes"]}
    >>> parse_schema({"target": died, "columns": {"age": {"kind": "number", "low": 0, "high": 110}}}).width
    2
    """

    format: Literal["alidpfl-table-1"] = _key("alidpfl-table-1", "Format of this file.")
    missing: Missing = _key(
        "indicator",
        "`indicator`: a missing value sets one more value of the row's vector to 1. `refuse`: it is an error.",
    )
    missing_values: tuple[str, ...] = _key(
        ("NA", "NaN", "nan", "NULL", "null"),
        "Texts that mean a missing value, unless a column declares them. An empty field is always missing.",
        strict=False,
    )
    extra_columns: Literal["refuse", "ignore"] = _key(
        "refuse", "What happens to columns of a file that the schema does not name."
    )
    person: Name | None = _key(
        None, "The column that names the person. All rows of a person are held out, or none.", example="patient"
    )
    held_out: float = _key(
        0.1, "Share of the rows, or of the persons, that is held out for testing and never trained on.", ge=0, lt=1
    )
    target: Annotated[Target, Field(discriminator="kind")] = _key(..., "What the model learns to predict.")
    columns: dict[Name, Annotated[Column, Field(discriminator="kind")]] = _key(
        ..., "The columns that the model predicts from. Their order is the order of the row's vector.", min_length=1
    )

    @model_validator(mode="after")
    def _disjoint(self) -> "Schema":
        named = [*self.columns, *self.target_columns, *([] if self.person is None else [self.person])]
        if twice := sorted({name for name in named if named.count(name) > 1}):
            raise ValueError(f"{shown(twice[0])} has two roles; name it once among columns, target and person")
        if self.width > MAX_WIDTH:
            raise ValueError(f"rows become {self.width:,} values; declare fewer categories, at most {MAX_WIDTH:,}")
        return self

    @property
    def target_columns(self) -> tuple[str, ...]:
        """The columns of the target."""
        return self.target.columns if isinstance(self.target, LabelsTarget) else (self.target.column,)

    @property
    def num_outputs(self) -> int:
        """Number of outputs of a model: one for each class or label, or one for a number."""
        if isinstance(self.target, NumberTarget):
            return 1
        return len(self.target.values if isinstance(self.target, ClassTarget) else self.target.columns)

    @property
    def width(self) -> int:
        """Number of values in a row's vector."""
        return sum(len(self.features(name)) for name in self.columns)

    def features(self, name: str) -> tuple[str, ...]:
        """Return the names of the values that a column becomes, such as ("sex=f", "sex=m", "sex=other")."""
        column, own = self.columns[name], [name]
        if isinstance(column, CategoryColumn):
            own = [f"{name}={value}" for value in column.values] + [f"{name}=other"] * column.other
        return (*own, f"{name} missing") if self.indicates_missing(name) else tuple(own)

    def indicates_missing(self, name: str) -> bool:
        """Return whether a missing value of this column is encoded rather than refused."""
        return (self.columns[name].missing or self.missing) == "indicator"

    @property
    def norm_bound(self) -> float:
        """The largest Euclidean norm of any row's vector: every column adds at most 1 to its square."""
        return math.sqrt(len(self.columns))

    def canonical(self) -> str:
        """Return the schema as JSON with all defaults: equal schemas give equal texts, different ones different."""
        values = self.model_dump(mode="json")
        values["columns"] = list(values["columns"].items())  # their order counts
        return json.dumps(values, sort_keys=True, separators=(",", ":"), ensure_ascii=True)

    @property
    def sha256(self) -> str:
        """Hash of the canonical schema. Owners with the same hash encode alike."""
        return hashlib.sha256(self.canonical().encode()).hexdigest()

    @classmethod
    def from_canonical(cls, text: str, source: str) -> "Schema":
        """Return the schema that `canonical` wrote. Errors name the source."""
        try:
            values = json.loads(text)
            values["columns"] = dict(values["columns"])
        except (KeyError, TypeError, ValueError, RecursionError):
            raise ConfigError(f"{source} is not a schema that alidpfl wrote; restore it from a copy") from None
        return parse_schema(values, source)


def read_schema(path: str | Path) -> Schema:
    """Read a schema file. A ConfigError names the file, the key, the value and the remedy."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(f"there is no schema file {path}; draft one with: alidpfl schema draft") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise ConfigError(f"{path} is not UTF-8 text; save it as UTF-8") from None
    try:
        values = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}; correct it") from None
    return parse_schema(values, str(path))


def parse_schema(values: Mapping[str, Any], source: str = "schema") -> Schema:
    """Check nested plain values and return a schema. Errors begin with the source."""
    try:
        return Schema.model_validate(values)
    except ValidationError as error:
        raise ConfigError(f"{source}: {together(_explained(problem, values) for problem in error.errors())}") from None


def _explained(problem: Any, values: Mapping[str, Any]) -> str:
    path = [str(part) for part in problem["loc"] if part != "[key]"]
    part, key, field = _place(path)
    name = ".".join(filter(None, (part, key)))
    if problem["type"] == "extra_forbidden":
        return f"{shortened(name)} is not a key of a schema{_hint(key, _keys(path))}"
    if problem["type"] == "missing":
        return f"{name} is missing; add it"
    if problem["type"] in ("union_tag_not_found", "union_tag_invalid"):
        kinds = ", ".join(f'"{kind}"' for kind in KINDS[path[0]])
        given = problem["input"].get("kind") if isinstance(problem["input"], dict) else problem["input"]
        return f"{part}.kind={shown(given)} must be one of {kinds}"
    if problem["type"] == "value_error":  # from a validator above
        value = [f"{key}={shown(problem['input'])}"] if field is not None and key else []
        return ": ".join(filter(None, (part, *value, str(problem["msg"]).removeprefix("Value error, "))))
    if field is None or name == "columns":
        return f'{name}={shown(problem["input"])} must be a table, such as {{ kind = "flag" }}'
    return refused(problem, name, _given(values, part, key), field)


def _place(path: list[str]) -> tuple[str, str, FieldInfo | None]:
    """Return the part of the schema that an error is about, such as "columns.age", the key in it, and the key's field.

    Pydantic puts the kind of a column or of a target between its name and its keys.
    """
    if path and path[0] in KINDS and len(path) > (depth := 2 if path[0] == "columns" else 1):
        part, kind, key = ".".join(path[:depth]), path[depth], "".join(path[depth + 1 : depth + 2])
        model = KINDS[path[0]].get(kind)
        return part, key, model.model_fields.get(key) if model else None
    if path and path[0] in KINDS:
        return ".".join(path), "", None
    return "", path[0] if path else "", Schema.model_fields.get(path[0]) if path else None


def _keys(path: list[str]) -> Iterable[str]:
    depth = {"columns": 2, "target": 1}.get(path[0], 0)
    return KINDS[path[0]][path[depth]].model_fields if depth and len(path) > depth else Schema.model_fields


def _hint(key: str, keys: Iterable[str]) -> str:
    meant = nearest(key, keys)
    return f"; did you mean {meant}?" if meant is not None else f"; there are {', '.join(keys)}"


def _given(values: Mapping[str, Any], part: str, key: str) -> object:
    found: Any = values
    for name in (*(part.split(".", 1) if part else ()), key):
        found = found[name]
    return found
