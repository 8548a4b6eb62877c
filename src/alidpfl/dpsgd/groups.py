"""The persons of a client: which records are hers, and a few of them drawn afresh for every step.

With the unit of privacy a person, a step draws persons by `poisson_sample`, and then at most k records of each. One
person's gradient is the mean over these records, clipped once.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from alidpfl.dpsgd.randomness import RandomStream, check_stream
from alidpfl.errors import ConfigError, DataError
from alidpfl.inputs import checks
from alidpfl.types import LARGEST_MAX_RECORDS


@dataclass(frozen=True, kw_only=True)
class Groups:
    """A client's persons. Its length is their number.

    >>> groups = Groups.of(torch.tensor([7, 3, 7, 7]))  # records 0, 2 and 3 are those of person 7
    >>> len(groups), groups.rows.tolist(), groups.offsets.tolist()
    (2, [1, 0, 2, 3], [0, 1, 4])
    """

    rows: Tensor = field(repr=False)  # hidden: printing or logging groups must not show who has how many records
    """(n,) int64 rows of all records, person by person."""
    offsets: Tensor = field(repr=False)
    """(persons + 1,) int64: where the rows of each person begin, and where the last one's end."""

    def __post_init__(self) -> None:
        for what, value in (("rows", self.rows), ("offsets", self.offsets)):
            if not isinstance(value, Tensor) or value.dtype != torch.int64 or value.dim() != 1:
                raise ConfigError(f"{what} must be a one-dimensional torch.int64 tensor")
        ends = self.offsets
        if len(ends) < 1 or int(ends[0]) != 0 or int(ends[-1]) != len(self.rows) or bool((ends[1:] <= ends[:-1]).any()):
            raise DataError("offsets must ascend from 0 to the number of rows; each person needs at least one record")

    @classmethod
    def of(cls, persons: Tensor, rows: Tensor | None = None) -> "Groups":
        """Group records by their persons, in ascending order of the persons' numbers.

        Args:
            persons: (n,) whole numbers, the person of each record.
            rows: (n,) int64 the row of each record. None means 0, 1, ...
        """
        if not isinstance(persons, Tensor) or persons.dim() != 1 or persons.is_floating_point() or persons.is_complex():
            raise DataError("persons must be a one-dimensional tensor of whole numbers, one for each record")
        rows = torch.arange(len(persons)) if rows is None else rows
        if rows.shape != persons.shape:
            raise DataError("persons and rows must have one entry for each record")
        found, order = persons.sort(stable=True)
        _, counts = torch.unique_consecutive(found, return_counts=True)
        return cls(rows=rows[order].long(), offsets=torch.cat([counts.new_zeros(1), counts.cumsum(0)]))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def draw(self, persons: Tensor, max_records: int, random: RandomStream) -> tuple[Tensor, Tensor]:
        """Draw min(k, m) of the m records of each person, without replacement.

        The work depends on the number of persons and on k, and not on how many records a person has. This is Floyd's
        algorithm (Bentley & Floyd 1987), for all persons at once.

        Args:
            persons: (B,) int64 numbers of the drawn persons, counted from 0.
            max_records: k, the most records of a person in a step. It is public.
            random: Source of the draw.

        Returns:
            Rows (B, k), and weights (B, k) float32: 1 / min(k, m) for the drawn records. A person with fewer than k
            records has them again, with weight 0, so that every person takes the same work.
        """
        check_stream(random)
        checks.whole("max_records", max_records, low=1, high=LARGEST_MAX_RECORDS)
        first, sizes = self.offsets[persons], self.offsets[persons + 1] - self.offsets[persons]
        drawn = sizes.clamp(max=max_records)
        uniform = random.uniform(len(persons) * max_records).view(len(persons), max_records)
        chosen = sizes.new_full((len(persons), max_records), -1)
        for number in range(max_records):
            last = sizes - drawn + number  # draw from 0 to `last`: the records so far, and one more
            pick = (uniform[:, number] * (last + 1)).long()
            pick = torch.where((chosen == pick[:, None]).any(1), last, pick)
            again = chosen.gather(1, (number - drawn).clamp_min(0)[:, None]).squeeze(1)
            chosen[:, number] = torch.where(number < drawn, pick, again)
        numbers = torch.arange(max_records)
        weights = (numbers < drawn[:, None]) / drawn[:, None]
        return self.rows[first[:, None] + chosen], weights.float()
