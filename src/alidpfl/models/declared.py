"""Build the network that a configuration declares, from torch's own modules."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn


class Residual(nn.Module):
    """Adds the inputs to the outputs of a body, both with the same shape; a shortcut may change the inputs first."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        """Hold both. Without a shortcut, the inputs are added as they are."""
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (B, ...) to the shape of the body's outputs."""
        outputs: Tensor = self.body(inputs)
        return outputs + (inputs if self.shortcut is None else self.shortcut(inputs))


class Tokens(nn.Module):
    """Turns numbers into tokens from 0 to below `num_embeddings`: rounded down, and moved to the nearest one.

    No number makes it fail: a failure would tell something about a record.
    """

    def __init__(self, num_embeddings: int) -> None:
        """Remember the number of tokens."""
        super().__init__()
        self.num_embeddings = num_embeddings

    def forward(self, inputs: Tensor) -> Tensor:
        """Map numbers (B, ...) to tokens of the same shape. NaN becomes token 0."""
        largest = self.num_embeddings - 1
        return inputs.nan_to_num(nan=0.0, posinf=largest, neginf=0).clamp(0, largest).to(torch.int64)


class Transpose(nn.Module):
    """Exchanges the last two dimensions."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Map (B, ..., a, b) to (B, ..., b, a)."""
        return inputs.transpose(-1, -2).contiguous()


class TokenEmbedding(nn.Module):
    """A vector for each token."""

    def __init__(self, num_embeddings: int, embedding_dim: int) -> None:
        """Make the vectors."""
        super().__init__()
        self.tokens, self.embedding = Tokens(num_embeddings), nn.Embedding(num_embeddings, embedding_dim)

    def forward(self, inputs: Tensor) -> Tensor:
        """Map numbers (B, ...) to vectors (B, ..., d)."""
        vectors: Tensor = self.embedding(self.tokens(inputs))
        return vectors


MODULES: Mapping[str, type[nn.Module]] = {
    "linear": nn.Linear,
    "conv2d": nn.Conv2d,
    "group_norm": nn.GroupNorm,
    "layer_norm": nn.LayerNorm,
    "embedding": TokenEmbedding,
    "max_pool2d": nn.MaxPool2d,
    "avg_pool2d": nn.AvgPool2d,
    "adaptive_avg_pool2d": nn.AdaptiveAvgPool2d,
    "adaptive_max_pool2d": nn.AdaptiveMaxPool2d,
    "max_pool1d": nn.MaxPool1d,
    "avg_pool1d": nn.AvgPool1d,
    "adaptive_avg_pool1d": nn.AdaptiveAvgPool1d,
    "adaptive_max_pool1d": nn.AdaptiveMaxPool1d,
    "flatten": nn.Flatten,
    "unflatten": nn.Unflatten,
    "transpose": Transpose,
    "relu": nn.ReLU,
    "leaky_relu": nn.LeakyReLU,
    "elu": nn.ELU,
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "mish": nn.Mish,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "dropout": nn.Dropout,
}
"""Torch's module of each type of layer."""


def make_declared(specification: Sequence[Mapping[str, Any]], *, seed: int) -> nn.Sequential:
    """Build a declared network with seeded initial weights.

    Args:
        specification: what `alidpfl.config.network.Network.specification` returns.
        seed: of the initial weights. The global random state of torch stays as it is.

    >>> make_declared([{"type": "flatten", "arguments": {}}], seed=0)
    Sequential(
      (0): Flatten(start_dim=1, end_dim=-1)
    )
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return _sequential(specification)


def _sequential(specification: Sequence[Mapping[str, Any]]) -> nn.Sequential:
    return nn.Sequential(*map(_module, specification))


def _module(layer: Mapping[str, Any]) -> nn.Module:
    if layer["type"] == "residual":
        body = _sequential(layer["body"])
        return Residual(body, _sequential(layer["shortcut"]) if layer["shortcut"] else None)
    return MODULES[layer["type"]](**layer["arguments"])
