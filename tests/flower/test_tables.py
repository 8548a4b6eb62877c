"""Tables over nodes: vaults in this process, a server that has the schema alone."""

import json
import math
import tomllib

import polars as pl
import pytest
import torch

from alidpfl.config.load import load_config
from alidpfl.errors import ConfigError, NodesMissingError
from alidpfl.flower.config import from_run_config
from alidpfl.flower.engine import VaultEngine
from alidpfl.flower.nodes import Failure, gather
from alidpfl.flower.run import run_over_nodes
from alidpfl.runs import execute, load_model
from alidpfl.runs.data import load_data, simulation_data
from alidpfl.runs.tables import default_clip_norm, with_table_defaults
from alidpfl.store import RunDirectory
from alidpfl.tables import read_schema
from alidpfl.tables.held_out import held_out_key
from alidpfl.vault.enrolment import enrol
from alidpfl.vault.folder import VaultFolder, status
from alidpfl.vault.policy import make_policy
from alidpfl.vault.service import public_info
from alidpfl.vault.sources import TableSource
from tests.runs.command import alidpfl
from tests.tables.parts import TOML, hospitals, table, task_table
from tests.vault.parts import machine, without_lock

from .deployment import Loopback, finished, out_of, start_vault
from .fakes import NODE_IDS, Clock, FakeLink, run_config
from .test_flower_command import flat

SIZES = (150, 250, 120)
SEED = 5


@pytest.fixture
def no_waiting(monkeypatch):
    """Time passes by sleeping only."""
    clock = Clock()
    for function in (VaultEngine.__init__, gather):
        defaults = dict(function.__kwdefaults__)
        monkeypatch.setattr(function, "__kwdefaults__", {**defaults, "clock": clock, "sleep": clock.sleep})


def settings_of(folder, *more, files=()):
    """Return a run's settings; on the server without rows, in a simulation with them."""
    named = [str(path) for path in files]
    changes = [
        "data.name=table",
        f"data.schema_file={json.dumps(str(folder / 'schema.toml'))}",
        *([f"data.files={json.dumps(named)}"] if named else []),
        "privacy.accountant=rdp",
        "privacy.sample_rate=0.1",
        "privacy.noise_multiplier=3",
        "federation.max_rounds=3",
        "run.processes=1",
        "run.name=compared",
        f"run.seed={SEED}",
    ]
    return with_table_defaults(load_config(overrides=[*changes, *more]))


def enrolled(folder, data, settings, schema, **changes):
    """Enrol a file with the key and the seed of a simulation, and with limits that the schema gives."""
    opened = {"noise_multiplier": 0.9 * settings.privacy.statistics_noise} if settings.has_statistics else None
    values = {
        "unsafe": ["seeded-noise"],
        "seed": settings.run.seed,
        "data": {"unit": settings.privacy.unit, "max_records": settings.max_records},
        "budget": {"epsilon": 8.0, "delta": settings.privacy.delta},
        "accounting": {"kind": "planned", "accountant": "rdp"},
        "terms": {"sample_rate": 0.1, "min_noise_multiplier": 3.0},
        "model": {"name": "linear", "loss": settings.model.loss, "quantile": settings.model.quantile},
        "limits": {"max_steps_per_round": 100, "max_clip_norm": default_clip_norm(schema, "linear")},
        "service": {"seconds_per_round": 0.005, "seconds_per_step": 0.001, "seconds_per_query": 0.05},
        "statistics": opened,
    }
    key = held_out_key(settings.run.seed).hex()
    source = TableSource(path=str(data), canonical_schema=schema.canonical(), held_out_key=key)
    enrol(folder, source, make_policy({**values, **changes}, "test"))
    return VaultFolder(path=folder)


class VaultNode:
    """A node in this process with a real vault."""

    def __init__(self, folder: VaultFolder, partition: int) -> None:
        self.vault, self.partition = without_lock(folder), partition

    def info(self) -> dict:
        return public_info(self.vault.enrolment, self.vault.policy)

    def train_bytes(self, content: bytes) -> bytes:
        return self.vault.answer(content)


@pytest.fixture
def link(tmp_path):
    """Return a function that enrols every file by a schema and returns the link to their nodes."""
    opened = []

    def make(files, schemas, settings=None, **changes):
        nodes, settings = {}, settings or settings_of(tmp_path)
        for number, (path, schema) in enumerate(zip(files, schemas, strict=True)):
            folder = enrolled(tmp_path / f"vault-{number}", path, settings, schema, **changes)
            nodes[NODE_IDS[number]] = VaultNode(folder, number)
            opened.append(nodes[NODE_IDS[number]].vault)
        return FakeLink(nodes)

    yield make
    for vault in opened:
        vault.ledger.close()


