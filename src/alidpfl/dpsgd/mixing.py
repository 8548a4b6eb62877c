"""Trials that find models and losses that mix the records of a batch.

A record's gradient must be the same in any batch, at any place in it, and after any other batch. The trials compute
gradients of made-up samples in several batches and compare them:

- a full micro-batch against a permuted half and two quarters, and a quarter twice in one batch;
- a few of its samples against plain autograd, each alone;
- a few samples among others against the same samples at the same places among zeros, among outliers, and among values
  that overflow or are no numbers.

The last one needs no tolerance for rounding: a product of the same shape rounds each row in the same way, whatever
the other rows hold. So it also runs during training, at weights that a hostile server may have sent.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress

import torch
from torch import Tensor, nn

from alidpfl.dpsgd.guards import model_randomness
from alidpfl.dpsgd.made_up import FAR, NEAR_EQUAL, SPREAD, Kind, SampleMaker, smallest_dimension
from alidpfl.dpsgd.model_check import (
    LARGE,
    Gradients,
    check_agreement,
    disagreement,
    fails_alone,
    gradients_one_by_one,
    made_up_targets,
    no_buffer_changes,
    norms_one_by_one,
    perturbed_weights,
    run_probes,
    trial,
)
from alidpfl.dpsgd.padding import padded_size
from alidpfl.errors import UnsupportedModelError

Compute = Callable[[Tensor, Tensor], Gradients]
"""Maps a micro-batch to its gradients, not clipped."""

_NEARBY = 1e-4  # a thousand times what rounding changes
_ALONE = 6  # samples of a micro-batch that also go through autograd alone
_MULTIPLICATIONS = 2e9  # of all micro-batches of a trial of one kind: about half a second
_LONGEST_GAP = 256  # steps; a check costs about as much as one


class Schedule:
    """Says when to repeat a trial: at steps 1, 2, 4, 8, ... and at least every 256 steps, counted from 0.

    It counts steps and nothing else, so that the time of a trial shows nothing about records.
    """

    def __init__(self) -> None:
        self._steps, self._next = -1, 0

    def is_due(self) -> bool:
        """Count a step, and return whether the trial is due before it."""
        self._steps += 1
        if self._steps < self._next:
            return False
        self._next = self._steps + min(max(1, self._steps), _LONGEST_GAP)
        return True


class MixingTrials:
    """The trials of one model: all of them before the first step, a short one again during training."""

    def __init__(
        self,
        model: nn.Module,
        loss: Callable[[Tensor, Tensor], Tensor],
        parameters: Mapping[str, Tensor],
        compute: Compute,
        microbatch_size: int,
    ) -> None:
        """Prepare the trials.

        Args:
            model: The model.
            loss: Gives one value for each record.
            parameters: The trained parameters by name.
            compute: Computes a micro-batch as training does.
            microbatch_size: Records of a full micro-batch.
        """
        self._model, self._loss, self._parameters, self._compute = model, loss, parameters, compute
        self._microbatch_size = microbatch_size
        self._tried: dict[object, SampleMaker] = {}
        self._schedule = Schedule()

    def before_step(self, inputs: Tensor, targets: Tensor, *, has_public_weights: bool = True) -> None:
        """Run the trials that are due. Only shapes and types of the data are read, and the number of steps so far.

        All trials run before the first step, and again if the form of the data or the model's mode changed. The short
        trial runs again by a `Schedule`, because a model may mix at some weights only. At weights that are not public
        it does not run: whether it fails would show something about the records.

        Raises:
            DataError: The model fails on samples of this form.
            UnsupportedModelError: The model mixes records, or has no exact per-sample gradients.
        """
        key = (inputs.shape[1:], inputs.dtype, targets.shape[1:], targets.dtype, self._model.training)
        is_due = self._schedule.is_due()
        if key not in self._tried:
            self._tried[key] = self._try_all(inputs, targets)
        elif is_due and has_public_weights:
            with no_buffer_changes(self._model):
                self._try_company(self._tried[key])

    def _try_all(self, inputs: Tensor, targets: Tensor) -> SampleMaker:
        run_probes(self._model, inputs, targets, lambda x, number: self._against_autograd(x, targets, number))
        with trial(self._model, inputs, targets):
            maker = SampleMaker.like(self._model, inputs, targets)
            self._try_batches(maker, SPREAD, min(self._trial_size(maker), 2 * padded_size(1)))
            with perturbed_weights(self._model):
                self._try_batches(maker, NEAR_EQUAL, self._trial_size(maker))
        with no_buffer_changes(self._model):
            self._try_company(maker)
            with perturbed_weights(self._model):
                self._try_company(maker)
        return maker

    def _against_autograd(self, x: Tensor, targets: Tensor, number: int) -> float:
        with torch.no_grad():
            outputs = self._model(x)
        y = made_up_targets(targets, number, smallest_dimension(outputs))
        with no_buffer_changes(self._model), fails_alone(ValueError):  # vmap runs one record at a time
            ours = self._compute(x, y)
            truth = gradients_one_by_one(self._parameters, self._losses_alone(x, y))
        check_agreement(ours, truth)
        return float(ours[0].nan_to_num(posinf=0.0).max())

    def _losses_alone(self, x: Tensor, y: Tensor) -> Iterator[Tensor]:
        for one, label in zip(x.split(1), y.split(1), strict=True):
            with fails_alone(ValueError, RuntimeError, IndexError):
                loss = self._loss(self._model(one), label)
            yield loss

    def _try_batches(self, maker: SampleMaker, kind: Kind, size: int) -> None:
        """Refuse a model in which a sample's gradient depends on its batch.

        A finding must repeat nearby. A ReLU whose input is zero but for rounding may switch between two batches. It
        does not switch again once the inputs have moved by much more than rounding.
        """
        random = _seeded(size)
        x, y = maker.batch(kind, size, random)
        if self._depends_on(x, y, random) is None:
            return
        if x.is_floating_point():
            moved = torch.randn(x.shape, generator=random, dtype=x.dtype, device="cpu").to(x.device)
            x = x * (1 + _NEARBY * moved)
        if (depends_on := self._depends_on(x, y, random)) is not None:
            raise _mixes(depends_on)

    def _depends_on(self, x: Tensor, y: Tensor, random: torch.Generator) -> str | None:
        """Return on what a sample's gradient depends besides the sample; None if nothing was found."""
        whole = self._compute(x, y)
        order = torch.randperm(len(x), generator=random, device="cpu").to(x.device)
        parts = order.split([len(x) // 2, len(x) // 4, len(x) - len(x) // 2 - len(x) // 4])
        found = [self._compute(x[rows], y[rows]) for rows in parts]
        if _differ(_joined(*found), (whole[0][order], whole[1])):
            return "the order or the number of records in the batch"
        twice = torch.cat([parts[1], parts[1]])
        if _differ(self._compute(x[twice], y[twice]), _joined(found[1], found[1])):
            return "a second copy of the batch"
        few = torch.cat([order[: _ALONE - 1], order.new_tensor([len(x) - 1])])
        alone = norms_one_by_one(self._parameters, self._losses_alone(x[few], y[few]))
        if _differ((whole[0][few], {}), (alone, {})):
            return "the other records of the batch"
        return None

    def _try_company(self, maker: SampleMaker) -> None:
        """Refuse a model in which samples change the gradients of a few others that stay in their places."""
        size, random = padded_size(1), _seeded(0)
        x, y = maker.batch(NEAR_EQUAL, size, random)
        few = torch.tensor([size // 5, size // 2, size - 2, size - 1], device=x.device)
        among_others = self._norms(x, y)[few]
        for others, labels in ((torch.zeros_like(x), torch.zeros_like(y)), maker.batch(FAR, size, random)):
            others[few], labels[few] = x[few], y[few]
            if _differ((self._norms(others, labels)[few], {}), (among_others, {})):
                raise _mixes("the other records of the batch")
        if x.is_floating_point():
            others = maker.extremes(size)
            others[few] = x[few]
            found = among_others
            with suppress(Exception):  # a model or a loss may refuse such values, which is no mixing
                found = self._norms(others, y)[few]
            if _differ((found, {}), (among_others, {})):
                raise _mixes("other records of the batch that overflow or are no numbers")

    def _norms(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the norms in the model's own mode. Dropout draws the same numbers in every call."""
        with model_randomness(0, x.device):
            return self._compute(x, y)[0]

    def _trial_size(self, maker: SampleMaker) -> int:
        """Return the size of a full micro-batch, or less for a model that would take long."""
        least = padded_size(1)
        affordable = int(_MULTIPLICATIONS / (3 * max(1, _multiplications(self._model, maker))))
        return max(least, min(padded_size(self._microbatch_size), affordable - affordable % least))


def _seeded(number: int) -> torch.Generator:
    return torch.Generator("cpu").manual_seed(number)  # on the CPU: the same numbers for every device


def _joined(*parts: Gradients) -> Gradients:
    """Return the gradients of batches as those of one batch.

    Sums stay in float32: its rounding is a thousandth of the tolerance, and large models have gigabytes of them.
    """
    sums = {name: gradient.clone() for name, gradient in parts[0][1].items()}
    for _, more in parts[1:]:
        for name, total in sums.items():
            total.add_(more[name])
    return torch.cat([part[0] for part in parts]), sums


def _differ(one: Gradients, other: Gradients) -> bool:
    """Return whether gradients differ by more than rounding, or overflow in one of them only."""
    for norms, others in ((one[0], other[0]), (other[0], one[0])):
        # A norm that is large anyway may overflow in float32 and not in double.
        if bool((~torch.isfinite(norms) & (others < LARGE)).any()):
            return True
    return disagreement(one, other) > 1


def _multiplications(model: nn.Module, maker: SampleMaker) -> int:
    """Estimate the multiplications of a forward pass of one sample: each weight, at each position of its output."""
    counted = [0]

    def count(module: nn.Module, _: object, output: object) -> None:
        weight = getattr(module, "weight", None)
        if isinstance(weight, Tensor) and weight.dim() > 1 and isinstance(output, Tensor):
            counted[0] += math.ceil(weight.numel() * output.numel() / weight.shape[0])

    handles = [module.register_forward_hook(count) for module in model.modules()]
    try:
        with torch.no_grad():
            model(maker.rows(NEAR_EQUAL, 1, _seeded(0)))
    finally:
        for handle in handles:
            handle.remove()
    return counted[0]


def _mixes(depends_on: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"this model mixes the records of a batch: on made-up samples a record's gradient depends on {depends_on}, so "
        "that one record changes the gradients of others and clipping bounds nothing; use layers and a loss that treat "
        "each record alone (no shared capacity, statistics, ranks or memory over a batch)"
    )
