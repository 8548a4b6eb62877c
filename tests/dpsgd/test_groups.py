"""Persons and their records: which are drawn, how often, and with the same work for every person."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from alidpfl.dpsgd import Groups, RandomStream
from alidpfl.errors import ConfigError, DataError

DRAWS = 20_000


def of_sizes(*sizes: int) -> Groups:
    return Groups.of(torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes)))


@settings(deadline=None, max_examples=60)
@given(persons=st.lists(st.integers(-3, 5), max_size=30), seed=st.integers(0, 100))
def test_every_record_is_with_its_person(persons, seed):
    rows = torch.randperm(1000, generator=torch.Generator().manual_seed(seed))[: len(persons)]
    groups = Groups.of(torch.tensor(persons, dtype=torch.int64), rows)
    assert len(groups) == len(set(persons))
    for number, person in enumerate(sorted(set(persons))):
        found = groups.rows[groups.offsets[number] : groups.offsets[number + 1]]
        assert found.tolist() == [int(row) for row, whose in zip(rows, persons, strict=True) if whose == person]


@settings(deadline=None, max_examples=60)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=12), most=st.integers(1, 12), seed=st.integers(0, 100))
def test_a_draw_has_each_persons_own_records_once(sizes, most, seed):
    groups, persons = of_sizes(*sizes), torch.arange(len(sizes))
    rows, weights = groups.draw(persons, most, RandomStream.seeded(seed))
    assert rows.shape == weights.shape == (len(sizes), most)
    assert weights.dtype == torch.float32
    for number, size in enumerate(sizes):
        own = set(groups.rows[groups.offsets[number] : groups.offsets[number + 1]].tolist())
        counted = rows[number][weights[number] > 0].tolist()
        assert len(counted) == len(set(counted)) == min(size, most), "without replacement"
        assert set(rows[number].tolist()) == set(counted) <= own, "filled up with records that were drawn"
        assert set(weights[number].tolist()) <= {0.0, float(torch.tensor(1 / min(size, most)))}
    torch.testing.assert_close(weights.sum(1), torch.ones(len(sizes)))


def test_every_record_and_every_pair_is_drawn_equally_often():
    """3 of 5 records: each with chance 3/5, each pair with chance 3/10; within 5 standard deviations."""
    groups = of_sizes(2, 5)
    rows, _ = groups.draw(torch.ones(DRAWS, dtype=torch.int64), 3, RandomStream.seeded(1))
    there = (rows[:, :, None] == torch.arange(2, 7)).any(1).double()
    for found, chance in ((there.sum(0), 3 / 5), ((there.mT @ there)[~torch.eye(5, dtype=torch.bool)], 3 / 10)):
        assert float((found - DRAWS * chance).abs().max()) <= 5 * (DRAWS * chance * (1 - chance)) ** 0.5


def test_every_draw_is_fresh():
    groups, random = of_sizes(*[50] * 4), RandomStream.seeded(0)
    first, second = (groups.draw(torch.arange(4), 5, random)[0] for _ in range(2))
    assert not torch.equal(first, second)
    again, _ = groups.draw(torch.arange(4), 5, RandomStream.seeded(0))
    assert torch.equal(first, again)


def test_the_work_does_not_depend_on_how_many_records_a_person_has():
    class Operations(TorchDispatchMode):
        def __init__(self):
            super().__init__()
            self.seen = []

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            tensors = [a for a in args if isinstance(a, torch.Tensor) and a.data_ptr() != groups.rows.data_ptr()]
            shapes = [(a.shape, a.dtype) for a in tensors]
            self.seen.append((str(func), shapes))
            return func(*args, **(kwargs or {}))

    seen = []
    for sizes in ([1] * 6, [300] * 6, [1, 2, 3, 4, 50, 6]):
        groups = of_sizes(*sizes)
        with Operations() as watching:
            groups.draw(torch.arange(6), 4, RandomStream.seeded(0))
        seen.append(watching.seen)
    assert len(seen[0]) > 20
    assert seen[0] == seen[1] == seen[2]


def test_nobody_drawn_is_no_rows():
    rows, weights = of_sizes(2, 3).draw(torch.zeros(0, dtype=torch.int64), 4, RandomStream.seeded(0))
    assert rows.shape == weights.shape == (0, 4)


@pytest.mark.parametrize("offsets", [[0, 2, 2, 4], [0, 3, 2, 4], [1, 2, 4], [0, 2], [0, 2, 5], []])
def test_offsets_that_do_not_fit_are_refused(offsets):
    with pytest.raises(DataError):
        Groups(rows=torch.arange(4), offsets=torch.tensor(offsets, dtype=torch.int64))


def test_what_is_no_person_or_no_stream_is_refused():
    for persons in (torch.ones(3), torch.ones(2, 2).long(), [1, 2]):
        with pytest.raises(DataError):
            Groups.of(persons)
    with pytest.raises(DataError):
        Groups.of(torch.arange(3), torch.arange(2))
    with pytest.raises(ConfigError):
        Groups(rows=torch.arange(4).int(), offsets=torch.tensor([0, 4]))
    groups = of_sizes(2, 3)
    with pytest.raises(ConfigError):
        groups.draw(torch.arange(2), 0, RandomStream.seeded(0))
    with pytest.raises(ConfigError):
        groups.draw(torch.arange(2), 2, torch.Generator())