def same_model(first, second) -> bool:
    ours, theirs = (RunDirectory.open(out).read_model()[0] for out in (first, second))
    return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.usefixtures("no_waiting")
def test_the_run_is_the_simulated_one_and_predicts_raw_rows(tmp_path, link):
    files = hospitals(tmp_path, SIZES)
    schema = read_schema(tmp_path / "schema.toml")
    execute(settings_of(tmp_path, files=files), tmp_path / "simulated")
    out = tmp_path / "out"
    settings = settings_of(tmp_path)
    run_over_nodes(link(files, [schema] * 3), run_config(out, settings, simulation=False))
    assert same_model(out, tmp_path / "simulated")
    found, expected = (load_model(run).predict(files[0]) for run in (out, tmp_path / "simulated"))
    assert (found == expected).all()
    assert RunDirectory.open(out).summary()["accuracy"] is None  # the server has no rows
    table(5).drop("died").write_csv(tmp_path / "new.csv")
    done = alidpfl("predict", out, tmp_path / "new.csv", "-o", tmp_path / "scores.csv")
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / "scores.csv").read_text().count("\n") == 6
    for number in range(3):
        assert status(tmp_path / f"vault-{number}")["rounds_released"] == 3


PERSONS = ("privacy.unit=person", "privacy.max_records=2")


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize(("kind", "times"), [("class", 3), ("number", 24)])  # noise hides the errors of few numbers
def test_the_run_over_vaults_of_persons_is_the_simulated_one(tmp_path, link, kind, times):
    """It trains, standardises numbers, and evaluates by person."""
    files = hospitals(tmp_path, [times * size for size in SIZES], kind=kind, has_persons=True)
    schema = read_schema(tmp_path / "schema.toml")
    private = settings_of(tmp_path, *PERSONS, "evaluation.private=true", files=files)
    simulated = execute(private, tmp_path / "simulated")
    out, settings = tmp_path / "out", settings_of(tmp_path, *PERSONS)
    nodes = link(files, [schema] * 3, settings, evaluation={})
    outcome = run_over_nodes(nodes, run_config(out, settings, simulation=False))
    assert settings.has_statistics == (kind == "number")
    assert same_model(out, tmp_path / "simulated")
    assert evaluations(out) == evaluations(tmp_path / "simulated") != []
    assert (outcome.metrics, outcome.unit, outcome.held_out) == (simulated.metrics, "person", simulated.held_out)
    found, expected = (load_model(run).predict(files[0]) for run in (out, tmp_path / "simulated"))
    assert (found == expected).all()
    told = RunDirectory.open(out).read_model()[1]
    assert (told["unit"], told["max_records"]) == ("person", "2")
    assert "all records of a person" in told["protects"]
    for number, path in enumerate(files):
        persons = set(pl.read_csv(path)["patient"])
        assert status(tmp_path / f"vault-{number}")["num_records"] < len(persons) <= times * SIZES[number] // 2
    assert [len(data) for data in simulation_data(private, load_data(private)).groups] == [
        nodes.nodes[node].info()["num_records"] for node in NODE_IDS
    ]


OTHER_UNITS = [
    (PERSONS, (), 'unit="person" and max_records=2', 'unit="record"'),
    ((), PERSONS, 'unit="record"', 'unit="person" and max_records=2'),
    (PERSONS, (PERSONS[0], "privacy.max_records=3"), "max_records=2", "max_records=3"),
]


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("units", OTHER_UNITS)
def test_vaults_of_another_unit_are_left_out_by_name_before_they_are_asked(tmp_path, link, units):
    of_vaults, of_run, theirs, ours = units
    files = hospitals(tmp_path, SIZES, has_persons=True)
    schema = read_schema(tmp_path / "schema.toml")
    nodes = link(files, [schema] * 3, settings_of(tmp_path, *of_vaults))
    settings = settings_of(tmp_path, *of_run)
    with pytest.raises(NodesMissingError):
        run_over_nodes(nodes, run_config(tmp_path / "out", settings, simulation=False))
    names = [nodes.nodes[node].info()["vault"] for node in NODE_IDS]
    for name in names:
        (line,) = (line for line in nodes.told if name in line)
        assert "left out" in line
        assert theirs in line.partition(" and this run")[0]
        assert ours in line.partition(" and this run")[2]
    assert not any(question == "train" for question, _ in nodes.asked)
    assert all(status(tmp_path / f"vault-{number}")["units_spent"] == 0 for number in range(3))


