"""Made-up samples for trials of a model. They have the form of the data and none of its values."""

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


NEAR_EQUAL = Kind(clusters=1, distance=1e-3, is_positive=True)
"""Shows mixing of samples that compete, such as those that a router sends to one full expert."""
SPREAD = Kind(clusters=None, spread=1.5)
"""Shows mixing by scales, means and extremes of a batch."""


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
        """Return inputs (size, ...) of a kind, and random targets (size, ...)."""
        inputs = self.rows(kind, size, random)
        shape = (size, *self.target_shape)
        if self.target_dtype.is_floating_point:
            return inputs, self._normal(shape, random).to(self.device, self.target_dtype)
        return inputs, self._integers(self.num_classes, shape, self.target_dtype, random)

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

    @staticmethod
    def _normal(shape: tuple[int, ...], random: torch.Generator) -> Tensor:
        return torch.randn(shape, generator=random, dtype=torch.float32, device="cpu")

    def _integers(
        self, below: int | None, shape: tuple[int, ...], dtype: torch.dtype, random: torch.Generator
    ) -> Tensor:
        if dtype == torch.bool or below is None:
            return torch.zeros(shape, dtype=dtype, device=self.device)
        return torch.randint(below, shape, generator=random, device="cpu").to(self.device, dtype)


def num_tokens(model: nn.Module) -> int | None:
    """Return the smallest number of embeddings of the model: tokens below it fit all. None without embeddings."""
    return min((m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)), default=None)


def smallest_dimension(outputs: object) -> int | None:
    """Return the smallest dimension but the batch. The classes may be in any: labels below it fit all of them."""
    return min(outputs.shape[1:]) if isinstance(outputs, Tensor) and outputs.dim() > 1 else None
