"""Losses by name: functions of outputs (B, k) and targets to one value for each record, (B,).

`alidpfl.types.LOSS_KINDS` says which kind of targets each one takes. Models of numbers have one output.
"""

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from alidpfl.errors import ConfigError
from alidpfl.inputs import checks
from alidpfl.registry import LOSSES

Loss = Callable[[Tensor, Tensor], Tensor]
"""Maps outputs (B, ...) and targets (B, ...) to one loss for each record, (B,)."""

HUBER_WIDTH = 1.0
"""Residual at which `huber` turns from a parabola into a line."""


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the cross-entropy (B,) of class scores (B, classes) and labels (B,)."""
    return F.cross_entropy(outputs, targets, reduction="none")


def binary(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean over k labels of the binary cross-entropies (B,), of scores (B, k) and labels 0 or 1 (B, k)."""
    _check_labels(outputs, targets)
    return F.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(1)


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return half the squared error (B,). Its derivative is the error itself.

    >>> squared(torch.tensor([[3.0]]), torch.tensor([1.0]))
    tensor([2.])
    """
    return (_numbers(outputs, targets) - targets).square() / 2


def huber(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return `squared` for errors up to `HUBER_WIDTH`, and a line beyond (B,), so that outliers count less."""
    return F.huber_loss(_numbers(outputs, targets), targets, reduction="none", delta=HUBER_WIDTH)


def poisson(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the negative log-likelihood (B,) of counts, up to a constant. Outputs are logarithms of the means."""
    return F.poisson_nll_loss(_numbers(outputs, targets), targets, reduction="none")


def quantile(outputs: Tensor, targets: Tensor, level: float = 0.5) -> Tensor:
    """Return the pinball loss (B,). Its minimum is the quantile at `level` of the targets; 0.5 is the median.

    >>> quantile(torch.tensor([[0.0], [2.0]]), torch.tensor([1.0, 1.0]), level=0.75)
    tensor([0.7500, 0.2500])
    """
    errors = targets - _numbers(outputs, targets)
    return torch.maximum(level * errors, (level - 1) * errors)


def make_loss(name: str, *, level: float = 0.5) -> Loss:
    """Return a loss by its name. `level` is for `quantile`."""
    checks.real("quantile", level, above=0, below=1, rule="must be between 0 and 1")
    found: Loss = LOSSES[name]
    return partial(quantile, level=level) if found is quantile else found


def _numbers(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return outputs (B, 1) as (B,)."""
    if outputs.shape == (len(targets), 1):
        outputs = outputs[:, 0]
    if targets.shape != outputs.shape or outputs.dim() != 1:
        raise ConfigError(
            f"the model has outputs of shape {tuple(outputs.shape[1:])} and targets have {tuple(targets.shape[1:])}; a "
            "number needs a model with one output, such as nn.Linear(20, 1), and one target for each record"
        )
    return outputs


def _check_labels(outputs: Tensor, targets: Tensor) -> None:
    if targets.shape != outputs.shape or outputs.dim() != 2:  # noqa: PLR2004
        raise ConfigError(
            f"the model has outputs of shape {tuple(outputs.shape[1:])} and targets have {tuple(targets.shape[1:])}; "
            "labels need a model with one output for each"
        )
