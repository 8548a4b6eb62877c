"""Rounds that runs share are trained once, and results do not change."""

import os
from dataclasses import replace
from functools import partial

import pytest
import torch

from alidpfl.errors import ConfigError
from alidpfl.runs import execute, load_config, simulated
from alidpfl.types import ClientPlan, ClientUpdate, SecantSums
from reproduction import shared_rounds
from reproduction.grid import cells, load_grid
from reproduction.shared_rounds import SharedRounds, rounds_folder

BASE = {
    "data.name": "synthetic",
    "data.clients": 3,
    "model.name": "linear",
    "privacy.epsilon": 4.0,
    "privacy.sample_rate": 0.1,
    "privacy.noise_multiplier": 2.0,
    "privacy.accountant": "rdp",
    "method.schedule": "constant",
    "method.learning_rate": 0.1,
    "federation.max_rounds": 8,
    "run.processes": 1,
}


def config_of(**changes):
    settings = BASE | {key.replace("__", "."): value for key, value in changes.items()}
    return load_config(overrides=[f"{key}={value}" for key, value in settings.items()])


class Counting:
    """An engine that counts the plans that it trains."""

    def __init__(self, engine):
        self.engine, self.trained = engine, 0

    def train(self, params, plans):
        self.trained += len(plans)
        return self.engine.train(params, plans)

    def __getattr__(self, name):
        return getattr(self.engine, name)


def run(config, out, rounds):
    """Run a configuration; return its files, and the number of plans that were trained for it."""
    engines = []

    def wrap(engine):
        engines.append(Counting(engine))
        return SharedRounds(engines[0], config, rounds)

    execute(config, out, preparation=partial(simulated, wrap=wrap))
    return files_of(out), engines[0].trained


def files_of(out):
    return {name: (out / name).read_bytes() for name in ("metrics.jsonl", "model.safetensors")}


def alone(config, out):
    execute(config, out)
    return files_of(out)


FIXED = {"method__name": "fedavg_dp", "method__local_steps": 3}


def test_a_larger_budget_continues_a_smaller_one(tmp_path):
    short, longer = config_of(**FIXED, privacy__epsilon=1.0), config_of(**FIXED, privacy__epsilon=1.5)
    first, trained_first = run(short, tmp_path / "short", tmp_path)
    second, trained_second = run(longer, tmp_path / "longer", tmp_path)
    assert first == alone(short, tmp_path / "short alone")
    assert second == alone(longer, tmp_path / "longer alone")
    whole = second["metrics.jsonl"].count(b"\n") * 3
    rounds = first["metrics.jsonl"].count(b"\n")
    assert trained_first == rounds * 3 < whole
    assert trained_second in {whole - rounds * 3, whole - (rounds - 1) * 3}  # the last may have been cut


@pytest.mark.parametrize("policies", [("ali", "ratio"), ("ratio", "ali")])
def test_policies_share_where_they_agree(tmp_path, policies):
    """Only `ali` asks for secants. The order of the runs must not change what either of them receives."""
    configs = [config_of(method__policy=policy) for policy in policies]
    shared = [run(config, tmp_path / config.policy, tmp_path) for config in configs]
    for config, (files, _) in zip(configs, shared, strict=True):
        assert files == alone(config, tmp_path / f"{config.policy} alone")
    assert shared[1][1] < shared[0][1]


@pytest.mark.parametrize(
    "change",
    [
        {"run__seed": 1},
        {"data__dirichlet_beta": 0.7},
        {"data__alpha": 0.3},
        {"method__name": "pe_dpfl"},
        {"method__clip_norm": 0.5},
        {"method__learning_rate": 0.2},
        {"privacy__noise_multiplier": 2.5},
        {"privacy__sample_rate": 0.11},
        {"privacy__noise": "grid"},
        {"data__validation": 0.2},
        {"method__local_steps": 2},
    ],
)
def test_what_differs_is_not_shared(tmp_path, change):
    run(config_of(**FIXED), tmp_path / "one", tmp_path)
    config = config_of(**(FIXED | change))
    files, trained = run(config, tmp_path / "other", tmp_path)
    assert trained == files["metrics.jsonl"].count(b"\n") * 3
    assert files == alone(config, tmp_path / "alone")


def test_a_setting_that_only_one_method_has_is_not_shared(tmp_path):
    """Some rows of the search differ in nothing else."""
    one = FIXED | {"method__name": "pe_dpfl"}
    run(config_of(**one), tmp_path / "one", tmp_path)
    config = config_of(**one, method__options__regularisation=0.1)
    files, trained = run(config, tmp_path / "other", tmp_path)
    assert trained == files["metrics.jsonl"].count(b"\n") * 3
    assert files == alone(config, tmp_path / "alone")


def test_a_damaged_file_is_trained_again(tmp_path):
    config = config_of(**FIXED)
    first, _ = run(config, tmp_path / "one", tmp_path)
    kept = sorted(tmp_path.glob("*.safetensors"))
    kept[0].write_bytes(kept[0].read_bytes()[:-3])
    kept[1].write_bytes(b"")
    again, trained = run(config, tmp_path / "two", tmp_path)
    assert again == first
    assert trained == 2


def test_secure_noise_is_never_repeated(tmp_path):
    with pytest.raises(ConfigError, match=r"run\.randomness"):
        SharedRounds(None, config_of(run__randomness="secure"), tmp_path)


