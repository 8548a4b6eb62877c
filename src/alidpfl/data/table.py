"""The data set `table`: CSV or Parquet files of one schema, one file for each client."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from alidpfl.data.dataset import Dataset, LabelledData
from alidpfl.data.persons import person_numbers
from alidpfl.errors import ConfigError, DataError
from alidpfl.inputs import checks
from alidpfl.tables.encode import Encoded, Encoder
from alidpfl.tables.held_out import held_out_key, held_out_rows
from alidpfl.tables.read import SUFFIXES
from alidpfl.tables.schema import NumberTarget, Schema, read_schema
from alidpfl.tables.values import Mask
from alidpfl.types import OnProgress

NO_SCHEMA = "table needs --schema (data.schema_file); draft one with: alidpfl schema draft"
TEST_STEM = "test"
"""A file of this name, without its suffix, is public test data."""


def load_table(
    *,
    data_dir: Path | None = None,
    seed: int = 0,
    on_progress: OnProgress | None = None,
    schema_file: str | Path | None = None,
    files: Sequence[str | Path] = (),
    key: bytes | None = None,
    loss: str | None = None,
) -> Dataset:
    """Load natural clients from CSV or Parquet files, one for each, encoded by a schema.

    A file named `test.csv` or `test.parquet` is public test data. Without one, the schema's `held_out` share of the
    rows is held out by a keyed hash of each row, or of its person.

    Args:
        data_dir: a folder of files, if `files` is empty.
        seed: gives the key of the hash, if `key` is None.
        on_progress: told which file is read.
        schema_file: the schema.
        files: files and folders.
        key: a secret key of the hash.
        loss: name of the loss. The number targets of "poisson" are scaled to [0, 2], not to [-1, 1].

    Raises:
        ConfigError: a setting is missing, or the loss does not fit the target.
        DataError: a file does not fit the schema. The message has file, column and row, and no value.
    """
    if schema_file is None:
        raise ConfigError(NO_SCHEMA)
    schema, key = trainable_schema(schema_file, loss), key or held_out_key(checks.whole("seed", seed))
    encoder, paths = Encoder(schema), table_files(files, data_dir)
    encoded: dict[Path, Encoded] = {}
    for number, path in enumerate(paths):
        if on_progress is not None:
            on_progress(f"reading {path.name}", number / len(paths))
        encoded[path] = encoder.encode(path, needs_target=True)
    clients = {path: rows for path, rows in encoded.items() if path.stem != TEST_STEM}
    if not clients:
        raise DataError(f"{paths[0]} is public test data, and there is no client's file; add one")
    public = [rows for path, rows in encoded.items() if path.stem == TEST_STEM]
    masks = [_held_out(path, rows, schema, key, bool(public)) for path, rows in clients.items()]
    train = _gathered(list(clients.values()), [~mask for mask in masks], loss)
    test = _gathered(public or list(clients.values()), [np.ones(len(rows), bool) for rows in public] or masks, loss)
    if len(test) == 0:
        raise DataError(
            f"no row is held out for testing: raise held_out={schema.held_out:g} in {schema_file}, or add public rows "
            f"in a file {TEST_STEM}.csv"
        )
    return Dataset(
        name="table",
        train=train,
        test=test,
        num_classes=len(encoder.classes),
        kind=schema.target.kind,
        is_synthetic=False,
        test_is_held_out=not public,
        held_out_clients=None if public else _spans(masks),
        natural_clients=_spans([~mask for mask in masks]),
        client_names=tuple(path.stem for path in clients),
        encoder=encoder,
        persons=_persons(clients, [~mask for mask in masks]),
        held_out_persons=None if public else _persons(clients, masks),
    )


def _persons(clients: Mapping[Path, Encoded], masks: Sequence[Mask]) -> tuple[Tensor, ...] | None:
    """Return the number of the person of each chosen row, by client; None if the schema names no person column."""
    found = [
        person_numbers(np.asarray(rows.persons)[mask], int(mask.sum()), f"{path}: the person column")
        for (path, rows), mask in zip(clients.items(), masks, strict=True)
        if rows.persons is not None
    ]
    return tuple(found) if len(found) == len(clients) else None


def _spans(masks: Sequence[Mask]) -> tuple[Tensor, ...]:
    """Return the rows of each part once the chosen rows of all parts are gathered."""
    ends = np.cumsum([0, *(int(mask.sum()) for mask in masks)])
    return tuple(torch.arange(int(first), int(last)) for first, last in pairwise(ends))


def load_public_table(
    encoder: Encoder, files: Sequence[str | Path], data_dir: Path | None, loss: str | None = None
) -> Dataset:
    """Load the public rows of a deployment's server, which has no others. Files must be named test.csv or the like.

    Both parts of the data set are the public rows: nothing is trained on here.

    Args:
        encoder: encodes rows.
        files: files and folders.
        data_dir: a folder of files, if `files` is empty.
        loss: name of the loss, as for `load_table`.

    Raises:
        ConfigError: there is another file than public rows.
        DataError: a file does not fit the schema.
    """
    paths = table_files(files, data_dir)
    if private := [path for path in paths if path.stem != TEST_STEM]:
        raise ConfigError(
            f"{private[0]}: a server over nodes reads public test rows only, in a file {TEST_STEM}.csv or "
            f"{TEST_STEM}.parquet; private rows belong into the vaults"
        )
    encoded = [encoder.encode(path, needs_target=True) for path in paths]
    rows = _gathered(encoded, [np.ones(len(part), bool) for part in encoded], loss)
    return Dataset(
        name="table",
        train=rows,
        test=rows,
        num_classes=len(encoder.classes),
        kind=rows.kind,
        is_synthetic=False,
        encoder=encoder,
    )


class OwnRows(NamedTuple):
    """The rows of one owner's file, in two parts, with the number of the person of each row.

    Persons are None if the schema names no person column.
    """

    trained: LabelledData
    persons: Tensor | None
    held_out: LabelledData
    held_out_persons: Tensor | None


def load_own_rows(path: Path, schema: Schema, key: bytes, loss: str | None = None) -> OwnRows:
    """Load the rows of one owner's file as its vault does: those to train on, and those that are held out.

    Args:
        path: the file.
        schema: the enrolled schema.
        key: the owner's secret key of the held-out rows.
        loss: name of the loss, as for `load_table`.

    Raises:
        ConfigError: the loss does not fit the target.
        DataError: the file does not fit the schema.
    """
    _check_counts(schema, loss, "the schema")
    rows = Encoder(schema).encode(path, needs_target=True)
    mask = _held_out(path, rows, schema, key, has_public=False)
    trained, held_out = (_gathered([rows], [part], loss) for part in (~mask, mask))
    persons, apart = (_persons({path: rows}, [part]) for part in (~mask, mask))
    return OwnRows(trained, persons[0] if persons else None, held_out, apart[0] if apart else None)


def table_files(files: Sequence[str | Path], data_dir: Path | None) -> list[Path]:
    """Return the files of a run, in order. Folders and patterns such as hospitals/*.csv give their files by name."""
    given = [Path(file) for file in files] or ([] if data_dir is None else [data_dir])
    if not given:
        raise ConfigError(
            "table needs --data (data.files), such as hospitals/*.csv, or --data-dir (data.data_dir), a folder of them"
        )
    paths = []
    for path in given:
        if path.is_dir():
            inside = sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)
        else:
            inside = [path] if path.exists() or "*" not in path.name else sorted(path.parent.glob(path.name))
        if not inside:
            raise DataError(f"{path} has no {' or '.join(SUFFIXES)} file; give one for each client")
        paths += inside
    stems = [path.stem for path in paths]
    if twice := [path for path in paths if stems.count(path.stem) > 1]:
        raise DataError(f"{twice[0]} and {twice[1]} have the same name without suffix; clients need different names")
    return paths


def trainable_schema(path: str | Path, loss: str | None = None) -> Schema:
    """Read a schema file. Refuse the loss "poisson" for targets that are no counts."""
    schema = read_schema(path)
    _check_counts(schema, loss, str(path))
    return schema


def target_unit(schema: Schema) -> float:
    """Return what a difference of 1 between two targets is in the table's own unit; 1 if they are no numbers."""
    target = schema.target
    return (target.high - target.low) / 2 if isinstance(target, NumberTarget) else 1.0


def output_range(schema: Schema, loss: str | None = None) -> tuple[float, float]:
    """Return the outputs that predict the bounds of a number target, as (low, high); infinite for other targets."""
    if not isinstance(schema.target, NumberTarget):
        return -math.inf, math.inf
    return (-math.inf, math.log(2.0)) if loss == "poisson" else (-1.0, 1.0)  # poisson predicts a logarithm


def _check_counts(schema: Schema, loss: str | None, source: str) -> None:
    if loss == "poisson" and isinstance(schema.target, NumberTarget) and schema.target.low != 0:
        raise ConfigError(
            f'{source}: target.low={schema.target.low:g} must be 0 with loss="poisson", which takes counts; set it to '
            '0, or take another loss, such as "squared"'
        )


def _held_out(path: Path, rows: Encoded, schema: Schema, key: bytes, has_public: bool) -> Mask:
    mask = np.zeros(len(rows), bool) if has_public else held_out_rows(rows, schema.held_out, key)
    if mask.all():
        raise DataError(f"{path}: all its rows are held out for testing; add rows, or lower held_out in the schema")
    return mask


def _gathered(parts: Sequence[Encoded], masks: Sequence[Mask], loss: str | None) -> LabelledData:
    """Copy the chosen rows of all parts into one pair of tensors. No row is copied again after this.

    Numbers are in [-1, 1]. A mean count, which `poisson` predicts by its logarithm, is not negative: for it they are
    in [0, 2]. So a model of zeros predicts the middle with every loss.
    """
    found = [rows.targets for rows in parts if rows.targets is not None]
    ends = np.cumsum([0, *(int(mask.sum()) for mask in masks)])
    inputs = np.empty((int(ends[-1]), parts[0].inputs.shape[1]), np.float32)
    targets = np.empty((int(ends[-1]), *found[0].shape[1:]), found[0].dtype)
    for rows, own, mask, (start, end) in zip(parts, found, masks, pairwise(ends), strict=True):
        np.compress(mask, rows.inputs, axis=0, out=inputs[start:end])
        np.compress(mask, own, axis=0, out=targets[start:end])
    if loss == "poisson":
        targets += 1
    return LabelledData(inputs=torch.from_numpy(inputs), targets=torch.from_numpy(targets))
