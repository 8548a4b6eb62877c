"""A vault with and without one record, asked by an honest and by a hostile server: every byte that leaves it."""

import asyncio
from pathlib import Path
from typing import get_args

import httpx
import numpy as np
import polars as pl
import pytest
import torch

from alidpfl.releases.queries import StatisticsQuery
from alidpfl.tables.statistics import Layout
from alidpfl.vault.folder import status
from alidpfl.vault.messages import ReleaseRequest, encode
from alidpfl.vault.policy import ModelSection
from alidpfl.vault.service import Service, public_info
from tests.tables.parts import table, task_table
from tests.vault.parts import NUM_CLASSES, made_vault, opened, request
from tests.vault.persons import MOST, held_out_persons, person_table, person_table_vault, person_vault
from tests.vault.tables import held_out, table_vault

from .coupling import Neighbour, Watch
from .hostile import FINITE, HOSTILE, NOT_FINITE

NUM_RECORDS = 12
NEIGHBOUR = Neighbour(0, 7)
ASKED = (
    {},
    {"steps": 10**6},  # cut
    {"noise_multiplier": 1.0},  # refused
    {"signals": ["raw"]},  # refused
    {"signals": ["secants", "gradient_norm"], "steps": 3},
    {"method": "pe_dpfl", "options": {"draws": 2}},
    {"method": "pe_dpfl", "options": {"variant": "output"}},  # refused where the noise goes on steps
    {"method": "adap_dpfl", "options": None, "clip_norm": 0.01, "signals": ["gradient_norm"]},
    {"sample_rate": 1e-9, "steps": 3},  # batches of this record alone, or of none
    {"value": 1e30},  # weights of a hostile server
    {"round": 0},  # again
    {"round": 0, "steps": 3},  # again, changed
    {"round": 5, "run": "b"},
    {"round": 4, "run": "b"},  # back
    {"round": 30, "steps": 5},
    {"round": 31, "steps": 5},
    {"round": 32, "steps": 5},  # the budget of steps ends here at the latest
)
ON_UPDATES = {"method": "pe_dpfl", "options": {"variant": "output"}}
SHAPES = {"linear": (6,), "mlp": (6,), "compact_cnn": (1, 16, 16), "cnn": (1, 16, 16)}
CASES = [
    pytest.param(model, release, record, marks=[] if number in (1, 6, 11) and model == "linear" else pytest.mark.slow)
    for model in SHAPES
    for release in ("step", "update")
    for number, record in enumerate(HOSTILE)
]


@pytest.mark.parametrize(("model", "release", "record"), CASES)
def test_every_byte_that_leaves_a_vault(tmp_path, caplog, model, release, record):
    watch, told = None, []
    for has_it in (True, False):
        folder = _enrolled(tmp_path / str(has_it), model, release, record, has_it)
        with Watch(NEIGHBOUR, follows=watch) as watch, opened(folder) as vault:
            vault.clock = lambda: 0
            if has_it:
                records = vault.trainer._data.inputs  # files with NaN are refused, and the vault must not rest on it
                records[NEIGHBOUR.place] = HOSTILE[record](records[NEIGHBOUR.place])
            told.append([_asked(vault), list(vault.ledger.book.reservations.values())])
        told[-1].append(_status(folder.path))
    watch.check()
    assert watch.updates == watch.follows.updates
    assert told[0] == told[1]
    assert caplog.text == ""
    codes = [code for code, *_ in told[0][0]]
    assert codes.count(200) >= 4  # else equal refusals would prove little
    assert {403, 409} <= set(codes)


TABLE = table(40, seed=3)


def test_every_byte_that_leaves_a_vault_of_a_table(tmp_path, caplog):
    """The neighbour is another row in the same place: an outlier in every column, of the other class."""
    place, changed = _neighbouring_tables()
    watch, told = None, []
    for rows in (TABLE, changed):
        folder = table_vault(tmp_path / str(len(told)), rows, unsafe=["seeded-noise"], seed=3, **ROOMY)
        with Watch(Neighbour(0, place), follows=watch) as watch, opened(folder) as vault:
            vault.clock = lambda: 0
            told.append([_asked(vault), list(vault.ledger.book.reservations.values())])
        told[-1].append(_status(folder.path))
    watch.check()
    assert watch.updates == watch.follows.updates
    assert told[0] == told[1]
    assert caplog.text == ""
    assert [code for code, *_ in told[0][0]].count(200) >= 4


TASKS = [("number", None), ("number", "huber"), ("number", "poisson"), ("number", "quantile"), ("labels", None)]


