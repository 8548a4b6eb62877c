"""A table of the paper as a file: what every run has in common, and what changes by column, method and data set."""

import hashlib
import json
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from importlib.resources.abc import Traversable
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from alidpfl.errors import ConfigError
from alidpfl.inputs.names import named
from alidpfl.privacy import ACCOUNTANTS
from alidpfl.runs import Config, load_config

MOST_SEEDS = 10
"""Of a cell that are kept in files and shown in tables."""

SEARCH = "tuning"
NAMES = ("small", "medium", "large", "heterogeneity", SEARCH)
"""The grids that ship: Tables I to IV, and the search for their settings."""

# No final accuracy depends on these; where a known data set lies does not matter either, but `npz` is what lies there.
_FREE = frozenset({"run.processes", "run.device", "run.evaluate_every"})
_WHERE = frozenset({"data.data_dir"})
_BUDGET, _POLICY = frozenset({"privacy.epsilon", "privacy.accountant"}), frozenset({"method.policy"})
Settings = dict[str, Any]
_Name = Annotated[str, Field(pattern="^[^,]+$")]  # they are chosen by lists


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Column(_Part):
    """One column of the table."""

    name: _Name
    match: dict[str, str] = Field(default_factory=dict)
    """What the paper's cell is found by."""
    settings: Settings


class Method(_Part):
    """One row of the table."""

    name: _Name
    settings: Settings
    accountants: tuple[str, ...] | None = None
    """None for those of the grid."""
    variant_of: str | None = None
    """In a search: the row that this one competes with, for the settings of one method."""
    own: Settings = Field(default_factory=dict)
    """In a search: settings that only this method has. The tables take them from the row that was best."""


class Grid(_Part):
    """A whole table."""

    name: str
    title: str
    datasets: Annotated[tuple[str, ...], Field(min_length=1)]
    accountants: tuple[str, ...] = ("rdp-paper", "pld")
    settings: Settings = Field(default_factory=dict)
    columns: Annotated[tuple[Column, ...], Field(min_length=1)]
    methods: Annotated[tuple[Method, ...], Field(min_length=1)]
    tuned: dict[str, dict[str, Settings]] = Field(default_factory=dict)
    """By data set and method; of the grids that ship, in tuned.toml."""
    first_seed: Annotated[int, Field(ge=0)] = 0


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of a grid."""

    grid: str
    dataset: str
    column: str
    method: str
    accountant: str
    seed: int
    settings: tuple[tuple[str, Any], ...]
    """As `--set` takes them."""

    @property
    def config(self) -> Config:
        """The whole configuration."""
        return load_config(overrides=[f"{key}={json.dumps(value)}" for key, value in self.settings])

    @cached_property
    def key(self) -> str:
        """Hash of the settings that the result depends on: the same run in two tables is run once.

        Of what the grid sets, not of the whole configuration: a setting that the program learns next month must not
        make strangers of this month's results.
        """
        return key_of(dict(self.settings))

    @cached_property
    def kin(self) -> str:
        """Cells with the same kin begin with the same rounds, or may: see shared_rounds.py.

        A fixed τ goes on as it began, whatever budget ends it; other policies follow the budget, and may agree on it.
        """
        return _hash_without(_BUDGET if self.config.policy == "fixed" else _POLICY, dict(self.settings))

    @property
    def label(self) -> str:
        """For people."""
        return f"{self.dataset}, {self.column}, {self.method}, {self.accountant}, seed {self.seed}"


def key_of(settings: Settings) -> str:
    """What a result is found by; see `Cell.key`."""
    return _hash_without(_FREE if settings.get("data.name") == "npz" else _FREE | _WHERE, settings)


def are_same_run(one: Config, other: Config) -> bool:
    """Whether one may go on where the other stopped: all settings, defaults among them, that a result depends on."""
    first, second = (
        {f"{section}.{key}": value for section, values in config.to_dict().items() for key, value in values.items()}
        for config in (one, other)
    )
    return key_of(first) == key_of(second)


def _hash_without(names: frozenset[str], settings: Settings) -> str:
    values = {name: value for name, value in settings.items() if name not in names}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:24]


def load_grid(name: str) -> Grid:
    """One that ships, by its name or its file, or a file of your own."""
    if name.endswith(".toml"):
        path = Path(name)
        try:
            content = path.read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot read the grid {path}: {error.strerror}") from None
        if path.stem not in NAMES:
            return _parsed(path.stem, content, str(path))
        if content != _text(path.stem):
            raise ConfigError(
                f"{path} has the name of a grid that ships, and its results would be taken for those; rename it"
            )
        name = path.stem
    named("grid", name, dict.fromkeys((*NAMES, "a file of your own, such as mine.toml")))
    grid = _parsed(name, _text(name), name)
    return grid if name == SEARCH else grid.model_copy(update={"tuned": tomllib.loads(_text("tuned"))})


def cells(
    grid: Grid,
    *,
    seeds: int = 1,
    datasets: Sequence[str] = (),
    methods: Sequence[str] = (),
    columns: Sequence[str] = (),
    accountants: Sequence[str] = (),
) -> Iterator[Cell]:
    """The runs, seed by seed, so that a table fills evenly; an empty choice stands for all."""
    _check_choice("dataset", datasets, grid.datasets)
    _check_choice("method", methods, [method.name for method in grid.methods])
    _check_choice("column", columns, [column.name for column in grid.columns])
    _check_choice("accountant", accountants, ACCOUNTANTS)
    wanted = product(
        range(grid.first_seed, grid.first_seed + seeds),
        datasets or grid.datasets,
        [column for column in grid.columns if not columns or column.name in columns],
        [method for method in grid.methods if not methods or method.name in methods],
    )
    for seed, dataset, column, method in wanted:
        for accountant in method.accountants or grid.accountants:
            if not accountants or accountant in accountants:
                yield _cell(grid, column, method, dataset=dataset, accountant=accountant, seed=seed)


def _cell(grid: Grid, column: Column, method: Method, *, dataset: str, accountant: str, seed: int) -> Cell:
    settings = {
        **grid.settings,
        **column.settings,
        **grid.tuned.get(dataset, {}).get(method.name, {}),
        **method.settings,
        **method.own,
        "data.name": dataset,
        "privacy.accountant": accountant,
        "run.seed": seed,
    }
    return Cell(
        grid=grid.name,
        dataset=dataset,
        column=column.name,
        method=method.name,
        accountant=accountant,
        seed=seed,
        settings=tuple(sorted(settings.items())),
    )


def _text(name: str) -> str:
    return _shipped(name).read_text(encoding="utf-8")


def _shipped(name: str) -> Traversable:
    return files("reproduction") / "grids" / f"{name}.toml"


def _check_choice(what: str, chosen: Sequence[str], known: Sequence[str]) -> None:
    for name in chosen:
        named(what, name, dict.fromkeys(known))


def _parsed(name: str, content: str, source: str) -> Grid:
    try:
        values = tomllib.loads(content)
        return Grid.model_validate({"name": name, **values})
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source} is not valid TOML: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        told = "is missing" if first["type"] == "missing" else first["msg"]
        raise ConfigError(f"{source}: {key}: {told}; a whole grid is {_shipped('small')}") from None
