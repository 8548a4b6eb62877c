"""Softmax regression in closed form: clipped gradient sums without autograd and without a copy of the batch.

The gradient of the cross-entropy for one record is (p - e_y) xᵀ. Its norm is the product of two norms, so that no
per-sample gradient is ever written out.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from alidpfl.dpsgd import native
from alidpfl.dpsgd.clipping import (
    BatchStatistics,
    ClippedSum,
    Rows,
    Weights,
    check_clip_norm,
    check_weights,
    records_of,
)
from alidpfl.dpsgd.gradient_forms import (
    LARGEST_INPUT,
    Orthogonal,
    clip_factors,
    finite,
    orthogonal,
    precise,
    squared_norms,
)
from alidpfl.dpsgd.guards import full_precision
from alidpfl.dpsgd.padding import pad_rows, padded_size
from alidpfl.dpsgd.places import checked_places, rounding
from alidpfl.errors import ConfigError, DataError

# Records of one group are added in float32, and groups in double. A group has neighbouring places among a client's
# records. So adding or removing a record changes the rounding of one group, and not of all that follow. Clipping lower
# by what rounding can add makes the bound strict: `rounding(64, 1)`, 2.6e-4, in float32, and in double 2.3e-4 for up to
# 8 million drawn records, by 2 B (B / 64) 2^-53. At person level a group has 64 records too, and the sums in double may
# have a million persons.
_RECORDS_IN_A_GROUP = 64
_IN_DOUBLE = 2.3e-4
_MARGIN = 1 - (2 * _RECORDS_IN_A_GROUP**2 * 2**-24 + 1e-6)
_MANY_PRODUCTS = 0.2  # with more products of records for each class, writing a person's gradient out is faster
_GROUPS_AT_A_TIME = 64  # so that small operations serve many records

_Piece = Callable[..., tuple[Tensor, Tensor, Tensor]]
"""Maps rows, places and targets (B,) and the largest norm to the clipped sum (classes, features), norms and losses.

At person level rows and targets are (B, k), and weights (B, k) follow them.
"""


class SoftmaxClipper:
    """Does the same as `PerSampleClipper` with cross-entropy, for one nn.Linear without a bias, on the CPU.

    >>> clipper = SoftmaxClipper(nn.Linear(2, 3, bias=False))
    >>> found = clipper.clipped_sum(torch.ones(4, 2), torch.tensor([0, 1, 2, 0]), clip_norm=0.1, seed=0)
    >>> found.gradients["weight"].shape
    torch.Size([3, 2])
    """

    def __init__(self, model: nn.Linear) -> None:
        """Take the model's weight. Its values may change afterwards."""
        if not is_softmax_regression(model):
            raise ConfigError(f"model must be a torch.nn.Linear without a bias, in float32 on the CPU, not {model!r}")
        self.parameters: dict[str, Tensor] = {"weight": model.weight}

    @torch.no_grad()
    def clipped_sum(
        self,
        inputs: Tensor,
        targets: Tensor,
        *,
        clip_norm: float,
        seed: int,
        rows: Rows = None,
        weights: Weights = None,
        places: Rows = None,
    ) -> ClippedSum:
        """Return the sum of clipped per-sample gradients of a batch, which may be empty. It uses no randomness.

        Args, result and Raises are those of `PerSampleClipper.clipped_sum`. Inputs are (n, features) float32, and
        targets (n,) int64. `places` (B,) are the records' places among the client's records, ascending. None means
        their rows.
        """
        check_clip_norm(clip_norm)
        weight = self.parameters["weight"].detach()
        rows, weights, places = _drawn(len(inputs), rows, weights, places)
        targets = _checked_targets(inputs, targets, rows, weight)
        batch = (rows, places, targets) if weights is None else (rows, places, targets, weights)
        records = records_of(weights)
        clipped = _piece(inputs, weight, records)
        total = torch.zeros(weight.shape, dtype=torch.float64)
        norms, losses = [torch.zeros(0, dtype=torch.float64)], [torch.zeros(0)]
        with full_precision(weight.device):
            for part in _split(places, _GROUPS_AT_A_TIME * _places_in_a_group(records), *batch):
                gradient, found, loss = clipped(*part, clip_norm * _margin(records))
                total += gradient
                norms.append(found)
                losses.append(loss)
        statistics = BatchStatistics(norms=torch.cat(norms), losses=torch.cat(losses))
        return ClippedSum(gradients={"weight": total}, statistics=statistics)


