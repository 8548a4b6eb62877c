"""Per-sample gradients of one parameter, in the cheapest form that gives exact norms and an exact weighted sum.

DP-SGD needs two things from the gradients g_1 ... g_B of a batch. The first is each norm |g_n|. The second, once the
norms over all layers are known, is the sum of k_n g_n with clip factors k_n. Where a formula gives both, the g_n are
never computed. Everything here is private: nothing of it may leave the client without noise.

A record with a gradient that is not finite or too large is dropped: its factor is 0. A factor of 0 does not remove NaN,
so every value that a factor multiplies is made finite first. This is done for all records, in the same operations
whether or not one is dropped: the time of a step must not tell.

At person level the gradients are those of persons. A person has k records, which follow one another in the batch, and
its gradient is the sum of theirs. Their weights are in the output gradients already. "Record" then means person.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

import torch
from torch import Tensor

from alidpfl.dpsgd import native
from alidpfl.dpsgd.padding import padded_gram

SCRATCH_BYTES = 1 << 20  # size of the pieces in which copies are made, so that they stay in the cache
LARGEST_NORM = 1e30  # above it, a clip factor would be a denormal number, which is not precise; see also _native.c
_EXACT_LENGTH = 256  # float32 sums of this many squares are right to 2e-7 for all values; longer sums may drift
_PARALLEL = 1e-9  # rows count as parallel if one differs by less: float32 products would differ by sixty times that
_TINY = 1e-300  # in place of a length of zero
LARGEST_INPUT = 1e20  # above it, the weighted gradient would be denormal: off by up to half of itself


class Storage(Enum):
    """Ways to treat gradients that a rule must write out to get their norms."""

    KEEP = auto()
    """Keep them for the weighted sum."""
    REWRITE = auto()
    """Keep the norms only, and write the gradients out again for the sum: less memory, more work."""
    DEFER = auto()
    """Wait for the norms of all other layers. Then no record's gradient leaves the processor's cache."""


class SampleGradients(Protocol):
    """Gradients of one parameter for every record of a batch."""

    @property
    def squared_norms(self) -> Tensor:
        """(B,) squared norm of each record's gradient, float64."""

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the sum of weight times gradient, in the parameter's shape. A record of weight 0 adds nothing."""


def squared_norms(tensor: Tensor) -> Tensor:
    """Return squared Euclidean norms over the last dimension, added in double from 256 terms on."""
    length = tensor.shape[-1]
    even = length - length % _EXACT_LENGTH
    pieces = tensor[..., :even].unflatten(-1, (-1, _EXACT_LENGTH))  # (..., P / 256, 256)
    total: Tensor = torch.linalg.vector_norm(pieces, dim=-1).double().square_().sum(-1)
    if even < length:
        total += torch.linalg.vector_norm(tensor[..., even:], dim=-1).double().square_()
    return total


def precise(squared: Tensor, squared_inputs: Tensor) -> Tensor:
    """Return the squared norms (B,) of a bilinear form, inf or NaN where inputs are huge. Such records are dropped.

    A server can choose weights that make a layer's inputs 1e38 and its output gradients 1e-10. Their product is an
    ordinary number. But the gradient times its clip factor would be denormal, and its rounding error times 1e38 would
    exceed the clip norm.
    """
    return squared / (squared_inputs <= LARGEST_INPUT**2)  # divided by 0, also where NaN: inf or NaN, which is dropped


def finite(tensor: Tensor) -> Tensor:
    """Return a copy with 0 for NaN and infinity, so that a factor of 0 removes a record. Takes as long as a copy."""
    return torch.nan_to_num(tensor, nan=0.0, posinf=0.0, neginf=0.0)


def _column(values: Tensor, like: Tensor) -> Tensor:
    """Reshape (B,) to (B, 1, ...) with as many dimensions as `like`."""
    return values.view(-1, *[1] * (like.dim() - 1))


def added_by_person(rows: Tensor, records: int) -> Tensor:
    """Add (B k, ...) over the k records of each person, to (B, ...)."""
    return rows if records == 1 else rows.unflatten(0, (-1, records)).sum(1)


