"""Every method, policy and model that ships, run with and without one record: see `coupling` for what is compared."""

import itertools
import random

import pytest
import torch

from alidpfl.dpsgd import native
from alidpfl.methods import METHODS
from alidpfl.policies import POLICIES

from .coupling import Watch
from .federations import MODELS, NEIGHBOURS, Setting, federation, is_raw, neighbours, settings, told_by
from .hostile import HOSTILE

PRIVATE = [setting for setting in settings() if not is_raw(setting.policy)]
PAIRS = [
    (setting, hostile, NEIGHBOURS[number % len(NEIGHBOURS)])
    for number, (setting, hostile) in enumerate(
        (setting, list(HOSTILE)[(3 * position + turn) % len(HOSTILE)])
        for turn in range(3)
        for position, setting in enumerate(PRIVATE)
    )
]
"""Every setting three times, each time with another record and another place; all records with all models."""


def _covering(pairs):
    """As few as come first in which every method meets every policy, and all models, records and places are."""
    seen, found = set(), []
    for setting, hostile, neighbour in pairs:
        values = {(setting.method, setting.options, setting.policy), setting.model, hostile, neighbour}
        if not values <= seen:
            found.append((setting, hostile, neighbour))
            seen |= values
    return found


QUICK = _covering(random.Random(0).sample(PAIRS, len(PAIRS)))  # noqa: S311 - else most would be of the first model


def _replayed(setting, hostile, neighbour, **changes):
    """What both runs told, and the second run's watch."""
    told = []
    watch = None
    for data in neighbours(setting.model, neighbour, hostile):
        with Watch(neighbour, follows=watch) as watch:
            told.append(told_by(federation(setting, data, **changes)))
    return told, watch


def _check(setting, hostile, neighbour, **changes):
    told, watch = _replayed(setting, hostile, neighbour, **changes)
    watch.check()
    watch.check_charges()
    assert watch.updates == watch.follows.updates
    assert told[0] == told[1]
    assert told[0]["error"] is None
    assert len(told[0]["records"]) > 1
    return watch


def _id(value):
    return str(value) if isinstance(value, Setting | str) else f"record {value.place} of client {value.client}"


@pytest.mark.parametrize(("setting", "hostile", "neighbour"), QUICK, ids=_id)
def test_neighbouring_data_sets(setting, hostile, neighbour):
    _check(setting, hostile, neighbour)


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "hostile", "neighbour"), PAIRS, ids=_id)
def test_all_pairs_of_neighbouring_data_sets(setting, hostile, neighbour):
    _check(setting, hostile, neighbour)


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "hostile", "neighbour"), PAIRS[::5], ids=_id)
def test_neighbouring_data_sets_without_the_native_kernels(setting, hostile, neighbour):
    with native.disabled():
        _check(setting, hostile, neighbour)


ON_THE_GRID = [pair for pair in PAIRS if pair[0].built().release == "step"]
QUICK_ON_THE_GRID = _covering((s, h, n) for s, h, n in ON_THE_GRID[::7] if s.model in ("linear", "scatter_linear"))


def _check_on_the_grid(setting, hostile, neighbour):
    """Its sums are exact, so that a record which is not drawn changes no bit of any."""
    watch = _check(setting, hostile, neighbour, noise="grid")
    for found, release in zip(watch.comparisons, watch.releases, strict=True):
        assert found.distance <= found.allowed  # not even by rounding
        assert found.distance == 0 or release.what[1] == neighbour.client


@pytest.mark.parametrize(("setting", "hostile", "neighbour"), QUICK_ON_THE_GRID, ids=_id)
def test_neighbouring_data_sets_with_noise_on_a_grid(setting, hostile, neighbour):
    _check_on_the_grid(setting, hostile, neighbour)


@pytest.mark.slow
@pytest.mark.parametrize(("setting", "hostile", "neighbour"), ON_THE_GRID[::2], ids=_id)
def test_every_other_pair_with_noise_on_a_grid(setting, hostile, neighbour):
    _check_on_the_grid(setting, hostile, neighbour)


