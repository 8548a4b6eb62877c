"""Vaults whose unit of privacy is a person: enrolment, rounds, queries, slots, and errors for the owner alone."""

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from alidpfl.data.table_sums import noised_sum_of_rows
from alidpfl.dpsgd import Groups
from alidpfl.errors import ConfigError, DataError
from alidpfl.federation import client as client_module
from alidpfl.federation.client import ClientData, LocalTrainer, release_stream
from alidpfl.methods import make_method
from alidpfl.models import make_model
from alidpfl.releases.queries import EvaluationQuery, ReleasePlan, StatisticsQuery
from alidpfl.simulation.runner import Runner, SimulationData
from alidpfl.tables.standardise import RowStandardiser
from alidpfl.tables.statistics import Layout
from alidpfl.vault import training
from alidpfl.vault.enrolment import enrol
from alidpfl.vault.folder import ENROLMENT, POLICY, VaultFolder, status
from alidpfl.vault.messages import (
    STANDARDISER,
    ReleaseRequest,
    decode_answer,
    decode_released,
    encode,
    flat,
    standardiser_shapes,
)
from alidpfl.vault.policy import make_policy, read_policy
from alidpfl.vault.refusals import RefusalCode, VaultRefusedError
from alidpfl.vault.service import public_info
from alidpfl.vault.sources import SplitSource
from tests.runs.command import alidpfl
from tests.tables.parts import TOML

from .parts import (
    NUM_CLASSES,
    NUM_FEATURES,
    CountingTrainer,
    body,
    machine,
    made_vault,
    opened,
    policy_values,
    request,
    spent,
    weights,
)
from .persons import (
    MOST,
    SIZES,
    UNIT,
    held_out_persons,
    made_persons,
    person_schema,
    person_table,
    person_table_vault,
    person_vault,
)

ROWS = person_table(persons=40, seed=1)
SEEDED = {"unsafe": ["seeded-noise"], "seed": 9}
SERVICE = {"seconds_per_round": 0.005, "seconds_per_step": 0.001, "seconds_per_query": 0.01}
MEASURED = {"service__seconds_per_round": None, "service__seconds_per_step": None}
OLDER = Path(__file__).parent / "older"
OLDER_HEAD = "2:4f867b3f1ec2692ac658181bf3cbc5cd9a3a92044c1fce19e2d8c0c908e547c8"


# ----------------------------------------------------------------------------------------------------------- enrolment


def test_the_number_of_persons_is_public_and_that_of_their_records_is_not(tmp_path):
    infos = []
    for name, sizes in (("few", SIZES), ("many", (*SIZES[:-1], 100))):
        folder = person_vault(tmp_path / name, sizes)
        with opened(folder) as vault:
            infos.append({**public_info(vault.enrolment, vault.policy), "vault": "a random name"})
            answer, _ = decode_answer(vault.answer(body()))
    assert infos[0] == infos[1]
    assert infos[0]["num_records"] == answer.num_records == len(SIZES)
    assert infos[0]["data"] == {"unit": "person", "max_records": MOST}
    told = status(folder.path)
    assert (told["num_records"], told["unit"], told["max_records"]) == (len(SIZES), "person", MOST)
    assert "all records of a person at this owner" in told["protects"]


def init(folder, data, *more, **terms):
    given = {"epsilon": 4, "delta": 1e-3, "sample_rate": 0.2, "min_noise_multiplier": 2, "max_steps_per_round": 5}
    given |= {"accountant": "rdp", **terms}
    options = [str(part) for key, value in given.items() for part in (f"--{key.replace('_', '-')}", value)]
    return alidpfl("vault", "init", "--dir", folder, "--data", data, *options, *more)


def init_file(folder, data, *more):
    return init(folder, data, *more, num_classes=NUM_CLASSES, max_clip_norm=1, model="linear")


