"""The models that a configuration or a vault's policy can name."""

from typing import Literal, TypeAlias

import torch
from torch import nn

from alidpfl.errors import ConfigError
from alidpfl.models.cnn import compact_cnn, paper_cnn
from alidpfl.models.linear import linear, mlp, scatter_linear

ModelName: TypeAlias = Literal["cnn", "compact_cnn", "linear", "mlp", "scatter_linear"]

_IMAGE_DIMS = 3


def make_model(name: ModelName, input_shape: tuple[int, ...], num_classes: int, *, hidden: int, seed: int) -> nn.Module:
    """The model `name`, its first weights drawn by `seed`; `hidden` is the width of `mlp`.

    >>> sum(p.numel() for p in make_model("linear", (60,), 10, hidden=128, seed=0).parameters())
    610
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if name in ("linear", "scatter_linear"):
            model = linear(input_shape, num_classes) if name == "linear" else scatter_linear(input_shape, num_classes)
            for parameter in model.parameters():  # convex: zero is as good a start as any, and nobody's luck
                nn.init.zeros_(parameter)
            return model
        if name == "mlp":
            return mlp(input_shape, num_classes, hidden)
        if len(input_shape) != _IMAGE_DIMS:
            raise ConfigError(
                f'model.name="{name}" needs images, and inputs have shape {input_shape}: use "linear" or "mlp"'
            )
        build = paper_cnn if name == "cnn" else compact_cnn
        return build((input_shape[0], input_shape[1], input_shape[2]), num_classes)
