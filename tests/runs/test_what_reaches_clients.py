"""From a configuration to a client: what it trains with is what was accounted for, on its own records, once."""

import importlib

import numpy as np
import pytest
import torch

import alidpfl
from alidpfl.errors import ConfigError, DataError
from alidpfl.federation.client import LocalTrainer
from alidpfl.runs import execute, load_config, resume
from alidpfl.runs.execute import Listener
from alidpfl.runs.prepare import prepare
from alidpfl.store import RunDirectory

execution = importlib.import_module("alidpfl.runs.execute")  # the package has a function of that name

BASE = (
    "data.name=synthetic",
    "model.name=linear",
    "learning_rate=0.5",
    "max_rounds=3",
    "run.processes=1",
    "data.clients=4",
)


@pytest.fixture
def seen(monkeypatch):
    """(rows, plan, is_secure) of every client's round."""
    calls, real = [], LocalTrainer.train

    def spy(self, params, data, plan, random):
        calls.append((data.rows, plan, random.is_secure))
        return real(self, params, data, plan, random)

    monkeypatch.setattr(LocalTrainer, "train", spy)
    return calls


@pytest.mark.parametrize("partition", ["natural", "iid", "dirichlet"])
@pytest.mark.parametrize("randomness", ["seeded", "secure"])
def test_clients_train_on_their_own_records_as_accounted(seen, partition, randomness):
    config = load_config(overrides=[*BASE, f"partition={partition}", f"randomness={randomness}", "validation=0.2"])
    prepared = prepare(config)
    list(prepared.federation)
    terms = prepared.federation._ledger.to_json()["terms"]
    of_client = {}
    for rows, plan, is_secure in seen:
        assert plan.sample_rate == terms["sample_rate"] == config.privacy.sample_rate
        assert plan.noise_multiplier == terms["noise_multiplier"] == prepared.noise_multiplier
        assert (plan.release, is_secure) == ("step", randomness == "secure")
        assert torch.equal(of_client.setdefault(plan.client, rows), rows)
    everything = torch.cat(list(of_client.values()))
    assert len(of_client) == 4
    assert len(everything.unique()) == len(everything)  # no record is trained on by two
    assert len(everything) == pytest.approx(0.8 * len(prepared.dataset.train), abs=2)  # the rest is public
    if partition == "natural":
        for client, rows in of_client.items():
            assert set(rows.tolist()) <= set(prepared.dataset.natural_clients[client].tolist())
    public = prepared.federation._engine._data.evaluation["validation"][0]
    trained_on = {tuple(row.tolist()) for row in prepared.dataset.train.inputs[everything]}
    assert not any(tuple(row.tolist()) in trained_on for row in public)


def test_python_accounts_for_the_rate_that_clients_use(seen):
    clients = [(torch.randn(60, 5), torch.randint(2, (60,))) for _ in range(3)]
    privacy = alidpfl.Privacy(epsilon=3, delta=1e-3, sample_rate=0.2, noise_multiplier=2.0)
    model = torch.nn.Linear(5, 2)
    with alidpfl.federate(model, clients, privacy=privacy, max_rounds=2, learning_rate=0.5, processes=1) as federation:
        list(federation)
    terms = federation._ledger.to_json()["terms"]
    assert {plan.sample_rate for _, plan, _ in seen} == {terms["sample_rate"]} == {0.2}
    assert {plan.noise_multiplier for _, plan, _ in seen} == {terms["noise_multiplier"]} == {2.0}
    assert all(is_secure for *_, is_secure in seen)


def interrupted(path, *overrides, after=2):
    """A run that was killed after so many of its six rounds."""

    def killed(record, _seconds):
        if record.number == after:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        execute(load_config(overrides=[*BASE, "max_rounds=6", *overrides]), path, listener=Listener(on_round=killed))
    return RunDirectory.open(path)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("noise_multiplier = 2.0", "noise_multiplier = 20.0", "noise_multiplier"),
        ("sample_rate = 0.04", "sample_rate = 0.001", r"sample_rate was 0\.04 and is 0\.001"),
        ("epsilon = 2.0", "epsilon = 1.0", "epsilon"),
        ('accountant = "pld"', 'accountant = "rdp"', "accountant"),
        ("clients = 4", "clients = 5", "clients"),
        ("clip_norm = 1.0", "clip_norm = 2.0", "clip_norm"),
        ('randomness = "seeded"', 'randomness = "secure"', "randomness"),
        ('accountant = "pld"', 'accountant = "pld"\nnoise = "grid"', r"privacy\.noise was"),
    ],
)
def test_a_run_does_not_go_on_with_other_settings(tmp_path, old, new, named):
    interrupted(tmp_path / "run", "privacy.noise_multiplier=2.0")
    config = tmp_path / "run" / "config.toml"
    assert old in config.read_text()
    config.write_text(config.read_text().replace(old, new))
    with pytest.raises(ConfigError, match=named):
        resume(tmp_path / "run")


