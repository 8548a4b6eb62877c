"""Audit a model: search for made-up batches in which one record changes the gradients of others.

The accounting holds if leaving out one record moves the clipped sum by at most C. The clipper sees to that, provided
each record's gradient depends on that record alone. This search tries to refute it. It makes up a batch, leaves one
record out, and compares both clipped sums with that record's own clipped gradient. It climbs towards batches in which
the others change more, as DP-Auditorium (Kong et al. 2023) searches for neighbours that violate a guarantee.
"""

import copy
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from alidpfl.dpsgd import PerSampleClipper, cross_entropy
from alidpfl.dpsgd.clipping import SMALLEST_CLIP_NORM
from alidpfl.dpsgd.guards import full_precision
from alidpfl.dpsgd.made_up import Kind, SampleMaker, num_tokens
from alidpfl.dpsgd.model_check import perturbed_weights, trial
from alidpfl.dpsgd.padding import padded_size
from alidpfl.errors import AliDpflError, UnsupportedModelError
from alidpfl.federation.tensors import steady_arithmetic
from alidpfl.inputs import checks
from alidpfl.methods import Loss
from alidpfl.types import OnProgress

_MICROBATCH = 128  # the clipper's own
_ROUNDING = 1e-4  # of C, for each record of the batch: the tolerance of the clipper's trials
_NEARBY, _REPEATS = 1e-4, 3  # a finding must hold at three batches nearby: rounding can switch a ReLU in one of them
_CLIMBING = 0.5  # share of trials that change the worst batch so far, once one mixes
_SEEDS = 2**31
_Value = TypeVar("_Value")


@dataclass(frozen=True, kw_only=True)
class ModelAudit:
    """Findings about one model and loss."""

    refusal: str | None
    """Why the clipper refuses the model before any training; None if it accepts it."""
    trials: int
    """Batches that were tried."""
    others_moved: float
    """Largest change of the other records' clipped gradients by one record, in units of C. Honest: rounding only."""
    allowed: float
    """Change of others that rounding explains in that batch, in units of C."""
    batch_size: int
    """Records in that batch."""
    moved: float
    """Largest change of a whole clipped sum by one record, in units of C. The accounting allows 1."""

    @property
    def is_mixing(self) -> bool:
        """Return whether a batch was found in which one record changes the gradients of others."""
        return self.others_moved > self.allowed

    @property
    def is_refuted(self) -> bool:
        """Return whether the model mixes records, or is refused for another reason."""
        return self.refusal is not None or self.is_mixing

    def to_json(self) -> dict[str, Any]:
        """Return plain values for `json.dumps`."""
        return {"refuted": self.is_refuted, "mixing": self.is_mixing, **asdict(self)}


_NOTHING = ModelAudit(refusal=None, trials=0, others_moved=0.0, moved=0.0, allowed=0.0, batch_size=0)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Candidate:
    """A batch, the record that is left out, and the weights. Everything that a trial needs."""

    inputs: Tensor
    targets: Tensor
    left_out: int
    clip_share: float  # C is this quantile of the records' gradient norms
    perturbation: float
    weights_seed: int

    @property
    def allowed(self) -> float:
        """Change of others that rounding explains, in units of C."""
        return _ROUNDING * len(self.inputs)


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """How long to search, and from which seed.

    Raises:
        ConfigError: A number is out of range.
    """

    seconds: float = 10.0
    """Time to search, if `trials` is None."""
    trials: int | None = None
    """Number of batches to try. With a seed, the result can be repeated."""
    seed: int | None = None
    """Repeats a search. None draws fresh entropy."""
    on_progress: OnProgress | None = None
    """Called with the current task and the share that is done."""

    def __post_init__(self) -> None:
        checks.real("seconds", self.seconds, above=0, high=1e6, rule="must be above 0")
        if self.trials is not None:
            checks.whole("trials", self.trials, low=1, high=10**9)
        if self.seed is not None:
            checks.whole("seed", self.seed, low=0)

    def random(self) -> torch.Generator:
        """Return a generator from the seed, or from fresh entropy."""
        random = torch.Generator()
        if self.seed is None:
            random.seed()
            return random
        return random.manual_seed(self.seed)

    def shares(self) -> Iterator[float]:
        """Yield the share of the search that is done, once for each trial."""
        if self.trials is not None:
            yield from (number / self.trials for number in range(self.trials))
            return
        started = time.monotonic()
        yield 0.0
        while (passed := time.monotonic() - started) < self.seconds:
            yield passed / self.seconds


