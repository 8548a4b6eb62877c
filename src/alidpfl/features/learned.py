"""Features from learned filters: four convolution layers, read from a weight file with a known SHA-256.

The weights are public constants, as wavelets are, provided that no client's records were used to learn them. Then
computing the features costs no privacy. `reproduction/filters` in the repository holds two such files. `leaves` learned
to match views of drawn leaves (`reproduction/experiments/pretrain.py`). `garments` learned to tell ten kinds of drawn
garments apart (`pretrain_garments.py`).
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
_READ = (2, 3)  # numbers of the layers that give features
_CELLS = 2  # cells along each axis over which a layer's output is averaged
_COLOURS = 3
_GREY = 0.5
_LENGTH = 0.5  # norm of all learned features of an image; all blocks joined are clipped to norm one when released
_SHORTEST = 1e-9
_SHA256 = re.compile(r"[0-9a-f]{64}")
_KEY_DIGITS = 16

Layers = tuple[tuple[Tensor, Tensor], ...]
"""Weight and bias of each convolution."""


@dataclass(frozen=True)
class LearnedFilters:
    """A file of learned filters and its SHA-256. Two of them are equal if their hashes are.

    >>> LearnedFilters.parse("filters/leaves.safetensors#sha256=" + 64 * "0").path
    'filters/leaves.safetensors'
    """

    path: str = field(compare=False)
    sha256: str

    def __post_init__(self) -> None:
        if not _SHA256.fullmatch(self.sha256):
            raise ConfigError(f"sha256={self.sha256!r} of {self.path!r} must be 64 hexadecimal digits in lower case")

    @classmethod
    def parse(cls, text: str) -> "LearnedFilters":
        """Read "PATH#sha256=HEX". Raise ConfigError if `text` has another form."""
        path, separator, sha256 = text.rpartition("#sha256=")
        if not separator or not path:
            raise ConfigError(f'learned={text!r} must have the form "PATH#sha256=HEX"; sha256sum PATH prints the hash')
        return cls(path, sha256)

    @property
    def key(self) -> str:
        """A short name that changes with the filters: the block's name, and part of the cache's key."""
        return f"learned-{self.sha256[:_KEY_DIGITS]}"

    def layers(self) -> Layers:
        """Return the verified weights. Raise DataError if the file is missing, has another hash or another form."""
        return _layers(self)


def learned_blocks(learned: Sequence[LearnedFilters], channels: int, *, flip_even: bool) -> list[Block]:
    """Return one block for each file of filters.

    Together they have norm 0.5, however many there are. With `flip_even`, an image and its mirror image have the same
    features: filters x (above, below). Without it: filters x (above, below) x (left, right).
    """
    length = _LENGTH / math.sqrt(max(1, len(learned)))
    return [_block(filters, channels, flip_even=flip_even, length=length) for filters in learned]


def _block(filters: LearnedFilters, channels: int, *, flip_even: bool, length: float) -> Block:
    layers = filters.layers()
    paths = sum(len(layers[number][1]) for number in _READ)
    positions = _CELLS if flip_even else _CELLS**2

    def compute(images: Tensor) -> Tensor:
        coloured = images if channels == _COLOURS else images.mean(1, keepdim=True).expand(-1, _COLOURS, -1, -1)
        values = _pooled(layers, coloured)
        if flip_even:
            values = (values + _pooled(layers, coloured.flip(-1))).mean(-1)
        return F.normalize(values.flatten(1), dim=1, eps=_SHORTEST) * length

    every = torch.arange(paths * positions)
    return Block.all_low(name=filters.key, grid=(paths, positions), places=every, compute=compute)


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
        raise DataError(
            f"cannot read the learned filters {filters.path}: {error.strerror}; those of the recipes are in "
            "reproduction/filters of the alidpfl repository"
        ) from None
    found = hashlib.sha256(content).hexdigest()
    if found != filters.sha256:
        raise DataError(
            f"{filters.path} has SHA-256 {found}, expected {filters.sha256}: restore the file, or set model.learned "
            f'to "{filters.path}#sha256={found}" if you mean to use this one'
        )
    try:
        kept = load(content)
        layers = [(kept[f"{n}.weight"].float(), kept[f"{n}.bias"].float()) for n in range(len(_STRIDES))]
        inputs = [_COLOURS, *(len(bias) for _, bias in layers)]
        shapes = zip(inputs[1:], inputs, layers, strict=False)
        is_chain = all(weight.shape[:-2] == (out, into) for out, into, (weight, _) in shapes)
    except (SafetensorError, KeyError, TypeError):  # a bias without axes has no len
        is_chain = False
    if not is_chain:
        raise DataError(f"{filters.path} does not hold {len(_STRIDES)} convolutions; see features/learned.py")
    return tuple((weight.contiguous(memory_format=torch.channels_last), bias) for weight, bias in layers)
