"""Batches filled up with zeros, so that a sample's gradient does not depend on how many others there are.

Matrix products choose their way by the batch's size, and ways round differently. Under weights that a hostile server
makes so large that rounding decides the class, one sample more could change the gradients of all others. Filled up to
16 samples, and to whole eights, products take one way whatever the batch: measured on the models of this package, not
proved for every processor and layer (tests/dpsgd/test_filling.py). Proved: `OneByOneClipper`.
"""

from torch import Tensor

_LEAST, _MULTIPLE = 16, 8


def filled_size(size: int) -> int:
    """How many samples a batch of `size` is filled up to.

    >>> [filled_size(size) for size in (1, 16, 17, 90)]
    [16, 16, 24, 96]
    """
    return max(_LEAST, -(-size // _MULTIPLE) * _MULTIPLE)


def filled(tensor: Tensor, size: int, value: float = 0) -> Tensor:
    """(B, ...) -> (size, ...): the tensor, and below it `value`."""
    if len(tensor) == size:
        return tensor
    whole = tensor.new_full((size, *tensor.shape[1:]), value)
    whole[: len(tensor)] = tensor
    return whole
