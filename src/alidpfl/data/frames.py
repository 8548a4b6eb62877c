"""Records in Python as arrays: frames of pandas and polars, data sets of Hugging Face, arrays and lists.

None of these libraries needs to be installed. Errors name the column, and never quote a value.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from alidpfl.errors import DataError, printable

Column: TypeAlias = NDArray[Any]

_LABEL_NAMES = ("label", "labels")
_ENCODE = "or train on tables with a schema, which says how (docs/how-to/tables.md)"
_NUMBER_THEM = "number them from 0 by a public list, such as y.map({'no': 0, 'yes': 1})"


def is_frame(values: object) -> bool:
    """Return whether this is a frame or series of pandas or polars."""
    return hasattr(values, "to_numpy")


def is_hub_dataset(values: object) -> bool:
    """Return whether this is a data set of Hugging Face's `datasets`."""
    return hasattr(values, "with_format") and hasattr(values, "column_names")


def input_numbers(values: Any) -> Tensor:
    """Return inputs as float32. Each column of a frame becomes a column of the result."""
    if is_hub_dataset(values):
        values = _side_by_side(_hub_columns(values))
    elif is_frame(values):
        values = _frame_numbers(values)
    if not isinstance(values, Tensor):
        array = _array(values, "inputs")
        if array.dtype.kind not in "fiu":
            raise DataError(f"inputs {_told(array)}; give real numbers, such as x.astype('float32')")
        with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite, and `LabelledData` refuses it
            values = torch.from_numpy(np.require(array, np.float32, ["C", "W"]))
    if values.dtype == torch.bool or values.is_complex():
        raise DataError(f"inputs have type {values.dtype}; need real numbers, such as x.astype('float32')")
    numbers: Tensor = values.detach().to(torch.float32)
    return numbers


def target_values(values: Any) -> Tensor:
    """Return targets as they are. Texts and categories are refused, since their order would be a guess."""
    if isinstance(values, Tensor):
        return values
    if is_frame(values):
        columns = [column for _, column in _columns(values)]
        if any(map(_has_gaps, columns)):
            raise DataError("targets are missing in some records; drop these records, or complete them")
        if any(str(column.dtype) == "category" for column in columns):  # its numbers are names
            raise DataError(f"targets are categories; {_NUMBER_THEM}")
        arrays = [np.asarray(column.to_numpy()) for column in columns]  # together they may be of no single type
        values = arrays[0] if len(arrays) == 1 else np.stack([_target_numbers(array) for array in arrays], axis=1)
    array = _array(values, "targets")
    if array.dtype.kind in "OUSTMm":
        raise DataError(f"targets are texts, dates or mixed; {_NUMBER_THEM}")
    return torch.from_numpy(np.require(array, array.dtype.newbyteorder("="), ["C", "W"]))


def _target_numbers(values: Column) -> Column:
    """Return one of several columns of targets as numbers."""
    return values.astype(np.float64) if values.dtype.kind in "fiub" else values


def hub_pair(dataset: Any) -> tuple[Any, Any]:
    """Return inputs and targets of a Hugging Face data set. The column of labels is found by its type or its name."""
    columns = _hub_columns(dataset)
    declared = [name for name, feature in (dataset.features or {}).items() if hasattr(feature, "str2int")]
    labels = [name for name in declared if name in columns] or [name for name in _LABEL_NAMES if name in columns]
    if len(labels) != 1:
        found = "no column of labels" if not labels else f"several columns of labels ({', '.join(map(repr, labels))})"
        raise DataError(f"the data set has {found}; give (inputs, targets): (d.select_columns([...]), d['label'])")
    return _side_by_side({name: values for name, values in columns.items() if name not in labels}), columns[labels[0]]


def check_aligned(inputs: Any, other: Any, what: str = "inputs and targets") -> None:
    """Refuse pandas objects with one index in two orders: records are paired by their places, as in an array."""
    if not (hasattr(inputs, "iloc") and hasattr(other, "iloc")):
        return
    one, two = inputs.index, other.index
    if len(one) == len(two) and not one.equals(two) and one.is_unique and set(one) == set(two):
        raise DataError(f"{what} have one index in two orders; align them: y = y.loc[x.index]")


def check_columns(clients: Sequence[tuple[str, Any]]) -> None:
    """Refuse frames of clients that differ in columns or in their order. Each client comes with its description."""
    named = [(who, names) for who, client in clients if (names := _input_names(client))]
    for who, names in named[1:]:
        first_who, first = named[0]
        if names == first:
            continue
        differing = [name for name in (*first, *names) if (name in first) != (name in names)]
        if differing:
            one, other = (who, first_who) if differing[0] in first else (first_who, who)
            raise DataError(
                f"{one} has no column {_quoted(differing[0])}, and {other} has it; give all the same columns"
            )
        raise DataError(f"{who} has the columns of {first_who} in another order; give all the same order")