def test_init_and_status_say_what_is_protected(tmp_path):
    made_persons(tmp_path / "own.npz")
    done = init_file(tmp_path / "file", tmp_path / "own.npz", "--unit", "person", "--max-records", MOST)
    assert done.exit_code == 0, done.stderr
    assert f"enrolled {len(SIZES)} persons" in done.stdout
    shown = alidpfl("vault", "status", "--dir", tmp_path / "file").stdout
    assert "all records of a person at this owner" in shown
    ROWS.write_csv(tmp_path / "rows.csv")
    (tmp_path / "schema.toml").write_text('person = "patient"\n' + TOML)
    done = init(tmp_path / "table", tmp_path / "rows.csv", "--schema", tmp_path / "schema.toml", "--unit", "person")
    assert done.exit_code == 0, done.stderr
    assert "one record" not in done.stderr
    assert read_policy(tmp_path / "table" / POLICY).data.max_records == 4
    alone = init(tmp_path / "rows", tmp_path / "rows.csv", "--schema", tmp_path / "schema.toml")
    assert "--unit person" in alone.stderr


def test_an_array_of_persons_is_not_ignored_in_silence(tmp_path):
    made_persons(tmp_path / "own.npz")
    done = init_file(tmp_path / "vault", tmp_path / "own.npz")
    assert done.exit_code == 0, done.stderr
    assert "--unit person" in done.stderr
    assert f"enrolled {sum(SIZES)} records" in done.stdout


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--max-records", 3], "max_records"),
        (["--unit", "person", "--max-records", 0], "--max-records"),
        (["--unit", "patient"], "--unit"),
    ],
)
def test_init_refuses_terms_that_do_not_fit_together(tmp_path, more, message):
    made_persons(tmp_path / "own.npz")
    done = init_file(tmp_path / "vault", tmp_path / "own.npz", *more)
    assert (done.exit_code, message in done.stderr) == (2, True), done.stderr
    assert not (tmp_path / "vault").exists()


def test_data_without_persons_cannot_protect_them(tmp_path):
    with pytest.raises(ConfigError, match="array `person`"):
        made_vault(tmp_path, **UNIT)
    with pytest.raises(ConfigError, match="schema"):
        _table_without_persons(tmp_path)
    source = SplitSource(name="synthetic", client=0, clients=2, partition="natural")
    with pytest.raises(ConfigError, match="leave the unit out"):
        enrol(tmp_path / "split", source, make_policy(policy_values(**UNIT), "test"))


def _table_without_persons(tmp_path):
    from .tables import table_vault

    table_vault(tmp_path / "table", ROWS.drop("patient"), **UNIT)


EDITS = {
    "k changed": ("max_records = 3", "max_records = 2"),
    "records": ('unit = "person"\nmax_records = 3', 'unit = "record"'),
    "left out": ('[data]\nunit = "person"\nmax_records = 3\n', ""),
}


@pytest.mark.parametrize("edit", EDITS)
def test_a_policy_with_another_unit_is_refused(tmp_path, edit):
    folder = person_vault(tmp_path)
    path, (old, new) = folder.path / POLICY, EDITS[edit]
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))
    with pytest.raises(ConfigError, match=r"data\."), opened(folder):
        pass
    path.write_text(text)
    with opened(folder) as vault:
        assert vault.answer(body())


def test_a_vault_of_records_never_becomes_one_of_persons(tmp_path):
    made_persons(tmp_path / "vault.npz")
    folder = made_vault(tmp_path)
    changed = make_policy(policy_values(**UNIT), "test")
    (folder.path / POLICY).write_text(changed.to_toml())
    with pytest.raises(ConfigError, match=r"data\.unit was record"), opened(folder):
        pass


def test_an_enrolment_with_another_unit_is_refused(tmp_path):
    """The ledger's first line has its hash."""
    folder = person_vault(tmp_path)
    for path in (folder.path / ENROLMENT, folder.path / POLICY):
        text = path.read_text()
        path.write_text(text.replace('"max_records": 3', '"max_records": 30').replace("records = 3", "records = 30"))
        assert path.read_text() != text
    with pytest.raises(DataError, match=ENROLMENT), opened(folder):
        pass


def test_changed_persons_are_refused_where_they_are_the_unit(tmp_path):
    folder = person_vault(tmp_path / "persons")
    plain = person_vault(tmp_path / "records", data__unit="record", data__max_records=None)
    for parent in (tmp_path / "persons", tmp_path / "records"):
        arrays = dict(np.load(parent / "vault.npz"))
        arrays["person"][arrays["person"] == "p001"] = "p002"  # fewer persons, of the same records
        np.savez(parent / "vault.npz", **arrays)
    with pytest.raises(DataError, match="persons changed"), opened(folder):
        pass
    with opened(plain) as vault:
        assert vault.answer(body())


