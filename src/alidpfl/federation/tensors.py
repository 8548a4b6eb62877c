"""A model's trained parameters as one vector: what travels, is averaged and is stored."""

import ctypes
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

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


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_THRESHOLD = 32 << 20  # glibc refuses more


@contextmanager
def steady_arithmetic() -> Iterator[None]:
    """Run torch in one thread, without denormal numbers.

    One thread: clients are spread over processes, and sums then have one order whatever the machine. No denormals:
    arithmetic on them takes a hundred times as long, and a hostile server can choose weights under which a single
    record meets them, so that the time of a round would tell whether it was drawn.
    """
    threads, flushed = torch.get_num_threads(), _flushes_denormals()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # of this thread only
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed)
        torch.set_num_threads(threads)


def _flushes_denormals() -> bool:
    """Torch has no question for it."""
    return not bool(torch.full((1,), 1e-40).mul(1.0))


def keep_heap() -> None:
    """Have glibc keep freed memory instead of handing it back: a step's buffers are the same every time.

    Without it a step takes about a third longer. Other C libraries know no `mallopt`, and lose nothing else.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)
