"""What may be asked of records: public parameters, the size of the answer, and how its parts are scaled."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from alidpfl.types import TaskKind

Array: TypeAlias = NDArray[np.float64]
RecordPart: TypeAlias = Literal["training", "held_out"]
"""Which records a query is about. Each part has an account of its own (parallel composition)."""

_LARGEST_ANSWER = 1 << 20  # values
_BINARY = 2
_EDGES = tuple(round(1 / (1 + math.exp(-logit / 2)), 6) for logit in range(-10, 11))
"""Probabilities half a unit of log-odds apart, from -5 to 5."""

_MOMENTS = {
    "count": 0.1,
    "error": 0.08,
    "error2": 0.4,
    "target": 0.16,
    "target2": 0.1,
    **dict.fromkeys(("error4", "target3", "target4", "error2_target", "error2_target2"), 0.02),
}
"""Sums of powers of an error e and a target y, each between -1 and 1, and the weight of each.

R² depends most on the sum of e²: its derivative by that sum is four times that by the sum of y², since e is the error
divided by the whole range, and y has half the range. The least variance has weights in proportion to the derivatives.
The last five serve the intervals alone.
"""
_PINBALL = {"pinball": 0.3, "pinball2": 0.02}
_TARGET_BINS, _TARGETS_WEIGHT = 40, 0.06


@dataclass(frozen=True, kw_only=True)
class Block:
    """One part of a record's vector."""

    name: str
    shape: tuple[int, ...]
    most: float
    """Largest squared norm of a record's entry, before scaling."""
    weight: float
    """Its part of the vector's squared norm, in proportion to the other blocks'. More weight means less noise."""

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Layout:
    """The blocks of a vector. Their scales keep its norm within 1.

    Proof: block b is multiplied by √(w_b / (W m_b)), where m_b bounds its squared norm, w_b is its weight and W the sum
    of all weights. So it adds at most w_b / W to the squared norm of the vector, and these shares add up to 1. ∎
    """

    blocks: tuple[Block, ...]

    @property
    def size(self) -> int:
        """Length of a vector."""
        return sum(block.size for block in self.blocks)

    @cached_property
    def scales(self) -> dict[str, float]:
        """Factor of each block. The noise of its unscaled sums has standard deviation σ / scale."""
        total = sum(block.weight for block in self.blocks)
        return {block.name: math.sqrt(block.weight / total / block.most) for block in self.blocks}

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of a record's entry in a block."""
        return next(block.shape for block in self.blocks if block.name == name)

    def join(self, entries: Mapping[str, Array]) -> Array:
        """Return the vectors (b, size) of records, given their entries (b, ...) by block."""
        parts = [(entries[b.name] * self.scales[b.name]).reshape(-1, b.size) for b in self.blocks]
        return np.concatenate(parts, axis=1)

    def split(self, vector: Sequence[float] | NDArray[np.generic]) -> dict[str, Array]:
        """Return the noised sums by block, in the units of the entries."""
        ends = np.cumsum([block.size for block in self.blocks])[:-1]
        parts = np.split(np.asarray(vector, dtype=np.float64), ends)
        return {
            block.name: part.reshape(block.shape) / self.scales[block.name]
            for block, part in zip(self.blocks, parts, strict=True)
        }


class Query(BaseModel):
    """Base class for queries. The vault bounds every field, because a hostile server may send any."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    part: ClassVar[RecordPart]
    """The records that are read, and charged."""
    needs_weights: ClassVar[bool]
    """Whether the request carries a model's weights."""

    @property
    def layout(self) -> Layout:
        """The parts of a record's vector."""
        raise NotImplementedError


