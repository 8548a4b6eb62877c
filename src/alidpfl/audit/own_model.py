"""Find the model and the loss that an audit names: by a name of the registry, or as PACKAGE.MODULE:ATTRIBUTE."""

import inspect
from collections.abc import Callable

import torch
from torch import nn

from alidpfl.audit.mixing import ModelAudit, SearchOptions, audit_model
from alidpfl.config import Config
from alidpfl.dpsgd import make_loss
from alidpfl.errors import ConfigError
from alidpfl.inputs.imports import imported
from alidpfl.methods import Loss
from alidpfl.models import make_model
from alidpfl.models.factory import made
from alidpfl.runs.data import load_data
from alidpfl.types import LOSS_KINDS, default_loss


def audit_named_model(
    config: Config,
    name: str,
    *,
    input_shape: tuple[int, ...] | None = None,
    num_classes: int | None = None,
    loss: str | None = None,
    options: SearchOptions | None = None,
) -> ModelAudit:
    """Audit a model by its name, with `audit_model`.

    Args:
        config: Gives the data set, the width of hidden layers and the loss, where they are not given.
        name: A name of the registry `MODELS`, or PACKAGE.MODULE:FACTORY. A factory takes nothing, or the shape of an
            input and the number of classes. A module that is already built is taken as it is.
        input_shape: Shape of one input. None: that of the configured data set.
        num_classes: Number of outputs. None: that of the configured data set.
        loss: A name of the registry `LOSSES`, or PACKAGE.MODULE:FUNCTION. None: the configured loss.
        options: How long to search, and from which seed. The seed is also that of the model's weights; without one,
            they have seed 0.

    Returns:
        The findings.

    Raises:
        ConfigError: A name or a number does not fit.
        DataError: The model cannot take such inputs.
    """
    options = options or SearchOptions()
    make, loss = imported(name) if ":" in name else None, loss or config.model.loss
    kind = LOSS_KINDS.get(loss or "", "class")
    if input_shape is None or num_classes is None:
        dataset = load_data(config, options.on_progress)
        input_shape, num_classes = input_shape or dataset.input_shape, num_classes or dataset.num_outputs
        kind = dataset.kind
    compute_loss = _loss(loss or default_loss(kind), config)
    if make is None:
        model = make_model(name, input_shape, num_classes, hidden=config.model.hidden, seed=options.seed or 0)
    else:
        model = _made(make, name, input_shape, num_classes, options.seed or 0)
    targets = {"class": None, "number": torch.zeros(0), "labels": torch.zeros(0, num_classes)}[kind]
    return audit_model(model, input_shape, loss=compute_loss, targets=targets, options=options)


def _loss(name: str, config: Config) -> Loss:
    found: Loss = imported(name) if ":" in name else make_loss(name, level=config.model.quantile)
    return found


def _made(
    make: nn.Module | Callable[..., nn.Module], name: str, shape: tuple[int, ...], num_classes: int, seed: int
) -> nn.Module:
    if isinstance(make, nn.Module):
        return make
    if not callable(make):
        raise ConfigError(f"{name!r} is a {type(make).__name__}; it must be a torch module or make one")
    parameters = inspect.signature(make).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    if len(needed) not in (0, 2):
        raise ConfigError(f"{name!r} takes {len(needed)} arguments; it must take none, or (input_shape, num_classes)")
    return made(lambda: make(shape, num_classes) if needed else make(), repr(name), seed)