def audit_model(
    model: nn.Module,
    input_shape: tuple[int, ...],
    *,
    loss: Loss = cross_entropy,
    targets: Tensor | None = None,
    options: SearchOptions | None = None,
) -> ModelAudit:
    """Search for made-up batches in which the model or the loss mixes records.

    Args:
        model: Any module. It is copied. With nn.Embedding layers, inputs are made-up tokens.
        input_shape: Shape of one input, without the batch.
        loss: Gives one value for each record.
        targets: (n, ...) tensor with the form of the targets. None: one class for each record.
        options: How long to search, and from which seed. None: ten seconds, and fresh entropy.

    Returns:
        The worst batch found. `ModelAudit.is_refuted` is the verdict. A pass is no proof.

    Raises:
        ConfigError: The loss has the wrong shape.
        DataError: The model cannot take such inputs.
    """
    model, options = copy.deepcopy(model), options or SearchOptions()
    dtype = torch.float32 if num_tokens(model) is None else torch.int64
    labels = torch.zeros(0, dtype=torch.int64) if targets is None else targets[:0]
    form, report = (torch.zeros(0, *input_shape, dtype=dtype), labels), options.on_progress or (lambda *_: None)
    refusal = None
    with steady_arithmetic():
        try:
            clipper = PerSampleClipper(model, loss=loss, microbatch_size=_MICROBATCH)
            refusal = _refusal(clipper, *form)
            return _Search(clipper, *form, options.random()).run(options.shares(), refusal, report)
        except AliDpflError as error:  # nothing can be computed with it
            if refusal is None and not isinstance(error, UnsupportedModelError):
                raise
            return replace(_NOTHING, refusal=refusal or str(error))


def _refusal(clipper: PerSampleClipper, inputs: Tensor, targets: Tensor) -> str | None:
    """Return why the clipper refuses the model in its trials; None if it accepts it."""
    try:
        clipper.clipped_sum(inputs, targets, clip_norm=1.0, seed=0)
    except UnsupportedModelError as error:
        return str(error)
    return None


