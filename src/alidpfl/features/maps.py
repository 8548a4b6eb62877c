"""Fixed image features. The blocks are made without data, so that computing them costs no privacy."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional as F

from alidpfl.errors import ConfigError, DataError
from alidpfl.features.blocks import Block
from alidpfl.features.filters import oriented_block, raw_block, scattering_block
from alidpfl.features.learned import LearnedFilters, learned_blocks
from alidpfl.features.scattering import STRIDE
from alidpfl.inputs import checks
from alidpfl.types import OnShare

VERSION = 1
"""Part of the cache's key. Increase it with every change of the values beyond rounding."""
MAX_LEARNED = 2  # most files of learned filters in one map

_IMAGES_AT_A_TIME = 256
_OFF = 2  # pixels: half of scattering's stride
_OFFSETS = {1: ((0, 0),), 2: ((0, 0), (_OFF, _OFF)), 4: ((0, 0), (_OFF, _OFF), (0, _OFF), (_OFF, 0))}
_MAX_BYTE = 255
_IMAGE_AXES = 3
_STEEPEST = 1.0  # columns a row: 45 degrees
_LEAST_HEIGHT = 0.1  # squared pixels, so that a dot or a flat line has no slant


@dataclass(frozen=True, kw_only=True)
class FeatureMap:
    """Scattering in a decorrelating basis, the image's low frequencies, oriented filters, and perhaps learned ones.

    An image's features depend on that image only: not on other images, and not on statistics. So a client can compute
    them on its own, and changing one record changes one row.

    Images with several channels are taken for photographs, where left and right mean nothing. Of their features, only
    those are kept that an image shares with its mirror image. Images with one channel may be digits and keep all.

    >>> digits = FeatureMap(image_shape=(1, 28, 28), scattering_frequencies=6)
    >>> [(block.name, block.size, int(block.low.sum())) for block in digits.blocks]
    [('scattering', 3969, 2268), ('raw', 55, 55), ('oriented', 896, 896)]
    """

    image_shape: tuple[int, int, int]
    """(channels, side, side), the side a multiple of 4."""
    scattering_frequencies: int
    """Scattering is `low` up to this sum of row and column frequency. All frequencies are computed."""
    raw_frequencies: int = 9
    oriented_frequencies: int = 6
    """The image and the oriented filters are cut to these sums of row and column frequency."""
    sets_upright: bool = False
    """Whether each image is first centred and sheared upright, for digits and letters that are bright on dark."""
    positions: int = 1
    """Number of positions, two pixels apart, over which features are averaged: 1, 2 or 4. The time grows with it.

    Scattering is read at every fourth pixel, so that an image moved by two pixels has other features.
    """
    learned: tuple[LearnedFilters, ...] = ()
    """Files of learned filters, at most two. Each adds a block."""

    def __post_init__(self) -> None:
        _check_shape(self.image_shape)
        for name in ("scattering_frequencies", "raw_frequencies", "oriented_frequencies"):
            checks.whole(name, getattr(self, name))
        if self.positions not in _OFFSETS:
            raise ConfigError(f"positions={self.positions!r} must be 1, 2 or 4, such as 2")
        paths = [filters.path for filters in self.learned]
        if len(set(self.learned)) < len(self.learned):
            raise ConfigError(f"learned={paths} names the same filters twice: name them once")
        if len(self.learned) > MAX_LEARNED:
            raise ConfigError(f"learned={paths} names {len(paths)} files of filters: at most {MAX_LEARNED} are allowed")
        for filters in self.learned:
            filters.layers()  # so that a missing or changed file is reported before any work

    @property
    def flip_even(self) -> bool:
        """True if an image and its mirror image have the same features (nearly the same for scattering)."""
        return self.image_shape[0] > 1

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks, in the order in which they are joined."""
        return _blocks(self)

    @property
    def value_key(self) -> str:
        """A key that is equal for two maps exactly if they compute the same values. `low` is not part of it."""
        shape = "x".join(map(str, self.image_shape))
        prepared = ("-upright" if self.sets_upright else "") + (f"-at{self.positions}" if self.positions > 1 else "")
        learned = "".join(f"-{filters.key}" for filters in self.learned)
        cut = f"raw{self.raw_frequencies}-oriented{self.oriented_frequencies}"
        return f"features-v{VERSION}-{shape}-{cut}{prepared}{learned}"

    @torch.no_grad()
    def compute(self, images: Tensor, on_progress: OnShare | None = None) -> dict[str, Tensor]:
        """Return the features (n, size) float32 of images (n, channels, side, side) uint8, by block."""
        self.check_images(images)
        features = {block.name: torch.empty(len(images), block.size) for block in self.blocks}
        for start in range(0, len(images), _IMAGES_AT_A_TIME):
            part = slice(start, start + _IMAGES_AT_A_TIME)
            scaled = images[part].float() / _MAX_BYTE
            if self.sets_upright:
                scaled = upright(scaled)
            moved = [_moved(scaled, *offset) for offset in _OFFSETS[self.positions]]
            for block in self.blocks:
                features[block.name][part] = sum(block.compute(images) for images in moved) / len(moved)
            if on_progress is not None:
                on_progress(min(1.0, part.stop / len(images)))
        return features

    def check_images(self, images: object) -> None:
        """Raise DataError unless `compute` takes these images."""
        if not isinstance(images, Tensor):
            raise DataError(f"images must be a torch.Tensor, not {type(images).__name__}; use torch.as_tensor")
        if images.dtype != torch.uint8:
            raise DataError(f"images have type {images.dtype}, need torch.uint8: bytes from 0 (black) to 255 (white)")
        if tuple(images.shape[1:]) != self.image_shape or images.ndim != 1 + _IMAGE_AXES:
            needed = ", ".join(map(str, self.image_shape))
            raise DataError(f"images have shape {tuple(images.shape)}, need (n, {needed})")


@lru_cache(maxsize=4)  # not kept in the map, which stays a small plain value that can be compared and sent
def _blocks(feature_map: FeatureMap) -> tuple[Block, ...]:
    shape, flip_even = feature_map.image_shape, feature_map.flip_even
    return (
        scattering_block(shape, feature_map.scattering_frequencies, flip_even=flip_even),
        raw_block(shape, feature_map.raw_frequencies, flip_even=flip_even),
        oriented_block(shape, feature_map.oriented_frequencies, flip_even=flip_even),
        *learned_blocks(feature_map.learned, shape[0], flip_even=flip_even),
    )


def _moved(images: Tensor, down: int, right: int) -> Tensor:
    """Move images up by `down` pixels and left by `right`, with a mirror image of the border in the gap."""
    side = images.shape[-1]
    return F.pad(images, (0, right, 0, down), mode="reflect")[..., down : down + side, right : right + side]


def _check_shape(shape: object) -> None:
    if not isinstance(shape, tuple) or len(shape) != _IMAGE_AXES:
        raise ConfigError(f"image_shape={shape!r} must be (channels, side, side), such as (1, 28, 28)")
    for size in shape:
        checks.whole("image_shape", size, low=1)
    if shape[1] != shape[2] or shape[1] % STRIDE:
        raise ConfigError(f"image_shape={shape} must be square, its side a multiple of {STRIDE}; crop or pad them")


def upright(images: Tensor) -> Tensor:
    """Centre the brightness of each image, and shear it so that the centres of its rows lie above each other.

    The slant of a hand and the place on the paper say nothing about a digit. `images` are (n, channels, side, side)
    float32 in [0, 1], bright on dark. Each is moved by its own moments only.
    """
    side = images.shape[-1]
    brightness = images.sum(1)
    at = torch.arange(side) - (side - 1) / 2
    total = brightness.sum((1, 2)).clamp(min=torch.finfo(torch.float32).tiny)
    rows, columns = brightness.sum(2), brightness.sum(1)
    y, x = (((line * at).sum(1) / total)[:, None] for line in (rows, columns))
    height = (rows * (at - y).square()).sum(1) / total
    slant = torch.einsum("nyx,ny,nx->n", brightness, at - y, at - x) / total
    shear = (slant / height.clamp(min=_LEAST_HEIGHT)).clamp(-_STEEPEST, _STEEPEST)
    half = (side - 1) / 2
    moves = images.new_zeros(len(images), 2, 3)
    moves[:, 0, 0] = moves[:, 1, 1] = 1
    moves[:, 0, 1], moves[:, 0, 2], moves[:, 1, 2] = shear, x[:, 0] / half, y[:, 0] / half
    grid = F.affine_grid(moves, list(images.shape), align_corners=True)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=True)
