"""What guards queries to a vault beside the account: system randomness, full noise, slots that no record sets."""

import dataclasses
import math

import numpy as np
import polars as pl
import pytest
import torch

from alidpfl.data import LabelledData
from alidpfl.dpsgd import RandomStream
from alidpfl.federation.client import ClientData
from alidpfl.methods import make_method
from alidpfl.releases.queries import EvaluationQuery, ReleasePlan, StatisticsQuery
from alidpfl.simulation.runner import Runner, SimulationData
from alidpfl.tables.standardise import RowStandardiser
from alidpfl.tables.statistics import Layout
from alidpfl.vault import training
from alidpfl.vault.messages import STANDARDISER, ReleaseRequest, decode_released, encode, standardiser_shapes
from alidpfl.vault.policy import make_policy
from alidpfl.vault.refusals import RefusalCode, VaultRefusedError
from alidpfl.vault.slots import Cost, Timetable
from alidpfl.vault.training import HeldOut
from tests.tables.parts import table

from .parts import opened, policy_values
from .tables import SHARE, held_out, schema, table_vault

ROWS = table(60, seed=1)
FINE = tuple(np.linspace(0.005, 0.995, 199).tolist())
QUERIES = {
    "evaluation": EvaluationQuery(task="class", outputs=2, edges=FINE),
    "statistics": StatisticsQuery(bins=100, with_target=True, size=Layout(schema(), bins=100).size),
}
SENSITIVITY = {"evaluation": 1.0, "statistics": Layout(schema(), bins=100).sensitivity}
MEASURED = {"seconds_per_round": 0.005, "seconds_per_step": 0.001}
SERVICE = {**MEASURED, "seconds_per_query": 0.01}
both = pytest.mark.parametrize("kind", QUERIES)


def asking(tmp_path, rows=ROWS, **changes):
    changes = {"service": SERVICE, "statistics__noise_multiplier": 5.0, **changes}
    return table_vault(tmp_path, rows, evaluation={}, **changes)


def question(vault, kind, number=0, noise=60.0, **changes) -> ReleaseRequest:
    return ReleaseRequest(
        run="a",
        round=number,
        noise_multiplier=noise,
        query=QUERIES[kind],
        schema_sha256=vault.enrolment.schema_sha256,
        **changes,
    )


def answered(vault, asked: ReleaseRequest, **arrays) -> np.ndarray:
    shapes = vault.enrolment.shapes if asked.needs_weights else {}
    weights = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    return decode_released(vault.answer(encode(asked, {**weights, **arrays})), asked)[1]


# ---------------------------------------------------------------------------------------------------------------- noise


@both
def test_the_noise_of_a_query_comes_from_the_system(tmp_path, monkeypatch, kind):
    made, secure = [], RandomStream.secure
    monkeypatch.setattr(RandomStream, "seeded", lambda *path: pytest.fail(f"seeded {path}"))
    monkeypatch.setattr(RandomStream, "secure", lambda: made.append(secure()) or made[-1])
    with opened(asking(tmp_path)) as vault:
        told = [answered(vault, question(vault, kind, number)) for number in range(3)]
    assert len(made) == 3
    assert all(stream.is_secure for stream in made)
    assert (told[0] != told[1]).mean() > 0.9  # noise is on a grid, so a few values may be equal


@both
def test_the_noise_that_leaves_has_the_deviation_that_was_charged(tmp_path, kind):
    """Within 5 standard errors, one run in two million fails. Rows add less than 3 % to the deviation."""
    with opened(asking(tmp_path, limits__max_queries=100)) as vault:
        repeats = math.ceil(1000 / QUERIES[kind].layout.size)
        told = np.concatenate([answered(vault, question(vault, kind, number)) for number in range(repeats)])
    deviation = np.sqrt(np.mean(told.astype(np.float64) ** 2)) / 60.0 / SENSITIVITY[kind]
    assert deviation == pytest.approx(1, abs=5 / math.sqrt(2 * told.size) + 0.03)
    assert told.size > 900  # so the tolerance is below 0.15, and σ / 1.5 would be seen


