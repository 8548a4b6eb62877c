"""The sum of clipped per-sample gradients: the one quantity of a batch that DP-SGD may use, once it is noised."""

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alidpfl.dpsgd.conv import can_defer
from alidpfl.dpsgd.gradient_forms import Deferred, Storage, clip_factors, to_drop
from alidpfl.dpsgd.guards import details_withheld, full_precision, model_randomness
from alidpfl.dpsgd.model_check import (
    NUM_PROBES,
    check_agreement,
    check_model,
    check_modes,
    check_moved,
    made_up,
    no_buffer_changes,
    one_by_one,
    other_weights,
    trained_parameters,
    trial,
)
from alidpfl.dpsgd.padding import even_products, filled, filled_size, linear_layers, whole_size
from alidpfl.dpsgd.recording import Recording, find_units
from alidpfl.dpsgd.relu_pool import join_relu_and_pool
from alidpfl.errors import ConfigError, DataError
from alidpfl.inputs import checks

Loss = Callable[[Tensor, Tensor], Tensor]
"""From outputs (B, ...) and targets (B, ...) to one loss a sample, (B,)."""

# A float32 norm is right to about 2e-7: clipping a little lower makes the bound strict.
SAFETY = 1 - 1e-6
SMALLEST_CLIP_NORM, LARGEST_CLIP_NORM = 1e-6, 1e6  # within float32's reach


def check_clip_norm(clip_norm: float) -> None:
    """Refuse a clip norm at which float32 is not precise; infinity switches clipping off."""
    if not (SMALLEST_CLIP_NORM <= clip_norm <= LARGEST_CLIP_NORM or clip_norm == math.inf):
        raise ConfigError(
            f"clip_norm={clip_norm} must be in [{SMALLEST_CLIP_NORM:g}, {LARGEST_CLIP_NORM:g}], where float32 is "
            "precise, or infinite; scale the loss instead"
        )


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of class scores (B, classes) and labels (B,), one value a sample."""
    return F.cross_entropy(outputs, targets, reduction="none")


@dataclass(frozen=True, kw_only=True)
class BatchStatistics:
    """Un-noised facts about a batch, for the client's own eyes: never for the server, a log or an error message."""

    norms: Tensor = field(repr=False)  # not shown: printing or logging a result must not give them away
    """(B,) gradient norms before clipping, over all trained parameters (flat clipping)."""
    losses: Tensor = field(repr=False)
    """(B,) losses."""

    @property
    def num_non_finite(self) -> int:
        """How many samples had a gradient with NaN or Inf, or too large for a precise factor, and contributed zero."""
        dropped = to_drop(self.norms)
        return 0 if dropped is None else int(dropped.sum())


@dataclass(frozen=True, kw_only=True)
class ClippedSum:
    """What a batch gives. All of it is private: the sum may leave the client with noise added, the rest never."""

    gradients: dict[str, Tensor] = field(repr=False)
    """Sum over the batch of clipped per-sample gradients, by parameter name; float64 beyond one micro-batch."""
    statistics: BatchStatistics


class Clipper(Protocol):
    """What a DP-SGD step asks of a model: its trained parameters, and the clipped gradient sum of a batch."""

    @property
    def parameters(self) -> dict[str, Tensor]:
        """What is trained, by name."""

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
        """Sum of clipped per-sample gradients of all samples, or of those in `rows`, at these places of a client's."""