@pytest.mark.usefixtures("no_waiting")
def test_a_run_that_protects_rows_of_persons_says_so(tmp_path, link):
    files = hospitals(tmp_path, SIZES, has_persons=True)
    nodes = link(files, [read_schema(tmp_path / "schema.toml")] * 3)
    run_over_nodes(nodes, run_config(tmp_path / "out", settings_of(tmp_path), simulation=False))
    assert any("warning: " in line and "privacy.unit" in line for line in nodes.told)
    groups = RunDirectory.open(tmp_path / "out").summary()["group_epsilon"]
    assert groups
    assert all(value > 2 for value in groups.values())


TASKS = [
    ("number", ()),
    ("number", ("model.loss=huber",)),
    ("number", ("model.loss=poisson",)),
    ("number", ("model.loss=quantile", "model.quantile=0.9")),
    ("labels", ()),
]


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize(("kind", "changes"), TASKS)
def test_the_run_of_another_task_is_the_simulated_one(tmp_path, link, kind, changes):
    files = hospitals(tmp_path, SIZES, kind=kind)
    schema = read_schema(tmp_path / "schema.toml")
    settings = settings_of(tmp_path, *changes)
    execute(settings_of(tmp_path, *changes, files=files), tmp_path / "simulated")
    out = tmp_path / "out"
    run_over_nodes(link(files, [schema] * 3, settings), run_config(out, settings, simulation=False))
    assert same_model(out, tmp_path / "simulated")
    found, expected = (load_model(run).predict(files[0]) for run in (out, tmp_path / "simulated"))
    assert found.tobytes() == expected.tobytes()
    released = [status(tmp_path / f"vault-{number}")["rounds_released"] for number in range(3)]
    assert released == 3 * [settings.training_rounds]


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize(("kind", "metric"), [("number", "r2"), ("labels", "auc")])
def test_the_server_evaluates_another_task(tmp_path, link, kind, metric):
    files = hospitals(tmp_path, SIZES, kind=kind)
    schema = read_schema(tmp_path / "schema.toml")
    task_table(kind, 80, seed=9).write_csv(tmp_path / "test.csv")
    settings = settings_of(tmp_path, files=[tmp_path / "test.csv"])
    nodes = link(files, [schema] * 3)
    outcome = run_over_nodes(nodes, run_config(tmp_path / "out", settings, simulation=False))
    assert (outcome.accuracy, outcome.covers_everything) == (None, True)
    assert math.isfinite(outcome.metrics[metric])
    assert any(f"{metric} {outcome.metrics[metric]:.4g}" in line for line in nodes.told)
    if kind == "number":  # in days, not in the scaled unit
        assert 1 < outcome.baselines["rmse"] < 15


@pytest.mark.usefixtures("no_waiting")
def test_vaults_of_another_loss_are_left_out_before_they_are_asked(tmp_path, link):
    files = hospitals(tmp_path, SIZES, kind="number")
    schema = read_schema(tmp_path / "schema.toml")
    nodes = link(files, [schema] * 3, settings_of(tmp_path, "model.loss=huber"))
    with pytest.raises(NodesMissingError):
        run_over_nodes(nodes, run_config(tmp_path / "out", settings_of(tmp_path), simulation=False))
    assert sum('loss="huber"' in line for line in nodes.told) == 3
    assert not any(question == "train" for question, _ in nodes.asked)
    assert all(status(tmp_path / f"vault-{number}")["units_spent"] == 0 for number in range(3))


@pytest.mark.usefixtures("no_waiting")
def test_the_server_evaluates_on_public_rows_only(tmp_path, link):
    files = hospitals(tmp_path, SIZES)
    schema = read_schema(tmp_path / "schema.toml")
    table(80, seed=9).write_csv(tmp_path / "test.csv")
    settings = settings_of(tmp_path, files=[tmp_path / "test.csv"])
    outcome = run_over_nodes(link(files, [schema] * 3), run_config(tmp_path / "out", settings, simulation=False))
    assert 0 < outcome.accuracy <= 100
    assert outcome.covers_everything
    with pytest.raises(ConfigError, match="public test rows"):
        run_over_nodes(FakeLink({}), run_config(tmp_path / "no", settings_of(tmp_path, files=files), simulation=False))


