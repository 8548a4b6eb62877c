"""Gradients of one record at a time. Slow, but each depends on its own record only, to the last bit.

When records go through a network together, products round by the size of the batch and by a record's place in it. Here
every record is a batch of its own, with memory and randomness of its own.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from alidpfl.dpsgd.clipping import Rows, Weights, check_weights
from alidpfl.dpsgd.guards import details_withheld, full_precision, model_randomness
from alidpfl.dpsgd.losses import Loss, cross_entropy
from alidpfl.dpsgd.made_up import num_tokens
from alidpfl.dpsgd.mixing import Schedule
from alidpfl.dpsgd.model_check import (
    check_model,
    check_modes,
    made_up,
    no_buffer_changes,
    run_probes,
    trained_parameters,
    trial,
)
from alidpfl.dpsgd.places import checked_places
from alidpfl.dpsgd.softmax import is_softmax_regression
from alidpfl.errors import ConfigError, DataError, UnsupportedModelError

_SEEDS = 1 << 63
_CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class SampleGradient:
    """The gradient and loss of one record, or of one person. Both are private."""

    vector: Tensor = field(repr=False)
    """(P,) the gradient over all trained parameters, in their order, not clipped."""
    loss: Tensor = field(repr=False)


class OneByOneClipper:
    """Computes per-sample gradients for noise on a `Grid`, for any model that treats records independently; on the CPU.

    >>> clipper = OneByOneClipper(nn.Linear(2, 3))
    >>> [g.vector.shape for g in clipper.gradients(torch.ones(4, 2), torch.tensor([0, 1, 2, 0]), seed=0)]
    [torch.Size([9]), torch.Size([9]), torch.Size([9]), torch.Size([9])]
    """

    def __init__(self, model: nn.Module, *, loss: Loss = cross_entropy) -> None:
        """Prepare `model`. Its values may change afterwards. Parameters with `requires_grad=False` are frozen."""
        check_model(model)
        check_modes(model)
        self.model = model
        self.parameters: dict[str, Tensor] = dict(trained_parameters(model))
        self._loss = loss
        self._is_softmax = loss is cross_entropy and is_softmax_regression(model)
        self._schedule = Schedule()
        self._is_tried = self._is_softmax  # a closed form needs no trial
        if any(parameter.device.type != "cpu" for parameter in self.parameters.values()):
            raise ConfigError('noise="grid" needs a model on the CPU: call model.cpu(), or set device="cpu"')

    @property
    def num_params(self) -> int:
        """P, the number of trained values."""
        return sum(parameter.numel() for parameter in self.parameters.values())

    def rehearse(self, inputs: Tensor, targets: Tensor) -> None:
        """Try the model on made-up samples with the shape of the data. An error reveals nothing about the data."""

        def probe(x: Tensor, number: int) -> float:
            with model_randomness(0, _CPU):
                gradient = self._stateless_gradient(x, made_up(targets, number))
            return float(gradient.abs().nan_to_num(posinf=0.0).max())

        run_probes(self.model, inputs, targets, probe)
        self._is_tried = True

    def _try_again(self, inputs: Tensor, targets: Tensor) -> None:
        """Look for a state at the present weights, since a model may keep one at some weights only."""
        with trial(self.model, inputs, targets), model_randomness(0, _CPU):
            self._stateless_gradient(made_up(inputs, 0, num_tokens(self.model)), made_up(targets, 0))

    def _stateless_gradient(self, x: Tensor, y: Tensor) -> Tensor:
        """Return the first record's gradient. Refuse a model that changes it after seeing the other records."""
        found = []
        for number in (0, *range(1, len(x)), 0):
            torch.default_generator.manual_seed(number)
            found.append(self._gradient(x[number : number + 1].clone(), y[number : number + 1].clone()).vector)
        if not torch.equal(found[0].nan_to_num(), found[-1].nan_to_num()):
            raise UnsupportedModelError(
                "this model gives a record another gradient after it has seen other records: it keeps a state, which "
                "would carry data from record to record without noise; use layers that keep no state"
            )
        return found[0]

    def gradients(
        self,
        inputs: Tensor,
        targets: Tensor,
        *,
        seed: int,
        rows: Rows = None,
        weights: Weights = None,
        places: Rows = None,
    ) -> Iterator[SampleGradient]:
        """Yield the gradients of a batch, not clipped, one after the other. With weights, those of persons.

        Args:
            inputs: (n, ...) records.
            targets: (n, ...) in the form that the loss takes.
            seed: Seed of the randomness inside the model (dropout). A record's own seed adds its place.
            rows: (B,) rows that make the batch. None means all. With weights (B, k): k rows for each person.
            weights: (B, k) float32: the weights of a person's rows in her gradient. None means records.
            places: (B,) their places among the client's records. None means their rows. With weights, the persons'
                places among the client's persons; None means 0, 1, ...

        Raises:
            DataError: Model or loss failed. The message quotes no data.
            UnsupportedModelError: The model has no exact per-sample gradients.
        """
        if weights is None:
            rows = torch.arange(len(inputs)) if rows is None else rows
            places = checked_places(places, rows, len(rows))
        else:
            rows = check_weights(rows, weights)
            places = checked_places(places, None, len(rows))
        check_modes(self.model)
        is_due = self._schedule.is_due()
        if not self._is_tried:
            self.rehearse(inputs, targets)
        elif is_due and not self._is_softmax:
            self._try_again(inputs, targets)
        its_rows = (rows[:, None] if weights is None else rows).tolist()
        with details_withheld(), model_randomness(seed, _CPU), no_buffer_changes(self.model):
            for number, (some, place) in enumerate(zip(its_rows, places.tolist(), strict=True)):
                each = self._each(inputs, targets, some, seed + place * len(some))
                yield next(each) if weights is None else _weighted(each, weights[number].tolist())

    def _each(self, inputs: Tensor, targets: Tensor, rows: list[int], seed: int) -> Iterator[SampleGradient]:
        """Yield the gradients of a person's records, each with a seed of its own."""
        for number, row in enumerate(rows):
            torch.default_generator.manual_seed((seed + number) % _SEEDS)
            # Copies begin on a memory boundary, which the rounding of a product may depend on.
            yield self._gradient(inputs[row : row + 1].clone(), targets[row : row + 1].clone())

    @full_precision(_CPU)
    def _gradient(self, x: Tensor, y: Tensor) -> SampleGradient:
        if self._is_softmax:
            return _softmax_gradient(self.parameters["weight"].detach(), x[0], int(y[0]))
        with torch.enable_grad():
            losses = self._loss(self.model(x), y)  # (1,)
            if losses.shape != (1,):
                raise DataError(f"the loss returned shape {tuple(losses.shape)} for one record; it must return (1,)")
            parts = torch.autograd.grad(
                losses.sum(), list(self.parameters.values()), allow_unused=True, materialize_grads=True
            )
        return SampleGradient(vector=torch.cat([part.flatten() for part in parts]), loss=losses.detach()[0])


def _weighted(gradients: Iterable[SampleGradient], weights: list[float]) -> SampleGradient:
    """Return the weighted sum, added in double. A single record with weight 1 stays as it is."""
    vector, loss = torch.zeros(1, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for gradient, weight in zip(gradients, weights, strict=True):
        vector = vector + gradient.vector.double() * weight
        loss = loss + gradient.loss.double() * weight
    return SampleGradient(vector=vector.float(), loss=loss.float())


def _softmax_gradient(weight: Tensor, x: Tensor, label: int) -> SampleGradient:
    """Return (p - e_y) xᵀ, the closed form, which is twice as fast as autograd."""
    if not 0 <= label < len(weight):
        raise IndexError("label beyond the outputs")  # does not quote the label
    logarithms = torch.log_softmax(weight @ x, 0)
    loss, residual = -logarithms[label], logarithms.exp()
    residual[label] -= 1
    return SampleGradient(vector=torch.outer(residual, x).flatten(), loss=loss)
