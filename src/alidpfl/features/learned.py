"""Filters learnt from made-up pictures: no data were used.

`leaves` were taught which views are of the same picture, of leaves that fall on one another (reproduction/experiments/pretrain.py);
`garments` to tell ten kinds of drawn garments apart (reproduction/experiments/pretrain_garments.py). They are constants of the
program, as wavelets are: computing them costs no privacy.
"""

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files

import torch
from safetensors.torch import load
from torch import Tensor
from torch.nn import functional as F

from alidpfl.features.blocks import Block

LEARNED = ("leaves", "garments")
"""What filters were learnt from."""

_STRIDES = (2, 2, 1, 2)
_READ = (2, 3)  # layers whose outputs are features
_CELLS = 2  # a side: what is above, below, left and right
_COLOURS = 3
_GREY = 0.5
_LENGTH = 0.5  # of an image's learned features: statistics are released of all blocks joined, clipped to length one
_SHORTEST = 1e-9


def learned_blocks(names: Sequence[str], channels: int, *, flip_even: bool) -> list[Block]:
    """One block for each name of LEARNED."""
    length = _LENGTH / math.sqrt(max(1, len(names)))
    return [_block(name, channels, flip_even=flip_even, length=length) for name in names]


def _block(name: str, channels: int, *, flip_even: bool, length: float) -> Block:
    """Filters x (above, below), of the image and its mirror image alike; without `flip_even`, x (left, right) too."""
    paths = sum(_layers(name)[number][1].shape[0] for number in _READ)
    positions = _CELLS if flip_even else _CELLS**2

    def compute(images: Tensor) -> Tensor:
        coloured = images if channels == _COLOURS else images.mean(1, keepdim=True).expand(-1, _COLOURS, -1, -1)
        values = _pooled(name, coloured)
        if flip_even:
            values = (values + _pooled(name, coloured.flip(-1))).mean(-1)
        return F.normalize(values.flatten(1), dim=1, eps=_SHORTEST) * length

    every = torch.arange(paths * positions)
    low = torch.ones(len(every), dtype=torch.bool)
    return Block(name=name, grid=(paths, positions), places=every, low=low, compute=compute)


def filters_digest(name: str) -> str:
    """Changes with the filters: features that are kept on disk belong to one set of them."""
    return hashlib.sha256(_content(name)).hexdigest()[:8]


def _pooled(name: str, images: Tensor) -> Tensor:
    """(n, 3, s, s) in [0, 1] -> (n, filters, 2, 2)."""
    values, read = (images - _GREY).contiguous(memory_format=torch.channels_last), []  # 1.7 times as fast
    for number, (weight, bias) in enumerate(_layers(name)):
        values = F.conv2d(values, weight, bias, stride=_STRIDES[number], padding=1).relu()
        if number in _READ:
            read.append(F.adaptive_avg_pool2d(values, _CELLS))
    return torch.cat(read, 1)


@lru_cache(maxsize=len(LEARNED))
def _layers(name: str) -> tuple[tuple[Tensor, Tensor], ...]:
    kept = load(_content(name))
    return tuple(
        (kept[f"{n}.weight"].float().contiguous(memory_format=torch.channels_last), kept[f"{n}.bias"].float())
        for n in range(len(_STRIDES))
    )


def _content(name: str) -> bytes:
    return (files("alidpfl.features") / f"{name}.safetensors").read_bytes()
