"""Data sets: labelled tensors for training and for testing, and `load`, which finds a data set by its name."""

import inspect
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from alidpfl.errors import ConfigError, DataError
from alidpfl.registry import DATASETS
from alidpfl.types import OnProgress, TaskKind

if TYPE_CHECKING:
    from alidpfl.tables.encode import Encoder

PixelRange = tuple[float, float]
"""The values that black and white (0 and 255) are scaled to."""

DEFAULT_PIXEL_RANGE: PixelRange = (-1.0, 1.0)

_MAX_BYTE = 255
_MIN_CLASSES = 2
_BYTE_TOLERANCE = 0.01  # far above the rounding of float32


def kind_of(targets: Tensor) -> TaskKind:
    """Return the kind of targets, by their type and shape."""
    if not targets.is_floating_point():
        return "class"
    return "number" if targets.ndim == 1 else "labels"


def num_outputs(targets: Tensor) -> int:
    """Return the number of outputs that a model of numbers (n,) or labels (n, k) needs."""
    return 1 if targets.ndim == 1 else int(targets.shape[1])


def check_counts(what: str, targets: Tensor, loss: str | None) -> None:
    """Refuse negative targets for the loss "poisson", which has no least value for them."""
    if loss == "poisson" and len(targets) and float(targets.min()) < 0:
        raise DataError(f'{what}: targets are below 0, and loss="poisson" takes counts; use "squared" or "huber"')


