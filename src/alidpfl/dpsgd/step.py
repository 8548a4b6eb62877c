"""One DP-SGD iteration: sample, clip, sum, add noise, divide by a public constant, step (Abadi et al. 2016).

The comments `proof step N` here and in its parts name the lines of docs/explanation/proofs/step.md.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from alidpfl.dpsgd.clipping import BatchStatistics, PerSampleClipper, Rows, Weights
from alidpfl.dpsgd.grid_noise import Grid
from alidpfl.dpsgd.one_by_one import OneByOneClipper, SampleGradient
from alidpfl.dpsgd.randomness import RandomStream, check_stream
from alidpfl.dpsgd.softmax import SoftmaxClipper
from alidpfl.errors import ConfigError
from alidpfl.inputs import checks

Clipper = PerSampleClipper | SoftmaxClipper
"""Computes the clipped gradient sums of a model."""

NO_NOISE = "no-noise"
NO_CLIPPING = "no-clipping"
_LEAST_NOISE = 1e-3  # the same as in the accounting: less noise gives no privacy
_LEAST_SCALE = 1e-25  # much below, float32 has no fine grid
_GRID_BITS = 8


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """The settings of a DP-SGD iteration. All of them are public."""

    clip_norm: float
    """C: largest contribution of a record (or person), the sensitivity of the sum."""
    noise_multiplier: float
    """σ: standard deviation of the noise in units of the clip norm."""
    learning_rate: float
    """η: the step size."""
    expected_batch_size: float
    """q n, the divisor, with n records (or persons), fixed at enrolment.

    The actual batch size is never used: it would be a release of its own.
    """
    unsafe: frozenset[str] = field(default_factory=frozenset)
    """Protections that are switched off, for baselines without privacy.

    "no-noise" allows noise_multiplier=0. Together with it, "no-clipping" allows clip_norm=inf.
    """

    def __post_init__(self) -> None:
        if isinstance(self.unsafe, str):
            raise ConfigError(f"unsafe={self.unsafe!r} must be a set of names: unsafe=frozenset({{{self.unsafe!r}}})")
        unknown = set(self.unsafe) - {NO_NOISE, NO_CLIPPING}
        if unknown:
            raise ConfigError(f"unsafe={sorted(unknown)} is unknown; it may name {NO_NOISE!r} and {NO_CLIPPING!r}")
        without_noise = self.noise_multiplier == 0 and NO_NOISE in self.unsafe
        rule = f"must be finite and at least {_LEAST_NOISE:g}; without privacy pass 0 and unsafe={{{NO_NOISE!r}}}"
        checks.real("noise_multiplier", self.noise_multiplier, low=0 if without_noise else _LEAST_NOISE, rule=rule)
        if not (self.clip_norm == math.inf and without_noise and NO_CLIPPING in self.unsafe):
            unsafe = f"pass inf, noise_multiplier=0 and unsafe={{{NO_NOISE!r}, {NO_CLIPPING!r}}}"
            rule = f"must be finite and greater than 0; without privacy {unsafe}"
            checks.real("clip_norm", self.clip_norm, above=0, rule=rule)
        checks.real("learning_rate", self.learning_rate, above=0, rule="must be finite and greater than 0")
        rule = "must be finite and greater than 0: it is sample_rate x number of records"
        checks.real("expected_batch_size", self.expected_batch_size, above=0, rule=rule)

    @property
    def noise_scale(self) -> float:
        """σC, the standard deviation of the noise on each coordinate of the sum."""
        return self.noise_multiplier * self.clip_norm if self.noise_multiplier else 0.0


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """The result of a step. One part is public once the step is charged, the other must stay on the client."""

    noised_sum: dict[str, Tensor] = field(repr=False)
    """Clipped sum + noise by parameter name, covered by (ε, δ). Divide by the expected batch size for the gradient."""
    private: BatchStatistics = field(repr=False)
    """Norms and losses without noise. They stay on the client."""


def noised_sum(
    clipper: Clipper | OneByOneClipper,
    inputs: Tensor,
    targets: Tensor,
    settings: StepSettings,
    random: RandomStream,
    *,
    rows: Rows = None,
    weights: Weights = None,
    places: Rows = None,
) -> StepResult:
    """Return the clipped gradient sum of a Poisson-sampled batch with noise N(0, σ²C² I), and private statistics.

    Args:
        clipper: Made once before training. A OneByOneClipper puts sum and noise on a `Grid`.
        inputs: (n, ...) records.
        targets: (n, ...) in the form that the loss takes.
        settings: C and σ.
        random: Source of the noise.
        rows: (B,) rows that make the batch. None means all. With weights (B, k): k rows for each person.
        weights: (B, k) float32: weights of the rows of each person, from `Groups.draw`. The unit of privacy is then a
            person. None means that it is a record.
        places: (B,) their places among the client's records. None means their rows. With weights, the persons' places
            among the client's persons.

    Raises:
        ConfigError: An argument does not fit.
        DataError: The batch does not fit the model. The message quotes no data.
        UnsupportedModelError: The model has no exact per-sample gradients.
    """
    if not isinstance(clipper, Clipper | OneByOneClipper):
        raise ConfigError(f"pass PerSampleClipper(model), made once before training, not a {type(clipper).__name__}")
    check_stream(random)
    seed = random.integer()
    if isinstance(clipper, OneByOneClipper):
        gradients = clipper.gradients(inputs, targets, seed=seed, rows=rows, weights=weights, places=places)
        return _noised_on_grid(clipper, gradients, settings, random)
    clipped = clipper.clipped_sum(
        inputs, targets, clip_norm=settings.clip_norm, seed=seed, rows=rows, weights=weights, places=places
    )
    # Empty batch: still add noise, because a sum without noise would reveal that it was empty.
    add_noise(clipped.gradients, settings.noise_scale, random)  # proof step 5
    return StepResult(noised_sum=clipped.gradients, private=clipped.statistics)


def _noised_on_grid(
    clipper: OneByOneClipper, gradients: Iterable[SampleGradient], settings: StepSettings, random: RandomStream
) -> StepResult:
    norms, losses = [torch.zeros(0, dtype=torch.float64)], [torch.zeros(0)]

    def vectors() -> Iterator[Tensor]:
        for record in gradients:
            norms.append(torch.linalg.vector_norm(record.vector, dtype=torch.float64).view(1))
            losses.append(record.loss.view(1))
            yield record.vector

    grid = Grid(clip_norm=settings.clip_norm, noise_multiplier=settings.noise_multiplier)
    parameters = clipper.parameters
    noised = grid.noised_total(vectors(), clipper.num_params, random).split([p.numel() for p in parameters.values()])
    return StepResult(
        noised_sum={name: part.view(p.shape) for (name, p), part in zip(parameters.items(), noised, strict=True)},
        private=BatchStatistics(norms=torch.cat(norms), losses=torch.cat(losses)),
    )


def add_noise(gradients: dict[str, Tensor], scale: float, random: RandomStream) -> None:
    """Replace every tensor by itself plus noise N(0, scale² I), as float32 on a public grid.

    The last bits of a sum of two floats show what was added (Mironov 2012): noise alone has other low-order bits than
    noise on a gradient. So the sum is rounded to a grid that depends on `scale` only. The grid is coarse: each cell
    holds thousands of the noise's own values. And it is fine: rounding adds 1e-6 of the variance.
    """
    if scale == 0:
        return
    for name, gradient in gradients.items():
        if gradient.dtype not in (torch.float32, torch.float64):  # with fewer digits, rounding exceeds the margin of C
            raise ConfigError(f"{name} has a sum in {gradient.dtype}; sums must be float32 or float64")
    grid = noise_grid(scale)
    sizes = [gradient.numel() for gradient in gradients.values()]
    noise = random.normal(sum(sizes))
    for (name, gradient), part in zip(gradients.items(), noise.split(sizes), strict=True):
        on_device = part.view(gradient.shape).to(gradient.device)
        noised = gradient.add_(on_device, alpha=scale).float()
        # The grid is a power of two, so that only `round_` rounds.
        gradients[name] = noised.div_(grid).round_().mul_(grid)  # proof step 6


def noise_grid(scale: float) -> float:
    """Return the grid's step, the distance of neighbouring noised values: a power of two, 1/512 to 1/256 of `scale`."""
    if not scale >= _LEAST_SCALE:
        raise ConfigError(
            f"noise_multiplier x clip_norm={checks.exact(scale)} must be at least {_LEAST_SCALE:g}; scale the loss up "
            "instead"
        )
    return float(2.0 ** (math.floor(math.log2(scale)) - _GRID_BITS))


