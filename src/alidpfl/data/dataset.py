"""What a data set is: labelled tensors for training and for testing, and whose they are where that is given."""

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from alidpfl.errors import ConfigError, DataError

PixelRange = tuple[float, float]
"""The values that black and white (0 and 255) become."""

DEFAULT_PIXEL_RANGE: PixelRange = (-1.0, 1.0)

_MAX_BYTE = 255
_FEWEST_CLASSES = 2
_OFF_A_LEVEL = 0.01  # of a byte's distance: rounding of float32 is far below


@dataclass(frozen=True, kw_only=True)
class LabelledData:
    """Inputs with their classes, checked on construction: equal in number, finite, whole-numbered from 0.

    >>> LabelledData(inputs=torch.zeros(3, 60), targets=torch.tensor([0, 1, 1]))
    LabelledData(3 samples of shape (60,))
    """

    inputs: Tensor
    """(n, ...) float32."""
    targets: Tensor
    """(n,) int64, from 0."""

    def __post_init__(self) -> None:
        _check_tensors(self.inputs, self.targets)
        if self.inputs.numel() and not all(
            math.isfinite(end) for end in torch.aminmax(self.inputs)
        ):  # NaN goes through
            raise DataError("inputs have values that are NaN or infinite; clean them before training")
        if len(self.targets) and int(self.targets.min()) < 0:
            raise DataError("targets have negative numbers; number the classes from 0")

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:  # data are private: a traceback or a log must not print them
        return f"LabelledData({len(self)} samples of shape {tuple(self.inputs.shape[1:])})"


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data set with its training and its test part; two data sets may share tensors, so change none in place."""

    name: str
    train: LabelledData
    test: LabelledData
    num_classes: int
    is_synthetic: bool
    """True where a program made the data: results on them say nothing of results on real ones."""
    shown: tuple[str, ...] = ()
    """What is known of the clients' records before training, without noise: no ε covers it."""
    test_is_held_out: bool = False
    """True where the test part was taken from the clients' own records."""
    natural_clients: tuple[Tensor, ...] | None = field(default=None, repr=False)
    """Where clients are given: for each the indices (int64, sorted) of its training samples; otherwise None."""
    client_names: tuple[str, ...] = ()
    """Of the given clients, where they have any."""

    def __post_init__(self) -> None:
        if self.num_classes < _FEWEST_CLASSES:
            raise DataError(f"{self.name}: {self.num_classes} class; classification needs at least {_FEWEST_CLASSES}")
        for part_name, part in (("train", self.train), ("test", self.test)):
            if len(part) == 0:
                raise DataError(f"{self.name}: the {part_name} part is empty; give at least one sample")
            if int(part.targets.max()) >= self.num_classes:
                raise DataError(
                    f"{self.name}: targets of the {part_name} part reach beyond num_classes={self.num_classes}; "
                    "number the classes from 0"
                )
        if self.train.inputs.shape[1:] != self.test.inputs.shape[1:]:
            shapes = [tuple(part.inputs.shape[1:]) for part in (self.train, self.test)]
            raise DataError(
                f"{self.name}: inputs have shape {shapes[0]} in train and {shapes[1]} in test; make them equal"
            )
        if self.natural_clients is not None:
            _check_clients(self.name, self.natural_clients, len(self.train))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one input: (channels, height, width) for images."""
        return tuple(self.train.inputs.shape[1:])


def _check_tensors(inputs: object, targets: object) -> None:
    for name, value, dtype in (("inputs", inputs, torch.float32), ("targets", targets, torch.int64)):
        if not isinstance(value, Tensor):
            raise DataError(f"{name} must be a torch.Tensor, not {type(value).__name__}; use torch.as_tensor")
        if value.dtype != dtype:
            raise DataError(f"{name} have type {value.dtype}, need {dtype}; convert with .to({dtype})")
    assert isinstance(inputs, Tensor) and isinstance(targets, Tensor)  # noqa: S101, PT018 - for mypy
    if targets.ndim != 1 or inputs.ndim < 2 or len(inputs) != len(targets):  # noqa: PLR2004
        raise DataError(
            f"inputs have shape {tuple(inputs.shape)} and targets {tuple(targets.shape)}; "
            "need (n, ...) and (n,) with one target for each input"
        )


def _check_clients(name: str, clients: tuple[Tensor, ...], num_samples: int) -> None:
    """Clients must not share a sample: its loss of privacy would be counted once and spent twice."""
    seen = torch.zeros(num_samples, dtype=torch.bool)
    for number, indices in enumerate(clients):
        if indices.dtype != torch.int64 or indices.ndim != 1:
            raise DataError(f"{name}: client {number} has indices of type {indices.dtype}; need one row of torch.int64")
        if len(indices) and not 0 <= int(indices.min()) <= int(indices.max()) < num_samples:
            raise DataError(f"{name}: client {number} has indices outside 0..{num_samples - 1}")
        if bool(seen[indices].any()) or len(indices.unique()) != len(indices):
            raise DataError(f"{name}: client {number} has samples that another client has too; make clients disjoint")
        seen[indices] = True


def scaled_images(pixels: NDArray[np.uint8], pixel_range: PixelRange = DEFAULT_PIXEL_RANGE) -> Tensor:
    """Bytes to float32 in `pixel_range`.

    >>> scaled_images(np.array([[0, 255]], np.uint8)).tolist()
    [[-1.0, 1.0]]
    """
    low, high = checked_pixel_range(pixel_range)
    # Divided first: then black and white are met exactly.
    return torch.from_numpy(pixels.astype(np.float32)).div_(_MAX_BYTE).mul_(high - low).add_(low)


def image_bytes(images: Tensor, pixel_range: PixelRange = DEFAULT_PIXEL_RANGE) -> Tensor:
    """The inverse of `scaled_images`: uint8.

    >>> image_bytes(torch.tensor([[-1.0, 1.0]])).tolist()
    [[0, 255]]
    """
    low, high = checked_pixel_range(pixel_range)
    levels = (images - low).mul_(_MAX_BYTE / (high - low))
    whole = levels.round()
    if (images.numel() and not float((levels - whole).abs().max()) < _OFF_A_LEVEL) or not _are_bytes(whole):
        raise DataError(
            f"images are not bytes scaled to pixel_range={pixel_range}; give uint8, 0 for black to 255 for white"
        )
    return whole.to(torch.uint8)


def _are_bytes(levels: Tensor) -> bool:
    return levels.numel() == 0 or (float(levels.min()) >= 0 and float(levels.max()) <= _MAX_BYTE)


def checked_pixel_range(pixel_range: PixelRange) -> PixelRange:
    """`pixel_range` as two finite floats, the first below the second."""
    low, high = (float(value) for value in pixel_range)
    if not -float("inf") < low < high < float("inf"):
        raise ConfigError(f"pixel_range={pixel_range} must be two numbers, the smaller first, such as (-1, 1)")
    return low, high
