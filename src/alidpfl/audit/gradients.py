"""The auditor's own view of gradients. It made the canaries up, and so may look at them without noise."""

import warnings

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp

from alidpfl.dpsgd import RandomStream
from alidpfl.federation.client import batch_clipper_for
from alidpfl.federation.params import flatten, load, unflatten
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
