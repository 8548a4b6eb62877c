"""Small models: for inputs of any shape, and for vectors of features."""

import math

from torch import nn

from alidpfl.errors import ConfigError


def linear(input_shape: tuple[int, ...], num_classes: int) -> nn.Sequential:
    """Build softmax regression on the flattened input, with zero weights: the convex case.

    >>> sum(p.numel() for p in linear((60,), 10).parameters())
    610
    """
    return nn.Sequential(nn.Flatten(), _from_zero(nn.Linear(math.prod(input_shape), num_classes)))


def scatter_linear(vector_shape: tuple[int, ...], num_classes: int) -> nn.Linear:
    """Build softmax regression on standardised features, with zero weights. The last feature is constant: no bias.

    >>> scatter_linear((3220,), 10)
    Linear(in_features=3220, out_features=10, bias=False)
    """
    if len(vector_shape) != 1:
        raise ConfigError(f"scatter_linear takes vectors of features, not inputs of shape {vector_shape}")
    return _from_zero(nn.Linear(vector_shape[0], num_classes, bias=False))


def mlp(input_shape: tuple[int, ...], num_classes: int, hidden: int = 128) -> nn.Sequential:
    """Build a network with one hidden layer and ReLU on the flattened input.

    >>> sum(p.numel() for p in mlp((1, 28, 28), 10, hidden=128).parameters())
    101770
    """
    if hidden < 1:
        raise ConfigError(f"hidden={hidden} must be at least 1")
    return nn.Sequential(
        nn.Flatten(), nn.Linear(math.prod(input_shape), hidden), nn.ReLU(), nn.Linear(hidden, num_classes)
    )


def _from_zero(layer: nn.Linear) -> nn.Linear:
    for parameter in layer.parameters():  # with a convex loss, zero is as good a start as any
        nn.init.zeros_(parameter)
    return layer
