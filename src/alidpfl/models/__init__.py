"""Models that ship with alidpfl. Any `torch.nn.Module` that `dpsgd` accepts works as well."""

import inspect

import torch
from torch import nn

from alidpfl.models.cnn import compact_cnn, paper_cnn
from alidpfl.models.declared import make_declared
from alidpfl.models.factory import make_from_factory
from alidpfl.models.linear import linear, mlp, scatter_linear
from alidpfl.registry import MODELS

__all__ = [
    "MODELS",
    "compact_cnn",
    "linear",
    "make_declared",
    "make_from_factory",
    "make_model",
    "mlp",
    "paper_cnn",
    "scatter_linear",
]


def make_model(name: str, input_shape: tuple[int, ...], num_classes: int, *, hidden: int, seed: int) -> nn.Module:
    """Build a model by its name, with seeded initial weights.

    Args:
        name: a name in the registry `MODELS`.
        input_shape: shape of one input, without the batch.
        num_classes: number of outputs.
        hidden: width of the hidden layer, for models that have one.
        seed: of the initial weights. The global random state of torch stays as it is.

    Raises:
        ConfigError: there is no such model, or it cannot take such inputs.

    >>> sum(p.numel() for p in make_model("linear", (60,), 10, hidden=128, seed=0).parameters())
    610
    """
    build = MODELS[name]
    options = {"hidden": hidden} if "hidden" in inspect.signature(build).parameters else {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: nn.Module = build(input_shape, num_classes, **options)
    return model