def test_a_folder_of_an_older_version_serves_records_as_before(tmp_path, monkeypatch):
    """A snapshot from before there was a unit of privacy. One round was asked for then."""
    shutil.copytree(OLDER, tmp_path / "older")
    for path in (tmp_path / "older").rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    monkeypatch.chdir(tmp_path / "older")
    folder = VaultFolder(path=tmp_path / "older" / "vault")
    with machine(tmp_path / "state"), opened(folder, known_head=OLDER_HEAD) as vault:
        assert "data" not in vault.enrolment.pinned
        assert public_info(vault.enrolment, vault.policy)["data"] == {"unit": "record", "max_records": None}
        stored = (OLDER / "vault" / "answers" / "00000001.safetensors").read_bytes()
        assert vault.answer(body()) == stored  # the hash of a request is the same
        assert vault.trainer._data.groups is None
        answer, _ = decode_answer(vault.answer(body(round=1)))
        assert answer.num_records == 40
    told = status(folder.path)
    assert (told["unit"], told["rounds_released"]) == ("record", 2)
    text = folder.path / POLICY
    text.write_text(text.read_text() + '[data]\nunit = "person"\nmax_records = 3\n')
    with machine(tmp_path / "state"), pytest.raises(ConfigError, match=r"data\.unit"), opened(folder):
        pass


# -------------------------------------------------------------------------------------------------------------- rounds


@pytest.mark.parametrize("field", ["unit", "max_records", "data", "k", "groups", "persons"])
def test_no_request_can_change_the_unit(tmp_path, field):
    folder, trainer = person_vault(tmp_path), CountingTrainer()
    with opened(folder, trainer) as vault:
        for value in ("record", 1, 100, None, {"unit": "record"}):
            values = {**request().model_dump(), field: value}
            content = safetensors.numpy.save(weights(), {"alidpfl": json.dumps(values)})
            with pytest.raises(VaultRefusedError) as refused:
                vault.answer(content)
            assert refused.value.code is RefusalCode.MALFORMED
    assert (spent(folder), trainer.steps) == (0, 0)


@pytest.mark.parametrize("noise", ["gaussian", "grid"])
def test_a_round_is_that_of_a_simulation(tmp_path, noise):
    folder = person_vault(tmp_path, noise=noise, **SEEDED)
    asked = request(run="r", steps=3, clip_norm=0.7, signals=["secants", "gradient_norm"])
    with opened(folder) as vault:
        answer, after = decode_answer(vault.answer(encode(asked, weights(0.1))))
        shapes, records = vault.enrolment.shapes, vault.enrolment.source.load().trained
    data = SimulationData(
        inputs=records.records.inputs,
        targets=records.records.targets,
        clients=[torch.arange(sum(SIZES))],
        evaluation={},
        groups=[Groups.of(records.persons)],
        max_records=MOST,
    )
    model = make_model("linear", (NUM_FEATURES,), NUM_CLASSES, hidden=1, seed=5)
    method = make_method("fedavg_dp", clip_norm=0.7, noise_multiplier=2.0)
    simulated = Runner(model=model, method=method, data=data, seed=9, run="r", noise=noise).train(
        torch.from_numpy(flat(weights(0.1), shapes)), asked.plan(3)
    )
    assert flat(after, shapes).tobytes() == simulated.params.numpy().tobytes()
    assert (answer.secants, answer.gradient_norm) == (simulated.secants, simulated.gradient_norm)
    assert data.sizes == [answer.num_records] == [len(SIZES)]


def drawn_by(tmp_path, monkeypatch, name, sizes):
    """Return the shapes of what every step takes."""
    shapes, step = [], client_module.dp_sgd_step

    def watched(clipper, inputs, targets, settings, random, **drawn):
        shapes.append((tuple(drawn["rows"].shape), tuple(drawn["weights"].shape), settings.expected_batch_size))
        return step(clipper, inputs, targets, settings, random, **drawn)

    monkeypatch.setattr(client_module, "dp_sgd_step", watched)
    with opened(person_vault(tmp_path / name, sizes, **SEEDED)) as vault:
        for number in range(4):
            vault.answer(body(round=number, steps=3, run="r"))
    monkeypatch.undo()
    return shapes