class Made:
    """Trains nothing."""

    def __init__(self):
        self.asked = []

    def train(self, params, plans):
        self.asked += plans
        secants = SecantSums(product=1.0, displacement=2.0, noise=3.0, noise_variance=4.0)
        return [ClientUpdate(client=plan.client, params=params + 1, secants=secants) for plan in plans]


PLAN = ClientPlan(client=2, round=3, sample_rate=0.1, noise_multiplier=1.0, clip_norm=1.0, learning_rates=(0.1, 0.1))


def test_secants_are_returned_only_if_asked_for(tmp_path):
    made = Made()
    engine = SharedRounds(made, config_of(), tmp_path)
    asking = replace(PLAN, signals=frozenset({"secants"}))
    for _ in range(2):
        assert engine.train(torch.zeros(4), [PLAN])[0].secants is None
        assert engine.train(torch.zeros(4), [asking])[0].secants.noise_variance == 4.0
    assert len(made.asked) == 1


def test_other_weights_are_trained_again(tmp_path):
    made = Made()
    engine = SharedRounds(made, config_of(), tmp_path)
    for weights in (torch.zeros(4), torch.ones(4), torch.zeros(4)):
        (update,) = engine.train(weights, [PLAN])
        assert torch.equal(update.params, weights + 1)
    assert len(made.asked) == 2


def test_the_oldest_file_is_deleted_first(tmp_path, monkeypatch):
    monkeypatch.setattr(shared_rounds, "_MOST_BYTES", 2000)
    made = Made()
    engine = SharedRounds(made, config_of(), tmp_path)
    for number in range(20):
        engine.train(torch.full((4,), float(number)), [PLAN])
        for age, path in enumerate(sorted(tmp_path.glob("*.safetensors"), key=lambda p: p.stat().st_mtime_ns)):
            os.utime(path, (age, age))
    assert 0 < sum(path.stat().st_size for path in tmp_path.glob("*.safetensors")) <= 2000
    engine.train(torch.full((4,), 19.0), [PLAN])
    assert len(made.asked) == 20
    engine.train(torch.full((4,), 0.0), [PLAN])
    assert len(made.asked) == 21


def test_the_folder_is_deleted_at_the_end_and_left_folders_at_the_next_start(tmp_path):
    left = tmp_path / "rounds-left"
    left.mkdir()
    (left / "x.safetensors").write_bytes(b"old")
    with rounds_folder(tmp_path) as one:
        assert not left.exists()
        (one / "kept").touch()
        with rounds_folder(tmp_path) as other:
            assert other != one
            assert (one / "kept").exists()
        assert not other.exists()
    assert not list(tmp_path.iterdir())


def test_statistics_noise_and_folders_are_part_of_the_key(tmp_path):
    """No plan has these: features depend on the statistics, and own records on their folder."""
    features = {"model__name": "scatter_linear", "data__name": "npz", "data__num_classes": 3}
    settings = [
        shared_rounds._settings_of_client(config_of(**features, data__data_dir=folder, privacy__statistics_noise=n))
        for folder, n in (("a", 10.0), ("a", 20.0), ("b", 10.0))
    ]
    assert settings[0] != settings[1]
    assert settings[0] != settings[2]


def test_the_folder_of_own_records_is_part_of_the_key():
    cell = next(cells(load_grid("small")))
    here, there = (replace(cell, settings=(*cell.settings, ("data.data_dir", where))) for where in ("a", "b"))
    assert here.key == there.key == cell.key
    own = tuple((key, "npz" if key == "data.name" else value) for key, value in cell.settings)
    here, there = (replace(cell, settings=(*own, ("data.data_dir", where))) for where in ("a", "b"))
    assert here.key != there.key


def test_kin_may_share_rounds():
    grid = load_grid("small")
    listed = list(cells(grid, datasets=["mnist"]))
    by_kin = {}
    for cell in listed:
        by_kin.setdefault(cell.kin, []).append(cell)
    fixed = [kin for kin, members in by_kin.items() if members[0].method == "fedavg_dp:tau=3"]
    assert len(fixed) == 1
    assert len(by_kin[fixed[0]]) == 8  # four budgets, two accountants
    ratio = next(cell for cell in listed if cell.method == "ours:ratio")
    others = {(cell.method, cell.column, cell.accountant) for cell in by_kin[ratio.kin]}
    assert {(column, accountant) for _, column, accountant in others} == {(ratio.column, ratio.accountant)}
    assert "ali_dpfl" not in {method for method, _, _ in others}


def test_a_file_that_another_job_deletes_is_ignored(tmp_path, monkeypatch):
    """Two jobs share the folder: one may delete a file after the other has listed it."""
    monkeypatch.setattr(shared_rounds, "_MOST_BYTES", 1)
    engine = SharedRounds(Made(), config_of(), tmp_path)
    listed = os.scandir

    def emptied(folder):
        entries = list(listed(folder))
        for entry in entries[::2]:
            os.unlink(entry.path)
        return entries

    monkeypatch.setattr(shared_rounds.os, "scandir", emptied)
    monkeypatch.setattr(shared_rounds, "_SUFFIX", "")
    for number in range(4):
        engine.train(torch.full((4,), float(number)), [replace(PLAN, client=client) for client in range(3)])
