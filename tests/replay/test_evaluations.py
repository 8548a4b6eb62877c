"""Evaluations with and without one held-out record: noised sums move by its vector, and nothing else moves."""

import asyncio
import json

import httpx
import numpy as np
import polars as pl
import pytest

from alidpfl.dpsgd import Groups, RandomStream
from alidpfl.releases.queries import EvaluationQuery
from alidpfl.vault.messages import ReleaseRequest, decode_released, encode
from alidpfl.vault.service import Service
from tests.tables.parts import table
from tests.vault.parts import opened, request
from tests.vault.persons import MOST, held_out_persons, person_table, person_table_vault
from tests.vault.tables import held_out, table_vault

from .test_vaults import _status

ROWS = table(80, seed=3)
HOSTILE_WEIGHTS = (0.3, 3e38)
NOISE = 5.0
QUERIES = (
    {},
    {"edges": (0.5,), "largest_loss": 100.0},
    {"edges": tuple(np.linspace(0.01, 0.99, 99).tolist())},
)
REFUSED = ({"noise_multiplier": 0.1}, {"noise_multiplier": 1e9}, {"schema_sha256": None}, {"round": 0})


def _without(number: int) -> pl.DataFrame:
    return ROWS.filter(np.arange(len(ROWS)) != number)


def _bodies(vault) -> list[bytes]:
    """Queries with the weights of an honest and of a hostile server, queries to refuse, and rounds between them."""
    shapes, found = vault.enrolment.shapes, []
    for number, value in enumerate(HOSTILE_WEIGHTS):
        random = np.random.default_rng(number)
        weights = {name: (value * random.normal(size=shape)).clip(-3e38, 3e38).astype(np.float32)
                   for name, shape in shapes.items()}  # fmt: skip
        for place, changes in enumerate(QUERIES):
            query = EvaluationQuery(task="class", outputs=2, **changes)
            values = {"run": "a", "round": 10 * number + place + 1, "noise_multiplier": NOISE, "query": query}
            values["schema_sha256"] = vault.enrolment.schema_sha256
            found.append(encode(ReleaseRequest(**values), weights))
        for changes in REFUSED:
            found.append(encode(ReleaseRequest(**{**values, "round": 10 * number + 8, **changes}), weights))
        found.append(encode(request(round=number, schema_sha256=vault.enrolment.schema_sha256), weights))
    return [*found, found[0], found[0][:-1]]  # again, and cut off


def _told(folder) -> tuple[list, list, dict]:
    """Return the noised sums of every query, all else that left the vault, and its status."""
    with opened(folder) as vault:
        vault.clock = lambda: 0
        service, bodies = Service(vault), _bodies(vault)
        try:
            *answers, info = asyncio.run(_answers(bodies, httpx.ASGITransport(service.app)))
        finally:
            service.stop()
        sums, rest = [], [info]
        for content, (code, headers, answer) in zip(bodies, answers, strict=True):
            if code == 200 and b"alidpfl-vault-query-1" in content:
                asked = ReleaseRequest.model_validate_json(_metadata(content))
                told, values = decode_released(answer, asked)
                sums.append((asked.query, values.astype(np.float64)))
                rest.append((code, headers, told, values.shape, len(answer)))
            else:
                rest.append((code, headers, answer))
        rest.append([(r.part, r.units, r.noise_multiplier) for r in vault.ledger.book.reservations.values()])
    return sums, rest, _status(folder.path)


def _metadata(content: bytes) -> str:
    end = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:end])["__metadata__"]["alidpfl"]


async def _answers(bodies, transport) -> list[tuple]:
    async with httpx.AsyncClient(transport=transport, base_url="http://vault") as client:
        found = []
        for content in bodies:
            answer = await client.post("/v1/release", content=content)
            found.append((answer.status_code, dict(answer.headers), answer.content))
        info = (await client.get("/v1/info")).json()
        found.append((200, {}, {**info, "vault": None}))
        return found