class EvaluationQuery(Query):
    """Counts, losses and score histograms of a model on held-out records."""

    part: ClassVar[RecordPart] = "held_out"
    needs_weights: ClassVar[bool] = True

    kind: Literal["evaluation"] = "evaluation"
    task: TaskKind
    """The kind of the targets."""
    outputs: int = Field(ge=1, le=10_000)
    """Number of the model's outputs: classes, labels, or 1."""
    edges: tuple[float, ...] = Field(_EDGES, max_length=200)
    """Probabilities between the bins of scores, increasing. Unused for numbers."""
    largest_loss: float = Field(5.0, gt=0, le=100)
    """Log losses above it count as this much."""
    low: float = Field(-1.0, ge=-1e6, le=1e6)
    """Least number: lower targets and predictions count as this. A table's numbers are from -1 to 1."""
    high: float = Field(1.0, ge=-1e6, le=1e6)
    """Largest number: higher targets and predictions count as this."""
    exponential: bool = False
    """True if the model predicts the logarithm of the number."""
    quantile: float | None = Field(None, gt=0, lt=1)
    """The level that the model predicts, for numbers. Then the answer has the pinball loss too."""

    @field_validator("edges")
    @classmethod
    def _increasing(cls, edges: tuple[float, ...]) -> tuple[float, ...]:
        if not all(low < high for low, high in pairwise((0.0, *edges, 1.0))):
            raise ValueError("edges must increase between 0 and 1")
        return edges

    @model_validator(mode="after")
    def _bounded(self) -> "EvaluationQuery":
        if (self.task == "class" and self.outputs < _BINARY) or (self.task == "number" and self.outputs != 1):
            raise ValueError(f"{self.outputs} outputs do not fit targets of kind {self.task}")
        if self.quantile is not None and self.task != "number":
            raise ValueError(f"quantile={self.quantile} is for numbers, and the targets are of kind {self.task}")
        if not self.low < self.high:
            raise ValueError(f"low={self.low} must be below high={self.high}")
        if self.layout.size > _LARGEST_ANSWER:
            raise ValueError(f"the answer would have {self.layout.size} values; ask for fewer bins")
        return self

    @property
    def largest_error(self) -> float:
        """Largest absolute error of a number: predictions and targets are both between the bounds, so none is cut."""
        return self.high - self.low

    @property
    def half(self) -> float:
        """Half the range of numbers."""
        return (self.high - self.low) / 2

    @property
    def ranked(self) -> range:
        """The outputs that have a histogram of scores: of two classes the second, otherwise all."""
        return range(1, 2) if self.task == "class" and self.outputs == _BINARY else range(self.outputs)

    @cached_property
    def layout(self) -> Layout:
        """The parts of an evaluation. Weights favour the metrics that need most records: AUC, then accuracy.

        - counts: 1, and 1 if the answer is right.
        - losses: log loss and Brier score, each from 0 to 1.
        - tallies: for each class whether it is true, guessed, and both.
        - scores: for each ranked output, the bin of its probability and whether its class is true.
        - confidence: the bin of the guessed class's probability, and whether it is true.
        - for numbers: powers of errors and targets, perhaps the pinball loss and its square, and the target's bin.
        """
        if self.task == "number":
            weights = _MOMENTS if self.quantile is None else _MOMENTS | _PINBALL
            moments = [Block(name=name, shape=(1,), most=1, weight=weight) for name, weight in weights.items()]
            targets = Block(name="targets", shape=(_TARGET_BINS,), most=1, weight=_TARGETS_WEIGHT)
            return Layout((*moments, targets))
        columns, ranks, bins = self.outputs, len(self.ranked), len(self.edges) + 1
        true = 1 if self.task == "class" else columns  # classes of a record that can be true at once
        blocks = [
            Block(name="counts", shape=(2,), most=2, weight=0.25),
            Block(name="losses", shape=(2,), most=2, weight=0.2),
            Block(name="tallies", shape=(3, columns), most=3 * true, weight=0.15),
            Block(name="scores", shape=(ranks, bins, 2), most=ranks, weight=0.4),
        ]
        if self.task == "class" and ranks > 1:
            blocks.append(Block(name="confidence", shape=(bins, 2), most=1, weight=0.1))
        return Layout(tuple(blocks))


class StatisticsQuery(Query):
    """Sums over the rows of a table, as `alidpfl.tables.statistics` lays them out. They need no model."""

    part: ClassVar[RecordPart] = "training"
    needs_weights: ClassVar[bool] = False

    kind: Literal["statistics"] = "statistics"
    bins: int = Field(ge=0, le=1000)
    """Bins of each number."""
    with_target: bool
    """Whether the target is one of the columns."""
    size: int = Field(ge=1, le=_LARGEST_ANSWER)
    """Number of values, which follows from the schema."""

    @property
    def layout(self) -> Layout:
        """One block. What a row adds is divided by the sensitivity of its own layout, so that its norm is 1 at most."""
        return Layout((Block(name="sums", shape=(self.size,), most=1.0, weight=1.0),))


@dataclass(frozen=True, kw_only=True)
class ReleasePlan:
    """What one client is asked to release. Public, and charged before it is sent."""

    client: int
    number: int
    """Number of the release among those of its kind, ascending."""
    noise_multiplier: float
    query: EvaluationQuery | StatisticsQuery


@dataclass(frozen=True, kw_only=True)
class Released:
    """The noised sums of one client."""

    client: int
    values: NDArray[np.float32]
    """(size,) as the query's layout joins them."""


AnyQuery: TypeAlias = Annotated[EvaluationQuery | StatisticsQuery, Field(discriminator="kind")]
"""Every query that a vault knows."""
