"""The sum of clipped per-sample gradients. DP-SGD may use this one quantity of a batch, after adding noise."""

import math
import sys
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from alidpfl.dpsgd.conv import can_defer
from alidpfl.dpsgd.gradient_forms import Deferred, Storage, clip_factors, is_usable
from alidpfl.dpsgd.guards import details_withheld, full_precision, model_randomness
from alidpfl.dpsgd.losses import Loss, cross_entropy
from alidpfl.dpsgd.mixing import MixingTrials
from alidpfl.dpsgd.model_check import Gradients, check_model, check_modes, no_buffer_changes, trained_parameters
from alidpfl.dpsgd.padding import linear_layers, pad_rows, padded_linear, padded_size, unpadded_size
from alidpfl.dpsgd.places import GROUPS_IN_A_FAMILY, checked_places, middle, rounding
from alidpfl.dpsgd.recording import Recording, find_units
from alidpfl.dpsgd.relu_pool import join_relu_and_pool
from alidpfl.errors import ConfigError, DataError
from alidpfl.inputs import checks
from alidpfl.types import LARGEST_MAX_RECORDS

Rows = Tensor | None
"""(B,) int64 numbers of a batch's records, or None for all. At person level (B, k)."""

Weights = Tensor | None
"""(B, k) float32 weights of the records of each person at person level, or None at record level."""

# A float32 norm is right to about 2e-7. Clipping a little lower makes the bound strict, for sums in double.
SAFETY = 1 - 1e-6
_SUM_TOLERANCE = 1e-4  # of the weights of a person, in float32
_LEAST_GROUP = 128  # smaller micro-batches round less, but clip no higher: results must not depend on their size
SMALLEST_CLIP_NORM, LARGEST_CLIP_NORM = 1e-6, 1e6  # float32 is precise in this range
# Within these limits, rounding takes at most 60 % of C. Far beyond them it would take more than all of it.
_LARGEST_MICROBATCH = 1024


def check_clip_norm(clip_norm: float) -> None:
    """Raise ConfigError if float32 is not precise at this clip norm. Infinity switches clipping off."""
    if not (SMALLEST_CLIP_NORM <= clip_norm <= LARGEST_CLIP_NORM or clip_norm == math.inf):
        raise ConfigError(
            f"clip_norm={clip_norm} must be in [{SMALLEST_CLIP_NORM:g}, {LARGEST_CLIP_NORM:g}], where float32 is "
            "precise, or infinite; scale the loss instead"
        )


@dataclass(frozen=True, kw_only=True)
class BatchStatistics:
    """Facts about a batch without noise. They stay on the client: never in a message, a log or an error."""

    norms: Tensor = field(repr=False)  # hidden: printing or logging a result must not reveal them
    """(B,) gradient norms before clipping, over all trained parameters (flat clipping)."""
    losses: Tensor = field(repr=False)
    """(B,) losses."""

    @property
    def num_non_finite(self) -> int:
        """Number of records that were dropped: their gradient had NaN or Inf, or was too large for a precise factor."""
        return int((~is_usable(self.norms)).sum())