def evaluations(out):
    """The rounds with metrics, and what their evaluations cost."""
    return [(r.number, r.metrics, r.intervals, r.held_out) for r in RunDirectory.open(out).records() if r.metrics]


@pytest.mark.usefixtures("no_waiting")
def test_vaults_evaluate_as_the_simulation_does(tmp_path, link):
    files = hospitals(tmp_path, SIZES)
    schema = read_schema(tmp_path / "schema.toml")
    simulated = execute(settings_of(tmp_path, "evaluation.private=true", files=files), tmp_path / "simulated")
    nodes = link(files, [schema] * 3, evaluation={})
    outcome = run_over_nodes(nodes, run_config(tmp_path / "out", settings_of(tmp_path), simulation=False))
    assert evaluations(tmp_path / "out") == evaluations(tmp_path / "simulated") != []
    assert (outcome.metrics, outcome.held_out) == (simulated.metrics, simulated.held_out)
    assert outcome.covers_everything
    assert [question for question, _ in nodes.asked].count("release") == 3
    told = status(tmp_path / "vault-0")
    assert (told["evaluation"]["answered"], told["rounds_released"]) == (3, 3)
    assert told["evaluation"]["epsilon_spent"] == pytest.approx(outcome.held_out.epsilon, rel=1e-6)


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("problem", ["offline", "garbage", "another", "too large", "refused"])
def test_a_client_that_gives_no_evaluation_is_left_out(tmp_path, link, problem):
    files = hospitals(tmp_path, SIZES)
    nodes = link(files, [read_schema(tmp_path / "schema.toml")] * 3, evaluation={})

    def hook(question, content, honest):
        if question != "release":
            return honest
        return {
            "offline": Failure(code="offline", reason="gone"),
            "garbage": b"garbage",
            "another": honest.replace(b'"request', b'"nothing', 1) if isinstance(honest, bytes) else honest,
            "too large": bytes(2 << 20),
            "refused": Failure(code="budget", reason="spent"),
        }[problem]

    nodes.hooks[NODE_IDS[1]] = hook
    outcome = run_over_nodes(nodes, run_config(tmp_path / "out", settings_of(tmp_path), simulation=False))
    assert outcome.held_out.clients == 2
    assert any("client 1 is left out" in line for line in nodes.told)
    assert outcome.rounds == 3


@pytest.mark.usefixtures("no_waiting")
def test_evaluations_that_no_vault_allows_are_refused_or_left_out(tmp_path, link):
    files = hospitals(tmp_path, SIZES)
    nodes = link(files, [read_schema(tmp_path / "schema.toml")] * 3)
    wanted = settings_of(tmp_path, "evaluation.private=true")
    with pytest.raises(ConfigError, match=r"evaluation\.private"):
        run_over_nodes(nodes, run_config(tmp_path / "no", wanted, simulation=False))
    outcome = run_over_nodes(nodes, run_config(tmp_path / "out", settings_of(tmp_path), simulation=False))
    assert (outcome.metrics, outcome.held_out) == ({}, None)
    assert not any(question == "release" for question, _ in nodes.asked)


@pytest.mark.usefixtures("no_waiting")
@pytest.mark.parametrize("of_server", [False, True])
def test_vaults_of_another_schema_are_refused_by_name_and_hash(tmp_path, link, of_server):
    files = hospitals(tmp_path, SIZES)
    schema = read_schema(tmp_path / "schema.toml")
    (tmp_path / "other.toml").write_text(TOML.replace("110", "100"))
    other = read_schema(tmp_path / "other.toml")
    nodes = link(files, [schema, other, schema] if not of_server else [other] * 3)
    with pytest.raises(NodesMissingError) as refused:
        run_over_nodes(nodes, run_config(tmp_path / "out", settings_of(tmp_path), simulation=False))
    told = str(refused.value)
    assert schema.sha256 in told
    assert other.sha256 in told
    assert str(NODE_IDS[1]) in told or of_server
    assert any(str(node) in told for node in NODE_IDS)
    assert "age" not in told
    assert not any(question == "train" for question, _ in nodes.asked)
    assert all(status(tmp_path / f"vault-{number}")["units_spent"] == 0 for number in range(3))