@dataclass(frozen=True, kw_only=True)
class LabelledData:
    """Records with their targets: `inputs` (n, ...) float32, and `targets` of one of three kinds.

    Classes are (n,) int64, numbered from 0. Numbers are (n,) float32. Labels are (n, k) float32, each 0 or 1.

    >>> LabelledData(inputs=torch.zeros(3, 60), targets=torch.tensor([0, 1, 1]))
    LabelledData(3 records of shape (60,))
    """

    inputs: Tensor
    targets: Tensor

    def __post_init__(self) -> None:
        for name, value, types in (
            ("inputs", self.inputs, (torch.float32,)),
            ("targets", self.targets, (torch.int64, torch.float32)),
        ):
            if not isinstance(value, Tensor):
                raise DataError(f"{name} must be a torch.Tensor, not {type(value).__name__}; use torch.as_tensor")
            if value.dtype not in types:
                needed = " or ".join(map(str, types))
                raise DataError(f"{name} have type {value.dtype}, need {needed}; convert with .to({types[0]})")
        is_flat = self.targets.ndim == 1 or (self.targets.ndim == 2 and self.targets.dtype == torch.float32)  # noqa: PLR2004
        if not is_flat or self.inputs.ndim < 2 or len(self.inputs) != len(self.targets):  # noqa: PLR2004
            raise DataError(
                f"inputs have shape {tuple(self.inputs.shape)} and targets {tuple(self.targets.shape)}; "
                "need (n, ...) and (n,) with one target for each input, or (n, k) float32 for k labels"
            )
        for name, value in (("inputs", self.inputs), ("targets", self.targets)):
            # aminmax returns NaN if any value is NaN.
            if value.numel() and not all(math.isfinite(end) for end in torch.aminmax(value)):
                raise DataError(f"{name} have values that are NaN or infinite; clean them before training")
        self._check_values()

    def _check_values(self) -> None:
        if self.kind == "class" and len(self.targets) and int(self.targets.min()) < 0:
            raise DataError("targets have negative numbers; number the classes from 0")
        if self.kind == "labels" and not bool(((self.targets == 0) | (self.targets == 1)).all()):
            raise DataError(
                "labels must be 0 or 1; one number a record needs targets of shape (n,), and for several numbers train "
                "one model for each"
            )

    @property
    def kind(self) -> TaskKind:
        """The kind of the targets."""
        return kind_of(self.targets)

    @classmethod
    def from_images(cls, images: NDArray[np.uint8], labels: NDArray[np.int64], pixel_range: PixelRange) -> Self:
        """Scale images of bytes to `pixel_range` and pair them with their labels."""
        return cls(inputs=scaled_images(images, pixel_range), targets=torch.from_numpy(labels))

    def __len__(self) -> int:
        return len(self.targets)

    def __repr__(self) -> str:  # records are private: a traceback or a log must not print them
        return f"LabelledData({len(self)} records of shape {tuple(self.inputs.shape[1:])})"


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data set with its training part and its test part. Data sets may share tensors: change none in place."""

    name: str
    train: LabelledData
    test: LabelledData
    is_synthetic: bool
    """True if a program made the data: results on them say nothing about results on real data."""
    num_classes: int = 0
    """Number of classes; 0 for other targets."""
    kind: TaskKind = "class"
    """The kind of the targets."""
    shown: tuple[str, ...] = ()
    """Facts about the clients' records that are known before training, without noise. ε does not cover them."""
    test_is_held_out: bool = False
    """True if the test part was taken from the clients' own records."""
    held_out_clients: tuple[Tensor, ...] | None = field(default=None, repr=False)
    """The rows of `test` that each client holds out, each chosen by that record alone; None if there are none."""
    natural_clients: tuple[Tensor, ...] | None = field(default=None, repr=False)
    """The rows of `train` that each client holds (int64, sorted), if the data set has clients of its own."""
    client_names: tuple[str, ...] = ()
    """The names of these clients, if they have names."""
    persons: tuple[Tensor, ...] | None = field(default=None, repr=False)
    """For each of these clients the person's number of each of its rows (int64). None if the data do not say.

    Persons belong to a client: a person at two clients is two persons.
    """
    held_out_persons: tuple[Tensor, ...] | None = field(default=None, repr=False)
    """The same for the rows of `held_out_clients`."""
    encoder: "Encoder | None" = field(default=None, repr=False)
    """Turns raw rows into inputs, for tables. It is stored with the model."""
    warnings: tuple[str, ...] = ()
    """What users of these data should know before training."""

    def __post_init__(self) -> None:
        name = self.name
        if self.kind == "class" and self.num_classes < _MIN_CLASSES:
            raise DataError(f"{name}: num_classes={self.num_classes} must be at least {_MIN_CLASSES}")
        for part, records in (("train", self.train), ("test", self.test)):
            self._check_part(part, records)
        for what in ("inputs", "targets"):
            train, test = (tuple(getattr(records, what).shape[1:]) for records in (self.train, self.test))
            if train != test:
                raise DataError(f"{name}: {what} have shape {train} in train and {test} in test; make them equal")
        if self.natural_clients is not None:
            _check_clients(name, self.natural_clients, len(self.train))
        for what, persons, clients in (
            ("persons", self.persons, self.natural_clients),
            ("held_out_persons", self.held_out_persons, self.held_out_clients),
        ):
            if persons is not None:
                _check_persons(f"{name}: {what}", persons, clients)

    def _check_part(self, part: str, records: LabelledData) -> None:
        name, classes = self.name, self.num_classes
        if len(records) == 0:
            raise DataError(f"{name}: the {part} part is empty; give at least one record")
        if records.kind != self.kind:
            raise DataError(
                f'{name}: the {part} part has targets of kind "{records.kind}", not "{self.kind}"; make them alike'
            )
        if self.kind == "class" and int(records.targets.max()) >= classes:
            raise DataError(f"{name}: the {part} part has classes beyond num_classes={classes}; number them from 0")

    @property
    def num_outputs(self) -> int:
        """Number of outputs of a model: one for each class or label, or one for a number."""
        return self.num_classes if self.kind == "class" else num_outputs(self.train.targets)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input: (channels, height, width) for images."""
        return tuple(self.train.inputs.shape[1:])


def load(
    name: str,
    *,
    data_dir: Path | None = None,
    seed: int = 0,
    cache_dir: Path | None = None,
    pixel_range: PixelRange = DEFAULT_PIXEL_RANGE,
    on_progress: OnProgress | None = None,
    **options: Any,
) -> Dataset:
    """Load a data set by its name.

    A loader is a function that takes any of these parameters by keyword, and options of its own. `alidpfl.registry`
    lists the loaders; other packages add theirs by the entry point `alidpfl.datasets`.

    Args:
        name: `strokes` (generated digits, no download), `mnist`, `fashion_mnist`, `cifar10` (see `alidpfl data get`),
            `synthetic` (from FedProx), `npz` and `table` (your own files, one for each client), or a plug-in.
        data_dir: the only directory that is searched for real data; for `npz` and `table` the folder of the files.
        seed: draws generated data, and the records that `npz` and `table` hold out. Real data do not depend on it.
        cache_dir: where generated data are kept. Default: the user's cache.
        pixel_range: the values that black and white are scaled to.
        on_progress: called with the task and the share that is done.
        options: for `synthetic`: clients, alpha, beta, is_iid, max_samples; for `npz`: num_classes; for `table`:
            schema_file, files, loss.

    Raises:
        ConfigError: the name or an option is not known, or a value is outside its range.
        DataError: files are missing or damaged.
    """
    loader = DATASETS[name]
    common = {
        "data_dir": data_dir,
        "seed": seed,
        "cache_dir": cache_dir,
        "pixel_range": checked_pixel_range(pixel_range),
        "on_progress": on_progress,
    }
    parameters = inspect.signature(loader).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        known = [parameter for parameter in parameters if parameter not in common]
        if unknown := sorted(set(options) - set(known)):
            raise ConfigError(f"{name} has no option {', '.join(unknown)}; it takes {', '.join(known) or 'none'}")
        common = {key: value for key, value in common.items() if key in parameters}
    dataset = loader(**common, **options)
    if not isinstance(dataset, Dataset):
        raise ConfigError(f"data set {name!r}: its loader must return a Dataset, not {type(dataset).__name__}")
    return dataset


def scaled_images(pixels: NDArray[np.uint8], pixel_range: PixelRange = DEFAULT_PIXEL_RANGE) -> Tensor:
    """Return images of bytes as float32 in `pixel_range`.

    >>> scaled_images(np.array([[0, 255]], np.uint8)).tolist()
    [[-1.0, 1.0]]
    """
    low, high = checked_pixel_range(pixel_range)
    # Dividing first makes black and white exact.
    return torch.from_numpy(pixels.astype(np.float32)).div_(_MAX_BYTE).mul_(high - low).add_(low)


def image_bytes(images: Tensor, pixel_range: PixelRange = DEFAULT_PIXEL_RANGE) -> Tensor:
    """Return scaled images as uint8: the inverse of `scaled_images`. Other values are a DataError."""
    low, high = checked_pixel_range(pixel_range)
    levels = (images - low).mul_(_MAX_BYTE / (high - low))
    whole = levels.round()
    is_byte = ((levels - whole).abs() < _BYTE_TOLERANCE) & (whole >= 0) & (whole <= _MAX_BYTE)  # false for NaN
    if not is_byte.all():
        raise DataError(
            f"images are not bytes scaled to pixel_range={pixel_range}; give uint8, 0 (black) to 255 (white)"
        )
    return whole.to(torch.uint8)


def checked_pixel_range(pixel_range: PixelRange) -> PixelRange:
    """Return `pixel_range` as two finite floats, the first below the second."""
    low, high = (float(value) for value in pixel_range)
    if not -math.inf < low < high < math.inf:
        raise ConfigError(f"pixel_range={pixel_range} must be two numbers, the smaller first, such as (-1, 1)")
    return low, high


def _check_clients(name: str, clients: tuple[Tensor, ...], num_records: int) -> None:
    """Check that clients share no record: its privacy loss would be counted once and spent twice."""
    seen = torch.zeros(num_records, dtype=torch.bool)
    for number, rows in enumerate(clients):
        if rows.dtype != torch.int64 or rows.ndim != 1:
            raise DataError(f"{name}: client {number} has rows of type {rows.dtype}; need one dimension of torch.int64")
        if len(rows) and not 0 <= int(rows.min()) <= int(rows.max()) < num_records:
            raise DataError(f"{name}: client {number} has rows outside 0..{num_records - 1}")
        if bool(seen[rows].any()) or len(rows.unique()) != len(rows):
            raise DataError(f"{name}: client {number} has records that another client has too; make clients disjoint")
        seen[rows] = True


def _check_persons(what: str, persons: tuple[Tensor, ...], clients: tuple[Tensor, ...] | None) -> None:
    """Check that every row of every client has the number of a person."""
    if clients is None or len(persons) != len(clients):
        raise DataError(f"{what} must have one tensor for each client of the data set")
    for number, (own, rows) in enumerate(zip(persons, clients, strict=True)):
        if own.dtype != torch.int64 or own.shape != rows.shape:
            raise DataError(
                f"{what}: client {number} has {own.dtype} of shape {tuple(own.shape)}; need torch.int64, one number "
                "for each of its rows"
            )