@pytest.mark.parametrize(("kind", "loss"), TASKS)
def test_every_byte_that_leaves_a_vault_of_another_task(tmp_path, caplog, kind, loss):
    """The neighbour is a row with a huge number, or with the opposite of every label."""
    rows = task_table(kind, 40, seed=3)
    place, changed = _neighbouring_targets(kind, rows)
    watch, told = None, []
    for some in (rows, changed):
        changes = {"unsafe": ["seeded-noise"], "seed": 3, "model__loss": loss, "model__quantile": 0.8, **ROOMY}
        folder = table_vault(tmp_path / str(len(told)), some, kind, **changes)
        with Watch(Neighbour(0, place), follows=watch) as watch, opened(folder) as vault:
            vault.clock = lambda: 0
            told.append([_asked(vault), list(vault.ledger.book.reservations.values())])
        told[-1].append(_status(folder.path))
    watch.check()
    assert watch.furthest > 0
    assert watch.updates == watch.follows.updates
    assert told[0] == told[1]
    assert caplog.text == ""
    assert [code for code, *_ in told[0][0]].count(200) >= 4


@pytest.mark.parametrize("record", HOSTILE)
@pytest.mark.parametrize("kind", ["number", "labels"])
def test_every_byte_that_leaves_a_vault_with_a_hostile_target(tmp_path, caplog, kind, record):
    """Files with such targets are refused, and the vault must not rest on it."""
    watch, told = None, []
    for has_it in (True, False):
        random = np.random.default_rng(0)
        x = random.normal(size=(NUM_RECORDS, 6)).astype(np.float32)
        y = random.random((NUM_RECORDS, 3)).round() if kind == "labels" else random.random(NUM_RECORDS)
        (parent := tmp_path / str(has_it)).mkdir()
        np.savez(parent / "vault.npz", x=x, y=y.astype(np.float32))
        folder = made_vault(parent, num_classes=None, unsafe=["seeded-noise"], seed=3, **ROOMY)
        with Watch(NEIGHBOUR, follows=watch) as watch, opened(folder) as vault:
            vault.clock = lambda: 0
            if has_it:
                targets = vault.trainer._data.targets
                targets[NEIGHBOUR.place] = HOSTILE[record](targets[NEIGHBOUR.place])
            told.append([_asked(vault), list(vault.ledger.book.reservations.values())])
        told[-1].append(_status(folder.path))
    watch.check()
    assert watch.updates == watch.follows.updates
    assert told[0] == told[1]
    assert caplog.text == ""
    assert [code for code, *_ in told[0][0]].count(200) >= 4


QUICK_PERSONS = {("step", "usual"), ("step", "dropped for its norm"), ("step", "NaN"), ("update", "largest")}
PERSONS = [
    pytest.param(
        release, record, 1 + k % (MOST + 2), marks=[] if (release, record) in QUICK_PERSONS else pytest.mark.slow
    )
    for release in ("step", "update")
    for k, record in enumerate([*HOSTILE, "usual", "usual", "long", "long"])
]


@pytest.mark.parametrize(("release", "record", "count"), PERSONS)
def test_every_byte_that_leaves_a_vault_of_persons(tmp_path, caplog, release, record, count):
    """The neighbour is a whole person with so many hostile records. Somebody else with other records has the place."""
    watch, told = None, []
    for has_it in (True, False):
        folder, own = _persons(tmp_path / str(has_it), release, count, has_it)
        with Watch(NEIGHBOUR, follows=watch) as watch, opened(folder) as vault:
            vault.clock = lambda: 0
            if has_it:
                records = vault.trainer._data.inputs
                records[own] = torch.stack([HOSTILE[record](one) for one in records[own]])
            told.append([_asked(vault), list(vault.ledger.book.reservations.values())])
        told[-1].append(_status(folder.path))
    watch.check()
    assert watch.updates == watch.follows.updates
    assert told[0] == told[1]
    assert told[0][0][0][2]["num_records"] == NUM_RECORDS
    assert caplog.text == ""
    assert [code for code, *_ in told[0][0]].count(200) >= 4
    if (record, release) == ("usual", "step"):
        assert watch.furthest > 0.9  # she matters as much as one record