@pytest.mark.usefixtures("no_waiting")
def test_a_run_continues_with_the_defaults_of_its_schema(tmp_path, link):
    """A run config that names the schema alone gets the same defaults when it is submitted again."""
    files = hospitals(tmp_path, SIZES)
    nodes = link(files, [read_schema(tmp_path / "schema.toml")] * 3)
    given = run_config(tmp_path / "out", settings_of(tmp_path), simulation=False)
    for key in ("method.clip_norm", "method.learning_rate", "model.name", "method.policy", "run.randomness"):
        given.pop(key)
    first = run_over_nodes(nodes, given)
    assert first.rounds == run_over_nodes(nodes, given).rounds == 3
    assert RunDirectory.open(tmp_path / "out").config()["model"]["name"] == "linear"


# ------------------------------------------------------------------------------------------------------------- commands


def test_init_takes_the_settings_from_the_schema(tmp_path):
    hospitals(tmp_path)
    table(20).write_csv(tmp_path / "test.csv")
    where = [tmp_path / "app", "--schema", tmp_path / "schema.toml", "--test", tmp_path / "test.csv", "--nodes", 3]
    done = alidpfl("flower", "init", *where)
    assert done.exit_code == 0, done.stderr
    app = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    config, options = from_run_config(flat(app["config"]))
    bound = default_clip_norm(read_schema(tmp_path / "schema.toml"), "linear")
    assert (config.model.name, config.policy, config.method.clip_norm) == ("linear", "ratio", bound)
    assert (config.data.files, options.nodes) == ((str(tmp_path / "test.csv"),), 3)


@pytest.mark.parametrize(("more", "message"), [(["--test", "test.csv"], "--schema"), (["--schema", "s"], "s")])
def test_init_refuses_incomplete_tables(tmp_path, more, message):
    done = alidpfl("flower", "init", tmp_path / "app", *more)
    assert done.exit_code == 2
    assert message in done.stderr


def test_init_needs_the_number_of_nodes(tmp_path):
    hospitals(tmp_path)
    done = alidpfl("flower", "init", tmp_path / "app", "--schema", tmp_path / "schema.toml")
    assert done.exit_code == 2
    assert "--nodes" in done.stderr


# ------------------------------------------------------------------------------------------------------- real processes


@pytest.mark.parametrize(
    ("kind", "unit"),
    [
        ("number", PERSONS),
        *(pytest.param(kind, (), marks=pytest.mark.slow) for kind in ("number", "class", "labels")),
    ],
)
def test_a_deployment_trains_and_evaluates_on_tables_as_the_simulation_does(tmp_path, kind, unit):
    """What the runs over vaults in this process show above, once more in processes."""
    files = hospitals(tmp_path, [8 * size for size in SIZES], kind=kind, has_persons=bool(unit))
    schema = read_schema(tmp_path / "schema.toml")
    private = settings_of(tmp_path, *unit, "evaluation.private=true", "evaluation.releases=1", files=files)
    execute(private, tmp_path / "simulated")
    folder = tmp_path / "deployment"
    folder.mkdir()
    with Loopback(folder, nodes=3) as loopback:
        loopback.start_superlink()
        for number, path in enumerate(files):
            with machine(folder / "state"):
                enrolled(loopback.vault_folder(number), path, settings_of(tmp_path, *unit), schema, evaluation={})
            start_vault(loopback, number)
        loopback.register_nodes()
        for number in range(3):
            loopback.start_node(number)
        app = folder / "app"
        changes = [
            "privacy.accountant=rdp",
            "privacy.sample_rate=0.1",
            "privacy.noise_multiplier=3",
            "run.name=compared",
            *unit,
        ]
        changes += ["federation.max_rounds=3", "run.processes=1", f"run.seed={SEED}", "evaluation.releases=1"]
        changes += ["federation.max_client_weight=1", "federation.max_size_ratio=1e9"]  # as in the simulation
        where = ["--schema", tmp_path / "schema.toml", "--nodes", "3", "--out", out_of(app)]
        loopback.alidpfl("flower", "init", app, *where, *(part for one in changes for part in ("--set", one)))
        loopback.submit(app)
        finished(loopback, app)
    assert same_model(out_of(app), tmp_path / "simulated")
    assert evaluations(out_of(app)) == evaluations(tmp_path / "simulated") != []
    found, expected = (load_model(run).predict(files[0]) for run in (out_of(app), tmp_path / "simulated"))
    assert (found == expected).all()
