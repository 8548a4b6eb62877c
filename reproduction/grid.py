"""A grid: the runs of one table, described by a TOML file with columns, methods and data sets."""

import hashlib
import json
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from alidpfl.config import Config, load_config
from alidpfl.errors import ConfigError
from alidpfl.inputs.names import named
from alidpfl.registry import ACCOUNTANTS

MOST_SEEDS = 10
"""The largest number of seeds of a cell that files keep and tables show."""

SEARCH = "tuning"
NAMES = ("small", "medium", "large", "heterogeneity", SEARCH)
"""The built-in grids: Tables I to IV, and the search for their settings."""

_FOLDER = Path(__file__).parent / "grids"

# The final accuracy does not depend on these settings. The folder of a known data set does not matter either, but the
# folder of `npz` data decides which records they are.
_FREE = frozenset({"run.processes", "run.device", "run.evaluate_every"})
_WHERE = frozenset({"data.data_dir"})
_BUDGET, _POLICY = frozenset({"privacy.epsilon", "privacy.accountant"}), frozenset({"method.policy"})
Settings = dict[str, Any]
_Name = Annotated[str, Field(pattern="^[^,]+$")]  # options take lists of names, separated by commas


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Column(_Part):
    """One column of the table."""

    name: _Name
    match: dict[str, str] = Field(default_factory=dict)
    """The values that identify the paper's column, see `paper.published`."""
    settings: Settings


class Method(_Part):
    """One row of the table."""

    name: _Name
    settings: Settings
    accountants: tuple[str, ...] | None = None
    """The accountants of this row, or None for those of the grid."""
    variant_of: str | None = None
    """In a search: the row that this row competes with. Both search the settings of one method."""
    own: Settings = Field(default_factory=dict)
    """In a search: settings that only this method has. The tables take them from the best row."""


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
    """Tuned settings by data set and method. The built-in grids read them from tuned.toml."""
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
    """The settings of the run, in the form that `--set` takes."""

    @property
    def config(self) -> Config:
        """The whole configuration of the run."""
        return load_config(overrides=[f"{key}={json.dumps(value)}" for key, value in self.settings])

    @cached_property
    def key(self) -> str:
        """The hash of the settings that the result depends on. A run that is in two tables is run once.

        The hash covers the settings of the grid, not the whole configuration. A setting that is added to the program
        later therefore does not invalidate older results.
        """
        return key_of(dict(self.settings))

    @cached_property
    def kin(self) -> str:
        """The hash of what cells share that may start with the same rounds. See `shared_rounds`.

        A run with a fixed τ takes the same rounds under every budget; the budget only ends it. Other policies depend on
        the budget, and two policies with the same budget may choose the same τ.
        """
        return _hash_without(_BUDGET if self.config.policy == "fixed" else _POLICY, dict(self.settings))

    @property
    def label(self) -> str:
        """A readable name for messages."""
        return f"{self.dataset}, {self.column}, {self.method}, {self.accountant}, seed {self.seed}"


def key_of(settings: Settings) -> str:
    """Return the key of the result for these settings, see `Cell.key`."""
    return _hash_without(_FREE if settings.get("data.name") == "npz" else _FREE | _WHERE, settings)


def are_same_run(one: Config, other: Config) -> bool:
    """Return whether one run may continue the other: all settings that a result depends on are equal."""
    first, second = (
        {f"{section}.{key}": value for section, values in config.to_dict().items() for key, value in values.items()}
        for config in (one, other)
    )
    return key_of(first) == key_of(second)


def _hash_without(names: frozenset[str], settings: Settings) -> str:
    values = {name: value for name, value in settings.items() if name not in names}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:24]


def load_grid(name: str) -> Grid:
    """Load a built-in grid by its name or file, or a file of your own.

    Raises:
        ConfigError: There is no such grid, the file is not a grid, or it has the name of a built-in grid.
    """
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
                f"{path} has the name of a built-in grid, so that its results would be mixed with those; rename it"
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
    """Yield the runs of a grid, one seed after the other, so that a table fills evenly.

    Args:
        grid: The grid.
        seeds: The number of seeds of every cell.
        datasets: Only these data sets; empty for all. The same holds for the other choices.
        methods: Only these rows.
        columns: Only these columns.
        accountants: Only these accountants.

    Raises:
        ConfigError: A chosen name is not in the grid.
    """
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
    return (_FOLDER / f"{name}.toml").read_text(encoding="utf-8")


def _check_choice(what: str, chosen: Sequence[str], known: Iterable[str]) -> None:
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
        fault = "is missing" if first["type"] == "missing" else first["msg"]
        raise ConfigError(f"{source}: {key}: {fault}; for a complete grid see {_FOLDER / 'small.toml'}") from None
