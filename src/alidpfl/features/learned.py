"""Features from learned filters: four convolutions, read from a weight file with a known SHA-256.

If no client's records were used to learn the weights, they are public constants, as wavelets are. Then computing the
features costs no privacy. `reproduction/filters` in the repository holds two such files. `leaves` learned to match
views of drawn leaves, and `garments` to tell ten kinds of drawn garments apart.
"""

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor
from torch.nn import functional as F

from alidpfl.errors import ConfigError, DataError
from alidpfl.features.blocks import Block

_STRIDES = (2, 2, 1, 2)
_READ = (2, 3)  # the layers that give features
_CELLS = 2  # a layer's output is averaged over 2 x 2 cells
_COLOURS = 3
_GREY = 0.5
_LENGTH = 0.5  # norm of all learned features of an image; all blocks joined are clipped to norm one when released
_SHORTEST = 1e-9
_FORM = re.compile(r"(.+)#sha256=([0-9a-f]{64})")
_KEY_DIGITS = 16

Layers = tuple[tuple[Tensor, Tensor], ...]  # weight and bias of each convolution


@dataclass(frozen=True)
class LearnedFilters:
    """A file of learned filters and its SHA-256. Two of them are equal if their hashes are."""

    path: str = field(compare=False)
    sha256: str

    @classmethod
    def parse(cls, text: str) -> "LearnedFilters":
        """Read "PATH#sha256=HEX". Raise ConfigError if `text` has another form."""
        if (match := _FORM.fullmatch(text)) is None:
            raise ConfigError(
                f'learned={text!r} must have the form "PATH#sha256=HEX", with 64 digits in lower case; '
                "`sha256sum PATH` prints the hash"
            )
        return cls(*match.groups())

    @property
    def key(self) -> str:
        """A short name that changes with the filters: the block's name, and part of the cache's key."""
        return f"learned-{self.sha256[:_KEY_DIGITS]}"

    def layers(self) -> Layers:
        """Return the verified weights. Raise DataError if the file is missing, has another hash or another form."""
        return _layers(self)


def learned_blocks(learned: Sequence[LearnedFilters], channels: int, *, flip_even: bool) -> list[Block]:
    """Return one block for each file of filters. Together they have norm 0.5, however many there are.

    With `flip_even`, a block has filters x (above, below), and an image and its mirror image have the same features.
    Without it, a block has filters x (above, below) x (left, right).
    """
    length = _LENGTH / math.sqrt(max(1, len(learned)))
    return [_block(filters, channels, flip_even=flip_even, length=length) for filters in learned]


def _block(filters: LearnedFilters, channels: int, *, flip_even: bool, length: float) -> Block:
    layers = filters.layers()
    grid = sum(len(layers[number][1]) for number in _READ), _CELLS if flip_even else _CELLS**2
    places = torch.arange(grid[0] * grid[1])
    low = torch.ones_like(places, dtype=torch.bool)

    def compute(images: Tensor) -> Tensor:
        coloured = images if channels == _COLOURS else images.mean(1, keepdim=True).expand(-1, _COLOURS, -1, -1)
        values = _pooled(layers, coloured)
        if flip_even:
            values = (values + _pooled(layers, coloured.flip(-1))).mean(-1)
        return F.normalize(values.flatten(1), dim=1, eps=_SHORTEST) * length

    return Block(name=filters.key, grid=grid, places=places, low=low, compute=compute)


def _pooled(layers: Layers, images: Tensor) -> Tensor:
    """Map (n, 3, s, s) in [0, 1] to (n, filters, 2, 2)."""
    values, read = (images - _GREY).contiguous(memory_format=torch.channels_last), []  # 1.7 times as fast
    for number, (weight, bias) in enumerate(layers):
        values = F.conv2d(values, weight, bias, stride=_STRIDES[number], padding=1).relu()
        if number in _READ:
            read.append(F.adaptive_avg_pool2d(values, _CELLS))
    return torch.cat(read, 1)


@lru_cache(maxsize=4)
def _layers(filters: LearnedFilters) -> Layers:
    try:
        content = Path(filters.path).read_bytes()
    except OSError as error:
        where = "the recipes' files are in reproduction/filters of the alidpfl repository"
        raise DataError(f"cannot read the learned filters {filters.path}: {error.strerror}; {where}") from None
    found = hashlib.sha256(content).hexdigest()
    if found != filters.sha256:
        raise DataError(
            f"{filters.path} has SHA-256 {found}, expected {filters.sha256}: restore the file, or name the new hash in "
            "model.learned if you mean to use this file"
        )
    try:
        kept = load(content)
        layers = [(kept[f"{n}.weight"].float(), kept[f"{n}.bias"].float()) for n in range(len(_STRIDES))]
        widths = [_COLOURS, *(len(bias) for _, bias in layers)]
        is_chain = all(layers[n][0].shape[:-2] == (widths[n + 1], widths[n]) for n in range(len(layers)))
    except (SafetensorError, KeyError, TypeError):  # a bias without axes has no len
        is_chain = False
    if not is_chain:
        raise DataError(f"{filters.path} does not hold {len(_STRIDES)} convolutions in a chain; use another file")
    return tuple((weight.contiguous(memory_format=torch.channels_last), bias) for weight, bias in layers)