def _drawn(size: int, rows: Rows, weights: Weights, places: Rows) -> tuple[Tensor, Weights, Tensor]:
    """Return rows, weights and places of a batch. Persons of one record each are records."""
    if weights is None:
        rows = torch.arange(size) if rows is None else rows.long().contiguous()
        return rows, None, checked_places(places, rows, len(rows))
    rows = check_weights(rows, weights).long().contiguous()
    places = checked_places(places, None, len(rows))
    return (rows[:, 0], None, places) if rows.shape[1] == 1 else (rows, weights, places)


def _places_in_a_group(records: int) -> int:
    return max(1, _RECORDS_IN_A_GROUP // records)


def _margin(records: int) -> float:
    """Return the share of C that records, or persons of k records, are clipped to."""
    return _MARGIN if records == 1 else 1 - rounding(_RECORDS_IN_A_GROUP, 1, records) - _IN_DOUBLE


def is_softmax_regression(model: nn.Module) -> bool:
    """Return True if `SoftmaxClipper` takes the model: one trained matrix, no bias and no hooks."""
    if type(model) is not nn.Linear or list(model._parameters) != ["weight", "bias"] or model.bias is not None:
        return False
    if model._forward_hooks or model._forward_pre_hooks or model._backward_hooks or model._backward_pre_hooks:
        return False
    weight = model.weight
    return weight.requires_grad and weight.dtype == torch.float32 and weight.device.type == "cpu"


def _piece(inputs: Tensor, weight: Tensor, records: int) -> _Piece:
    is_native = native.is_available() and inputs.is_contiguous()
    if records == 1:
        return _native_piece(inputs, weight) if is_native else _torch_piece(inputs, weight)
    return _native_persons(inputs, weight, records) if is_native else _torch_persons(inputs, weight, records)


def _torch_piece(inputs: Tensor, weight: Tensor) -> _Piece:
    def clipped(rows: Tensor, places: Tensor, targets: Tensor, limit: float) -> tuple[Tensor, Tensor, Tensor]:
        x = inputs[rows]
        residuals, losses = _residuals_and_losses(_scores(weight, x), targets)
        norms = _norms(residuals, squared_norms(x))
        weighted = finite(residuals).mul_(clip_factors(norms, limit).float()[:, None])
        total = torch.zeros(weight.shape, dtype=torch.float64)
        for some_weighted, some_x in _split(places, _RECORDS_IN_A_GROUP, weighted, finite(x)):
            total += some_weighted.t() @ some_x
        return total, norms, losses

    return clipped


def _torch_persons(inputs: Tensor, weight: Tensor, records: int) -> _Piece:
    def clipped(
        rows: Tensor, places: Tensor, targets: Tensor, weights: Tensor, limit: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        x = inputs[rows.flatten()]
        residuals, losses = _residuals_and_losses(_scores(weight, x), targets.flatten())
        residuals.mul_(weights.view(-1, 1))
        found = orthogonal(*(t.view(len(rows), records, -1) for t in (residuals, x)), is_transposed=False)
        norms = found.squared_norms.sqrt()
        factors = clip_factors(norms, limit).float()
        total = torch.zeros(weight.shape, dtype=torch.float64)
        for directions, values, squared, some in _split(
            places, _places_in_a_group(records), found.directions, found.values, found.squared_norms, factors
        ):
            part = Orthogonal(directions=directions, values=values, squared_norms=squared, is_transposed=False)
            total += part.weighted_sum(some)
        return total, norms, _means(losses, weights)

    return clipped


def _scores(weight: Tensor, x: Tensor) -> Tensor:
    padded = pad_rows(x, padded_size(len(x)))
    return (weight @ padded.t()).t()[: len(x)]  # twice as fast as padded @ weight.t()


def _means(losses: Tensor, weights: Tensor) -> Tensor:
    return (losses.view_as(weights) * weights).sum(1)


def _native_piece(inputs: Tensor, weight: Tensor) -> _Piece:
    transposed = _padded_transpose(weight)

    def clipped(rows: Tensor, places: Tensor, targets: Tensor, limit: float) -> tuple[Tensor, Tensor, Tensor]:
        scores, squared_inputs = native.softmax_scores(inputs, rows, transposed)
        residuals, losses = _residuals_and_losses(scores[:, : len(weight)], targets)
        norms = _norms(residuals, squared_inputs)
        weighted = finite(residuals).mul_(clip_factors(norms, limit).float()[:, None])
        return native.softmax_gradient(inputs, rows, _groups(places, _RECORDS_IN_A_GROUP), weighted), norms, losses

    return clipped


def _native_persons(inputs: Tensor, weight: Tensor, records: int) -> _Piece:
    transposed = _padded_transpose(weight)
    is_written_out = _MANY_PRODUCTS * records * (records + 1) > len(weight)

    def clipped(
        rows: Tensor, places: Tensor, targets: Tensor, weights: Tensor, limit: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        all_rows, groups = rows.flatten(), _groups(places, _places_in_a_group(records))
        scores, products = native.softmax_scores(inputs, all_rows, transposed, 1 if is_written_out else records)
        residuals, losses = _residuals_and_losses(scores[:, : len(weight)], targets.flatten())
        own = residuals.mul_(weights.view(-1, 1)).view(len(rows), records, -1)
        if is_written_out:
            norms, total = native.softmax_persons(inputs, rows, groups, own, limit)
            return total, norms, _means(losses, weights)
        norms = native.clip_persons(products, own, inputs.shape[1], largest_input=LARGEST_INPUT, limit=limit)
        return native.softmax_gradient(inputs, all_rows, groups, residuals, records), norms, _means(losses, weights)

    return clipped


def _padded_transpose(weight: Tensor) -> Tensor:
    classes, features = weight.shape
    transposed = torch.zeros(features, native.softmax_width(classes), dtype=torch.float32)
    transposed[:, :classes] = weight.t()
    return transposed


def _groups(places: Tensor, size: int) -> Tensor:
    return places.div(size, rounding_mode="floor")


def _split(places: Tensor, size: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Split the tensors where the next `size` places begin."""
    _, counts = torch.unique_consecutive(_groups(places, size), return_counts=True)
    return zip(*(tensor.split(counts.tolist()) for tensor in tensors), strict=True)


def _residuals_and_losses(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return p - e_y (B, classes), and the cross-entropies (B,)."""
    logarithms = torch.log_softmax(scores, 1)
    records = torch.arange(len(targets))
    losses = -logarithms[records, targets]
    residuals = logarithms.exp_()
    residuals[records, targets] -= 1
    return residuals, losses


def _norms(residuals: Tensor, squared_inputs: Tensor) -> Tensor:
    # In double: residuals of 1e-20 times inputs of 1e20 are not small, and must not count as zero.
    return precise(squared_norms(residuals.double()) * squared_inputs, squared_inputs).sqrt()


def _checked_targets(inputs: Tensor, targets: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """Return the batch's targets. The errors quote none of them."""
    for what, value in (("inputs", inputs), ("targets", targets)):
        if not isinstance(value, Tensor):
            raise DataError(f"{what} must be a tensor, not {type(value).__name__}; see torch.as_tensor")
    if inputs.dtype != torch.float32 or inputs.shape[1:] != weight.shape[1:] or inputs.device != weight.device:
        raise DataError(
            f"inputs have dtype {inputs.dtype} and shape {tuple(inputs.shape)} on {inputs.device}; need torch.float32 "
            f"and (n, {weight.shape[1]}) on {weight.device}"
        )
    if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < len(inputs):
        raise IndexError(f"rows must be in 0..{len(inputs) - 1}")
    if targets.dtype != torch.int64 or targets.shape != inputs.shape[:1]:
        raise DataError("targets must be one torch.int64 for each input")
    drawn = targets[rows]
    if len(drawn) and not 0 <= int(drawn.min()) <= int(drawn.max()) < len(weight):
        raise DataError(f"targets are beyond the model's {len(weight)} outputs; number the classes from 0")
    return drawn
