"""Softmax regression in closed form: clipped gradient sums without autograd and without a copy of the batch.

The cross-entropy's gradient at one sample is (p - e_y) xᵀ, whose norm is the product of two: no per-sample gradient is
ever written out.
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from alidpfl.dpsgd import native
from alidpfl.dpsgd.clipping import BatchStatistics, ClippedSum, check_clip_norm
from alidpfl.dpsgd.gradient_forms import clip_factors, precise, squared_norms, to_drop
from alidpfl.dpsgd.guards import full_precision
from alidpfl.dpsgd.padding import filled, filled_size
from alidpfl.errors import ConfigError, DataError

# Records of one group are added in float32, groups in double. Groups are of m neighbouring places among a client's
# records, so that whoever comes or goes changes the rounding of one group, and not that of all that follow. A float32
# sum of m vectors of norm C is off by at most m² 2^-24 C, in whatever order; with and without one of them, by twice as
# much. Clipping lower by that, and by the error of a norm, makes the bound strict.
_PLACES_IN_A_GROUP = 64
_MARGIN = 1 - (2 * _PLACES_IN_A_GROUP**2 * 2**-24 + 1e-6)
_PLACES_AT_A_TIME = 4096  # whole groups: small operations are shared by so many


class SoftmaxClipper:
    """As `PerSampleClipper` with cross-entropy, for a model that is one nn.Linear without a bias; on the CPU.

    >>> clipper = SoftmaxClipper(nn.Linear(2, 3, bias=False))
    >>> found = clipper.clipped_sum(torch.ones(4, 2), torch.tensor([0, 1, 2, 0]), clip_norm=0.1, seed=0)
    >>> found.gradients["weight"].shape
    torch.Size([3, 2])
    """

    def __init__(self, model: nn.Linear) -> None:
        """Take the model's weight, whose values may change afterwards."""
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
        rows: Tensor | None = None,
        places: Tensor | None = None,
    ) -> ClippedSum:
        """Sum of clipped per-sample gradients of all samples, or of those in `rows`. Nothing random is in it.

        Args:
            inputs: (n, features) float32.
            targets: (n,) int64.
            clip_norm: C; infinity switches clipping off.
            seed: not used here.
            rows: (B,) which samples make the batch; None: all.
            places: (B,) their places among their client's records, ascending; None: their rows.
        """
        check_clip_norm(clip_norm)
        weight = self.parameters["weight"].detach()
        rows = torch.arange(len(inputs)) if rows is None else rows.long().contiguous()
        places = rows if places is None else places.long().contiguous()
        targets = _checked_targets(inputs, targets, rows, weight)
        is_native = native.is_available() and inputs.is_contiguous()
        clipped = _native_piece(inputs, weight) if is_native else _torch_piece(inputs, weight)
        total = torch.zeros(weight.shape, dtype=torch.float64)
        norms, losses = [torch.zeros(0, dtype=torch.float64)], [torch.zeros(0)]
        with full_precision(weight.device):
            for some_rows, some_places, labels in _split(places, _PLACES_AT_A_TIME, rows, places, targets):
                gradient, found, loss = clipped(some_rows, some_places, labels, clip_norm * _MARGIN)
                total += gradient
                norms.append(found)
                losses.append(loss)
        statistics = BatchStatistics(norms=torch.cat(norms), losses=torch.cat(losses))
        return ClippedSum(gradients={"weight": total}, statistics=statistics)


def is_softmax_regression(model: nn.Module) -> bool:
    """Whether `SoftmaxClipper` takes the model: nothing but one matrix, all of it trained, and no hooks."""
    if type(model) is not nn.Linear or list(model._parameters) != ["weight", "bias"] or model.bias is not None:
        return False
    if model._forward_hooks or model._forward_pre_hooks or model._backward_hooks or model._backward_pre_hooks:
        return False
    weight = model.weight
    return weight.requires_grad and weight.dtype == torch.float32 and weight.device.type == "cpu"


_Piece = Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor, Tensor]]
"""From rows, places and targets (B,) and the largest norm to the clipped sum (classes, features), norms and losses."""


def _torch_piece(inputs: Tensor, weight: Tensor) -> _Piece:
    def clipped(rows: Tensor, places: Tensor, targets: Tensor, limit: float) -> tuple[Tensor, Tensor, Tensor]:
        x = inputs[rows]
        every = filled(x, filled_size(len(x)))
        scores = (weight @ every.t()).t()[: len(x)]  # this way round is twice as fast
        residuals, losses = _residuals_and_losses(scores, targets)
        norms = _norms(residuals, squared_norms(x))
        residuals *= clip_factors(norms, limit).float()[:, None]
        if (dropped := to_drop(norms)) is not None:  # 0 x NaN is NaN: a factor alone would not remove them
            residuals, x = (t.masked_fill(dropped[:, None], 0) for t in (residuals, x))
        total = torch.zeros(weight.shape, dtype=torch.float64)
        for some_residuals, some_x in _split(places, _PLACES_IN_A_GROUP, residuals, x):
            total += some_residuals.t() @ some_x
        return total, norms, losses

    return clipped


def _native_piece(inputs: Tensor, weight: Tensor) -> _Piece:
    classes, features = weight.shape
    transposed = torch.zeros(features, native.softmax_width(classes), dtype=torch.float32)
    transposed[:, :classes] = weight.t()

    def clipped(rows: Tensor, places: Tensor, targets: Tensor, limit: float) -> tuple[Tensor, Tensor, Tensor]:
        scores, squared_inputs = native.softmax_scores(inputs, rows, transposed)
        residuals, losses = _residuals_and_losses(scores[:, :classes], targets)
        norms = _norms(residuals, squared_inputs)
        scores.zero_()  # from here on the residuals, with zeros for the classes that fill up a vector
        torch.mul(residuals, clip_factors(norms, limit).float()[:, None], out=scores[:, :classes])
        used = torch.ones(len(rows), dtype=torch.bool) if (dropped := to_drop(norms)) is None else ~dropped
        total = native.softmax_gradient(inputs, rows, _groups(places, _PLACES_IN_A_GROUP), scores, used)
        return total[:, :classes].t(), norms, losses

    return clipped


def _groups(places: Tensor, size: int) -> Tensor:
    return places.div(size, rounding_mode="floor")


def _split(places: Tensor, size: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """The tensors, cut wherever the next `size` places begin."""
    _, counts = torch.unique_consecutive(_groups(places, size), return_counts=True)
    return zip(*(tensor.split(counts.tolist()) for tensor in tensors), strict=True)


def _residuals_and_losses(scores: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """P - e_y (B, classes), and the cross-entropies (B,)."""
    logarithms = torch.log_softmax(scores, 1)
    samples = torch.arange(len(targets))
    losses = -logarithms[samples, targets]
    residuals = logarithms.exp_()
    residuals[samples, targets] -= 1
    return residuals, losses


def _norms(residuals: Tensor, squared_inputs: Tensor) -> Tensor:
    # In double: residuals of 1e-20 times inputs of 1e20 are nothing small, and must not count as zero.
    return precise(squared_norms(residuals.double()) * squared_inputs, squared_inputs).sqrt()


def _checked_targets(inputs: Tensor, targets: Tensor, rows: Tensor, weight: Tensor) -> Tensor:
    """Targets of the batch. The errors quote none of them."""
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
