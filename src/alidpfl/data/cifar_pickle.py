"""Reads the pickles of CIFAR-10 without running what is in them.

A pickle is a program: it may name any function and have it called, or ask for all memory. This reader first looks at
every instruction and lets only those pass that dictionaries, lists, text, numbers and arrays need; then it knows four
names, those that arrays of bytes are stored by, and answers each with a harmless stand-in of its own.
"""

import io
import pickle
import pickletools
from math import prod
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from alidpfl.errors import DataError

_MAX_BYTES = 1 << 26  # a batch has 31 MB
_MAX_MEMO = 1 << 20  # places to remember objects in; a larger number makes Python allocate up to it
_NUM_STATE = 5  # of an array: version, shape, type, is in Fortran order, bytes

_INSTRUCTIONS: Final = frozenset(
    {"PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2"}
    | {"SHORT_BINSTRING", "BINSTRING", "SHORT_BINUNICODE", "BINUNICODE", "SHORT_BINBYTES", "BINBYTES"}
    | {"EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3"}
    | {"APPEND", "APPENDS", "SETITEM", "SETITEMS", "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET"}
    | {"GLOBAL", "STACK_GLOBAL", "REDUCE", "BUILD"}
)


class _Type:
    """Stands in for numpy.dtype: only the unsigned byte is known."""

    def __init__(self, name: object = "", *_: object) -> None:
        self.is_byte = name in ("u1", b"u1", "uint8", b"uint8")

    def __setstate__(self, state: object) -> None:
        """Byte order and alignment: a byte has neither."""


class _Array:
    """Stands in for numpy.ndarray: keeps shape and bytes, checked."""

    def __init__(self, *_: object) -> None:
        self.array: NDArray[np.uint8] | None = None

    def __setstate__(self, state: Any) -> None:
        if not isinstance(state, tuple) or len(state) != _NUM_STATE:
            raise pickle.UnpicklingError("an array has no valid state")
        _, shape, kind, is_fortran, raw = state
        if not isinstance(kind, _Type) or not kind.is_byte or is_fortran:
            raise pickle.UnpicklingError("an array is not of unsigned bytes in rows")
        content = raw.encode("latin1") if isinstance(raw, str) else raw
        if not isinstance(content, bytes) or prod(shape) != len(content):
            raise pickle.UnpicklingError("an array's shape does not fit its contents")
        self.array = np.frombuffer(content, np.uint8).reshape(shape)


class _Encoded(bytes):
    """Stands in for _codecs.encode, by which Python 3 stores bytes in old pickles."""

    def __new__(cls, text: str, *_: object) -> "_Encoded":
        return super().__new__(cls, text.encode("latin1"))

    def __setstate__(self, state: object) -> None:
        """There is none."""


_KNOWN: Final[dict[tuple[str, str], Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy._core.multiarray", "_reconstruct"): _Array,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Type,
    ("_codecs", "encode"): _Encoded,
}


class _BatchReader(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str) -> Any:
        known = _KNOWN.get((module_name, global_name))
        if known is None:
            raise pickle.UnpicklingError(f"it asks for {module_name}.{global_name}, which no data file needs")
        return known


def read_pickled_batch(path: Path, row_bytes: int, remedy: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Rows of pixels (n, row_bytes) and labels (n,) of one pickled batch."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise DataError(f"{path} is larger than {_MAX_BYTES >> 20} MB; {remedy}")
        raw = path.read_bytes()
        _check_instructions(raw)
        content = _BatchReader(io.BytesIO(raw), encoding="latin1").load()  # latin1: written by Python 2
        return _pixels_and_labels(content, row_bytes)
    except DataError:
        raise
    except Exception as error:  # a corrupt pickle can raise anything
        raise DataError(f"{path} is not a batch of CIFAR-10: {error or type(error).__name__}; {remedy}") from error


def _check_instructions(raw: bytes) -> None:
    for instruction, argument, _ in pickletools.genops(raw):
        if instruction.name not in _INSTRUCTIONS:
            raise pickle.UnpicklingError(f"it has the instruction {instruction.name}, which no data file needs")
        if instruction.name == "LONG_BINPUT" and argument > _MAX_MEMO:  # type: ignore[operator]
            raise pickle.UnpicklingError("it asks for too much memory")


def _pixels_and_labels(content: object, row_bytes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if not isinstance(content, dict):
        raise ValueError("it holds no dictionary")
    named = {key.decode("latin1") if isinstance(key, bytes) else key: value for key, value in content.items()}
    data, labels = named.get("data"), named.get("labels")
    if not isinstance(data, _Array) or data.array is None or data.array.ndim != 2:  # noqa: PLR2004
        raise ValueError("it has no array `data`")
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise ValueError("it has no list `labels` of whole numbers")
    if not len(labels) == len(data.array) > 0 or data.array.shape[1] != row_bytes:
        raise ValueError(f"`data` has shape {data.array.shape} for {len(labels)} labels and rows of {row_bytes} bytes")
    return data.array, np.array(labels, np.int64)
