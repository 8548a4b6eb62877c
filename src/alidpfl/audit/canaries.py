"""Canaries of the one-run audit: made-up records whose gradients are clipped, and have little in common."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jvp

from alidpfl.audit.subject import Subject
from alidpfl.dpsgd import RandomStream
from alidpfl.federation.client import batch_clipper_for
from alidpfl.federation.tensors import flatten, load, unflatten
from alidpfl.methods import Objective

_AT_A_TIME = 250
_PERTURBATIONS = 16  # that a loss with randomness of its own is averaged over


class CanaryGradients:
    """Gradients of made-up records, clipped by the same code that clients clip with."""

    def __init__(self, objective: Objective) -> None:
        """Take the objective over: its weights are overwritten."""
        self._objective = objective
        self._clipper = batch_clipper_for(objective, "cpu")
        self.params = flatten(self._clipper.parameters)
        """The first weights."""

    @property
    def is_random(self) -> bool:
        """True if the loss of a record differs from step to step at the same weights."""
        dropouts = (m for m in self._objective.model.modules() if isinstance(m, nn.modules.dropout._DropoutNd))
        return self._objective.before_step is not None or any(dropout.p > 0 for dropout in dropouts)

    def total(self, params: Tensor, inputs: Tensor, targets: Tensor, clip_norm: float, random: RandomStream) -> Tensor:
        """(num_params,) the sum of the records' clipped gradients at these weights, un-noised."""
        load(params, self._clipper.parameters)
        if self._objective.before_step is not None:
            self._objective.before_step(random)
        found = self._clipper.clipped_sum(inputs, targets, clip_norm=clip_norm, seed=random.integer())
        return flatten(found.gradients)

    def mean_total(
        self, params: Tensor, inputs: Tensor, targets: Tensor, clip_norm: float, random: RandomStream
    ) -> Tensor:
        """As `total`, averaged over what the loss draws at random."""
        repetitions = 1 if self._objective.before_step is None else _PERTURBATIONS
        totals = [self.total(params, inputs, targets, clip_norm, random) for _ in range(repetitions)]
        return torch.stack(totals).mean(0)

    def products(self, params: Tensor, inputs: Tensor, targets: Tensor, along: Tensor, clip_norm: float) -> Tensor:
        """(m,) ⟨clipped gradient of each record, `along`⟩ at these weights, in double."""
        load(params, self._clipper.parameters)
        pieces = zip(inputs.split(_AT_A_TIME), targets.split(_AT_A_TIME), strict=True)
        return torch.cat([self._products(x, y, along, clip_norm) for x, y in pieces])

    def _products(self, inputs: Tensor, targets: Tensor, along: Tensor, clip_norm: float) -> Tensor:
        # A product with the gradient is a derivative along a line: one forward pass gives it for all records, and no
        # per-sample gradient is written out.
        weights = {name: p.detach() for name, p in self._clipper.parameters.items()}
        tangents = {name: t.contiguous() for name, t in unflatten(along, weights).items()}

        def losses(weights: dict[str, Tensor]) -> Tensor:
            return self._objective.loss(functional_call(self._objective.model, weights, (inputs,)), targets)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, as it loads its rules on first use
            slopes: Tensor = jvp(losses, (weights,), (tangents,))[1]
        norms = self._clipper.clipped_sum(inputs, targets, clip_norm=clip_norm, seed=0).statistics.norms
        found: Tensor = slopes.double() * (clip_norm / norms).clamp_max(1)
        return found.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


_SCALES = (1.0, 10.0, 100.0)
_TRIED = 64  # of each kind
_ALONG = 8  # of them, whose gradients the others' are compared with
_IMAGE_DIMS = 4  # (m, channels, height, width)
_COARSE = 4  # side of the noise that is smoothed


@dataclass(frozen=True, kw_only=True)
class Canaries:
    """m made-up records."""

    inputs: Tensor = field(repr=False)
    """(m, ...)."""
    targets: Tensor = field(repr=False)
    """(m,) drawn at random."""
    strength: float
    """Mean length of their clipped gradients at the first weights, over C."""
    overlap: float
    """Root mean square of the cosine between two of their gradients there: 0 is best, 1 hides one behind another."""


def make_canaries(subject: Subject, count: int, random: RandomStream) -> Canaries:
    """Noise, smooth or not, large or small: what shows best through the noise and the other canaries."""
    gradients = CanaryGradients(subject.objective())
    targets = (random.uniform(count) * subject.num_classes).long().to(subject.targets.dtype)

    def measured(inputs: Tensor) -> Canaries:
        strength, overlap = _measured(subject, gradients, inputs[:_TRIED], targets[:_TRIED], random)
        return Canaries(inputs=inputs, targets=targets, strength=strength, overlap=overlap)

    def shows(canaries: Canaries) -> float:
        """Length of a canary over the standard deviation of what it lies in, in a batch that it is in."""
        others = subject.settings.sample_rate * count / 2 * (canaries.overlap * canaries.strength) ** 2
        return canaries.strength / float((subject.noise_multiplier**2 + others) ** 0.5)

    return max((measured(inputs) for inputs in _kinds(subject, count, random)), key=shows)


def _kinds(subject: Subject, count: int, random: RandomStream) -> Iterator[Tensor]:
    shape = (count, *subject.inputs.shape[1:])
    noises = [random.normal(torch.Size(shape).numel()).view(shape)]
    if len(shape) == _IMAGE_DIMS:
        coarse = random.normal(count * shape[1] * _COARSE**2).view(count, shape[1], _COARSE, _COARSE)
        noises.append(F.interpolate(coarse, size=shape[2:], mode="bilinear"))
    for noise in noises:
        for scale in _SCALES:
            yield (noise * scale).to(subject.inputs.dtype)


def _measured(
    subject: Subject, gradients: CanaryGradients, inputs: Tensor, targets: Tensor, random: RandomStream
) -> tuple[float, float]:
    """Strength and overlap."""
    params, clip_norm = gradients.params, subject.clip_norm
    lengths, cosines = [], []
    for one in range(min(_ALONG, len(inputs))):
        alone = gradients.total(params, inputs[one : one + 1], targets[one : one + 1], clip_norm, random)
        products = gradients.products(params, inputs, targets, alone, clip_norm)
        others = torch.arange(len(inputs)) != one
        lengths.append(float(alone.norm()) / clip_norm)
        cosines.append((products[others] / clip_norm**2).square().mean())
    return sum(lengths) / len(lengths), float(torch.stack(cosines).mean().sqrt())
