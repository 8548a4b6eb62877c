"""Per-sample gradients of one parameter, in the cheapest form that gives exact norms and an exact weighted sum.

DP-SGD needs two things of the gradients g_1 ... g_B of a batch: each norm |g_n|, and after all layers' norms are known
the sum of k_n g_n with clip factors k_n. Neither needs the g_n themselves where a formula serves.

Everything here is private: nothing of it may leave the client without noise.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

import torch
from torch import Tensor

SCRATCH_BYTES = 1 << 20  # intermediate copies are made in chunks of this size, which stay in the cache
_EXACT_LENGTH = 1 << 14

# Where a weighted sum is recomputed rather than read from stored gradients, rounding may add this much of the sum of
# the terms' sizes to a sample's contribution. A hostile sample can make the terms huge and their sum small, so the
# norm that is clipped must include it.
_ROUNDING = 2.0**-20


class Storage(Enum):
    """What a rule that can only get norms by writing gradients out does with them."""

    KEEP = auto()
    """Keep them for the weighted sum."""
    RECOMPUTE = auto()
    """Keep only the norms, and compute the weighted sum anew: less memory, more work."""
    DEFER = auto()
    """Wait until all other layers' norms are known; then no sample's gradient leaves the cache."""


class SampleGradients(Protocol):
    """Gradients of one parameter for every sample of a batch."""

    @property
    def squared_norms(self) -> Tensor:
        """(B,) squared norm of each sample's gradient, float64."""

    def weighted_sum(self, weights: Tensor, dropped: Tensor | None) -> Tensor:
        """Sum over samples of weight times gradient, in the parameter's shape, without the samples in `dropped`.

        `dropped` is a mask (B,) of samples with NaN or Inf: 0 x NaN is NaN, so a weight alone would not remove them.
        """


def squared_norms(tensor: Tensor) -> Tensor:
    """(..., P) -> (...) squared Euclidean norms over the last dimension, in double.

    Float32 sums of at most `_EXACT_LENGTH` squares are right to about 5e-7; longer ones would drift, and products of
    norms could underflow, so the rest is done in double.
    """
    if tensor.shape[-1] <= _EXACT_LENGTH:
        norms: Tensor = torch.linalg.vector_norm(tensor, dim=-1)
        return norms.double().square_()
    return torch.stack([squared_norms(part) for part in tensor.split(_EXACT_LENGTH, dim=-1)]).sum(0)


def squared_rows(tensor: Tensor) -> Tensor:
    """(B, ...) -> (B,) squared Euclidean norm of each sample's entries, in double."""
    return squared_norms(tensor.flatten(1))


def _zero(tensor: Tensor, dropped: Tensor | None) -> Tensor:
    """Zero the entries of dropped samples in (B, ...)."""
    return tensor if dropped is None else tensor.masked_fill(_column(dropped, tensor), 0)


def _column(values: Tensor, like: Tensor) -> Tensor:
    """(B,) -> (B, 1, ...) with as many dimensions as `like`."""
    return values.view(-1, *[1] * (like.dim() - 1))


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Gradients written out in slabs (S, B, P): S x P values a sample, in whatever order was fastest to write.

    `to_parameter` turns a sum (S, P) of them into the parameter's shape.
    """

    values: Tensor
    squared_norms: Tensor
    to_parameter: Callable[[Tensor], Tensor]

    def weighted_sum(self, weights: Tensor, dropped: Tensor | None) -> Tensor:
        """One matrix-vector product over the stored gradients."""
        values = self.values
        if dropped is not None:
            values = _zero(values.transpose(0, 1), dropped).transpose(0, 1)
        slabs = [weights @ slab for slab in values]  # (B) @ (B, P) -> (P)
        return self.to_parameter(slabs[0] if len(slabs) == 1 else torch.stack(slabs))


def stored(gradients: Tensor, squared: Tensor | None = None) -> Stored:
    """Gradients (B, *parameter's shape), written out as they are; their squared norms, if they are known already."""
    shape, values = gradients.shape[1:], gradients.flatten(1)
    squared = squared_norms(values) if squared is None else squared
    return Stored(values=values.unsqueeze(0), squared_norms=squared, to_parameter=lambda total: total.view(shape))


@dataclass(frozen=True, kw_only=True)
class Recomputed:
    """Gradients that are a bilinear form of layer inputs and output gradients: only those two are kept.

    `form(inputs, grad_output)` gives the sum over the batch; it is run on the weighted output gradients.
    """

    inputs: Tensor
    grad_output: Tensor
    squared_norms: Tensor
    form: Callable[[Tensor, Tensor], Tensor]

    def weighted_sum(self, weights: Tensor, dropped: Tensor | None) -> Tensor:
        """The batch's weight gradient with each sample's output gradient multiplied by its weight."""
        inputs, grad_output = _zero(self.inputs, dropped), _zero(self.grad_output, dropped)
        return self.form(inputs, grad_output * _column(weights, grad_output))


@dataclass(frozen=True)
class Deferred:
    """Gradients not computed yet: norms and clipped sum come together, once the norms of the rest are known.

    One parameter of a model can be treated like this, so it should be the largest. `clipped_sum(squared, limit)` takes
    the (B,) squared norms over all other parameters and the largest norm a sample may contribute; it returns the (B,)
    norms over all parameters and this parameter's sum, in which samples with a norm that is not finite have no part.
    """

    clipped_sum: Callable[[Tensor, float], tuple[Tensor, Tensor]]


def clip_factors(norms: Tensor, limit: float) -> Tensor:
    """(B,) factors min(1, limit / norm); 0 for a norm that is not finite, whose sample then contributes nothing."""
    factors = (limit / norms).clamp_max(1)  # norm 0 gives inf, hence 1
    return torch.where(torch.isfinite(norms), factors, 0)


def non_finite(norms: Tensor) -> Tensor | None:
    """The mask of samples to drop, or None if there are none."""
    finite = torch.isfinite(norms)
    return None if bool(finite.all()) else ~finite


def rounding_allowance(inputs: Tensor, grad_output: Tensor, uses_of_an_input: int = 1) -> Tensor:
    """(B,) square of what rounding may add to a recomputed gradient, by Cauchy-Schwarz over its terms."""
    return squared_rows(inputs) * squared_rows(grad_output) * (uses_of_an_input * _ROUNDING**2)
