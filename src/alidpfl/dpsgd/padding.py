"""Matrices filled up with zeros, so that a sample's gradient depends neither on the number of others nor on its place.

Matrix products choose their way by the batch's size and by where a row begins in memory, and ways round differently.
Under weights that a hostile server makes so large that rounding decides the class, one sample more could change the
gradients of all others. Filled up to whole sixteens or thirty-twos of samples, and with rows that begin at equal
boundaries, products take one way whatever the batch: measured on the models of this package and on linear layers of all
widths, not proved for every processor and layer (tests/dpsgd/test_filling.py). Proved: `OneByOneClipper`.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

# Of samples: element-wise functions take two vectors at a time, and what is left over another way.
_MULTIPLE = 32 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 16
_EVEN, _FILLED_WIDTH = 4, 16  # of columns: multiples of 4 are well as they are, others go up to a multiple of 16


def filled_size(size: int) -> int:
    """How many samples a batch of `size` is filled up to.

    >>> [filled_size(size) for size in (1, 32, 90)] in ([16, 32, 96], [32, 32, 96])
    True
    """
    return max(1, -(-size // _MULTIPLE)) * _MULTIPLE


def whole_size(size: int) -> int:
    """The most samples at once, at most `size`, that need no filling up; below that, `size`.

    >>> [whole_size(size) for size in (5, 32, 100)]
    [5, 32, 96]
    """
    return size - size % _MULTIPLE if size > _MULTIPLE else size


def filled(tensor: Tensor, size: int, value: float = 0) -> Tensor:
    """(B, ...) -> (size, ...): the tensor, and below it `value`."""
    if len(tensor) == size:
        return tensor
    whole = tensor.new_full((size, *tensor.shape[1:]), value)
    whole[: len(tensor)] = tensor
    return whole


def even_width(tensor: Tensor) -> Tensor:
    """(..., d) -> (..., d or more): with columns of zeros behind, so that every row begins at an equal boundary.

    >>> [even_width(torch.ones(2, width)).shape[1] for width in (12, 13, 16, 30)]
    [12, 16, 16, 32]
    """
    width = tensor.shape[-1]
    return F.pad(tensor, (0, -width % _FILLED_WIDTH)) if width % _EVEN else tensor


def even_products_of(left: Tensor, right: Tensor) -> Tensor:
    """(B, m, k) times (B, k, n), one product a sample, by matrices whose rows all begin at equal boundaries.

    A product rounds by where its matrices begin. Of a record whose terms cancel, rounding is all that is left, and what
    it gives must not depend on its place.

    >>> even_products_of(torch.ones(2, 3, 5), torch.ones(2, 5, 7)).shape
    torch.Size([2, 3, 7])
    """
    rows, inner, columns = left.shape[1], left.shape[2], right.shape[2]
    left = F.pad(left, (0, -inner % _FILLED_WIDTH))
    right = F.pad(right, (0, -columns % _FILLED_WIDTH, 0, -inner % _FILLED_WIDTH))
    return torch.bmm(left.contiguous(), right.contiguous())[:, :rows, :columns]


def even_gram(rows: Tensor) -> Tensor:
    """(B, T, d) -> (B, T, T): the products of every two rows of a sample, by matrices that begin at equal boundaries.

    >>> even_gram(torch.ones(2, 3, 5))[0].tolist()
    [[5.0, 5.0, 5.0], [5.0, 5.0, 5.0], [5.0, 5.0, 5.0]]
    """
    even = F.pad(rows, (0, -rows.shape[2] % _FILLED_WIDTH)).contiguous()
    return torch.bmm(even, even.mT)


def linear_layers(model: nn.Module) -> list[nn.Linear]:
    """The layers that compute as nn.Linear does, trained or not; such as have a way of their own are left alone."""
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    return [layer for layer in linear if type(layer).forward is nn.Linear.forward and "forward" not in vars(layer)]


@contextmanager
def even_products(layers: Sequence[nn.Linear]) -> Iterator[None]:
    """While it lasts, these layers compute the same by matrices of even width, whose rows lie one behind the other."""
    for layer in layers:
        layer.forward = partial(_even_linear, layer)  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def _even_linear(layer: nn.Linear, input: Tensor) -> Tensor:  # noqa: A002, the name that nn.Linear gives it
    return F.linear(even_width(input).contiguous(), even_width(layer.weight), layer.bias)
