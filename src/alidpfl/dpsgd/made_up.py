"""Made-up samples for trials of a model. They have the form of the data and none of its values.

A loss may mix records by their targets alone, and for some values only: labels of 0 and 1, equal counts. So labels are
0 or 1, and numbers are in part small and whole, as in data.
"""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How the samples of a made-up batch differ from one another."""

    clusters: int | None
    """Number of different samples that the batch is made of. None: all samples are different."""
    distance: float = 0.0
    """Distance of a sample from the middle of its cluster, relative to its size."""
    spread: float = 0.0
    """Sizes of samples are 10^u with u uniform in [-spread, spread]."""
    is_positive: bool = False
    """Whether values are in [0, 1), as in images, or normal."""
    outlier: float = 0.0
    """A number that is one record's target. Labels then have a single 1 in each column. 0: no target stands out."""


NEAR_EQUAL = Kind(clusters=1, distance=1e-3, is_positive=True)
"""Shows mixing of samples that compete, such as those that a router sends to one full expert."""
SPREAD = Kind(clusters=None, spread=1.5, outlier=100.0)
"""Shows mixing by scales, means and extremes of a batch."""
FAR = Kind(clusters=None, spread=2.5, outlier=1e4)
"""Beyond all samples before it, so that it also shows a state that only grows, such as a running maximum."""


@dataclass(frozen=True, kw_only=True)
class SampleMaker:
    """Makes up samples in the form of some data."""

    shape: tuple[int, ...]
    """Shape of one input."""
    dtype: torch.dtype
    target_shape: tuple[int, ...] = ()
    """Shape of one target."""
    target_dtype: torch.dtype = torch.int64
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    num_tokens: int | None = None
    """Integer inputs are below it. None: they are zero."""
    num_classes: int | None = None
    """Integer targets are below it. None: they are zero."""

    @classmethod
    def like(cls, model: nn.Module, inputs: Tensor, targets: Tensor) -> "SampleMaker":
        """Read the form of the data from tensors, and the numbers of tokens and classes from the model."""
        form = cls(
            shape=tuple(inputs.shape[1:]),
            dtype=inputs.dtype,
            target_shape=tuple(targets.shape[1:]),
            target_dtype=targets.dtype,
            device=inputs.device,
            num_tokens=num_tokens(model),
        )
        with torch.no_grad():
            outputs = model(form.rows(NEAR_EQUAL, 1, torch.Generator("cpu").manual_seed(0)))
        return cls(**{**vars(form), "num_classes": smallest_dimension(outputs)})

    def batch(self, kind: Kind, size: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return inputs (size, ...) and targets (size, ...) of a kind."""
        inputs, shape = self.rows(kind, size, random), (size, *self.target_shape)
        if are_labels(self.target_dtype, shape):
            targets = labels(shape, random, is_rare=kind.outlier > 0)
        elif not self.target_dtype.is_floating_point:
            targets = self._integers(self.num_classes, shape, self.target_dtype, random)
        else:
            targets = counts(size, random)
            if kind.outlier:
                targets[0] = kind.outlier
            else:
                targets[1::2] = self._normal((size // 2,), random)
        return inputs, targets.to(self.device, self.target_dtype)

    def rows(self, kind: Kind, size: int, random: torch.Generator) -> Tensor:
        """Return inputs (size, ...) of a kind."""
        shape, count = (size, *self.shape), size if kind.clusters is None else kind.clusters
        member = torch.arange(size, device="cpu")
        if count < size:
            member = torch.randint(count, (size,), generator=random, device="cpu")
        if not self.dtype.is_floating_point:
            centres = self._integers(self.num_tokens, (count, *self.shape), self.dtype, random)
            others = self._integers(self.num_tokens, shape, self.dtype, random)
            changed = torch.rand(shape, generator=random, device="cpu") < max(kind.distance, 0.1)
            return torch.where(changed.to(self.device), others, centres[member.to(self.device)])
        draw = torch.rand if kind.is_positive else torch.randn
        centres = draw((count, *self.shape), generator=random, dtype=torch.float32, device="cpu")
        rows = centres[member] + kind.distance * self._normal(shape, random)
        exponents = kind.spread * (2 * torch.rand(size, generator=random, device="cpu") - 1)
        return (rows * (10**exponents).view(size, *[1] * len(self.shape))).to(self.device, self.dtype)

    def extremes(self, size: int) -> Tensor:
        """Return inputs (size, ...) that overflow or are no numbers. They show "skip the batch if it is not finite"."""
        values = torch.tensor([3e38, math.nan, -3e38, 1e12], dtype=torch.float32, device="cpu")
        rows = values.repeat(-(-size // len(values)))[:size].view(size, *[1] * len(self.shape))
        return rows.expand(size, *self.shape).to(self.device, self.dtype).contiguous()

    @staticmethod
    def _normal(shape: tuple[int, ...], random: torch.Generator) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float32, device="cpu")

    def _integers(
        self, below: int | None, shape: tuple[int, ...], dtype: torch.dtype, random: torch.Generator
    ) -> Tensor:
        if dtype == torch.bool or below is None:
            return torch.zeros(shape, dtype=dtype, device=self.device)
        return torch.randint(below, shape, generator=random, device="cpu").to(self.device, dtype)


def are_labels(dtype: torch.dtype, shape: tuple[int, ...]) -> bool:
    """Return whether targets of this type and shape (n, ...) are labels: flags, or floats in columns."""
    return dtype == torch.bool or (dtype.is_floating_point and len(shape) > 1)


def labels(shape: tuple[int, ...], random: torch.Generator, *, is_rare: bool = False) -> Tensor:
    """Return labels 0 or 1 (n, ...). Of three columns or more, the first holds zeros only and the last ones only.

    Args:
        shape: Records first. All other dimensions count as columns.
        random: Draws them.
        is_rare: Each column has a single 1.
    """
    size, columns = shape[0], math.prod(shape[1:])
    if is_rare:
        found = torch.zeros(size, columns, device="cpu")
        rows = torch.randint(size, (columns,), generator=random, device="cpu")
        found[rows, torch.arange(columns, device="cpu")] = 1
        return found.view(shape)
    found = torch.randint(2, (size, columns), generator=random, device="cpu").float()
    found[:2] = torch.tensor([[0.0], [1.0]], device="cpu")[:size]  # both occur in every batch
    if columns > 2:  # noqa: PLR2004 - one column stays random
        found[:, 0], found[:, -1] = 0, 1
    return found.view(shape)


def counts(size: int, random: torch.Generator) -> Tensor:
    """Return small whole numbers (size,), some of them equal."""
    found = torch.randint(10, (size,), generator=random, device="cpu").float()
    found[:3] = torch.tensor([0.0, 1.0, 1.0], device="cpu")[:size]
    return found


def num_tokens(model: nn.Module) -> int | None:
    """Return the smallest number of embeddings of the model: tokens below it fit all. None without embeddings."""
    return min((m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)), default=None)


def smallest_dimension(outputs: object) -> int | None:
    """Return the smallest dimension but the batch, at least 2.

    The classes may be in any dimension, and labels below the smallest fit all of them. Labels of one output are 0 or 1.
    """
    return max(2, min(outputs.shape[1:])) if isinstance(outputs, Tensor) and outputs.dim() > 1 else None
