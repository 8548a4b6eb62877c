"""A model's trained parameters as one vector: what travels, is averaged and is stored."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from alidpfl.errors import ConfigError


def trained(model: nn.Module) -> dict[str, Tensor]:
    """The parameters that are trained, by name, in the model's order."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


@torch.no_grad()
def flatten(parameters: Mapping[str, Tensor]) -> Tensor:
    """(num_params,) float32 on the CPU: a copy of all values, each tensor in its logical order."""
    return torch.cat([p.detach().reshape(-1).float().cpu() for p in parameters.values()])


def unflatten(vector: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Views of `vector` in the shapes of `like`."""
    if vector.shape != (num_params(like),):
        raise ConfigError(f"the weights have shape {tuple(vector.shape)}, the model needs ({num_params(like)},)")
    parts = vector.split([p.numel() for p in like.values()])
    return {name: part.view(p.shape) for (name, p), part in zip(like.items(), parts, strict=True)}


@torch.no_grad()
def load(vector: Tensor, into: Mapping[str, Tensor]) -> None:
    """Copy the values of `vector` into the parameters `into`."""
    for name, part in unflatten(vector, into).items():
        into[name].copy_(part)


def num_params(parameters: Mapping[str, Tensor]) -> int:
    """How many numbers are trained, d."""
    return sum(p.numel() for p in parameters.values())