@both
def test_noise_that_the_grid_does_not_cover_is_refused_before_the_charge(tmp_path, kind):
    with opened(asking(tmp_path, noise="grid")) as vault:
        with pytest.raises(VaultRefusedError) as error:
            answered(vault, question(vault, kind, noise=5e4))
        assert error.value.code is RefusalCode.POLICY
        assert not vault.ledger.book.reservations
        assert answered(vault, question(vault, kind)).any()


@both
@pytest.mark.parametrize("noise", ["grid", "gaussian"])
def test_the_noise_is_of_the_owners_kind(tmp_path, monkeypatch, kind, noise):
    drawn, normal = [], RandomStream.normal
    with opened(asking(tmp_path, noise=noise)) as vault:
        monkeypatch.setattr(RandomStream, "normal", lambda self, count: drawn.append(count) or normal(self, count))
        assert answered(vault, question(vault, kind)).any()
    assert bool(drawn) == (noise == "gaussian")


def test_a_standardised_evaluation_equals_that_of_a_simulation(tmp_path):
    width, random = schema().width, np.random.default_rng(0)
    arrays = {part: random.uniform(0.2, 0.9, width).astype(np.float32) for part in ("mean", "scale")}
    with opened(asking(tmp_path, unsafe=["seeded-noise"], seed=3)) as vault:
        assert set(standardiser_shapes(width)) == {f"{STANDARDISER}{part}" for part in arrays}
        shapes = vault.enrolment.shapes
        weights = {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
        asked = question(vault, "evaluation", noise=1.0, standardised=True)
        told = answered(vault, asked, **weights, **{f"{STANDARDISER}{part}": array for part, array in arrays.items()})
        own, model = vault.trainer._held_out.records, vault.trainer._model
    model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    moved = RowStandardiser(**arrays, bound=schema().norm_bound).rows(own.inputs.numpy())
    params = torch.cat([value.detach().reshape(-1) for value in model.parameters()])
    for inputs, is_same in ((torch.from_numpy(moved), True), (own.inputs, False)):
        runner = simulated(model, inputs, own.targets, seed=3, run="a")
        plan = ReleasePlan(client=0, number=0, noise_multiplier=1.0, query=QUERIES["evaluation"])
        assert np.array_equal(runner.release(params, plan).values, told) == is_same


# ------------------------------------------------------------------------------------------------------- in simulations


def simulated(model, inputs, targets, seed=None, run=None) -> Runner:
    rows = torch.arange(len(targets))
    own = (ClientData(inputs=inputs, targets=targets, rows=rows),)
    data = SimulationData(inputs=inputs, targets=targets, clients=(rows,), evaluation={}, held_out=own)
    method = make_method("fedavg_dp", clip_norm=1.0, noise_multiplier=1.0)
    return Runner(model=model, method=method, data=data, seed=seed, run=run)


def test_a_secure_simulation_draws_from_the_system_with_the_deviation_that_was_charged(monkeypatch):
    """Within 5 standard errors: one run in two million fails. 12 records add less than 1 % to the deviation."""
    monkeypatch.setattr(RandomStream, "seeded", lambda *path: pytest.fail(f"seeded {path}"))
    runner = simulated(torch.nn.Linear(3, 2), torch.zeros(12, 3), torch.zeros(12, dtype=torch.int64))
    plan = ReleasePlan(client=0, number=1, noise_multiplier=60.0, query=QUERIES["evaluation"])
    told = np.stack([runner.release(torch.zeros(8), plan).values for _ in range(3)]).astype(np.float64) / 60.0
    assert np.sqrt(np.mean(told**2)) == pytest.approx(1, abs=5 / math.sqrt(2 * told.size) + 0.01)
    assert (told[0] != told[1]).mean() > 0.9  # noise is on a grid, so a few values may be equal


# ---------------------------------------------------------------------------------------------------------------- slots


class _Shape(tuple):
    """A shape that does not tell how many records there are."""

    def __getitem__(self, place):
        return tuple(self)[place] if place == slice(1, None) else pytest.fail("a number of records was read")

    def __len__(self):
        return pytest.fail("unused")


class _Poisoned(torch.Tensor):
    """Fails the test if anything but its shape and type is used. The first number of `private` shapes fails as well."""

    allowed = (torch.Tensor.shape.__get__, torch.Tensor.dtype.__get__, torch.Tensor.new_zeros)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func not in cls.allowed:
            pytest.fail(f"records were used: {func}")
        with torch._C.DisableTorchFunctionSubclass():
            found = func(*args, **(kwargs or {}))
        return _Shape(found) if func is cls.allowed[0] and getattr(args[0], "is_private", False) else found


def poisoned(tensor, *, is_private=False):
    found = tensor.clone().as_subclass(_Poisoned)
    found.__dict__["is_private"] = is_private
    return found


@both
@pytest.mark.parametrize("standardised", [False, True])
def test_slots_of_queries_are_measured_without_a_record(tmp_path, monkeypatch, kind, standardised):
    with opened(asking(tmp_path)) as vault:
        trainer = vault.trainer
        records = trainer._held_out.records
        for name in ("inputs", "targets"):
            monkeypatch.setitem(trainer._data.__dict__, name, poisoned(getattr(trainer._data, name)))
        for name in ("inputs", "targets", "rows"):
            monkeypatch.setitem(records.__dict__, name, poisoned(getattr(records, name), is_private=True))
        assert trainer.cost(question(vault, kind, standardised=standardised)).round > 0


def test_the_slot_of_an_evaluation_has_room_for_three_times_the_likely_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "_seconds", lambda _job, rows, _weights: 0.5 + 2.0 * len(rows))
    with opened(asking(tmp_path)) as vault:
        vault.trainer._held_out = dataclasses.replace(vault.trainer._held_out, likely=1000)
        assert vault.trainer.cost(question(vault, "evaluation")).round == pytest.approx(0.5 + 2.0 * 3 * 1000)