@torch.no_grad()
def dp_sgd_step(
    clipper: Clipper | OneByOneClipper,
    inputs: Tensor,
    targets: Tensor,
    settings: StepSettings,
    random: RandomStream,
    *,
    rows: Rows = None,
    weights: Weights = None,
    places: Rows = None,
) -> StepResult:
    """Run one iteration: move the trained parameters by -η (clipped sum + noise) / expected batch size, in place.

    Args, result and Raises are those of `noised_sum`. `settings` also gives η and the expected batch size.
    """
    result = noised_sum(clipper, inputs, targets, settings, random, rows=rows, weights=weights, places=places)
    for name, parameter in clipper.parameters.items():  # proof step 7
        parameter.sub_(result.noised_sum[name], alpha=settings.learning_rate / settings.expected_batch_size)
    return result


def poisson_sample(num_records: int, sample_rate: float, random: RandomStream) -> Tensor:
    """Return the indices of one batch. Each record is included independently with probability `sample_rate`.

    The batch size is random and may be zero. The accounting (Mironov et al. 2019) covers this sampling and no other:
    it does not cover shuffled batches of a fixed size (Chua et al. 2024). Indices and batch size are private: neither
    may leave the client.

    >>> poisson_sample(5, 1.0, RandomStream.seeded(0)).tolist()
    [0, 1, 2, 3, 4]
    """
    check_stream(random)
    checks.whole("num_records", num_records)
    checks.real("sample_rate", sample_rate, above=0, high=1, rule="must be in (0, 1]; did you pass a batch size?")
    # Uniform numbers are multiples of 2^-53. With q rounded down to such a multiple, the chance is never above q.
    chance = math.floor(sample_rate * 2.0**53) * 2.0**-53  # proof step 1
    return (random.uniform(num_records) < chance).nonzero().squeeze(1)