class PerSampleClipper:
    """Computes clipped gradient sums for one model.

    Exact and flat: each sample's gradient over all trained parameters is scaled to norm at most C. Layers of type
    Linear, Conv2d, Embedding, GroupNorm and LayerNorm have rules of their own, any other module with parameters goes
    through torch.func.vmap; a model without per-sample gradients is refused with the reason and the remedy. The
    model's structure and the set of trained parameters must not change afterwards. The model's values are left as they
    are; with convolutions, its memory layout becomes channels-last. On the CPU, or on
    CUDA by the same code without the native kernels (written for it, not tested on it).

    The first batch of a new shape is preceded by a probe: on a few made-up samples, the result must equal that of plain
    autograd, one sample at a time. The probe finds the usual ways of mixing samples, not every conceivable one: a
    forward pass or a loss that looks across the batch only for particular values has no sensitivity bound, and no test
    can exclude it. The guarantee is for models that treat samples independently.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Loss = cross_entropy,
        microbatch_size: int = 128,
        max_gradient_bytes: int = 32 << 20,
    ) -> None:
        """Prepare `model`.

        Args:
            model: any module; parameters with `requires_grad=False` are frozen.
            loss: gives one value a sample, from that sample alone: no class balancing over the batch, no pairs.
            microbatch_size: samples that go through the model at once; bounds the memory of activations. Smaller ones
                than `filled_size(1)` are filled up to it.
            max_gradient_bytes: most memory for written-out per-sample gradients; what does not fit is computed twice.
                Modules without a rule write out those of `filled_size(1)` samples in any case.
        """
        if not isinstance(model, nn.Module):
            raise ConfigError(f"model must be a torch.nn.Module, not {type(model).__name__}")
        if not callable(loss):
            raise ConfigError(f"loss={loss!r} must be a function of outputs and targets")
        checks.whole("microbatch_size", microbatch_size, low=1)
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
        # Where fewer than a filled batch fit, the memory is taken all the same: no sample must feel its place.
        self._microbatch_size = whole_size(min(microbatch_size, max(filled_size(1), self._samples_that_fit())))
        self._embeddings = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
        self._has_convolutions = any(isinstance(m, nn.Conv2d) for m in model.modules())
        if self._has_convolutions:
            # The layout only: the same values, and convolutions are faster.
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._probed: set[object] = set()

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
        """Sum of clipped per-sample gradients of a batch, which may be empty.

        Args:
            inputs: (B, ...); floating point, or integers for a model that embeds them.
            targets: (B, ...), as the loss takes them.
            clip_norm: C; infinity switches clipping off.
            seed: of the randomness inside the model (dropout); torch's global generator is left untouched.
            rows: (B,) int64, where inputs and targets are those of a whole data set: the rows that make the batch.
            places: not used here; see SoftmaxClipper.
        """
        check_clip_norm(clip_norm)
        if rows is not None:
            inputs, targets = (t[rows].to(self._device) for t in (inputs, targets))
        self._check_unchanged()
        self._check_batch(inputs, targets)
        check_modes(self.model)
        with full_precision(self._device):
            self._probe_once(inputs, targets)
            with details_withheld(), model_randomness(seed, self._device), no_buffer_changes(self.model):
                return self._sum_of_microbatches(inputs, targets, clip_norm)

    def _sum_of_microbatches(self, inputs: Tensor, targets: Tensor, clip_norm: float) -> ClippedSum:
        if len(inputs) == 0:
            return ClippedSum(
                gradients={name: torch.zeros_like(p, requires_grad=False) for name, p in self.parameters.items()},
                statistics=BatchStatistics(norms=inputs.new_zeros(0, dtype=torch.float64), losses=inputs.new_zeros(0)),
            )
        sums: dict[str, Tensor] = {}
        statistics = []
        for x, y in zip(*(t.split(self._microbatch_size) for t in (inputs, targets)), strict=True):
            part = self._microbatch(x, y, clip_norm)
            statistics.append(part.statistics)
            for name, gradient in part.gradients.items():
                # In double: a float32 sum of thousands of samples would round by more than one of them may move it.
                sums[name] = sums[name].double().add_(gradient) if name in sums else gradient
        return ClippedSum(
            gradients=sums,
            statistics=BatchStatistics(
                norms=torch.cat([s.norms for s in statistics]), losses=torch.cat([s.losses for s in statistics])
            ),
        )

    def _microbatch(self, inputs: Tensor, targets: Tensor, clip_norm: float) -> ClippedSum:
        used = len(inputs)
        size = filled_size(used)
        inputs, targets = filled(inputs, size), filled(targets, size)
        recording = Recording(self._units, self._plan_storage(size), size, self._device)
        with even_products(self._linear_layers):
            losses = recording.run(lambda: self._losses(inputs, targets))
        limit = clip_norm * SAFETY
        found = {name: g for name, g in recording.found.items() if not isinstance(g, Deferred)}
        deferred = {name: g for name, g in recording.found.items() if isinstance(g, Deferred)}
        recording.found.clear()

        squared = torch.zeros(size, dtype=torch.float64, device=self._device)
        for gradients in found.values():
            squared += gradients.squared_norms
        norms, sums = squared.sqrt(), {}
        for name, late in deferred.items():  # at most one
            norms, sums[name] = late.clipped_sum(filled(squared[:used], size, math.inf), limit)  # infinite: no part
            norms[used:] = squared[used:].sqrt()
        factors, dropped = clip_factors(norms, limit).to(self._dtype), to_drop(norms)
        factors[used:] = 0
        for name, parameter in self.parameters.items():
            if name in found:  # popped: its memory is free before the next layer's sum is made
                sums[name] = found.pop(name).weighted_sum(factors, dropped)
            elif name not in sums:  # the layer does not reach the loss
                sums[name] = torch.zeros_like(parameter, requires_grad=False)
        ordered = {name: sums[name] for name in self.parameters}
        return ClippedSum(gradients=ordered, statistics=BatchStatistics(norms=norms[:used], losses=losses[:used]))

    def _losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        if self._has_convolutions and inputs.dim() == 4:  # noqa: PLR2004
            inputs = inputs.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)  # channels last, as the weights
        outputs = self._network(inputs)
        if self._loss is cross_entropy and not isinstance(outputs, Tensor):
            raise ConfigError(f"the model returned a {type(outputs).__name__}; pass a `loss` that takes it apart")
        losses = self._loss(outputs, targets)
        if losses.shape != (len(inputs),):
            raise ConfigError(
                f"the loss returned shape {tuple(losses.shape)} for a batch of {len(inputs)}; it must return one value "
                'a sample: use reduction="none", and .flatten(1).mean(1) on what has more dimensions'
            )
        return losses

    def _samples_that_fit(self) -> int:
        """Samples whose gradients fit the memory limit, counting the modules that must always write them out."""
        numbers = sum(unit.num_params for unit in self._units if not unit.has_rule)
        return max(1, self._max_gradient_bytes // (numbers * self._dtype.itemsize)) if numbers else sys.maxsize

    def _plan_storage(self, batch_size: int) -> dict[str, Storage]:
        """Defer the largest layer that can be; keep the others' gradients, smallest first, as many as fit the limit."""
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
                "the model's trained parameters are not those that this PerSampleClipper was made for; make a new one "
                "after replacing, freezing or unfreezing layers"
            )

    def _check_batch(self, inputs: Tensor, targets: Tensor) -> None:
        for what, value in (("inputs", inputs), ("targets", targets)):
            if not isinstance(value, Tensor):
                raise DataError(f"{what} must be a tensor, not {type(value).__name__}; see torch.as_tensor")
            if value.device != self._device:
                raise DataError(
                    f"{what} are on {value.device}, the model on {self._device}; call .to({str(self._device)!r})"
                )
        if inputs.dim() == 0 or targets.dim() == 0 or len(inputs) != len(targets):
            raise DataError("inputs and targets must have the same first dimension, the batch")
        dtype = self._dtype
        if inputs.dtype != dtype and not (self._embeddings and not inputs.is_floating_point()):
            remedy = f"inputs.to({dtype})" + (" / 255" if inputs.dtype == torch.uint8 else "")
            raise DataError(f"inputs have dtype {inputs.dtype}, the model's parameters {dtype}; convert them: {remedy}")

    def _probe_once(self, inputs: Tensor, targets: Tensor) -> None:
        key = (inputs.shape[1:], inputs.dtype, targets.shape[1:], targets.dtype, self.model.training)
        if key in self._probed:
            return
        num_tokens = min(self._embeddings, default=None)
        moved = 0.0
        for number in range(NUM_PROBES):
            x, y = made_up(inputs, number, num_tokens), made_up(targets, number)
            with trial(self.model, x, y), other_weights(self.model, number):
                with torch.no_grad():
                    outputs = self.model(x)
                # Whichever dimension holds the classes: labels below the smallest are labels of all.
                classes = min(outputs.shape[1:]) if isinstance(outputs, Tensor) and outputs.dim() > 1 else None
                y = made_up(targets, number, classes)
                ours = self._microbatch(x, y, math.inf)
                true_norms, true_sums = one_by_one(lambda x, y: self._loss(self.model(x), y), self.parameters, x, y)
            check_agreement(ours.statistics.norms, ours.gradients, true_norms, true_sums)
            moved += float(ours.statistics.norms.nan_to_num(posinf=0.0).max())
        check_moved(moved)
        self._probed.add(key)