def _persons(parent: Path, release: str, count: int, has_it: bool):
    """Enrol persons of 1 to k + 2 records. Return the folder, and the rows of the one that is there or not."""
    parent.mkdir()
    sizes = [1 + number % (MOST + 2) for number in range(NUM_RECORDS)]
    sizes[NEIGHBOUR.place] = count if has_it else 1 + count % (MOST + 2)
    x, y = [], []
    for number, size in enumerate(sizes):
        random = np.random.default_rng(number + 1000 * (number == NEIGHBOUR.place and not has_it))
        y.append(random.integers(NUM_CLASSES, size=size))
        x.append(random.normal(size=(size, *SHAPES["linear"])).astype(np.float32))
    person = np.repeat(np.arange(NUM_RECORDS), sizes)
    np.savez(parent / "vault.npz", x=np.concatenate(x), y=np.concatenate(y), person=person)
    changes = {"terms__release": release, "budget__epsilon": 6.0 if release == "step" else 16.0}
    folder = person_vault(parent, unsafe=["seeded-noise"], seed=3, **changes)
    return folder, torch.from_numpy(np.flatnonzero(person == NEIGHBOUR.place))


def test_statistics_of_a_vault_of_persons(tmp_path):
    """One person more or less moves the sums by at most one row's bound, however many rows she has."""
    rows = person_table(persons=40, seed=3)
    name = sorted(set(rows["patient"]) - held_out_persons(rows))[NEIGHBOUR.place]
    hers = rows.filter(rows["patient"] == name)
    others = [hers.with_columns(age=pl.lit(0), died=pl.lit("yes"), smoker=pl.lit("no"))] * 9
    watch, told = None, []
    for some in (rows, pl.concat([rows.filter(rows["patient"] != name), *others], how="vertical_relaxed")):
        service = {"seconds_per_round": 0.005, "seconds_per_step": 0.001, "seconds_per_query": 0.1}
        changes = {"unsafe": ["seeded-noise"], "seed": 3, "statistics__noise_multiplier": 3.0, "service": service}
        folder = person_table_vault(tmp_path / str(len(told)), some, **changes, **ROOMY)
        with Watch(NEIGHBOUR, follows=watch) as watch, opened(folder) as vault:
            size = Layout(vault.enrolment.source.table, bins=9).size
            query = StatisticsQuery(bins=9, with_target=True, size=size)
            for number in range(3):
                values = {"round": number, "noise_multiplier": 6.0, "schema_sha256": vault.enrolment.schema_sha256}
                vault.answer(encode(ReleaseRequest(run="a", query=query, **values), {}))
            told.append(public_info(vault.enrolment, vault.policy)["num_records"])
    watch.check()
    assert watch.furthest > 0.5
    assert told[0] == told[1]


@pytest.mark.parametrize("change", ["removed", "changed"])
def test_a_held_out_person_changes_no_byte_that_leaves(tmp_path, change):
    rows, told = person_table(persons=30, seed=3), []
    name = sorted(held_out_persons(rows))[0]
    hers, others = rows.filter(rows["patient"] == name), rows.filter(rows["patient"] != name)
    changed = pl.concat([others, *[hers.with_columns(died=pl.lit("yes"))] * 7])
    for some in (rows, others if change == "removed" else changed):
        folder = person_table_vault(tmp_path / str(len(told)), some, unsafe=["seeded-noise"], seed=3, **ROOMY)
        with opened(folder) as vault:
            vault.clock = lambda: 0
            told.append([_asked(vault), _status(folder.path)])
    assert told[0] == told[1]


def _neighbouring_targets(kind, rows):
    """Return a trained row's place, and the rows with other targets in it that are not held out either."""
    is_held_out = held_out(rows, kind=kind)
    row = int(np.flatnonzero(~is_held_out)[NEIGHBOUR.place])
    others = rows.to_dicts()
    for age in range(500):
        changed = others[row] | {"age": age}
        if kind == "number":
            changed["days"] = 3e38
        else:
            changed |= {name: "no" if others[row][name] == "yes" else "yes" for name in ("sepsis", "stroke", "pain")}
        found = pl.DataFrame([*others[:row], changed, *others[row + 1 :]], schema=rows.schema)
        if (held_out(found, kind=kind) == is_held_out).all():
            return NEIGHBOUR.place, found
    raise AssertionError("no such row")