class _Search:
    def __init__(self, clipper: PerSampleClipper, inputs: Tensor, targets: Tensor, random: torch.Generator) -> None:
        self._clipper, self._form, self._random = clipper, (inputs, targets), random
        with trial(clipper.model, *self._form):
            self._maker = SampleMaker.like(clipper.model, inputs, targets)

    def run(self, shares: Iterator[float], refusal: str | None, report: OnProgress) -> ModelAudit:
        """Try batches, and return the worst."""
        found, leaders = replace(_NOTHING, refusal=refusal), dict[str, _Candidate]()
        for number, share in enumerate(shares, start=1):
            report("search for mixing", share)
            found = replace(found, trials=number)
            candidate = self._next(list(leaders.values()))
            others, moved = self._change(candidate)
            is_mixing = others > candidate.allowed
            leads = {
                "others_moved": (is_mixing, others) > (found.is_mixing, found.others_moved),
                "moved": moved > found.moved,
            }
            if not any(leads.values()) or (is_mixing and not self._holds_nearby(candidate)):
                continue
            if is_mixing:
                leaders.update({what: candidate for what, is_first in leads.items() if is_first})
            if leads["others_moved"]:
                found = replace(found, others_moved=others, allowed=candidate.allowed, batch_size=len(candidate.inputs))
            found = replace(found, moved=max(moved, found.moved))
        return found

    def _next(self, leaders: list[_Candidate]) -> _Candidate:
        if not leaders or self._uniform() > _CLIMBING:
            return self._random_candidate()
        return self._changed(self._choice(leaders))

    def _random_candidate(self) -> _Candidate:
        size = self._choice([2, 3, 8, padded_size(1), 2 * padded_size(1), _MICROBATCH])
        kind = Kind(
            clusters=self._choice([1, 1, 2, 4, None]),
            distance=10 ** self._between(-5, 0),
            spread=self._choice([0.0, 0.0, 1.0, 3.0]),
            is_positive=self._choice([True, False]),
            outlier=self._choice([0.0, 100.0]),
        )
        inputs, targets = self._maker.batch(kind, size, self._random)
        if inputs.is_floating_point():
            inputs = inputs * 10 ** self._between(-1, 1)
            if self._uniform() < 0.3:  # noqa: PLR2004 - an outlier
                inputs[self._integer(size)] *= 100
        if self._uniform() < 0.3:  # noqa: PLR2004 - one class
            targets = targets[:1].expand_as(targets).clone()
        return _Candidate(
            inputs=inputs,
            targets=targets,
            left_out=self._choice([0, size - 1, self._integer(size)]),
            clip_share=self._uniform(),
            perturbation=self._choice([0.0, 0.1, 0.3, 1.0]),
            weights_seed=self._integer(_SEEDS),
        )

    def _changed(self, candidate: _Candidate) -> _Candidate:
        """Return a neighbour of the worst batch so far: other rows, another record left out, another C."""
        inputs, size = candidate.inputs.clone(), len(candidate.inputs)
        rows = torch.rand(size, generator=self._random) < self._choice([0.05, 0.3])
        if inputs.is_floating_point():
            noise = self._maker.rows(Kind(clusters=None), size, self._random)
            inputs[rows] += 10 ** self._between(-4, 0) * noise[rows]
        else:
            inputs[rows] = inputs[self._integer(size)].clone()
        return replace(
            candidate,
            inputs=inputs,
            left_out=self._choice([candidate.left_out, self._integer(size)]),
            clip_share=min(1.0, max(0.0, candidate.clip_share + self._between(-0.2, 0.2))),
        )

    def _change(self, candidate: _Candidate) -> tuple[float, float]:
        """Return how far leaving out the record moves the others, and the whole sum, in units of C."""
        x, y = candidate.inputs, candidate.targets
        kept = torch.arange(len(x)) != candidate.left_out
        with self._weights(candidate):
            norms = self._clipper.sum_of_made_up(x, y, math.inf).statistics.norms
            clip_norm = float(norms.nan_to_num(0.0, posinf=0.0).quantile(candidate.clip_share))
            if not SMALLEST_CLIP_NORM <= clip_norm < 1 / SMALLEST_CLIP_NORM:
                return 0.0, 0.0
            whole, without, alone = (self._sum(x[rows], y[rows], clip_norm) for rows in (slice(None), kept, ~kept))
        moved = whole - without
        return float((moved - alone).norm()) / clip_norm, float(moved.norm()) / clip_norm

    def _sum(self, x: Tensor, y: Tensor, clip_norm: float) -> Tensor:
        gradients = self._clipper.sum_of_made_up(x, y, clip_norm).gradients
        return torch.cat([gradient.double().flatten() for gradient in gradients.values()])

    def _holds_nearby(self, candidate: _Candidate) -> bool:
        """Return whether batches that differ by a little more than rounding show it too."""
        if not candidate.inputs.is_floating_point():
            return True
        for _ in range(_REPEATS):
            noise = self._maker.rows(Kind(clusters=None), len(candidate.inputs), self._random)
            nearby = replace(candidate, inputs=candidate.inputs * (1 + _NEARBY * noise))
            if self._change(nearby)[0] <= candidate.allowed:
                return False
        return True

    @contextmanager
    def _weights(self, candidate: _Candidate) -> Iterator[None]:
        model = self._clipper.model
        with (
            full_precision(candidate.inputs.device),
            trial(model, *self._form),
            perturbed_weights(model, candidate.perturbation, candidate.weights_seed),
        ):
            yield

    def _uniform(self) -> float:
        return float(torch.rand((), generator=self._random))

    def _between(self, low: float, high: float) -> float:
        return low + (high - low) * self._uniform()

    def _integer(self, below: int) -> int:
        return int(torch.randint(below, (), generator=self._random))

    def _choice(self, values: list[_Value]) -> _Value:
        return values[self._integer(len(values))]
