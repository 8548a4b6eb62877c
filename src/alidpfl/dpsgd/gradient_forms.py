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
_EXACT_LENGTH = 256  # float32 sums of so many squares are right to 2e-7, whatever the values; longer ones may drift
LARGEST_NORM = 1e30  # beyond, a clip factor would be a denormal number, which is not precise; see also _native.c
_LARGEST_INPUT = 1e20  # likewise the weighted gradient that multiplies it: denormals round by up to half of themselves


class Storage(Enum):
    """What a rule that can only get norms by writing gradients out does with them."""

    KEEP = auto()
    """Keep them for the weighted sum."""
    REWRITE = auto()
    """Keep only the norms, and write the gradients out again for the weighted sum: less memory, more work."""
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
    """(..., P) -> (...) squared Euclidean norms over the last dimension, in double from 256 terms on."""
    length = tensor.shape[-1]
    even = length - length % _EXACT_LENGTH
    pieces = tensor[..., :even].unflatten(-1, (-1, _EXACT_LENGTH))  # (..., P / 256, 256)
    total: Tensor = torch.linalg.vector_norm(pieces, dim=-1).double().square_().sum(-1)
    if even < length:
        total += torch.linalg.vector_norm(tensor[..., even:], dim=-1).double().square_()
    return total


def squared_rows(tensor: Tensor) -> Tensor:
    """(B, ...) -> (B,) squared Euclidean norm of each sample's entries, in double."""
    return squared_norms(tensor.flatten(1))


def precise(squared: Tensor, squared_inputs: Tensor) -> Tensor:
    """(B,) the squared norms of a bilinear form, infinite (so that the sample is dropped) where inputs are huge.

    A server can choose weights that make a layer's inputs 1e38 and the gradients that come back 1e-10. Their product is
    nothing special, but the gradient times its clip factor would be a denormal number, and its rounding error times
    1e38 would exceed the clip norm.
    """
    return torch.where(squared_inputs <= _LARGEST_INPUT**2, squared, torch.inf)  # false for NaN


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
class Bilinear:
    """Gradients that are a bilinear form of layer inputs and output gradients: only those two are kept.

    `form(inputs, grad_output)` gives the sum over the batch; it is run on the weighted output gradients. If a sample's
    gradient is itself a sum, the form must add in double: the terms of a hostile sample may be huge and cancel, and
    what rounding leaves of them would exceed its clipped norm.
    """

    inputs: Tensor
    grad_output: Tensor
    squared_norms: Tensor
    form: Callable[[Tensor, Tensor], Tensor]

    def weighted_sum(self, weights: Tensor, dropped: Tensor | None) -> Tensor:
        """The batch's weight gradient with each sample's output gradient multiplied by its weight."""
        inputs, grad_output = _zero(self.inputs, dropped), _zero(self.grad_output, dropped)
        return self.form(inputs, grad_output * _column(weights, grad_output))


@dataclass(frozen=True, kw_only=True)
class Rewritten:
    """Gradients written out a few samples at a time, once for the norms and once more for the weighted sum.

    Both times by the same code, so that the sum holds exactly what the norms were taken of.
    """

    inputs: Tensor
    grad_output: Tensor
    write_out: Callable[[Tensor, Tensor], Stored]
    samples_at_once: int
    squared_norms: Tensor

    def weighted_sum(self, weights: Tensor, dropped: Tensor | None) -> Tensor:
        """The second time."""
        total: Tensor | None = None
        masks = [None] * len(weights) if dropped is None else dropped.split(self.samples_at_once)
        pieces = (t.split(self.samples_at_once) for t in (self.inputs, self.grad_output, weights))
        for x, g, w, mask in zip(*pieces, masks, strict=False):
            piece = self.write_out(x, g).weighted_sum(w, mask)
            total = piece if total is None else total.add_(piece)
        assert total is not None  # noqa: S101
        return total


def rewritten(
    inputs: Tensor, grad_output: Tensor, write_out: Callable[[Tensor, Tensor], Stored], bytes_per_sample: int
) -> Rewritten:
    """Write gradients out for their norms, in pieces of a few samples."""
    at_once = max(1, SCRATCH_BYTES // bytes_per_sample)
    pieces = zip(inputs.split(at_once), grad_output.split(at_once), strict=True)
    squared = torch.cat([write_out(x, g).squared_norms for x, g in pieces])
    return Rewritten(
        inputs=inputs,
        grad_output=grad_output,
        write_out=write_out,
        samples_at_once=at_once,
        squared_norms=squared,
    )


@dataclass(frozen=True)
class Deferred:
    """Gradients not computed yet: norms and clipped sum come together, once the norms of the rest are known.

    One parameter of a model can be treated like this, so it should be the largest. `clipped_sum(squared, limit)` takes
    the (B,) squared norms over all other parameters and the largest norm a sample may contribute; it returns the (B,)
    norms over all parameters and this parameter's sum, in which samples to drop (see `to_drop`) have no part.
    """

    clipped_sum: Callable[[Tensor, float], tuple[Tensor, Tensor]]


def clip_factors(norms: Tensor, limit: float) -> Tensor:
    """(B,) factors min(1, limit / norm); 0 for a sample to drop."""
    factors = (limit / norms).clamp_max(1)  # norm 0 gives inf, hence 1
    return torch.where(norms <= LARGEST_NORM, factors, 0)  # false for NaN


def to_drop(norms: Tensor) -> Tensor | None:
    """The mask of samples whose gradient is not finite, or as good as not; None if there are none."""
    usable = norms <= LARGEST_NORM  # false for NaN
    return None if bool(usable.all()) else ~usable