def _vault(parent, rows):
    service = {"seconds_per_round": 0.005, "seconds_per_step": 0.001, "seconds_per_query": 0.1}
    changes = {"unsafe": ["seeded-noise"], "seed": 3, "evaluation": {}, "service": service, "budget__epsilon": 30.0}
    return (person_table_vault if "patient" in rows.columns else table_vault)(parent, rows, **changes)


@pytest.mark.parametrize("place", [0, -1])
def test_a_held_out_row_moves_noised_sums_and_nothing_else(tmp_path, caplog, place):
    """The noise is frozen by its seed. Each sum moves by a vector of norm at most 1, up to the grid of the noise."""
    gone = int(np.flatnonzero(held_out(ROWS))[place])
    one, two = (_told(_vault(tmp_path / name, rows)) for name, rows in (("with", ROWS), ("without", _without(gone))))
    assert one[1:] == two[1:]
    assert _furthest(one[0], two[0]) > 0.5  # it does take part
    assert caplog.text == ""


def _furthest(first, second) -> float:
    """Return how far a sum moved. No sum may move by more than 1 and the grid of the noise."""
    assert len(first) == len(second) == len(HOSTILE_WEIGHTS) * len(QUERIES) + 1
    furthest = 0.0
    for (query, with_it), (_, without_it) in zip(first, second, strict=True):
        moved = np.linalg.norm(with_it - without_it)
        rounding = NOISE / 256 * np.sqrt(query.layout.size)
        assert moved <= 1 + rounding
        furthest = max(furthest, moved)
    return furthest


@pytest.fixture
def own_draws(monkeypatch):
    """Let rows be drawn from a stream of their own: one person more would move the noise's stream on."""
    draw = Groups.draw

    def coupled(groups, persons, max_records, _random):
        return draw(groups, persons, max_records, RandomStream.seeded(11))

    monkeypatch.setattr(Groups, "draw", coupled)


@pytest.mark.usefixtures("own_draws")
@pytest.mark.parametrize(("most", "place"), [(MOST, 0), (MOST, 1), (6, -1)])
def test_a_held_out_person_moves_noised_sums_by_one_vector(tmp_path, caplog, most, place):
    """Also one with many more rows than k. It is the last one then: the others' draws stay the same."""
    rows = person_table(persons=60, seed=3, most=most)
    gone = sorted(held_out_persons(rows))[place]
    if place == -1:
        last = rows.filter(rows["patient"] == gone)
        rows = pl.concat([rows, *[last.with_columns(age=pl.lit(age)) for age in range(20, 90)]], how="vertical_relaxed")
    without = rows.filter(rows["patient"] != gone)
    assert len(rows) - len(without) > (MOST if place == -1 else 0)
    one, two = (_told(_vault(tmp_path / name, some)) for name, some in (("with", rows), ("without", without)))
    assert one[1:] == two[1:]
    assert _furthest(one[0], two[0]) > 0.5
    assert caplog.text == ""


@pytest.mark.usefixtures("own_draws")
def test_how_many_rows_held_out_persons_have_shows_in_nothing_but_noise(tmp_path):
    rows = person_table(persons=60, seed=3)
    out = sorted(held_out_persons(rows))
    many = pl.concat([rows, *[rows.filter(rows["patient"].is_in(out[:3]))] * 20])
    none = rows.filter(~rows["patient"].is_in(out))
    first, *others = (_told(_vault(tmp_path / str(k), some)) for k, some in enumerate((rows, many, none)))
    assert all(other[1:] == first[1:] for other in others)


def test_a_row_that_is_trained_on_moves_no_evaluation(tmp_path):
    """At the same weights, an evaluation does not depend on the training records: not to the last bit."""
    gone = int(np.flatnonzero(~held_out(ROWS))[3])
    one, two = (_told(_vault(tmp_path / name, rows)) for name, rows in (("with", ROWS), ("without", _without(gone))))
    assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(one[0], two[0], strict=True))
    assert len(one[0]) == len(two[0]) > 5


def test_how_many_rows_are_held_out_shows_in_nothing_but_noise(tmp_path):
    kept = ROWS.filter(~held_out(ROWS))
    one, two = (_told(_vault(tmp_path / name, rows)) for name, rows in (("with", ROWS), ("without", kept)))
    assert one[1:] == two[1:]
