"""One DP-SGD iteration: clip, sum, add noise, divide by a public constant, step (Abadi et al. 2016)."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from alidpfl.dpsgd.clipping import BatchStatistics, Clipper, PerSampleClipper
from alidpfl.dpsgd.grid_noise import Grid
from alidpfl.dpsgd.one_by_one import OneByOneClipper, SampleGradient
from alidpfl.dpsgd.randomness import RandomStream, check_stream
from alidpfl.dpsgd.softmax import SoftmaxClipper
from alidpfl.errors import ConfigError
from alidpfl.inputs import checks

_LEAST_NOISE = 1e-3  # as in the accounting: below, nothing is private
_LEAST_SCALE = 1e-25  # float32 has no fine grid much below
_GRID_BITS = 8
NO_NOISE = "no-noise"
NO_CLIPPING = "no-clipping"


@dataclass(frozen=True, kw_only=True)
class StepSettings:
    """The numbers of a DP-SGD iteration. All of them are public.

    `unsafe` names what is switched off on purpose, for baselines without privacy: "no-noise" admits
    noise_multiplier=0, and "no-clipping" clip_norm=inf beside it.
    """

    clip_norm: float
    """C: largest contribution of a sample, the sensitivity of the sum."""
    noise_multiplier: float
    """σ: standard deviation of the noise in units of the clip norm."""
    learning_rate: float
    """η: the step size."""
    expected_batch_size: float
    """q n, fixed at enrolment: the divisor. Never the realised batch size, which would be a release of its own."""
    unsafe: frozenset[str] = field(default_factory=frozenset)
    """What is switched off on purpose: `no-noise`, `no-clipping`."""

    def __post_init__(self) -> None:
        self._check_unsafe()
        self._check_privacy()
        checks.real("learning_rate", self.learning_rate, above=0, rule="must be finite and greater than 0")
        rule = "must be finite and greater than 0: it is sample_rate x number of records"
        checks.real("expected_batch_size", self.expected_batch_size, above=0, rule=rule)

    def _check_unsafe(self) -> None:
        if isinstance(self.unsafe, str):
            raise ConfigError(f"unsafe={self.unsafe!r} must be a set of names: unsafe=frozenset({{{self.unsafe!r}}})")
        unknown = set(self.unsafe) - {NO_NOISE, NO_CLIPPING}
        if unknown:
            raise ConfigError(f"unsafe={sorted(unknown)} is unknown; it may name {NO_NOISE!r} and {NO_CLIPPING!r}")

    def _check_privacy(self) -> None:
        without_noise = self.noise_multiplier == 0 and NO_NOISE in self.unsafe
        rule = (
            f"must be finite and at least {_LEAST_NOISE:g}; for training without privacy pass 0 and "
            f"unsafe={{{NO_NOISE!r}}}"
        )
        checks.real("noise_multiplier", self.noise_multiplier, low=0 if without_noise else _LEAST_NOISE, rule=rule)
        if self.clip_norm == math.inf and without_noise and NO_CLIPPING in self.unsafe:
            return
        rule = (
            "must be finite and greater than 0; for training without privacy pass inf, noise_multiplier=0 and "
            f"unsafe={{{NO_NOISE!r}, {NO_CLIPPING!r}}}"
        )
        checks.real("clip_norm", self.clip_norm, above=0, rule=rule)

    @property
    def noise_scale(self) -> float:
        """Standard deviation of the noise on each coordinate of the sum, σC."""
        return self.noise_multiplier * self.clip_norm if self.noise_multiplier else 0.0


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step leaves: one part is public once the step is charged, the other must stay on the client."""

    noised_sum: dict[str, Tensor] = field(repr=False)
    """Clipped sum + noise, by parameter name: what (ε, δ) covers. Divided by the expected batch size: the gradient."""
    private: BatchStatistics = field(repr=False)
    """Un-noised norms and losses: they stay on the client."""


def noised_sum(
    clipper: Clipper | OneByOneClipper,
    inputs: Tensor,
    targets: Tensor,
    settings: StepSettings,
    random: RandomStream,
    *,
    rows: Tensor | None = None,
    places: Tensor | None = None,
) -> StepResult:
    """The clipped gradient sum of a Poisson-sampled batch with noise N(0, σ²C² I) on it.

    The batch is all of `inputs` and `targets`, or where `rows` is given those of them; `places` are the samples' places
    among their client's records. With a OneByOneClipper everything is on a `Grid`.
    """
    if not isinstance(clipper, PerSampleClipper | SoftmaxClipper | OneByOneClipper):
        raise ConfigError(f"pass PerSampleClipper(model), made once before training, not a {type(clipper).__name__}")
    check_stream(random)
    seed = random.integer()
    if isinstance(clipper, OneByOneClipper):
        samples = clipper.gradients(inputs, targets, seed=seed, rows=rows, places=places)
        return _noised_on_grid(clipper, samples, settings, random)
    clipped = clipper.clipped_sum(inputs, targets, clip_norm=settings.clip_norm, seed=seed, rows=rows, places=places)
    # Empty batch: still add noise, or the release reveals that it was empty.
    add_noise(clipped.gradients, settings.noise_scale, random)
    return StepResult(noised_sum=clipped.gradients, private=clipped.statistics)