@dataclass(frozen=True, kw_only=True)
class Stored:
    """Gradients written out in slabs (S, B, P): S x P finite values a record, in the order that was fastest to write.

    The squared norms are those before `finite`. `to_parameter` turns a sum (S, P) of them into the parameter's shape.
    """

    values: Tensor
    squared_norms: Tensor
    to_parameter: Callable[[Tensor], Tensor]

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return one matrix-vector product for each slab."""
        slabs = [weights @ slab for slab in self.values]  # (B) @ (B, P) -> (P)
        return self.to_parameter(slabs[0] if len(slabs) == 1 else torch.stack(slabs))


def stored(gradients: Tensor, squared: Tensor | None = None) -> Stored:
    """Store gradients (B, *parameter's shape). `squared` are their squared norms, if they are known already."""
    shape, values = gradients.shape[1:], gradients.flatten(1)
    squared = squared_norms(values) if squared is None else squared
    kept = finite(values).unsqueeze(0)
    return Stored(values=kept, squared_norms=squared, to_parameter=lambda total: total.view(shape))


@dataclass(frozen=True, kw_only=True)
class Bilinear:
    """Gradients that are a bilinear form of layer inputs and output gradients. Only those two are kept.

    `form(inputs, grad_output)` gives the sum over the batch, and gets the weighted output gradients. If a record's
    gradient is itself a sum, the form must add in double. The terms of a hostile record may be huge and cancel, and the
    rounding errors that remain would exceed its clipped norm.
    """

    inputs: Tensor
    grad_output: Tensor
    squared_norms: Tensor
    form: Callable[[Tensor, Tensor], Tensor]

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return the form of the inputs and the weighted output gradients."""
        grad_output = finite(self.grad_output)
        return self.form(finite(self.inputs), grad_output.mul_(_column(weights, grad_output)))


@dataclass(frozen=True, kw_only=True)
class Orthogonal:
    """Gradients of persons as sums of k outer products each, in which no terms cancel. All values are finite.

    The records of a person may cancel. In a float32 sum the rounding of their terms could then exceed the person's
    clipped gradient. So `orthogonal` rewrites the sum of k outer products as another sum of k outer products
    `directions` (B, k, n) times `values` (B, k, m), with directions at right angles. The norms of these terms add up to
    at most √k times the gradient's norm.

    This does not rest on how precise the directions are. `squared_norms` are bounds for the very numbers that are
    summed: docs/explanation/floating-point.md.
    """

    directions: Tensor
    values: Tensor
    squared_norms: Tensor
    is_transposed: bool
    """Whether the parameter is (m, n): its rows are those of `values`."""

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Return one matrix product over all terms of all persons."""
        # The factor goes to the values: their product is at most the clip norm. A direction times a factor of 1e-36
        # could be denormal.
        values = self.values * _column(weights, self.values)
        left, right = self.directions.flatten(0, 1), values.flatten(0, 1)
        return right.mT @ left if self.is_transposed else left.mT @ right


def orthogonal(narrow: Tensor, wide: Tensor, *, is_transposed: bool) -> Orthogonal:
    """Rewrite the outer products of rows (B, k, n) and (B, k, m), summed over k. It is fastest with n <= m."""
    if native.is_available() and narrow.dtype == torch.float32 and narrow.device.type == "cpu":
        directions, values, squared = native.orthogonal(narrow.contiguous(), wide.contiguous())
    else:
        directions, values, squared = _orthogonal(narrow, wide)
    return Orthogonal(directions=directions, values=values, squared_norms=squared, is_transposed=is_transposed)


def _orthogonal(narrow: Tensor, wide: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return directions and values (see `Orthogonal`) and the squared norms, or a little more, never less.

    Gram-Schmidt in double, without a branch on values: a row that the rows before it span has the direction 0. All
    operations but the last treat each person alone, so that no bit depends on the other persons.
    """
    left = narrow.double()  # of each row, what the directions so far do not span
    directions, values = torch.empty_like(narrow), torch.zeros_like(wide)
    shares = left.new_zeros(*left.shape[:2], left.shape[1])  # (B, k, k) row = sum of shares times directions
    least = _PARALLEL * torch.linalg.vector_norm(left, dim=2)
    for r in range(left.shape[1]):
        length = torch.linalg.vector_norm(left[:, r], dim=1)
        direction = left[:, r] * ((length > least[:, r]) / length.clamp_min(_TINY))[:, None]
        share = (left[:, r:] * direction[:, None]).sum(2)
        left[:, r + 1 :] -= share[:, 1:, None] * direction[:, None]
        directions[:, r], shares[:, r:, r] = direction, share
    factors = shares.to(wide.dtype)
    for r in range(wide.shape[1]):
        values[:, : r + 1] += factors[:, r, : r + 1, None] * wide[:, r, None]
    squared = _norms_of_products(directions, squared_norms(values.double()))
    return finite(directions), finite(values), squared


def _norms_of_products(directions: Tensor, squared_values: Tensor) -> Tensor:
    """Return a bound of |sum_r q_r v_rᵀ|²: the sum of |<q_r, q_s>| |v_r| |v_s|. No terms of it cancel."""
    products, lengths = padded_gram(directions.double()).abs_(), squared_values.sqrt()
    return (products * lengths[:, :, None] * lengths[:, None]).sum(2).sum(1)


def gram_norms(products: Tensor, lengths: Tensor, grad_output: Tensor, width: int) -> Tensor:
    """Return |sum_t g_t a_t^T|^2 = sum_ts <a_t, a_s> <g_t, g_s> (Li et al. 2022), or a little more, never less.

    The terms of a hostile record may cancel to any degree. A norm that comes out too small would let the record exceed
    the clip norm. So twice the largest rounding error is added, for each of two errors:

    - In double, with S = sum_t |a_t| |g_t|, n terms in both products and twice T in the sums, rounding moves the result
      by at most (n + 2 T + 8) 2^-53 S^2, in any order of addition.
    - The weighted sum adds single-precision multiples of the g_t. Each is off by 2^-24 of itself, and all together by
      2^-24 S.

    In double, `products` (B, T, T) are <a_t, a_s>, and `lengths` (B, T) are |a_t|. `grad_output` (B, T, p) are the g_t.
    `width` is the length of a_t, or 0 if `products` are exact.
    """
    grads = grad_output.double()
    _, positions, width_out = grads.shape
    gram = padded_gram(grads) * products  # (B, T, T)
    total = (lengths * squared_norms(grads).sqrt_()).sum(1)  # (B,) S
    terms = width + width_out + 2 * positions + 8
    squared = gram.sum(2).sum(1).clamp_min_(0) + terms * 2.0**-52 * total.square()
    return (squared.sqrt_() + 2.0**-23 * total).square_()


def in_pieces(norms: Callable[[Tensor, Tensor], Tensor], pieces: int, one: Tensor, other: Tensor) -> Tensor:
    """Compute norms for a k-th of the persons at a time. Their products take k² times the memory of a record's.

    Args:
        norms: Maps two tensors of some persons to their squared norms.
        pieces: k.
        one: First tensor (B, ...) of all persons.
        other: Second tensor (B, ...).
    """
    size = max(1, len(one) // pieces)
    return torch.cat([norms(x, g) for x, g in zip(one.split(size), other.split(size), strict=True)])


class Rewritten:
    """Gradients written out a few records at a time, once for the norms and once more for the weighted sum.

    The same code runs both times, so that the sum holds exactly the gradients that the norms were taken of.
    """

    def __init__(
        self,
        inputs: Tensor,
        grad_output: Tensor,
        write_out: Callable[[Tensor, Tensor], Stored],
        bytes_per_record: int,
        rows: int = 1,
    ) -> None:
        """Write the gradients out for their norms.

        Args:
            inputs: what the layer was given, a row for each record.
            grad_output: what came back from its output, a row for each record.
            write_out: writes out the gradients of some records, from their rows of both.
            bytes_per_record: memory of one record's gradients.
            rows: rows for each record: more than one if it is a person.
        """
        at_once = max(1, SCRATCH_BYTES // bytes_per_record)
        self._pieces = list(zip(inputs.split(at_once * rows), grad_output.split(at_once * rows), strict=True))
        self._write_out, self._at_once = write_out, at_once
        self.squared_norms = torch.cat([write_out(x, g).squared_norms for x, g in self._pieces])

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """Write the gradients out again, and return their weighted sum."""
        total: Tensor | None = None
        for (x, g), w in zip(self._pieces, weights.split(self._at_once), strict=True):
            piece = self._write_out(x, g).weighted_sum(w)
            total = piece if total is None else total.add_(piece)
        assert total is not None  # noqa: S101
        return total


@dataclass(frozen=True)
class Deferred:
    """Gradients that are not computed yet. One pass gives norms and clipped sum once all other norms are known.

    Only one parameter of a model can be deferred, so it should be the largest. `clipped_sum(squared, limit)` takes the
    (B,) squared norms over all other parameters and the largest norm that a record may contribute. It returns the (B,)
    norms over all parameters and this parameter's sum, without the records to drop (see `is_usable`).
    """

    clipped_sum: Callable[[Tensor, float], tuple[Tensor, Tensor]]


def clip_factors(norms: Tensor, limit: float) -> Tensor:
    """Return the factors (B,) min(1, limit / norm), and 0 for a record to drop."""
    # Norm 0 gives inf, which becomes 1.
    factors = (limit / norms).clamp_max(1)  # proof step 2
    # Not torch.where, which branches on each number.
    return finite(factors) * is_usable(norms)  # proof step 3


def is_usable(norms: Tensor) -> Tensor:
    """Return the mask of records that are not dropped: their gradient is finite and not too large."""
    return norms <= LARGEST_NORM  # false for NaN
