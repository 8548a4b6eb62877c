"""The optional native kernels, called through ctypes. The CPU's instruction set selects the variant.

Every kernel has a PyTorch path that gives the same result. `ALIDPFL_NATIVE=0` in the environment or `disabled()`
switches to it.
"""

import ctypes
import functools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

_SUFFIX_AND_LANES = {2: ("avx512", 16), 1: ("avx2", 8), 0: ("portable", 4)}
_LONGEST_VECTOR = 16
_TERMS_IN_FLOAT = 12
_PART = 512
_SOFTMAX_FEATURES = 1024  # features that the kernel takes at a time, the size of its scratch; see _native.c
_switched_off: ContextVar[bool] = ContextVar("alidpfl_native_switched_off", default=False)


class ConvShape(NamedTuple):
    """The C struct `conv_shape`, field by field; see _native.c."""

    batch: int
    records: int
    sample_size: int
    out_height: int
    out_width: int
    channels_out: int
    runs_y: int
    runs_x: int
    run_length: int
    run_step_y: int
    run_step_x: int
    step_y: int
    step_x: int

    @property
    def rows(self) -> int:
        """Weights of one output channel: kernel height x kernel width x input channels."""
        return self.runs_y * self.runs_x * self.run_length


@dataclass(frozen=True)
class _Library:
    handle: ctypes.CDLL
    instruction_set: int

    def function(self, name: str) -> "ctypes._NamedFuncPointer":
        suffix, _ = _SUFFIX_AND_LANES[self.instruction_set]
        return getattr(self.handle, f"alidpfl_{name}_{suffix}")  # type: ignore[no-any-return]


@functools.cache
def _library() -> _Library | None:
    if os.environ.get("ALIDPFL_NATIVE") == "0":
        return None
    path = library_file()
    if path is None:
        return None
    try:
        handle = ctypes.CDLL(str(path))
    except OSError:  # built for another machine; use the PyTorch path
        return None
    return _Library(handle, handle.alidpfl_instruction_set())


def library_file() -> Path | None:
    """Return the library that was built for this Python, even if it does not load. None if there is none."""
    beside = (Path(__file__).with_name(f"_native{suffix}") for suffix in EXTENSION_SUFFIXES)
    return next((path for path in beside if path.exists()), None)


@contextmanager
def disabled() -> Iterator[None]:
    """Use the PyTorch path inside this block, for tests and comparisons."""
    token = _switched_off.set(True)
    try:
        yield
    finally:
        _switched_off.reset(token)


def is_available() -> bool:
    """Return True if the kernels were built, load here and are switched on."""
    return not _switched_off.get() and _library() is not None


def instruction_set() -> str:
    """Return the instruction set in use: avx512, avx2, portable, or "none" without the kernels."""
    library = _library()
    return "none" if library is None or not is_available() else _SUFFIX_AND_LANES[library.instruction_set][0]


def serves_convolution(channels_out: int) -> bool:
    """Return True if the kernel takes a convolution with this many output channels (whole vectors only)."""
    library = _library()
    return is_available() and library is not None and channels_out % _SUFFIX_AND_LANES[library.instruction_set][1] == 0


def conv_gradients(shape: ConvShape, inputs: Tensor, grad_output: Tensor) -> tuple[Tensor, Tensor]:
    """Return per-sample weight gradients (batch, rows, channels out) and squared norms (batch,) from NHWC data.

    With `shape.records` = k above 1, they are the gradients of persons, each the sum over k records in a row. Gradients
    are made finite, as by `gradient_forms.finite`, after their norms are taken.
    """
    _check_convolution(shape, inputs, grad_output)
    weights = torch.empty(shape.batch, shape.rows, shape.channels_out, dtype=torch.float32)
    squared = torch.empty(shape.batch, dtype=torch.float64)
    _call("conv", shape, inputs, grad_output, weights, squared)
    return weights, squared


def conv_clipped_sum(
    shape: ConvShape, inputs: Tensor, grad_output: Tensor, other_squared_norms: Tensor, limit: float
) -> tuple[Tensor, Tensor]:
    """Return norms (B,) over all parameters, and the clipped sum (rows, channels out) of one convolution's gradients.

    Args:
        shape: Sizes and steps of the convolution.
        inputs: (B k, H, W, channels in) float32, with k = shape.records.
        grad_output: (B k, out height, out width, channels out) float32.
        other_squared_norms: (B,) squared norms over all other parameters, float64.
        limit: Largest norm that a record (or person) may contribute.
    """
    _check_convolution(shape, inputs, grad_output)
    _check_contiguous(other_squared_norms, torch.float64, shape.batch)
    scratch, total = (make(shape.rows, shape.channels_out, dtype=torch.float32) for make in (torch.empty, torch.zeros))
    norms = torch.empty(shape.batch, dtype=torch.float64)
    _call("conv_clipped_sum", shape, inputs, grad_output, other_squared_norms, limit, scratch, total, norms)
    return norms, total