def test_the_pairs_cover_all_that_ships():
    """Taken from the registries: what is added to one of them is replayed, or this test fails."""
    for pairs in (PAIRS, QUICK):
        assert {setting.method for setting, *_ in pairs} == set(METHODS)
        assert {setting.policy for setting, *_ in pairs} == {name for name in POLICIES if not is_raw(name)}
        assert {setting.model for setting, *_ in pairs} == set(MODELS)
        assert {dict(setting.options).get("variant") for setting, *_ in pairs} == {None, "dpsgd", "output"}
        assert {hostile for _, hostile, _ in pairs} == set(HOSTILE)
        assert {neighbour for *_, neighbour in pairs} == set(NEIGHBOURS)
    assert len(PAIRS) >= 200
    met = {(setting.model, hostile) for setting, hostile, _ in PAIRS}
    assert met == set(itertools.product(MODELS, HOSTILE))


@pytest.mark.parametrize("model", MODELS)
def test_a_record_that_matters_is_seen_to_matter(model):
    """Else all of the above could be equal because the record was never drawn."""
    setting = next(setting for setting in PRIVATE if setting.model == model and setting.policy == "fixed")
    watch = _check(setting, "usual", NEIGHBOURS[0])
    for found, release in zip(watch.comparisons, watch.releases, strict=True):
        _, client = release.what
        is_its_own = client == NEIGHBOURS[0].client
        assert found.distance > 0.9 * found.allowed if is_its_own else found.distance == 0


def test_a_record_without_gradient_changes_no_bit_of_a_run():
    """The divisor is q n with the public n: where a record pulls nowhere, not even the sums before noise differ."""
    setting = next(s for s in PRIVATE if (s.model, s.policy) == ("scatter_linear", "ali"))
    watch = _check(setting, "empty", NEIGHBOURS[1])  # its logits have no bias
    assert watch.furthest == 0
    for ours, theirs in zip(watch.releases, watch.follows.releases, strict=True):
        assert all(torch.equal(ours.noised[name], theirs.noised[name]) for name in ours.noised)


def test_a_client_whose_batches_are_empty_is_charged_as_any_other():
    alone = NEIGHBOURS[3]
    setting = next(s for s in PRIVATE if (s.model, s.policy) == ("linear", "fixed"))
    _, without = neighbours(setting.model, alone, "usual")
    with Watch(alone, follows=Watch(alone)) as watch:  # as D': its only record is never drawn
        training = federation(setting, without)
        told_by(training)
    assert training.epsilons[alone.client] == training.epsilons[0] > 0
    released = [release for release in watch.releases if release.what[1] == alone.client]
    assert len(released) == 6
    for release in released:
        assert all(bool((total == 0).all()) for total in release.total.values())
        assert all(bool((noised != 0).any()) for noised in release.noised.values())


RAW = [setting for setting in settings() if is_raw(setting.policy)]


QUICK_RAW = ("ali_dpfl", "linear")


@pytest.mark.parametrize(
    "setting",
    [pytest.param(s, marks=[] if (s.method, s.model) == QUICK_RAW else pytest.mark.slow) for s in RAW],
    ids=str,
)
def test_unnoised_signals_are_seen_to_leak(setting):
    """Marked as not private, and they are not: the same releases, and one record more changes what is planned."""
    told, watch = _replayed(setting, "long", NEIGHBOURS[0], max_rounds=6, max_local_steps=12)
    assert all('"covers_everything": false' in record for record in told[0]["records"])
    assert told[0]["records"] != told[1]["records"]
    first, second = ([(plan.steps, raw) for _, plan, *_, raw, _ in run.updates] for run in (watch.follows, watch))
    assert first[0] != second[0]  # what its client sent in the first round
    if (
        setting.model != "compact_cnn"
    ):  # whose tanh bounds one record's part of the curvature: τ stays 1 in so few rounds
        assert [steps for steps, _ in first] != [steps for steps, _ in second]
    assert {setting.policy for setting in RAW} == {name for name in POLICIES if is_raw(name)} != set()
