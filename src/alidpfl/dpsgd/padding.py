"""Zero padding of matrices, so that a record's gradient depends neither on the batch's size nor on its place in it.

A matrix product picks its method by the size of the batch and by where a row begins in memory, and methods round
differently. A hostile server can send weights so large that rounding decides the class. Then one record more could
change the gradients of all others. So batches are padded to a multiple of 16 or 32 records, and rows to begin at equal
boundaries: products then use one method for every batch. This was measured on the models of this package and on linear
layers of all widths (tests/dpsgd/test_padding.py). It is not proved for every processor and layer. `OneByOneClipper` is
proved.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Records: element-wise functions take two vectors at a time, and compute what is left over by another method.
_MULTIPLE = 32 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 16
_EVEN, _PADDED_WIDTH = 4, 16  # columns: a multiple of 4 needs no padding, other widths go up to a multiple of 16


def padded_size(size: int) -> int:
    """Return the number of records to which a batch of `size` is padded."""
    return max(1, -(-size // _MULTIPLE)) * _MULTIPLE


def unpadded_size(size: int) -> int:
    """Return the largest number of records up to `size` that needs no padding, or `size` if there is none."""
    return size - size % _MULTIPLE if size > _MULTIPLE else size


def pad_rows(tensor: Tensor, size: int, value: float = 0) -> Tensor:
    """Map (B, ...) to (size, ...), with `value` in the new rows."""
    if len(tensor) == size:
        return tensor
    padded = tensor.new_full((size, *tensor.shape[1:]), value)
    padded[: len(tensor)] = tensor
    return padded


def pad_columns(tensor: Tensor) -> Tensor:
    """Append columns of zeros to (..., d), so that every row begins at an equal boundary."""
    width = tensor.shape[-1]
    return F.pad(tensor, (0, -width % _PADDED_WIDTH)) if width % _EVEN else tensor


def padded_bmm(left: Tensor, right: Tensor) -> Tensor:
    """Multiply (B, m, k) by (B, k, n), one product a record, with matrices that begin at equal boundaries.

    The rounding of a product depends on where its matrices begin. If a record's terms cancel, rounding is all that is
    left. So it must not depend on the record's place.
    """
    rows, inner, columns = left.shape[1], left.shape[2], right.shape[2]
    left = F.pad(left, (0, -inner % _PADDED_WIDTH))
    right = F.pad(right, (0, -columns % _PADDED_WIDTH, 0, -inner % _PADDED_WIDTH))
    return torch.bmm(left.contiguous(), right.contiguous())[:, :rows, :columns]


def padded_gram(rows: Tensor) -> Tensor:
    """Return the products (B, T, T) of every two rows of (B, T, d), with matrices that begin at equal boundaries."""
    padded = F.pad(rows, (0, -rows.shape[2] % _PADDED_WIDTH)).contiguous()
    return torch.bmm(padded, padded.mT)


def linear_layers(model: nn.Module) -> list[nn.Linear]:
    """Return the layers that compute as nn.Linear does, trained or not. Those with another `forward` are left out."""
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return [layer for layer in linear if type(layer).forward is nn.Linear.forward and "forward" not in vars(layer)]


@contextmanager
def padded_linear(layers: Sequence[nn.Linear]) -> Iterator[None]:
    """Let these layers compute the same with padded, contiguous matrices inside this block."""
    for layer in layers:
        layer.forward = partial(_padded_linear, layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _padded_linear(layer: nn.Linear, input: Tensor) -> Tensor:  # noqa: A002, the name that nn.Linear gives it
    return padded_map(input, layer.weight, layer.bias)


def padded_map(inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Map (..., d) to (..., p) as F.linear does, with padded, contiguous matrices."""
    return F.linear(pad_columns(inputs).contiguous(), pad_columns(weight), bias)