def test_the_work_of_a_round_does_not_depend_on_how_many_records_a_person_has(tmp_path, monkeypatch):
    few = drawn_by(tmp_path, monkeypatch, "few", (1,) * len(SIZES))
    many = drawn_by(tmp_path, monkeypatch, "many", (1,) * (len(SIZES) - 1) + (200,))
    assert few == many
    assert {shape[1] for shape, _, _ in few} == {MOST}
    assert any(shape[0] > 0 for shape, _, _ in few)
    assert {divisor for _, _, divisor in few} == {0.2 * len(SIZES)}


# ------------------------------------------------------------------------------------------------------------- queries


def query(vault, kind, number=0, **changes) -> ReleaseRequest:
    own = vault.enrolment.source.table
    queries = {
        "evaluation": EvaluationQuery(task="class", outputs=2),
        "statistics": StatisticsQuery(bins=5, with_target=True, size=Layout(own, bins=5).size),
    }
    values = {"noise_multiplier": 5.0, "schema_sha256": vault.enrolment.schema_sha256, **changes}
    return ReleaseRequest(run="r", round=number, query=queries[kind], **values)


def released(vault, asked, **arrays):
    shapes = vault.enrolment.shapes if asked.needs_weights else {}
    sent = {name: np.full(shape, 0.3, np.float32) for name, shape in shapes.items()}
    return decode_released(vault.answer(encode(asked, {**sent, **arrays})), asked)[1]


def querying(parent, rows=ROWS, **changes):
    return person_table_vault(
        parent, rows, **{"evaluation": {}, "statistics__noise_multiplier": 3.0, "service": SERVICE, **SEEDED, **changes}
    )


def test_persons_are_held_out_as_a_whole(tmp_path):
    out = held_out_persons(ROWS)
    names = ROWS["patient"].to_list()
    with opened(querying(tmp_path)) as vault:
        own, held = vault.trainer._data, vault.trainer._held_out.records
        assert (len(own), len(held)) == (len(set(names)) - len(out), len(out))
        assert len(held.inputs) == sum(name in out for name in names)
        assert len(own.inputs) + len(held.inputs) == len(names)
        assert vault.enrolment.num_records == len(own)


def test_an_evaluation_is_that_of_a_simulation(tmp_path):
    with opened(querying(tmp_path)) as vault:
        asked = query(vault, "evaluation")
        told, held = released(vault, asked), vault.trainer._held_out.records
        model = vault.trainer._model
    assert held.groups is not None
    model.load_state_dict({name: torch.full_like(value, 0.3) for name, value in model.state_dict().items()})
    assert np.array_equal(_simulated(model, held, asked), told)
    by_rows = ClientData(inputs=held.inputs, targets=held.targets, rows=held.rows)
    assert not np.array_equal(_simulated(model, by_rows, asked), told)


def _simulated(model, held, asked):
    nobody = torch.zeros(0, dtype=torch.int64)
    data = SimulationData(
        inputs=held.inputs[:0], targets=held.targets[:0], clients=(nobody,), evaluation={}, held_out=(held,)
    )
    method = make_method("fedavg_dp", clip_norm=1.0, noise_multiplier=1.0)
    params = torch.cat([value.detach().reshape(-1) for value in model.parameters()])
    plan = ReleasePlan(client=0, number=0, noise_multiplier=asked.noise_multiplier, query=asked.query)
    return Runner(model=model, method=method, data=data, seed=9, run="r").release(params, plan).values


@pytest.mark.parametrize("kind", ["class", "number"])
def test_statistics_count_every_person_once(tmp_path, kind):
    rows = person_table(kind, seed=1)
    loss = "poisson" if kind == "number" else None
    folder = person_table_vault(
        tmp_path, rows, kind, statistics__noise_multiplier=3.0, service=SERVICE, model__loss=loss, **SEEDED
    )
    with opened(folder) as vault:
        told, own = released(vault, query(vault, "statistics")), vault.enrolment.source.load(loss).trained
    layout = Layout(person_schema(kind), bins=5)
    expected = noised_sum_of_rows(
        own.records.inputs.numpy(),
        own.records.targets.numpy() - (kind == "number"),  # poisson's numbers are one larger
        layout,
        noise_multiplier=5.0,
        random=release_stream(9, "r", 0, 0, "statistics"),
        groups=Groups.of(own.persons),
        max_records=MOST,
    )
    assert np.array_equal(told, expected.numpy())