def _check_convolution(shape: ConvShape, inputs: Tensor, grad_output: Tensor) -> None:
    images = shape.batch * shape.records
    _check_contiguous(inputs, torch.float32, images * shape.sample_size)
    positions = shape.out_height * shape.out_width
    _check_contiguous(grad_output, torch.float32, images * positions * shape.channels_out)


def orthogonal(narrow: Tensor, wide: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return finite directions (B, k, n) and values (B, k, m), and squared norms (B,); see `gradient_forms.Orthogonal`.

    Args:
        narrow: (B, k, n) float32.
        wide: (B, k, m) float32.
    """
    batch, records, short = narrow.shape
    long = wide.shape[2]
    _check_contiguous(narrow, torch.float32, batch * records * short)
    _check_contiguous(wide, torch.float32, batch * records * long)
    directions, values = torch.empty_like(narrow), torch.empty_like(wide)
    squared = torch.empty(batch, dtype=torch.float64)
    scratch = torch.empty(records * (short + records + 2), dtype=torch.float64)
    _call("orthogonal", (batch, records, short, long), narrow, wide, scratch, directions, values, squared)
    return directions, values, squared


def relu_pool(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return ReLU and 2x2 max-pooling of x (B, H, W, C), and for the backward pass which entry of each window won."""
    batch, height, width, channels = x.shape
    _check_contiguous(x, torch.float32, x.numel())
    out = torch.empty(batch, height // 2, width // 2, channels, dtype=torch.float32)
    winner = torch.empty(out.shape, dtype=torch.uint8)
    _call("relu_pool", x.shape, x, out, winner)
    return out, winner


def relu_pool_backward(grad: Tensor, winner: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Return the gradient with respect to x, of the given shape (B, H, W, C)."""
    _check_contiguous(grad, torch.float32, winner.numel())
    _check_contiguous(winner, torch.uint8, shape[0] * (shape[1] // 2) * (shape[2] // 2) * shape[3])
    covered = shape[1] % 2 == 0 and shape[2] % 2 == 0  # if not, the last row or column is in no window
    grad_x = (torch.empty if covered else torch.zeros)(shape, dtype=torch.float32)
    _call("relu_pool_backward", shape, grad, winner, grad_x)
    return grad_x


def softmax_width(classes: int) -> int:
    """Return the number of classes, padded to whole vectors."""
    lanes = _SUFFIX_AND_LANES[_loaded().instruction_set][1]
    return -(-classes // lanes) * lanes


def softmax_scores(inputs: Tensor, rows: Tensor, weights: Tensor, records: int = 1) -> tuple[Tensor, Tensor]:
    """Return scores (B, width) of rows of inputs (n, features) by weights (features, width), and products of the rows.

    The products are the squared norms (B,), or with k records in a row for each person (B / k, k, k).

    Args:
        inputs: (n, features) float32.
        rows: (B,) rows of the batch, person by person.
        weights: (features, width) float32.
        records: k, the number of rows of each person; 1 at record level.
    """
    features, width = weights.shape
    _check_rows(inputs, rows, features)
    _check_persons(rows, records)
    _check_contiguous(weights, torch.float32, features * softmax_width(width))
    scores = torch.empty(len(rows), width, dtype=torch.float32)
    shape = (len(rows),) if records == 1 else (len(rows) // records, records, records)
    products = torch.empty(shape, dtype=torch.float64)
    scratch = torch.empty(records * _PART, dtype=torch.float32)
    _call("softmax_scores", (len(rows), records, features, width), inputs, rows, weights, scores, scratch, products)
    return scores, products


def softmax_gradient(inputs: Tensor, rows: Tensor, groups: Tensor, residuals: Tensor, records: int = 1) -> Tensor:
    """Return the sum over a batch of residuals times features, (classes, features) in double.

    Args:
        inputs: (n, features) float32. Features that are not finite count as 0.
        rows: (B,) rows of the batch.
        groups: (B / k,) ascending group numbers of the persons. One group is added in float32, groups in double.
        residuals: (B, classes) float32, finite.
        records: k, the number of rows of each person. They are added first, each person by itself.
    """
    features, classes = inputs.shape[1], residuals.shape[1]
    _check_rows(inputs, rows, features)
    _check_persons(rows, records)
    _check_contiguous(groups, torch.int64, len(rows) // records)
    _check_contiguous(residuals, torch.float32, len(rows) * classes)
    total = torch.zeros(classes, features, dtype=torch.float64)
    scratch = torch.empty(classes * _SOFTMAX_FEATURES + 2 * records * _LONGEST_VECTOR, dtype=torch.float32)
    _call("softmax_gradient", (len(rows), records, features, classes), inputs, rows, groups, residuals, scratch, total)
    return total


def softmax_persons(
    inputs: Tensor, rows: Tensor, groups: Tensor, residuals: Tensor, limit: float
) -> tuple[Tensor, Tensor]:
    """Return norms (B,) of persons' gradients, and their clipped sum (classes, features) in double.

    Args:
        inputs: (n, features) float32.
        rows: (B, k) rows of the persons.
        groups: (B,) ascending group numbers. One group is added in float32, groups in double.
        residuals: (B, k, classes) float32, with the records' weights.
        limit: Largest norm that a person may contribute.
    """
    (persons, records, classes), features = residuals.shape, inputs.shape[1]
    _check_rows(inputs, rows.flatten(), features)
    _check_contiguous(rows, torch.int64, persons * records)
    _check_contiguous(groups, torch.int64, persons)
    _check_contiguous(residuals, torch.float32, persons * records * classes)
    total = torch.zeros(classes, features, dtype=torch.float64)
    norms = torch.empty(persons, dtype=torch.float64)
    gradients = 2 * classes * (features + 3 * _LONGEST_VECTOR)
    scratch = torch.zeros(gradients + 2 * records * _LONGEST_VECTOR, dtype=torch.float32)
    shape = (persons * records, records, features, classes)
    _call("softmax_persons", shape, inputs, rows, groups, residuals, float(limit), scratch, total, norms)
    return norms, total


def clip_persons(products: Tensor, residuals: Tensor, features: int, *, largest_input: float, limit: float) -> Tensor:
    """Return the gradient norms (B,) of persons, or a little more. Scale their residuals (B, k, classes) in place.

    Args:
        products: (B, k, k) float64: products of the records of a person.
        residuals: (B, k, classes) float32, with the records' weights. They become finite.
        features: Length of the records.
        largest_input: Persons with larger inputs are dropped, all their records together.
        limit: Largest norm that a person may contribute.
    """
    batch, records, classes = residuals.shape
    _check_contiguous(products, torch.float64, batch * records * records)
    _check_contiguous(residuals, torch.float32, batch * records * classes)
    norms = torch.empty(batch, dtype=torch.float64)
    # Products are rounded up to twelve times in float32. A person's sum in float32 rounds each
    # term at most k + 4 times, with its factors.
    terms, rounded = (_TERMS_IN_FLOAT + 1) * 2.0**-24 + (features + classes) * 2.0**-52, (records + 4) * 2.0**-24
    shape = (batch * records, records, features, classes)
    _call("clip_persons", shape, products, terms, rounded, largest_input**2, float(limit), residuals, norms)
    return norms


def add_rounded(vector: Tensor, factor: float, largest_square: int, total: Tensor) -> None:
    """Add a record's vector (P,) times a factor to the total, rounded to whole numbers; see `Grid.rounded`.

    Args:
        vector: float32.
        factor: Brings the norm below 2^51.
        largest_square: Largest squared norm of the rounded vector.
        total: (P,) float64, changed in place.
    """
    _check_contiguous(vector, torch.float32, len(total))
    _check_contiguous(total, torch.float64, len(total))
    _call("add_rounded", len(total), vector, factor, float(largest_square), total)


def _check_rows(inputs: Tensor, rows: Tensor, features: int) -> None:
    _check_contiguous(inputs, torch.float32, len(inputs) * features)
    _check_contiguous(rows, torch.int64, len(rows))
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(inputs):
        raise IndexError(f"rows must be in 0..{len(inputs) - 1}")


def _check_persons(rows: Tensor, records: int) -> None:
    if records < 1 or len(rows) % records:
        raise ValueError(f"{len(rows)} rows are no whole number of persons with {records} each")


def box_muller(radius: Tensor, angle: Tensor, *, out: Tensor) -> None:
    """Write two standard normals for each pair of a 64-bit and a 32-bit random word; see randomness.py."""
    pairs = len(angle)
    _check_contiguous(radius, torch.int64, pairs)
    _check_contiguous(angle, torch.int32, pairs)
    _check_contiguous(out, torch.float32, 2 * pairs)
    _call("box_muller", pairs, radius, angle, out, out[pairs:])


def _call(name: str, sizes: int | Sequence[int], *arguments: Tensor | float) -> None:
    """Call a kernel with one size or an array of them, then pointers to the tensors' memory and doubles."""
    first = ctypes.c_int64(sizes) if isinstance(sizes, int) else (ctypes.c_int64 * len(sizes))(*sizes)
    pointers = (ctypes.c_void_p(a.data_ptr()) if isinstance(a, Tensor) else ctypes.c_double(a) for a in arguments)
    _loaded().function(name)(first, *pointers)


def _loaded() -> _Library:
    library = _library()
    if library is None:
        raise RuntimeError("the native kernels are not built: check is_available() first")
    return library


def _check_contiguous(tensor: Tensor, dtype: torch.dtype, numel: int) -> None:
    # C reads raw memory, so that a wrong shape here would be a wrong read there.
    if tensor.dtype != dtype or not tensor.is_contiguous() or tensor.numel() != numel:
        raise ValueError(f"expected {numel} contiguous {dtype} values, got {tuple(tensor.shape)} {tensor.dtype}")
