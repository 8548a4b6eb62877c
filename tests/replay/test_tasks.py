"""Every loss that ships, run with and without one record, whose target may be NaN, infinite, huge or tiny."""

import pytest

from alidpfl.dpsgd import make_loss
from alidpfl.types import LOSS_KINDS

from .coupling import Watch
from .federations import CLASSES, NEIGHBOURS, Setting, federation, task_neighbours, told_by
from .hostile import HOSTILE

LOSSES = [name for name, kind in LOSS_KINDS.items() if kind != "class"]
SETTINGS = [
    Setting(method="fedavg_dp", options=(), policy="fixed", model="linear"),
    Setting(method="ali_dpfl", options=(), policy="ali", model="mlp"),
    Setting(method="adap_dpfl", options=(), policy="fixed", model="linear"),
    Setting(method="pe_dpfl", options=(("variant", "dpsgd"),), policy="fixed", model="linear"),
    Setting(method="pe_dpfl", options=(("variant", "output"),), policy="fixed", model="mlp"),
]
CASES = [
    (loss, where, hostile, SETTINGS[number % len(SETTINGS)], NEIGHBOURS[number % len(NEIGHBOURS)])
    for number, (loss, where, hostile) in enumerate(
        (loss, where, hostile)
        for where in ("targets", "inputs")
        for hostile in (HOSTILE if where == "targets" else ("usual", "one NaN", "long"))
        for loss in LOSSES
    )
]


def replayed(loss, where, hostile, setting, neighbour, **changes):
    kind, told, watch = LOSS_KINDS[loss], [], None
    outputs = CLASSES if kind == "labels" else 1
    for data in task_neighbours(kind, neighbour, hostile, where):
        with Watch(neighbour, follows=watch) as watch:
            told.append(told_by(federation(setting, data, loss=make_loss(loss, level=0.8), outputs=outputs, **changes)))
    return told, watch


def check(*case, **changes):
    told, watch = replayed(*case, **changes)
    watch.check()
    watch.check_charges()
    assert watch.updates == watch.follows.updates
    assert told[0] == told[1]
    assert told[0]["error"] is None
    assert len(told[0]["records"]) > 1
    return watch


def _id(value):
    return value if isinstance(value, str) else str(value) if isinstance(value, Setting) else f"client {value.client}"


@pytest.mark.parametrize(("loss", "where", "hostile", "setting", "neighbour"), CASES, ids=_id)
def test_neighbouring_data_sets(loss, where, hostile, setting, neighbour):
    check(loss, where, hostile, setting, neighbour)


ON_THE_GRID = [case for case in CASES if case[3].model == "linear" and case[3].built().release == "step"][::4]


@pytest.mark.parametrize(("loss", "where", "hostile", "setting", "neighbour"), ON_THE_GRID, ids=_id)
def test_neighbouring_data_sets_with_noise_on_a_grid(loss, where, hostile, setting, neighbour):
    check(loss, where, hostile, setting, neighbour, noise="grid")


def test_the_cases_cover_losses_and_records():
    met = {(loss, hostile) for loss, where, hostile, *_ in CASES if where == "targets"}
    assert met == {(loss, hostile) for loss in LOSSES for hostile in HOSTILE}
    assert {setting for *_, setting, _ in CASES} == set(SETTINGS)
    assert {neighbour for *_, neighbour in CASES} == set(NEIGHBOURS)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_target_alone_matters(loss):
    """Else all of the above could be equal because no target was ever read."""
    kind, neighbour, models = LOSS_KINDS[loss], NEIGHBOURS[0], []
    outputs = CLASSES if kind == "labels" else 1
    for value in (0.0, 1.0) if kind == "labels" else (-0.5 if loss != "poisson" else 0.0, 5.0):
        data, _ = task_neighbours(kind, neighbour, "usual", "targets")
        data.targets[neighbour.place] = value
        with Watch(neighbour):  # the record is in every batch
            told = told_by(federation(SETTINGS[0], data, loss=make_loss(loss), outputs=outputs))
        models.append(told["model"])
    assert models[0] != models[1]