def test_only_drawn_rows_are_standardised(tmp_path, monkeypatch):
    """All rows would take a time that shows how many there are."""
    width, random = person_schema().width, np.random.default_rng(0)
    arrays = {part: random.uniform(0.2, 0.9, width).astype(np.float32) for part in ("mean", "scale")}
    sent = {f"{STANDARDISER}{part}": values for part, values in arrays.items()}
    assert set(standardiser_shapes(width)) == set(sent)
    sizes, rows = [], RowStandardiser.rows
    monkeypatch.setattr(RowStandardiser, "rows", lambda self, x: sizes.append(len(x)) or rows(self, x))
    asked = request(run="r", steps=4, standardised=True)
    with opened(querying(tmp_path)) as vault:
        own, held = vault.trainer._data, vault.trainer._held_out.records
        shapes = vault.enrolment.shapes
        zeros = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        asked = asked.model_copy(update={"schema_sha256": vault.enrolment.schema_sha256})
        after = decode_answer(vault.answer(encode(asked, {**zeros, **sent})))[1]
        assert len(sizes) == 4
        assert all(size % MOST == 0 and size < len(own) * MOST for size in sizes)
        sizes.clear()
        told = released(vault, query(vault, "evaluation", standardised=True), **sent)
        assert sizes == [1] * (len(held) * MOST)
        model, everyone = vault.trainer._model, RowStandardiser(**arrays, bound=person_schema().norm_bound)
    monkeypatch.undo()
    moved = dataclasses.replace(held, inputs=torch.from_numpy(everyone.rows(held.inputs.numpy())))
    model.load_state_dict({name: torch.full_like(value, 0.3) for name, value in model.state_dict().items()})
    with_query = ReleaseRequest(run="r", round=0, noise_multiplier=5.0, query=EvaluationQuery(task="class", outputs=2))
    assert np.array_equal(_simulated(model, moved, with_query), told)
    data = SimulationData(
        inputs=torch.from_numpy(everyone.rows(own.inputs.numpy())),
        targets=own.targets,
        clients=[own.rows],
        evaluation={},
        groups=[own.groups],
        max_records=MOST,
    )
    method = make_method("fedavg_dp", clip_norm=1.0, noise_multiplier=2.0)
    simulated = Runner(model=model, method=method, data=data, seed=9, run="r")
    update = simulated.train(torch.zeros(sum(map(np.size, zeros.values()))), asked.plan(4))
    assert flat(after, shapes).tobytes() == update.params.numpy().tobytes()


# --------------------------------------------------------------------------------------------------------------- slots


def test_slots_are_measured_on_made_up_persons_of_k_records(tmp_path, monkeypatch):
    seen, train = [], LocalTrainer.train
    monkeypatch.setattr(LocalTrainer, "train", lambda self, *given: seen.append(given) or train(self, *given))
    with opened(person_vault(tmp_path, **MEASURED)) as vault:
        own, cost = vault.trainer._data, vault.trainer.cost(request())
    assert cost.step > 0
    for _, data, plan, _ in seen:
        assert (len(data), data.max_records) == (len(SIZES), MOST)
        assert data.groups.offsets.diff().tolist() == [MOST] * len(SIZES)
        assert data.inputs.untyped_storage().data_ptr() != own.inputs.untyped_storage().data_ptr()
        assert plan.sample_rate * len(SIZES) == pytest.approx(round(plan.sample_rate * len(SIZES)))


