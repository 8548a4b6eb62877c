"""Gradients of one sample at a time: slow, and each is a function of its own sample, to the last bit.

Where samples go through a network together, products round by the size of the batch and by a sample's place in it.
Here every sample is a batch of its own, in memory of its own, with randomness of its own.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from alidpfl.dpsgd.clipping import Loss, cross_entropy
from alidpfl.dpsgd.guards import details_withheld, full_precision, model_randomness
from alidpfl.dpsgd.model_check import (
    NUM_PROBES,
    check_model,
    check_modes,
    check_moved,
    made_up,
    no_buffer_changes,
    other_weights,
    trained_parameters,
    trial,
)
from alidpfl.dpsgd.softmax import is_softmax_regression
from alidpfl.errors import ConfigError, DataError, UnsupportedModelError

_SEEDS = 1 << 63
_CPU = torch.device("cpu")


@dataclass(frozen=True, kw_only=True)
class SampleGradient:
    """Of one sample. Private, all of it."""

    vector: Tensor = field(repr=False)
    """(P,) over all trained parameters, in their order."""
    loss: Tensor = field(repr=False)


class OneByOneClipper:
    """Computes per-sample gradients for noise on a grid (`Grid`), of any model that treats samples alone; on the CPU.

    >>> clipper = OneByOneClipper(nn.Linear(2, 3))
    >>> [g.vector.shape for g in clipper.gradients(torch.ones(4, 2), torch.tensor([0, 1, 2, 0]), seed=0)]
    [torch.Size([9]), torch.Size([9]), torch.Size([9]), torch.Size([9])]
    """

    def __init__(self, model: nn.Module, *, loss: Loss = cross_entropy) -> None:
        """Prepare `model`; its values may change afterwards.

        Args:
            model: any module; parameters with `requires_grad=False` are frozen.
            loss: gives one value a sample.
        """
        check_model(model)
        check_modes(model)
        self.model = model
        self.parameters: dict[str, Tensor] = dict(trained_parameters(model))
        self._loss = loss
        self._is_softmax = loss is cross_entropy and is_softmax_regression(model)
        self._is_tried = self._is_softmax  # a closed form, which there is nothing to try about
        if any(parameter.device.type != "cpu" for parameter in self.parameters.values()):
            raise ConfigError('noise="grid" needs a model on the CPU: call model.cpu(), or set device="cpu"')

    @property
    def num_params(self) -> int:
        """P, how many numbers are trained."""
        return sum(parameter.numel() for parameter in self.parameters.values())

    def rehearse(self, inputs: Tensor, targets: Tensor) -> None:
        """Try the model on made-up samples, none of which comes from the data given; an error reveals nothing."""
        moved, embeddings = 0.0, [m.num_embeddings for m in self.model.modules() if isinstance(m, nn.Embedding)]
        for number in range(NUM_PROBES):
            num_tokens = min(embeddings, default=None)
            x, y = made_up(inputs, number, num_tokens), made_up(targets, number)
            with trial(self.model, x, y), other_weights(self.model, number), model_randomness(0, _CPU):
                moved += float(self._remembers_nothing(x, y).abs().nan_to_num(posinf=0.0).max())
        check_moved(moved)
        self._is_tried = True

    def _remembers_nothing(self, x: Tensor, y: Tensor) -> Tensor:
        """The first sample's gradient; refuses a model that gives another one after it has seen the other samples."""
        found = []
        for number in (0, *range(1, len(x)), 0):
            torch.default_generator.manual_seed(number)
            found.append(self._gradient(x[number : number + 1].clone(), y[number : number + 1].clone()).vector)
        if not torch.equal(found[0].nan_to_num(), found[-1].nan_to_num()):
            raise UnsupportedModelError(
                "this model gives a sample another gradient after it has seen other samples: something in it remembers "
                "them, and would carry data from record to record without noise; use layers that keep no state"
            )
        return found[0]

    def gradients(
        self,
        inputs: Tensor,
        targets: Tensor,
        *,
        seed: int,
        rows: Tensor | None = None,
        places: Tensor | None = None,
    ) -> Iterator[SampleGradient]:
        """The gradients of a batch, un-clipped, one after the other.

        Args:
            inputs: (n, ...).
            targets: (n, ...), as the loss takes them.
            seed: of the randomness inside the model (dropout): with a sample's place, of that sample's.
            rows: (B,) which of them make the batch; None: all.
            places: (B,) their places among their client's records; None: their rows.
        """
        rows = torch.arange(len(inputs)) if rows is None else rows
        check_modes(self.model)
        if not self._is_tried:
            self.rehearse(inputs, targets)
        pairs = zip(rows.tolist(), (rows if places is None else places).tolist(), strict=True)
        with details_withheld(), model_randomness(seed, _CPU), no_buffer_changes(self.model):
            for row, place in pairs:
                torch.default_generator.manual_seed((seed + place) % _SEEDS)
                # Copies, whose memory begins on a boundary: how a product rounds may depend on that too.
                yield self._gradient(inputs[row : row + 1].clone(), targets[row : row + 1].clone())

    @full_precision(_CPU)
    def _gradient(self, x: Tensor, y: Tensor) -> SampleGradient:
        if self._is_softmax:
            return _softmax_gradient(self.parameters["weight"].detach(), x[0], int(y[0]))
        with torch.enable_grad():
            losses = self._loss(self.model(x), y)  # (1,)
            if losses.shape != (1,):
                raise DataError(f"the loss returned shape {tuple(losses.shape)} for one sample; it must be (1,)")
            parts = torch.autograd.grad(
                losses.sum(), list(self.parameters.values()), allow_unused=True, materialize_grads=True
            )
        return SampleGradient(vector=torch.cat([part.flatten() for part in parts]), loss=losses.detach()[0])


def _softmax_gradient(weight: Tensor, x: Tensor, label: int) -> SampleGradient:
    """(p - e_y) xᵀ in closed form: twice as fast as autograd."""
    if not 0 <= label < len(weight):
        raise IndexError("label beyond the outputs")  # without its number
    logarithms = torch.log_softmax(weight @ x, 0)
    loss, residual = -logarithms[label], logarithms.exp()
    residual[label] -= 1
    return SampleGradient(vector=torch.outer(residual, x).flatten(), loss=loss)
