"""Private statistics of tables: one release by each client, and what it says by client and overall."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from alidpfl.config.schema import DEFAULT_MAX_RECORDS
from alidpfl.data.persons import ROW_LEVEL, person_numbers
from alidpfl.data.table import TEST_STEM, table_files
from alidpfl.data.table_sums import noised_sum_of_rows
from alidpfl.dpsgd import Groups, RandomStream
from alidpfl.errors import ConfigError
from alidpfl.inputs import checks
from alidpfl.inputs.names import named
from alidpfl.privacy import PrivacyBudget, noise_multiplier_for
from alidpfl.tables.encode import Encoder
from alidpfl.tables.estimates import ColumnStatistics, column_statistics
from alidpfl.tables.schema import Schema, read_schema
from alidpfl.tables.statistics import BINS, MAX_BINS, Layout
from alidpfl.types import LARGEST_MAX_RECORDS, NoiseKind, OnProgress, Unit

_OF_ALL_ROWS = (
    "held_out={:g} in the schema: these statistics read all rows, so they count against held-out rows too; and the "
    "number of held-out rows is no longer private, since runs tell the number of the others"
)


@dataclass(frozen=True, kw_only=True)
class NoisedSum:
    """A client's release."""

    total: NDArray[np.float32]
    """(size,) values, as the layout says."""
    rows: int
    """Number of rows (or persons), which is public."""
    noise_multiplier: float
    """σ: the noise's standard deviation divided by the layout's sensitivity."""


@dataclass(frozen=True, kw_only=True)
class TableStatistics:
    """The releases of all clients, and what they say about the columns."""

    schema: Schema
    bins: int
    sums: Mapping[str, NoisedSum]
    """By client."""
    budget: PrivacyBudget | None
    """What its release costs each client. None over vaults: there the owners' accounts say."""
    max_records: int | None = None
    """k, the most rows of a person that count, if the unit of privacy is a person. None means that it is a row."""

    @cached_property
    def layout(self) -> Layout:
        """The values in each sum."""
        return Layout(self.schema, bins=self.bins)

    def of_client(self, name: str) -> list[ColumnStatistics]:
        """Return the statistics of one client's rows."""
        return self._read([self.sums[name]])

    def overall(self) -> list[ColumnStatistics]:
        """Return the statistics of all rows. Their noise is that of all clients together."""
        return self._read([*self.sums.values()])

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader should know about ε."""
        rows = max(found.rows for found in self.sums.values())
        unit = "record" if self.max_records is None else "person"
        found = [None if self.budget is None else self.budget.weakness(rows, unit)]
        found.append(ROW_LEVEL if self.schema.person is not None and self.max_records is None else None)
        if self.budget is not None and self.schema.held_out > 0:  # vaults read training rows only
            found.append(_OF_ALL_ROWS.format(self.schema.held_out))
        return tuple(filter(None, found))

    def to_json(self) -> dict[str, Any]:
        """Return plain values: the mechanism, and the statistics overall and by client."""
        unit, units = ("row", "rows") if self.max_records is None else ("person", "persons")
        return {
            "format": "alidpfl-statistics-1",
            "unit": unit,
            "max_records": self.max_records,
            "schema_sha256": self.schema.sha256,
            "epsilon": None if self.budget is None else self.budget.epsilon,
            "delta": None if self.budget is None else self.budget.delta,
            "neighbouring": f"add or remove one {unit} of one client, whose number of {units} is public; this release "
            "alone",
            "sensitivity": self.layout.sensitivity,
            "bins": self.bins,
            units: sum(found.rows for found in self.sums.values()),
            "columns": _plain(self.overall()),
            "clients": {
                name: {
                    units: found.rows,
                    "noise_multiplier": found.noise_multiplier,
                    "columns": _plain(self.of_client(name)),
                }
                for name, found in self.sums.items()
            },
        }

    def _read(self, sums: Sequence[NoisedSum]) -> list[ColumnStatistics]:
        total = np.stack([found.total for found in sums]).sum(axis=0, dtype=np.float64)
        noise = self.layout.sensitivity * math.hypot(*(found.noise_multiplier for found in sums))
        return column_statistics(self.layout, total, sum(found.rows for found in sums), noise)


def table_statistics(
    schema_file: str | Path,
    files: Sequence[str | Path],
    *,
    budget: PrivacyBudget,
    bins: int = BINS,
    noise: NoiseKind = "gaussian",
    unit: Unit = "record",
    max_records: int | None = None,
    on_progress: OnProgress | None = None,
) -> TableStatistics:
    """Release the statistics of every file, each as one client, with fresh secure noise.

    Every call is a new release. It costs every client its whole budget once more. It reads all rows, also those that
    runs hold out, and the number of rows (or persons) of each file counts as public.

    Args:
        schema_file: the schema.
        files: files, folders and patterns. A file named `test` is public test data, and left out.
        budget: (ε, δ) that each client spends.
        bins: bins of each number; 0 for none, and then no quantiles and less noise on the rest.
        noise: "grid" for exact noise.
        unit: what ε protects: "record" for a row, or "person" for all rows of a person in one file. She then adds the
            mean over at most k of her rows, so statistics are of persons.
        max_records: k, for persons. None means 4.
        on_progress: told which file is read.

    Raises:
        ConfigError: a setting is out of range.
        DataError: a file does not fit the schema.
    """
    checks.whole("bins", bins, high=MAX_BINS)
    sigma = noise_multiplier_for(budget, 1.0, 1)  # all of the budget is spent, before a row is read
    schema = read_schema(schema_file)
    count = _checked_max_records(unit, max_records, schema)
    encoder, layout = Encoder(schema), Layout(schema, bins=bins)
    paths = [path for path in table_files(files, None) if path.stem != TEST_STEM]
    if not paths:
        raise ConfigError(f"--data names files {TEST_STEM}.* only, which are public test data; add a client's file")
    sums = {}
    for number, path in enumerate(paths):
        if on_progress is not None:
            on_progress(f"reading {path.name}", number / len(paths))
        rows, groups = encoder.encode(path, needs_target=True), None
        if count is not None:
            groups = Groups.of(person_numbers(rows.persons, len(rows), f"{path}: the person column"))
        total = noised_sum_of_rows(
            rows.inputs,
            rows.targets,
            layout,
            noise_multiplier=sigma,
            random=RandomStream.secure(),
            noise=noise,
            groups=groups,
            max_records=count or 1,
        )
        units = len(rows) if groups is None else len(groups)
        sums[path.stem] = NoisedSum(total=total.numpy(), rows=units, noise_multiplier=sigma)
    return TableStatistics(schema=schema, bins=bins, sums=sums, budget=budget, max_records=count)


def _checked_max_records(unit: Unit, max_records: int | None, schema: Schema) -> int | None:
    """Return k, or None if the unit of privacy is a row."""
    named("unit", unit, dict.fromkeys(get_args(Unit)))
    if unit == "record":
        if max_records is not None:
            raise ConfigError(f'max_records={max_records!r} is for unit="person"; set that too, or leave it out')
        return None
    if schema.person is None:
        raise ConfigError('unit="person": the schema names no person column; add person = "patient", or leave it out')
    found = DEFAULT_MAX_RECORDS if max_records is None else max_records
    return checks.whole("max_records", found, low=1, high=LARGEST_MAX_RECORDS)


def _plain(columns: Sequence[ColumnStatistics]) -> dict[str, Any]:
    return {column.column: column.to_json() for column in columns}
