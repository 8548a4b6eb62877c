"""Runs with persons as the unit of privacy, with and without one whole person: see `coupling` for what is compared."""

import random
from dataclasses import replace

import pytest
import torch

from alidpfl.dpsgd import Groups
from alidpfl.methods import METHODS

from .coupling import Watch
from .federations import (
    MODELS,
    MOST,
    PERSON_NEIGHBOURS,
    Setting,
    federation,
    is_raw,
    person_neighbours,
    settings,
    told_by,
)
from .hostile import HOSTILE

PRIVATE = [setting for setting in settings() if not is_raw(setting.policy)]
CASES = [
    (setting, list(HOSTILE)[number % len(HOSTILE)], PERSON_NEIGHBOURS[number % 4], 1 + number % (MOST + 2))
    for number, setting in enumerate(random.Random(1).sample(PRIVATE, len(PRIVATE)))  # noqa: S311 - a fixed order
]


def _quick(cases):
    """As few as come first in which every method, model, hostile record, place and number of records is."""
    seen, found = set(), []
    for case in cases:
        setting, *rest = case
        values = {(setting.method, setting.options), setting.model, *enumerate(rest)}
        if not values <= seen:
            found.append(case)
            seen |= values
    return found


QUICK = _quick(CASES)


def _replayed(setting, hostile, neighbour, records, **changes):
    told, watch = [], None
    for data in person_neighbours(setting.model, neighbour, hostile, records):
        with Watch(neighbour, follows=watch) as watch:
            told.append(told_by(federation(setting, data, **changes)))
    return told, watch


def _check(*case, **changes):
    told, watch = _replayed(*case, **changes)
    watch.check()
    watch.check_charges()
    assert watch.updates == watch.follows.updates
    assert told[0] == told[1]
    assert told[0]["error"] is None
    assert len(told[0]["records"]) > 1
    return watch


def _id(value):
    return str(value) if isinstance(value, Setting | str | int) else f"person {value.place} of client {value.client}"


NAMES = ("setting", "hostile", "neighbour", "records")


@pytest.mark.parametrize(NAMES, QUICK, ids=_id)
def test_neighbouring_data_sets(setting, hostile, neighbour, records):
    _check(setting, hostile, neighbour, records)


@pytest.mark.slow
@pytest.mark.parametrize(NAMES, CASES, ids=_id)
def test_all_pairs_of_neighbouring_data_sets(setting, hostile, neighbour, records):
    _check(setting, hostile, neighbour, records)


ON_THE_GRID = [case for case in CASES if case[0].built().release == "step" and case[0].model == "linear"][:6]


@pytest.mark.parametrize(NAMES, ON_THE_GRID, ids=_id)
def test_neighbouring_data_sets_with_noise_on_a_grid(setting, hostile, neighbour, records):
    """Its sums are exact, so that a person who is not drawn changes no bit of any."""
    watch = _check(setting, hostile, neighbour, records, noise="grid")
    for found, release in zip(watch.comparisons, watch.releases, strict=True):
        assert found.distance <= found.allowed  # not even by rounding
        assert found.distance == 0 or release.what[1] == neighbour.client


def test_the_cases_cover_methods_models_and_persons():
    for cases in (QUICK, CASES):
        assert {setting.method for setting, *_ in cases} == set(METHODS)
        assert {setting.model for setting, *_ in cases} == set(MODELS)
        assert {hostile for _, hostile, *_ in cases} == set(HOSTILE)
        assert {neighbour for _, _, neighbour, _ in cases} == set(PERSON_NEIGHBOURS)
        assert {records for *_, records in cases} == set(range(1, MOST + 3))


@pytest.mark.parametrize("records", [1, MOST, MOST + 2])
@pytest.mark.parametrize("model", ["linear", "compact_cnn"])
def test_a_person_is_seen_to_matter_as_much_as_one_record(model, records):
    """Else all of the above could be equal because the person was never drawn."""
    setting = next(setting for setting in PRIVATE if setting.model == model and setting.policy == "fixed")
    watch = _check(setting, "usual", PERSON_NEIGHBOURS[0], records)
    for found, release in zip(watch.comparisons, watch.releases, strict=True):
        is_its_own = release.what[1] == PERSON_NEIGHBOURS[0].client
        assert found.distance > 0.9 * found.allowed if is_its_own else found.distance == 0


def test_where_the_records_of_persons_lie_changes_no_bit():
    setting = next(setting for setting in PRIVATE if (setting.model, setting.policy) == ("linear", "ali"))
    data, _ = person_neighbours(setting.model, PERSON_NEIGHBOURS[0], "usual", 2)
    order = torch.randperm(len(data.inputs), generator=torch.Generator().manual_seed(0))
    place = torch.empty_like(order).index_copy_(0, order, torch.arange(len(order)))
    moved = replace(
        data,
        inputs=data.inputs[order],
        targets=data.targets[order],
        clients=[place[rows].sort().values for rows in data.clients],
        groups=[Groups(rows=place[groups.rows], offsets=groups.offsets) for groups in data.groups],
    )
    assert told_by(federation(setting, data)) == told_by(federation(setting, moved))


def test_plans_and_accounts_count_persons():
    setting = next(setting for setting in PRIVATE if (setting.model, setting.policy) == ("linear", "fixed"))
    data, _ = person_neighbours(setting.model, PERSON_NEIGHBOURS[0], "usual", MOST + 2)
    assert data.sizes == [6, 4, 1]
    assert [len(data.client(number)) for number in range(3)] == data.sizes
    assert sum(len(rows) for rows in data.clients) > sum(data.sizes)