def test_whatever_a_result_depends_on_binds_the_run():
    config = load_config(overrides=BASE)
    every = {f"{section}.{key}" for section, values in config.to_dict().items() for key in values}
    bound = execution._identity(config, prepare(config)).keys()
    assert every - bound == {"run.processes", "run.device"}


def test_the_number_of_processes_may_change(tmp_path):
    interrupted(tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("processes = 1", "processes = 2"))
    assert resume(tmp_path / "run").rounds == 6


def test_without_its_checkpoint_a_run_does_not_start_from_zero(tmp_path):
    interrupted(tmp_path / "run")
    (tmp_path / "run" / "checkpoint.safetensors").unlink()
    with pytest.raises(DataError, match="checkpoint"):
        resume(tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").unlink()  # nor where nothing tells any more how far it was
    with pytest.raises(DataError, match="checkpoint"):
        resume(tmp_path / "run")


OTHER_RECORDS = {
    "other inputs": lambda files: {name: (-7 * x, y) for name, (x, y) in files.items()},
    "other labels": lambda files: {name: (x, 1 - y) for name, (x, y) in files.items()},
    "clients change places": lambda files: {"a": files["b"], "b": files["a"]},
    "a record changes its owner": lambda files: {
        "a": (files["a"][0][:-1], files["a"][1][:-1]),
        "b": (np.concatenate([files["a"][0][-1:], files["b"][0]]), np.concatenate([files["a"][1][-1:], files["b"][1]])),
    },
}


@pytest.mark.parametrize("what", OTHER_RECORDS)
def test_a_run_does_not_go_on_with_other_records(tmp_path, what):
    """What was spent was spent on the old ones."""
    folder = npz_folder(tmp_path / "data", with_test=True)
    own = ["data.name=npz", f"data.data_dir={folder}", "data.num_classes=2", "data.clients=2"]
    interrupted(tmp_path / "run", *own)
    files = {}
    for name in ("a", "b"):
        with np.load(folder / f"{name}.npz") as kept:
            files[name] = (kept["x"], kept["y"])
    for name, (x, y) in OTHER_RECORDS[what](files).items():
        np.savez(folder / f"{name}.npz", x=x, y=y)
    with pytest.raises(ConfigError, match="clients was"):
        resume(tmp_path / "run")


def test_a_start_that_was_killed_before_it_was_a_run_is_begun_anew(tmp_path, monkeypatch):
    """Killed at any file that is written before config.toml."""
    config = load_config(overrides=BASE)
    for written in ("write_environment", "write_checkpoint", "write_config"):
        with monkeypatch.context() as patched:
            patched.setattr(RunDirectory, written, _killed)
            with pytest.raises(KeyboardInterrupt):
                execute(config, tmp_path / written)
        assert execute(config, tmp_path / written).rounds == 3


def _killed(*_arguments, **_keywords):
    raise KeyboardInterrupt


def test_a_secure_run_does_not_go_on_from_an_old_checkpoint(tmp_path):
    directory = interrupted(tmp_path / "run", "randomness=secure", after=5)
    checkpoint = directory.read_checkpoint()
    state = dict(checkpoint.state)
    state["progress"] = {**state["progress"], "round": 2}
    directory.write_checkpoint(checkpoint.tensors, state)
    with pytest.raises(DataError, match="checkpoint"):
        resume(tmp_path / "run")


def test_the_model_file_claims_the_budget_and_says_how_its_noise_was_made(tmp_path):
    for randomness, said in (("seeded", "SEEDED"), ("secure", "secure")):
        outcome = execute(load_config(overrides=[*BASE, f"randomness={randomness}"]), tmp_path / randomness)
        _, claim = RunDirectory.open(tmp_path / randomness).read_model()
        assert claim["noise"].startswith(said)
        assert float(claim["epsilon"]) == 2.0 >= float(claim["epsilon_spent"]) == outcome.epsilon
        assert claim["epsilon_covers_everything"] == "yes"


def npz_folder(path, *, with_test):
    path.mkdir()
    random = np.random.default_rng(0)
    for name in ("a", "b", *(["test"] if with_test else [])):
        np.savez(path / f"{name}.npz", x=random.normal(size=(50, 4)).astype("float32"), y=np.arange(50) % 2)
    return path


def test_own_files_that_show_private_records_are_not_claimed_to_be_covered(tmp_path):
    folder = npz_folder(tmp_path / "bare", with_test=False)
    settings = ["data.name=npz", f"data.data_dir={folder}", *BASE[1:-1]]
    outcome = execute(load_config(overrides=settings), tmp_path / "run")
    assert outcome.covers_everything is False
    assert len(outcome.uncovered) == 2
    assert all(not record.covers_everything for record in RunDirectory.open(tmp_path / "run").records())
    _, claim = RunDirectory.open(tmp_path / "run").read_model()
    assert claim["epsilon_covers_everything"].startswith("NO: the number of classes")

    folder = npz_folder(tmp_path / "whole", with_test=True)
    settings = ["data.name=npz", f"data.data_dir={folder}", "data.num_classes=2", *BASE[1:-1]]
    outcome = execute(load_config(overrides=settings), tmp_path / "covered")
    assert (outcome.covers_everything, outcome.uncovered) == (True, [])
    held_out = prepare(load_config(overrides=[*settings, "validation=0.2"]))
    assert "data.validation" in held_out.uncovered[0]


def test_seeded_noise_on_own_files_is_warned_of(tmp_path):
    folder = npz_folder(tmp_path / "own", with_test=True)
    settings = ["data.name=npz", f"data.data_dir={folder}", "data.num_classes=2", *BASE[1:-1]]
    assert any("subtract the noise" in warning for warning in prepare(load_config(overrides=settings)).warnings)
    secure = load_config(overrides=[*settings, "randomness=secure"])
    assert not any("subtract" in warning for warning in prepare(secure).warnings)


def test_a_client_is_not_a_test_set():
    clients = [(torch.randn(60, 5), torch.randint(2, (60,)))] * 2
    privacy = alidpfl.Privacy(epsilon=3, delta=1e-3, sample_rate=0.2, noise_multiplier=2.0)
    with pytest.raises(ConfigError, match="test or public"):
        alidpfl.federate(
            torch.nn.Linear(5, 2), clients, test=clients[0], privacy=privacy, max_rounds=2, learning_rate=0.5
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["data.name=strokes", "data.beta=0.05"], r"data\.beta.*data\.dirichlet_beta"),
        (["data.name=strokes", "data.alpha=9"], r"data\.alpha"),
        (["model.name=linear", "model.hidden=7"], r"model\.hidden"),
        (["data.name=mnist", "data.num_classes=3"], r"data\.num_classes"),
    ],
)
def test_settings_that_nothing_reads_are_refused(tmp_path, changes, message):
    with pytest.raises(ConfigError, match=message):
        execute(load_config(overrides=[*BASE, *changes]), tmp_path / "run")
    assert not (tmp_path / "run").exists()  # a run that never began leaves nothing