def _noised_on_grid(
    clipper: OneByOneClipper, samples: Iterable[SampleGradient], settings: StepSettings, random: RandomStream
) -> StepResult:
    norms, losses = [torch.zeros(0, dtype=torch.float64)], [torch.zeros(0)]

    def vectors() -> Iterator[Tensor]:
        for sample in samples:
            norms.append(torch.linalg.vector_norm(sample.vector, dtype=torch.float64).view(1))
            losses.append(sample.loss.view(1))
            yield sample.vector

    grid = Grid(clip_norm=settings.clip_norm, noise_multiplier=settings.noise_multiplier)
    parameters = clipper.parameters
    noised = grid.noised_total(vectors(), clipper.num_params, random).split([p.numel() for p in parameters.values()])
    return StepResult(
        noised_sum={name: part.view(p.shape) for (name, p), part in zip(parameters.items(), noised, strict=True)},
        private=BatchStatistics(norms=torch.cat(norms), losses=torch.cat(losses)),
    )


def add_noise(gradients: dict[str, Tensor], scale: float, random: RandomStream) -> None:
    """Add N(0, scale² I) to all tensors, in place of them; the result is float32 on a public grid, whatever they were.

    A sum of two floats shows in its last bits what was added (Mironov 2012): noise alone has other low-order bits than
    noise on a gradient. So the sum is rounded to a grid that depends on nothing but `scale`. The grid is so coarse that
    each of its cells holds thousands of the noise's own values, and so fine that its rounding is 1e-6 of the variance.
    """
    if scale == 0:
        return
    for name, gradient in gradients.items():
        if gradient.dtype not in (torch.float32, torch.float64):  # fewer digits round by more than the margin of C
            raise ConfigError(f"{name} has a sum in {gradient.dtype}; sums must be float32 or float64")
    grid = noise_grid(scale)
    sizes = [gradient.numel() for gradient in gradients.values()]
    noise = random.normal(sum(sizes))
    for (name, gradient), part in zip(gradients.items(), noise.split(sizes), strict=True):
        on_device = part.view(gradient.shape).to(gradient.device)
        noised = gradient.add_(on_device, alpha=scale).float()
        gradients[name] = noised.div_(grid).round_().mul_(grid)  # a power of two: only `round_` rounds


def noise_grid(scale: float) -> float:
    """Distance of two values that a noised coordinate can have: a power of two, 1/512 to 1/256 of the noise's scale."""
    if not scale >= _LEAST_SCALE:
        raise ConfigError(
            f"noise_multiplier x clip_norm={scale:g} must be at least {_LEAST_SCALE:g}; scale the loss up instead"
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
    rows: Tensor | None = None,
    places: Tensor | None = None,
) -> StepResult:
    """One iteration: the trained parameters move by -η (clipped sum + noise) / expected batch size, in place."""
    result = noised_sum(clipper, inputs, targets, settings, random, rows=rows, places=places)
    for name, parameter in clipper.parameters.items():
        parameter.sub_(result.noised_sum[name], alpha=settings.learning_rate / settings.expected_batch_size)
    return result


def poisson_sample(num_records: int, sample_rate: float, random: RandomStream) -> Tensor:
    """Indices of the records of one batch, each included independently with probability `sample_rate`.

    The batch size is random and may be zero: the accounting (Mironov et al. 2019) is for this sampling and for no
    other; shuffled batches of a fixed size are not covered by it (Chua et al. 2024). Indices and batch size are
    private: neither may leave the client.

    >>> poisson_sample(5, 1.0, RandomStream.seeded(0)).tolist()
    [0, 1, 2, 3, 4]
    """
    check_stream(random)
    checks.whole("num_records", num_records)
    checks.real("sample_rate", sample_rate, above=0, high=1, rule="must be in (0, 1]; did you pass a batch size?")
    # Coins are multiples of 2^-53: against q rounded down to one, a record's chance is never above q.
    chance = math.floor(sample_rate * 2.0**53) * 2.0**-53
    return (random.uniform(num_records) < chance).nonzero().squeeze(1)