def test_the_slot_of_a_short_answer_does_not_cut_off_a_longer_one():
    """A server may ask for 2^k values and then for almost twice as many, which are measured together."""

    def measure(asked):
        measured.append(asked)
        return Cost(round=1.0 + asked.query.size, step=0.0)

    measured: list[ReleaseRequest] = []
    timetable = Timetable(make_policy(policy_values(service=MEASURED), "test"), measure)
    for size in (64, 127, 100):
        query = StatisticsQuery(bins=1, with_target=True, size=size)
        asked = ReleaseRequest(run="a", round=0, noise_multiplier=5.0, query=query)
        assert timetable.seconds(asked, 0) >= 2 * (1.0 + size)
    assert len(measured) == 1


def test_one_held_out_row_more_changes_neither_the_start_nor_the_slot(tmp_path, monkeypatch):
    """Equal rows are held out together, so there may be far more of them than is likely. No server may notice."""
    monkeypatch.setattr(training, "_seconds", lambda _job, rows, _weights: 0.5 + 2.0 * len(rows))
    same, is_held_out = ROWS.filter(held_out(ROWS))[:1], int(held_out(ROWS).sum())
    likely = HeldOut.of(LabelledData(inputs=torch.zeros(0, 1), targets=torch.zeros(0)), SHARE, len(ROWS) - is_held_out)
    room = likely.likely - is_held_out
    slots = set()
    for copies in (0, room - 1, room, room + 1, 3 * room, 300):
        folder = asking(tmp_path / str(copies), pl.concat([ROWS, *[same] * copies]), service=MEASURED)
        with opened(folder) as vault:
            assert len(vault.trainer._held_out.records) == is_held_out + copies
            asked = question(vault, "evaluation")
            slots.add(vault.slots.timetable.seconds(asked, 0))
            assert answered(vault, asked).any()
    assert len(slots) == 1
    assert slots.pop() > 2 * (0.5 + 2.0 * likely.likely)


def test_a_standardised_evaluation_has_a_slot_of_its_own(tmp_path):
    """Standardising the rows takes time. A measurement without it would be too short."""
    measured = []
    with opened(asking(tmp_path, service=MEASURED)) as vault:
        timetable = Timetable(vault.policy, lambda asked: measured.append(asked) or Cost(round=1.0, step=0.0))
        for standardised in (False, True, False, True):
            timetable.seconds(question(vault, "evaluation", standardised=standardised), 0)
    assert [asked.standardised for asked in measured] == [False, True]