def test_a_finished_run_of_an_older_version_can_still_be_read(tmp_path):
    execute(load_config(overrides=BASE), tmp_path / "run")
    directory = RunDirectory.open(tmp_path / "run")
    old = {key: value for key, value in directory.summary().items() if key not in ("randomness", "uncovered")}
    directory.write_summary(old)
    assert resume(tmp_path / "run").randomness == "unknown"


def test_the_number_of_clients_is_that_of_the_files(tmp_path):
    folder = npz_folder(tmp_path / "own", with_test=True)
    settings = ["data.name=npz", f"data.data_dir={folder}", "data.num_classes=2", *BASE[1:-1]]
    with pytest.raises(ConfigError, match=r"data\.clients=7"):
        prepare(load_config(overrides=[*settings, "data.clients=7"]))
    assert len(prepare(load_config(overrides=[*settings, "data.clients=2"])).federation.epsilons) == 2


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_records_of_own_files_are_never_pooled_and_dealt_out_again(tmp_path, partition):
    """Else their clients' sizes, which are public, would depend on labels, and no client would be anybody's."""
    folder = npz_folder(tmp_path / "own", with_test=True)
    settings = ["data.name=npz", f"data.data_dir={folder}", "data.num_classes=2", *BASE[1:-1]]
    with pytest.raises(ConfigError, match=rf"partition='{partition}'"):
        execute(load_config(overrides=[*settings, f"data.partition={partition}"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert prepare(load_config(overrides=[*settings, "data.partition=natural"])).uncovered == ()
