"""Canaries, the made-up records of an audit, and their gradients.

Good canaries for the one-run audit have gradients that reach the clip norm and have little in common.
"""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass

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
_PERTURBATIONS = 16  # draws over which a random loss is averaged
_SCALES = (1.0, 10.0, 100.0)
_TRIED = 64  # canaries of each kind
_ALONG = 8  # canaries with which the others are compared
_IMAGE_DIMS = 4  # (m, channels, height, width)
_COARSE = 4  # side of the noise that is smoothed


class CanaryGradients:
    """Gradients of canaries, clipped by the code that clients use. The weights of the objective are overwritten."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective
        self._clipper = batch_clipper_for(objective, "cpu")
        self.params = flatten(self._clipper.parameters)  # the initial weights

    @property
    def is_random(self) -> bool:
        """Return whether the loss of a record is random at fixed weights."""
        dropouts = (m for m in self._objective.model.modules() if isinstance(m, nn.modules.dropout._DropoutNd))
        return self._objective.before_step is not None or any(dropout.p > 0 for dropout in dropouts)

    def total(self, params: Tensor, inputs: Tensor, targets: Tensor, clip_norm: float, random: RandomStream) -> Tensor:
        """Return the un-noised sum of the records' clipped gradients at these weights, (num_params,).

        Args:
            params: the weights, (num_params,).
            inputs: the records' inputs, (m, ...).
            targets: the records' labels, (m,).
            clip_norm: C; infinite for no clipping.
            random: randomness of the loss.
        """
        load(params, self._clipper.parameters)
        if self._objective.before_step is not None:
            self._objective.before_step(random)
        found = self._clipper.clipped_sum(inputs, targets, clip_norm=clip_norm, seed=random.integer())
        return flatten(found.gradients)

    def mean_total(
        self, params: Tensor, inputs: Tensor, targets: Tensor, clip_norm: float, random: RandomStream
    ) -> Tensor:
        """Return `total`, averaged over the randomness of the loss. The arguments are the same."""
        repetitions = 1 if self._objective.before_step is None else _PERTURBATIONS
        totals = [self.total(params, inputs, targets, clip_norm, random) for _ in range(repetitions)]
        return torch.stack(totals).mean(0)

    def products(self, params: Tensor, inputs: Tensor, targets: Tensor, along: Tensor, clip_norm: float) -> Tensor:
        """Return the product of each record's clipped gradient with `along`, as (m,) doubles.

        Args:
            params: (num_params,) the weights.
            inputs: the records.
            targets: their classes.
            along: (num_params,) the direction.
            clip_norm: C.
        """
        load(params, self._clipper.parameters)
        pieces = zip(inputs.split(_AT_A_TIME), targets.split(_AT_A_TIME), strict=True)
        return torch.cat([self._products(x, y, along, clip_norm) for x, y in pieces])

    def _products(self, inputs: Tensor, targets: Tensor, along: Tensor, clip_norm: float) -> Tensor:
        # A product with the gradient is a derivative along a line. One forward pass gives it for all records, without
        # computing per-sample gradients.
        weights = {name: p.detach() for name, p in self._clipper.parameters.items()}
        tangents = {name: t.contiguous() for name, t in unflatten(along, weights).items()}

        def losses(weights: dict[str, Tensor]) -> Tensor:
            return self._objective.loss(functional_call(self._objective.model, weights, (inputs,)), targets)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # from torch, when it first loads its rules
            slopes: Tensor = jvp(losses, (weights,), (tangents,))[1]
        norms = self._clipper.clipped_sum(inputs, targets, clip_norm=clip_norm, seed=0).statistics.norms
        found: Tensor = slopes.double() * (clip_norm / norms).clamp_max(1)
        return found.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)


@dataclass(frozen=True, kw_only=True)
class Canaries:
    """m canaries."""

    inputs: Tensor  # (m, ...) made-up inputs
    targets: Tensor  # (m, ...) random ones of the subject's wrong targets
    groups: Tensor  # (m,) the number of each canary's target
    strength: float  # mean norm of their clipped gradients at the initial weights, over C
    overlap: float  # root mean square cosine between two of their gradients there: 0 is best, 1 makes them the same


def make_canaries(subject: Subject, count: int, random: RandomStream) -> Canaries:
    """Return `count` canaries of the kind of noise (rough or smooth, small or large) that shows best."""
    gradients = CanaryGradients(subject.objective())
    groups = (random.uniform(count) * len(subject.wrong_targets)).long()
    targets = subject.wrong_targets[groups]

    def measured(inputs: Tensor) -> Canaries:
        tried, labels = inputs[:_TRIED], targets[:_TRIED]
        params, clip_norm = gradients.params, subject.clip_norm
        lengths, cosines = [], []
        for one in range(min(_ALONG, len(tried))):
            alone = gradients.total(params, tried[one : one + 1], labels[one : one + 1], clip_norm, random)
            products = gradients.products(params, tried, labels, alone, clip_norm)
            lengths.append(float(alone.norm()) / clip_norm)
            cosines.append((products[torch.arange(len(tried)) != one] / clip_norm**2).square().mean())
        overlap = float(torch.stack(cosines).mean().sqrt())
        strength = sum(lengths) / len(lengths)
        return Canaries(inputs=inputs, targets=targets, groups=groups, strength=strength, overlap=overlap)

    def shows(canaries: Canaries) -> float:
        """Return the norm of a canary over the standard deviation of noise and other canaries in its batch."""
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