def _input_names(client: Any) -> list[str]:
    """Return the names of the input columns, if this client is a pair with a frame."""
    inputs: Any = client[0] if isinstance(client, tuple | list) and len(client) == 2 else None  # noqa: PLR2004
    return [str(name) for name in inputs.columns] if is_frame(inputs) and hasattr(inputs, "columns") else []


def _columns(frame: Any) -> list[tuple[str, Any]]:
    """Return the columns of a frame with their names, or a series alone, by their places: names may stand twice."""
    if not hasattr(frame, "columns"):
        return [("", frame)]
    take = frame.iloc.__getitem__ if hasattr(frame, "iloc") else None
    return [
        (str(name), frame.to_series(place) if take is None else take((slice(None), place)))
        for place, name in enumerate(frame.columns)
    ]


def _frame_numbers(frame: Any) -> NDArray[np.float32]:
    """Return the numbers and flags of a frame. A column of another type is named."""
    columns = _columns(frame)
    if not columns:
        raise DataError("inputs are a frame without columns; give at least one")
    with np.errstate(over="ignore"):
        numbers = [_column_numbers(name, column).astype(np.float32) for name, column in columns]
    if not hasattr(frame, "columns"):
        return numbers[0]
    return np.stack(numbers, axis=1)


def _column_numbers(name: str, column: Any) -> Column:
    what = f"column {_quoted(name)}" if name else "the column of inputs"
    if _has_gaps(column):
        raise DataError(f"{what} has missing values; fill them by a public rule, drop these records, {_ENCODE}")
    values = np.asarray(column.to_numpy())
    if values.dtype.kind not in "fiub" or str(column.dtype) == "category":  # a category may hold numbers
        kind = str(column.dtype).partition("(")[0]  # polars lists the categories behind it
        raise DataError(f"{what} has type {kind}; give numbers or flags: convert or encode it, {_ENCODE}")
    if not np.isfinite(values).all():
        raise DataError(f"{what} has values that are NaN or infinite; correct them by a public rule, {_ENCODE}")
    return values


def _has_gaps(column: Any) -> bool:
    """Return whether values of a pandas or polars series are missing."""
    return bool(column.isna().any()) if hasattr(column, "isna") else bool(column.null_count())


def _hub_columns(dataset: Any) -> dict[str, Any]:
    """Return all columns of a Hugging Face data set as arrays, or what its own transform makes of them."""
    if not hasattr(dataset, "__len__"):
        raise DataError("the data set is a stream; give one with a length, such as load_dataset(..., streaming=False)")
    has_transform = dataset.format["type"] == "custom"
    found: Mapping[str, Any] = (dataset if has_transform else dataset.with_format("numpy"))[:]
    return {str(name): values for name, values in found.items()}


def _side_by_side(columns: Mapping[str, Any]) -> NDArray[np.float32]:
    """Return columns of numbers side by side, or the only column, such as one of images, as it is."""
    numbers = {}
    for name, values in columns.items():
        array = (
            np.asarray(torch.stack([*values])) if _holds_tensors(values) else _array(values, f"column {_quoted(name)}")
        )
        if array.dtype.kind not in "fiub":
            raise DataError(f"column {_quoted(name)} {_told(array)}; give numbers: encode it, or leave it out")
        numbers[name] = array.astype(np.float32)
    if len(numbers) == 1 and next(iter(numbers.values())).ndim > 1:
        return next(iter(numbers.values()))
    if wide := [name for name, array in numbers.items() if array.ndim != 1]:
        raise DataError(
            f"column {_quoted(wide[0])} has several numbers a record; give it alone, or one number a column"
        )
    if not numbers:
        raise DataError("the data set has no columns of inputs; give at least one")
    return np.stack([*numbers.values()], axis=1)


def _holds_tensors(values: Any) -> bool:
    return isinstance(values, list) and bool(values) and isinstance(values[0], Tensor)


def _array(values: Any, what: str) -> NDArray[Any]:
    try:
        return np.asarray(values)
    except (TypeError, ValueError, RuntimeError):  # its text may quote records
        raise DataError(f"{what} have records of different shapes, or no numbers; make an array of one shape") from None


def _told(array: NDArray[Any]) -> str:
    """Return what is wrong with an array that holds no numbers."""
    return "are texts or mixed, or some are missing" if array.dtype.kind in "OUST" else f"have type {array.dtype}"


def _quoted(name: str) -> str:
    return repr(printable(name, longest=100))