@dataclass(frozen=True, kw_only=True)
class ClippedSum:
    """The result for a batch. All of it is private: the sum may leave the client after adding noise, the rest never."""

    gradients: dict[str, Tensor] = field(repr=False)
    """Sum of clipped per-sample gradients by parameter name. It is float64 if there was more than one micro-batch."""
    statistics: BatchStatistics

    def plus(self, other: "ClippedSum") -> "ClippedSum":
        """Add the result for later records, in double: float32 would round by more than one record may move a sum."""
        mine, theirs = self.statistics, other.statistics
        return ClippedSum(
            gradients={name: g.double().add_(other.gradients[name]) for name, g in self.gradients.items()},
            statistics=BatchStatistics(
                norms=torch.cat([mine.norms, theirs.norms]), losses=torch.cat([mine.losses, theirs.losses])
            ),
        )


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """The records of a batch, or its persons. Its length counts records, or persons."""

    inputs: Tensor
    """(B, ...) the records, or with rows the whole data set."""
    targets: Tensor
    places: NDArray[np.int64]
    rows: Rows = None
    """(B, k) the persons' rows. They are copied for one micro-batch at a time, directly to a padded tensor."""
    weights: Weights = None

    def __len__(self) -> int:
        return len(self.places)

    @property
    def records(self) -> int:
        """Number of records of each person, or 1."""
        return records_of(self.weights)

    def part(self, first: int, last: int) -> "_Batch":
        """Return the records or persons from number `first` up to `last`."""
        some, places = slice(first, last), self.places[first:last]
        if self.rows is None or self.weights is None:
            return replace(self, inputs=self.inputs[some], targets=self.targets[some], places=places)
        return replace(self, rows=self.rows[some], weights=self.weights[some], places=places)

    def tensors(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return the records' inputs and targets. Those of persons are padded already."""
        if self.rows is None:
            return self.inputs, self.targets
        rows = self.rows.flatten()
        size = padded_size(max(rows.numel(), self.records))
        return _gathered(self.inputs, rows, size).to(device), _gathered(self.targets, rows, size).to(device)


def _gathered(tensor: Tensor, rows: Tensor, size: int) -> Tensor:
    found = tensor.new_empty(size, *tensor.shape[1:])
    torch.index_select(tensor, 0, rows, out=found[: len(rows)])
    found[len(rows) :] = 0
    return found


def records_of(weights: Weights) -> int:
    """Return k, the number of records of each person, or 1 at record level."""
    return 1 if weights is None else weights.shape[1]


def _with_mean_losses(found: ClippedSum, weights: Tensor) -> ClippedSum:
    """Return the result with the mean loss of each person in place of her records' losses."""
    losses = (found.statistics.losses.view_as(weights) * weights).sum(1)
    return replace(found, statistics=replace(found.statistics, losses=losses))


def check_weights(rows: Rows, weights: Tensor) -> Tensor:
    """Return the rows of persons (B, k). Raise ConfigError unless the weights fit. The message quotes no data."""
    if rows is None or rows.dim() != 2 or rows.shape != weights.shape or rows.shape[1] < 1:  # noqa: PLR2004
        raise ConfigError("with weights, rows and weights must have one shape (persons, records of each)")
    checks.whole("records of each person", rows.shape[1], low=1, high=LARGEST_MAX_RECORDS)
    values = weights.numpy(force=True)
    is_mean = bool((values >= 0).all() and (abs(values.sum(1) - 1) <= _SUM_TOLERANCE).all())
    if weights.dtype != torch.float32 or not is_mean:
        raise ConfigError("weights must be float32, none negative, and add up to 1 for each person")
    return rows


class PerSampleClipper:
    """Computes clipped gradient sums for one model.

    Clipping is exact and flat: each record's gradient over all trained parameters is scaled to norm at most C, or a
    little less, so that one record moves the sum by at most C with all rounding counted (`places.rounding`). Layers in
    `layers.RULES` have their own rules. Any other module with parameters goes through torch.func.vmap. A model without
    per-sample gradients is refused, with the reason and the remedy.

    With `weights` all of this holds for persons instead of records: a person's gradient is the weighted mean of those
    of her records, and she moves the sum by at most C, however her records cancel.

    The model's structure and its set of trained parameters must not change afterwards. Its values are not changed. With
    convolutions, its memory layout becomes channels-last. It runs on the CPU. On CUDA the same code runs without the
    native kernels, and was not tested there.

    Before the first batch of a new shape, trials on made-up samples look for mixing of records. A short one is repeated
    during training at the current weights (mixing.py). They find every way of mixing that we know. A model that looks
    across the batch for particular values only has no sensitivity bound, and no test can exclude it. The guarantee is
    for models that treat records independently.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Loss = cross_entropy,
        microbatch_size: int = 128,
        max_gradient_bytes: int = 2**25,
    ) -> None:
        """Prepare `model`.

        Args:
            model: Any module. Parameters with `requires_grad=False` are frozen.
            loss: Gives one value for each record, from that record alone: no class balancing over the batch, no pairs.
            microbatch_size: Records that go through the model at once. It bounds the memory of activations. Smaller
                batches are padded to `padded_size(1)`. A person is never split: if one has more records than this,
                hers go through the model together. Above 128, float32 sums round more, and records are clipped
                lower for that: by 0.4 % at 128 and by 1.6 % at 256. At most 1024, where it would be 25 %.
            max_gradient_bytes: Most memory for per-sample gradients. Those that do not fit are computed twice. Modules
                without a rule always write out those of `padded_size(1)` records.
        """
        if not isinstance(model, nn.Module):
            raise ConfigError(f"model must be a torch.nn.Module, not {type(model).__name__}")
        if not callable(loss):
            raise ConfigError(f"loss={loss!r} must be a function of outputs and targets")
        checks.whole("microbatch_size", microbatch_size, low=1, high=_LARGEST_MICROBATCH)
        checks.whole("max_gradient_bytes", max_gradient_bytes)
        check_model(model)
        check_modes(model)
        self.model = model
        self.parameters: dict[str, Tensor] = dict(trained_parameters(model))
        self._loss = loss
        self._network = join_relu_and_pool(model)
        self._linear_layers = linear_layers(model)
        first = next(iter(self.parameters.values()))
        self._dtype, self._device = first.dtype, first.device
        self._units = sorted(find_units(model), key=lambda unit: unit.num_params)
        self._max_gradient_bytes = max_gradient_bytes
        # A padded batch is used even if fewer records fit the limit: no gradient may depend on a record's place.
        self._microbatch_size = unpadded_size(min(microbatch_size, max(padded_size(1), self._records_that_fit())))
        self._has_embeddings = any(isinstance(m, nn.Embedding) for m in model.modules())
        self._has_convolutions = any(isinstance(m, nn.Conv2d) for m in model.modules())
        if self._has_convolutions:
            # Only the layout changes, not the values. Convolutions are faster.
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._trials = MixingTrials(model, loss, self.parameters, self._unclipped, self._microbatch_size)

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
        """Return the sum of clipped per-sample gradients of a batch, which may be empty, and its private statistics.

        With `weights` the unit is a person: one gradient, the weighted mean over its k rows, is clipped for each
        person, and the statistics are those of persons.

        Args:
            inputs: (B, ...) floating point, or integers for a model that embeds them.
            targets: (B, ...) in the form that the loss takes.
            clip_norm: C. Infinity switches clipping off.
            seed: Seed of the randomness inside the model (dropout). Torch's global generator is not changed.
            rows: (B,) int64 rows that make the batch, if inputs and targets are a whole data set. None means all.
                With weights (B, k): k rows for each person, all of them rows of this person.
            weights: (B, k) float32, none negative, with sum 1 for each person. A row that only fills up has weight 0.
            places: (B,) the records' places among the client's records, ascending. None means their rows, or 0, 1, ...
                They decide which records are added together, so that one record changes few roundings. With weights
                the persons' places among the client's persons; None means 0, 1, ...

        Raises:
            ConfigError: The clip norm or the loss does not fit, or the model was changed.
            DataError: The batch does not fit the model. The message quotes no data.
            UnsupportedModelError: The model has no exact per-sample gradients.
        """
        check_clip_norm(clip_norm)
        self._check_unchanged()
        batch = self._batch(inputs, targets, rows, weights, places)
        check_modes(self.model)
        with full_precision(self._device):
            # Steps without clipping have no noise either, so the weights after them are private.
            form = (batch.inputs[:0].to(self._device), batch.targets[:0].to(self._device))
            self._trials.before_step(*form, has_public_weights=clip_norm < math.inf)
            with details_withheld(), model_randomness(seed, self._device), no_buffer_changes(self.model):
                found = self._sum(batch, clip_norm)
        return found if weights is None else _with_mean_losses(found, weights.to(self._device))

    def _batch(self, inputs: Tensor, targets: Tensor, rows: Rows, weights: Weights, places: Rows) -> _Batch:
        if weights is None:
            if rows is not None:
                inputs, targets = (t[rows].to(self._device) for t in (inputs, targets))
            self._check_batch(inputs, targets)
            numbers = checked_places(places, rows, len(inputs)).cpu().numpy()
            return _Batch(inputs=inputs, targets=targets, places=numbers)
        rows = check_weights(rows, weights)
        self._check_batch(inputs, targets, is_moved=True)
        numbers = checked_places(places, None, len(rows)).cpu().numpy()
        return _Batch(inputs=inputs, targets=targets, places=numbers, rows=rows.long(), weights=weights)

    def _sum(self, batch: "_Batch", clip_norm: float) -> ClippedSum:
        size = max(1, self._microbatch_size // batch.records)
        if len(batch) > GROUPS_IN_A_FAMILY * size:
            cut = middle(batch.places)
            return self._sum(batch.part(0, cut), clip_norm).plus(self._sum(batch.part(cut, len(batch)), clip_norm))
        # An empty batch is one group too: it takes as long as a single record.
        groups = (batch.part(first, first + size) for first in range(0, max(1, len(batch)), size))
        found = (self._microbatch(*group.tensors(self._device), clip_norm, group.weights) for group in groups)
        return reduce(ClippedSum.plus, found)  # proof step 4

    def _microbatch(self, inputs: Tensor, targets: Tensor, clip_norm: float, weights: Weights = None) -> ClippedSum:
        """Return the clipped sum over records, or with weights (B, k) over persons of k records each."""
        records, used = records_of(weights), len(inputs if weights is None else weights)
        size = padded_size(max(1, used) * records)
        inputs, targets = pad_rows(inputs, size), pad_rows(targets, size)
        by_row = None if weights is None else pad_rows(weights.flatten().to(self._device), size)
        persons = size // records  # with those of the padding
        recording = Recording(self._units, self._plan_storage(persons), size, records=records, weights=by_row)
        with padded_linear(self._linear_layers):
            losses = recording.run(lambda: self._losses(inputs, targets))
        limit = clip_norm * self._margin(records)
        found = {name: g for name, g in recording.found.items() if not isinstance(g, Deferred)}
        deferred = {name: g for name, g in recording.found.items() if isinstance(g, Deferred)}
        recording.found.clear()

        squared = torch.zeros(persons, dtype=torch.float64, device=self._device)
        for gradients in found.values():
            squared += gradients.squared_norms
        norms, sums = squared.sqrt(), {}
        for name, late in deferred.items():  # at most one
            norms, sums[name] = late.clipped_sum(
                pad_rows(squared[:used], persons, math.inf), limit
            )  # infinite: dropped
            norms[used:] = squared[used:].sqrt()
        factors = clip_factors(norms, limit).to(self._dtype)
        factors[used:] = 0
        for name, parameter in self.parameters.items():
            if name in found:  # popped, so that its memory is free before the next layer's sum
                sums[name] = found.pop(name).weighted_sum(factors)
            elif name not in sums:  # the layer does not reach the loss
                sums[name] = torch.zeros_like(parameter, requires_grad=False)
        ordered = {name: sums[name] for name in self.parameters}
        losses = losses[: used * records]
        return ClippedSum(gradients=ordered, statistics=BatchStatistics(norms=norms[:used], losses=losses))

    def _margin(self, records: int) -> float:
        """Return the share of C that records, or persons of k records, are clipped to."""
        return 1 - rounding(max(self._microbatch_size, _LEAST_GROUP), GROUPS_IN_A_FAMILY, records)

    def _losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        if self._has_convolutions and inputs.dim() == 4:  # noqa: PLR2004
            inputs = inputs.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)  # channels last, like the weights
        outputs = self._network(inputs)
        if self._loss is cross_entropy and not isinstance(outputs, Tensor):
            raise ConfigError(f"the model returned a {type(outputs).__name__}; pass a `loss` that takes it apart")
        losses = self._loss(outputs, targets)
        if losses.shape != (len(inputs),):
            raise ConfigError(
                f"the loss returned shape {tuple(losses.shape)} for a batch of {len(inputs)}; it must return one value "
                'a record: use reduction="none", and .flatten(1).mean(1) if the result has more dimensions'
            )
        return losses

    def _records_that_fit(self) -> int:
        """Return how many records' gradients fit the memory limit, for the modules that must always write them out."""
        numbers = sum(unit.num_params for unit in self._units if not unit.has_rule)
        return max(1, self._max_gradient_bytes // (numbers * self._dtype.itemsize)) if numbers else sys.maxsize

    def _plan_storage(self, batch_size: int) -> dict[str, Storage]:
        """Defer the largest layer that can be deferred. Keep the other gradients, smallest first, up to the limit."""
        largest = next((unit for unit in reversed(self._units) if unit.has_rule and can_defer(unit.module)), None)
        plan, used = {}, 0
        for unit in self._units:
            if unit is largest:
                plan[unit.path] = Storage.DEFER
                continue
            used += batch_size * unit.num_params * self._dtype.itemsize
            plan[unit.path] = Storage.KEEP if used <= self._max_gradient_bytes else Storage.REWRITE
        return plan

    def _check_unchanged(self) -> None:
        now = trained_parameters(self.model)
        if now.keys() != self.parameters.keys() or any(now[name] is not p for name, p in self.parameters.items()):
            raise ConfigError(
                "the model's trained parameters have changed since this PerSampleClipper was made; make a new one "
                "after replacing, freezing or unfreezing layers"
            )

    def _check_batch(self, inputs: Tensor, targets: Tensor, *, is_moved: bool = False) -> None:
        for what, value in (("inputs", inputs), ("targets", targets)):
            if not isinstance(value, Tensor):
                raise DataError(f"{what} must be a tensor, not {type(value).__name__}; see torch.as_tensor")
            if value.device != self._device and not is_moved:
                raise DataError(f"{what} are on {value.device}, the model on {self._device}; move them there")
        if inputs.dim() == 0 or targets.dim() == 0 or len(inputs) != len(targets):
            raise DataError("inputs and targets must have the same first dimension, the batch")
        dtype = self._dtype
        if inputs.dtype != dtype and not (self._has_embeddings and not inputs.is_floating_point()):
            remedy = f"inputs.to({dtype})" + (" / 255" if inputs.dtype == torch.uint8 else "")
            raise DataError(f"inputs have dtype {inputs.dtype}, the model's parameters {dtype}; convert them: {remedy}")

    def _unclipped(self, inputs: Tensor, targets: Tensor) -> Gradients:
        found = self.sum_of_made_up(inputs, targets, math.inf)
        return found.statistics.norms, found.gradients

    def sum_of_made_up(self, inputs: Tensor, targets: Tensor, clip_norm: float) -> ClippedSum:
        """Return the clipped sum of one micro-batch of made-up samples, for trials and audits. Never for records."""
        return self._microbatch(inputs, targets, clip_norm)
