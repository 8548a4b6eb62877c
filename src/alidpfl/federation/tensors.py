"""A model's trained parameters as one vector, and the arithmetic mode that training runs in."""

import ctypes
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from alidpfl.errors import ConfigError

_COLUMNS_AT_A_TIME = 1 << 16


def trained(model: nn.Module) -> dict[str, Tensor]:
    """Return the trained parameters by name, in the model's order."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


@torch.no_grad()
def flatten(parameters: Mapping[str, Tensor]) -> Tensor:
    """Return a copy of all values as one vector, (num_params,) float32 on the CPU."""
    return torch.cat([p.detach().reshape(-1).float().cpu() for p in parameters.values()])


def unflatten(vector: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return views of `vector` in the shapes of `like`."""
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
    """Return d, the number of trained values."""
    return sum(p.numel() for p in parameters.values())


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_THRESHOLD = 32 << 20  # glibc refuses more


@contextmanager
def steady_arithmetic() -> Iterator[None]:
    """Run torch in one thread, without denormal numbers.

    One thread, because clients are spread over processes, and sums must have the same order on every machine. No
    denormals, because arithmetic on them takes a hundred times as long: a hostile server can choose weights under which
    a single record meets them, and the time of a round would tell whether it was drawn.
    """
    threads, flushed = torch.get_num_threads(), _flushes_denormals()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # for this thread only
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed)
        torch.set_num_threads(threads)


def _flushes_denormals() -> bool:
    """Return whether this thread flushes denormals. Torch has no function that tells."""
    return not bool(torch.full((1,), 1e-40).mul(1.0))


def keep_heap() -> None:
    """Make glibc keep freed memory, because every step needs the same buffers again.

    Without it a step takes about a third longer. Other C libraries have no `mallopt` and are left alone.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)


@torch.no_grad()
def products(vectors: Sequence[Tensor]) -> Tensor:
    """Return the inner products of all pairs of vectors, summed in double, a block of columns at a time."""
    found = torch.zeros(len(vectors), len(vectors), dtype=torch.float64)
    for start in range(0, len(vectors[0]) if vectors else 0, _COLUMNS_AT_A_TIME):
        block = torch.stack([vector[start : start + _COLUMNS_AT_A_TIME] for vector in vectors]).double()
        found += block @ block.T
    return found


def length(vector: Tensor) -> float:
    """Return ‖v‖, summed in double."""
    return float(torch.linalg.vector_norm(vector, dtype=torch.float64))