@pytest.mark.parametrize("change", ["removed", "changed"])
def test_a_held_out_row_changes_no_byte_that_leaves(tmp_path, change):
    is_held_out = held_out(TABLE)
    place = int(np.flatnonzero(is_held_out)[0])
    others = [row for number, row in enumerate(TABLE.to_dicts()) if number != place]
    if change == "changed":  # by another row that is held out
        candidates = [row for row, is_out in zip(MORE.to_dicts(), held_out(MORE), strict=True) if is_out]
        others.insert(place, candidates[0])
    told = []
    for rows in (TABLE, pl.DataFrame(others, schema=TABLE.schema)):
        folder = table_vault(tmp_path / str(len(told)), rows, unsafe=["seeded-noise"], seed=3, **ROOMY)
        with opened(folder) as vault:
            vault.clock = lambda: 0
            told.append([_asked(vault), _status(folder.path)])
    assert told[0] == told[1]
    assert told[0][0][0][2]["num_records"] == int((~is_held_out).sum())


MORE = table(40, seed=4)
ROOMY = {"budget__epsilon": 6.0}


def _neighbouring_tables():
    """Return a trained row's place among the trained rows, and the table with another trained row in its place."""
    is_held_out = held_out(TABLE)
    row = int(np.flatnonzero(~is_held_out)[NEIGHBOUR.place])
    for age in range(1000, 2000):
        outlier = {"age": age % 7 * 1e9, "creatinine": float(age), "sex": "unheard of", "smoker": "no", "died": "no"}
        rows = TABLE.with_columns(pl.col("age").cast(pl.Float64)).to_dicts()
        outlier["died"] = "no" if rows[row]["died"] == "yes" else "yes"
        rows[row] = outlier | {"creatinine": None if age % 2 else age / 500}
        changed = pl.DataFrame(rows)
        if (held_out(changed) == is_held_out).all():
            return NEIGHBOUR.place, changed
    raise AssertionError("no such row")


def test_all_models_of_a_vault_are_asked():
    assert set(SHAPES) == set(get_args(ModelSection.model_fields["name"].annotation))
    assert {**FINITE, **NOT_FINITE} == HOSTILE


def _enrolled(parent: Path, model: str, release: str, record: str, has_it: bool):
    parent.mkdir()
    random = np.random.default_rng(0)
    y = random.integers(NUM_CLASSES, size=NUM_RECORDS)
    x = random.normal(size=(NUM_RECORDS, *SHAPES[model])).astype(np.float32)
    if not has_it:
        x[NEIGHBOUR.place] *= -3
        y[NEIGHBOUR.place] = (y[NEIGHBOUR.place] + 1) % NUM_CLASSES
    elif record in FINITE:
        x[NEIGHBOUR.place] = FINITE[record](torch.from_numpy(x[NEIGHBOUR.place])).numpy()
    np.savez(parent / "vault.npz", x=x, y=y)
    return made_vault(
        parent,
        model__name=model,
        model__hidden=5,
        terms__release=release,
        budget__epsilon=6.0 if release == "step" else 16.0,
        unsafe=["seeded-noise"],
        seed=3,
    )


def _asked(vault) -> list[tuple]:
    """Status, headers and body of every answer over HTTP."""
    service = Service(vault)
    try:
        return asyncio.run(_answers(vault, httpx.ASGITransport(service.app)))
    finally:
        service.stop()


async def _answers(vault, transport: httpx.ASGITransport) -> list[tuple]:
    usual = ON_UPDATES if vault.policy.terms.release == "update" else {}
    bodies = [_body(vault, number, {**usual, **changes}) for number, changes in enumerate(ASKED)]
    bodies += [b"", b"\0" * 100, bodies[0][:-1], bodies[0] + bytes(2 << 20)]
    async with httpx.AsyncClient(transport=transport, base_url="http://vault") as client:
        info = (await client.get("/v1/info")).json()
        info.pop("vault")  # a random name
        told = [(200, {}, info)]
        for content in bodies:
            answer = await client.post("/v1/train", content=content)
            told.append((answer.status_code, dict(answer.headers), answer.content))
    return told


def _body(vault, number: int, changes: dict) -> bytes:
    values = {"round": number, "clip_norm": 0.5, **changes}
    value = values.pop("value", 0.01)
    random = np.random.default_rng(number)
    weights = {
        name: (value * random.normal(size=shape)).astype(np.float32) for name, shape in vault.enrolment.shapes.items()
    }
    task = {"loss": vault.enrolment.loss(vault.policy), "quantile": vault.policy.model.quantile}
    return encode(request(schema_sha256=vault.enrolment.schema_sha256, **task, **values), weights)


def _status(path: Path) -> dict:
    told = status(path)
    for name in ("vault", "head"):  # random names, and hashes that follow from them
        told.pop(name)
    told["last_refusals"] = [{**refusal, "time": 0} for refusal in told["last_refusals"]]
    return told
