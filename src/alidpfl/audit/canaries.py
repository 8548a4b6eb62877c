"""Canaries of the one-run audit: made-up records whose gradients are clipped, and have little in common."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from alidpfl.audit.gradients import CanaryGradients
from alidpfl.audit.subject import Subject
from alidpfl.dpsgd import RandomStream

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
