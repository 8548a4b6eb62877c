"""The persons of records: which records are those of one person. Errors never quote a name."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from alidpfl.data.frames import is_frame
from alidpfl.errors import DataError

ROW_LEVEL = (
    "the data say which records are a person's, and epsilon is for one record, not for all records of a person; set "
    'privacy.unit="person" to protect persons; see docs/how-to/persons.md'
)
"""The warning of a run that protects records though its data have persons."""

_KINDS = "iuUT"  # whole numbers and texts, also numpy's own variable-width texts
_MISSING = ("", "na", "n/a", "nan", "nat", "none", "null", "<na>")
"""What a missing name becomes where names are made texts. Those who have it would all be one person."""


def person_numbers(values: Any, count: int, what: str) -> Tensor:
    """Return the number of the person of each record: from 0, in the order of the persons' names.

    Args:
        values: (count,) whole numbers or texts that name the person of each record: a tensor, array, list or series.
            Spaces around a text do not count.
        count: number of records.
        what: begins the errors, such as "client 0: groups".

    Raises:
        DataError: there is not one name for each record, or a name is neither a whole number nor a text.

    >>> person_numbers(["ann", "bob", "ann"], 3, "groups").tolist()
    [0, 1, 0]
    """
    names = _array(values, what)
    if names.ndim != 1 or len(names) != count:
        raise DataError(f"{what} has shape {names.shape}; need one person for each of the {count} records")
    if names.dtype.kind not in _KINDS:
        raise DataError(
            f"{what} has type {names.dtype}; name each person by a whole number or a text, none of them missing, such "
            "as astype('int64') or astype(str)"
        )
    if names.dtype.kind not in "iu":
        names = np.strings.strip(names)
        if bool(np.isin(np.strings.lower(names), _MISSING).any()):
            raise DataError(
                f"{what} is empty or missing in some records; name the person of every record. Texts such as 'nan', "
                "'NA' and 'None' count as missing"
            )
    return torch.from_numpy(np.unique(names, return_inverse=True)[1].astype(np.int64))


def _array(values: Any, what: str) -> NDArray[Any]:
    """Return names as an array. Python's own texts and whole numbers become types that can be checked."""
    if isinstance(values, Tensor):
        values = values.detach().cpu().numpy()
    elif is_frame(values):
        values = values.to_numpy()
    try:
        array = np.asarray(values, None if hasattr(values, "dtype") else object)  # else [1, "a"] becomes ["1", "a"]
        if array.dtype != object:
            return array
        kinds = {np.asarray(value).dtype.kind for value in array.flat}
        if len(kinds) == 1 and kinds != {"O"}:
            return np.asarray(array.tolist())
    except (TypeError, ValueError, RuntimeError):  # its text may quote names
        raise DataError(f"{what} cannot be made into an array; give one person for each record") from None
    raise DataError(f"{what} has names of several types, or some are missing; use texts alone, or whole numbers alone")