def measured(tmp_path, monkeypatch, most):
    """Return what the slots of all requests are measured with, for persons with 1 to `most` rows."""
    persons = [f"p{number:03}" for number in range(40)]
    rows = person_table(seed=1).unique("patient", keep="first", maintain_order=True).sort("patient")
    assert rows["patient"].to_list() == persons
    rows = rows.select(rows.columns).head(40)
    rows = rows[[number for number in range(40) for _ in range(1 + number % most)]]
    seen = []

    def form(data):
        return None if data is None else (len(data), data.rows.tolist(), data.offsets.tolist())

    evaluated, summed, train = training.evaluated, training.noised_sum_of_rows, LocalTrainer.train

    def watched_evaluation(asked, model, inputs, targets, own, **given):
        seen.append((tuple(inputs.shape), len(own), form(given["groups"]), given["max_records"]))
        return evaluated(asked, model, inputs, targets, own, **given)

    def watched_sum(inputs, targets, layout, **given):
        seen.append((inputs.shape, targets.shape, form(given["groups"]), given["max_records"]))
        return summed(inputs, targets, layout, **given)

    def watched_training(self, params, data, plan, random):
        seen.append((tuple(data.inputs.shape), form(data.groups), data.max_records, plan.sample_rate))
        return train(self, params, data, plan, random)

    monkeypatch.setattr(training, "evaluated", watched_evaluation)
    monkeypatch.setattr(training, "noised_sum_of_rows", watched_sum)
    monkeypatch.setattr(LocalTrainer, "train", watched_training)
    moved, move = [], RowStandardiser.rows
    monkeypatch.setattr(RowStandardiser, "rows", lambda self, x: moved.append(len(x)) or move(self, x))
    changes = {"service": {}, "evaluation": {}, "statistics__noise_multiplier": 3.0}
    with opened(person_table_vault(tmp_path / str(most), rows, **changes)) as vault:
        for standardised in (False, True):
            asked = query(vault, "evaluation", standardised=standardised)
            assert vault.trainer.cost(asked).round > 0
            assert vault.trainer.cost(request(standardised=standardised)).step > 0
        vault.trainer.cost(query(vault, "statistics"))
        own = vault.trainer._data
    monkeypatch.undo()
    assert moved
    assert max(moved) <= MOST * len(own)  # steps move the rows of a batch, and evaluations one row at a time
    return {repr(one) for one in seen}, len(own.inputs)


def test_slots_do_not_depend_on_how_many_records_a_person_has(tmp_path, monkeypatch):
    few, many = (measured(tmp_path, monkeypatch, most) for most in (1, 6))
    assert few[0] == many[0]
    assert few[1] < many[1]


def test_few_rows_stand_for_persons_with_many(tmp_path, monkeypatch):
    """A large k takes no more memory than a public bound."""
    monkeypatch.setattr(training, "_MOST_TRIAL_ROWS", 50)
    with opened(person_vault(tmp_path, data__max_records=1000)) as vault:
        made_up = vault.trainer._made_up(None)
        assert vault.answer(body())
    assert made_up.groups.offsets.diff().tolist() == [5] * len(SIZES)
    assert made_up.max_records == 1000


# -------------------------------------------------------------------------------------------------------------- inputs


NAME = "seventeen-9431"
BAD = {
    "too short": np.array(["a"] * 10),
    "too long": np.array(["a"] * 100),
    "a name for each value": np.array([["a", "b"]] * sum(SIZES)),
    "numbers with a point": np.linspace(17.9431, 18, sum(SIZES)),
    "NaN": np.full(sum(SIZES), np.nan),
    "flags": np.ones(sum(SIZES), bool),
    "Python objects": np.array([NAME, None] * (sum(SIZES) // 2), object),
    "bytes": np.array([NAME.encode()] * sum(SIZES)),
    "times": np.zeros(sum(SIZES), "datetime64[D]"),
    "an empty name": np.array([""] + [NAME] * (sum(SIZES) - 1)),
    "complex numbers": np.full(sum(SIZES), 17.9431j),
    "one value": np.array(9431),
    "nobody": np.zeros(0, np.int64),
}


@pytest.mark.parametrize("unit", ["record", "person"])
@pytest.mark.parametrize("bad", BAD)
def test_bad_persons_are_one_clear_error_without_values(tmp_path, bad, unit):
    path = made_persons(tmp_path / "own.npz")
    arrays = {**np.load(path), "person": BAD[bad]}
    np.savez(path, **arrays)
    done = init_file(tmp_path / "vault", path, "--unit", unit)
    assert done.exit_code == 2, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "person" in done.stderr
    assert str(path) in done.stderr
    assert not any(value in done.stderr for value in (NAME, "9431"))
    assert not (tmp_path / "vault").exists()


def test_whole_numbers_name_persons_as_well(tmp_path):
    path = made_persons(tmp_path / "own.npz")
    arrays = dict(np.load(path))
    arrays["person"] = np.array([int(name[1:]) for name in arrays["person"]])
    np.savez(path, **arrays)
    done = init_file(tmp_path / "vault", path, "--unit", "person")
    assert done.exit_code == 0, done.stderr
    assert f"enrolled {len(SIZES)} persons" in done.stdout
