"""`privacy.noise = "grid"`: every release of a run is on the grid, in a simulation, in Python and in a vault."""

import numpy as np
import pytest
import torch

import alidpfl
from alidpfl import execute, resume
from alidpfl.dpsgd import RandomStream
from alidpfl.errors import ConfigError
from alidpfl.federation import client as client_module
from alidpfl.flower.config import FlowerOptions
from alidpfl.flower.run import prepare_over_nodes
from alidpfl.runs import load_config

from .command import ADAP, config, run_arguments
from .command import alidpfl as command


@pytest.fixture
def no_float_noise(monkeypatch):
    def refused(self, count):
        raise AssertionError("floating-point noise was drawn")

    monkeypatch.setattr(RandomStream, "normal", refused)


def outcome_of(path):
    return (path / "metrics.jsonl").read_bytes(), (path / "model.safetensors").read_bytes()


def test_a_run_is_the_same_in_two_processes_and_after_a_crash(tmp_path, monkeypatch, no_float_noise):
    done = command(*run_arguments(tmp_path / "whole", privacy__noise="grid", federation__max_rounds=4))
    assert done.exit_code == 0, done.output
    execute(config(privacy__noise="grid", federation__max_rounds=4, run__processes=2), tmp_path / "two")
    crashes = iter([True])
    trained = client_module.LocalTrainer.train

    def crash(self, params, data, plan, random):
        if (plan.round, plan.client) == (2, 1) and next(crashes, False):
            raise KeyboardInterrupt
        return trained(self, params, data, plan, random)

    monkeypatch.setattr(client_module.LocalTrainer, "train", crash)
    with pytest.raises(KeyboardInterrupt):
        execute(config(privacy__noise="grid", federation__max_rounds=4), tmp_path / "crashed")
    resume(tmp_path / "crashed")
    assert outcome_of(tmp_path / "whole") == outcome_of(tmp_path / "two") == outcome_of(tmp_path / "crashed")


def test_it_costs_the_same_epsilon_and_learns_as_well(tmp_path):
    changes = {"federation__max_rounds": 8, "privacy__epsilon": 8.0}
    grid, plain = (execute(config(privacy__noise=noise, **changes), tmp_path / noise) for noise in ("grid", "gaussian"))
    assert grid.epsilon == plain.epsilon
    assert grid.accuracy == pytest.approx(plain.accuracy, abs=10)


@pytest.mark.parametrize("changes", [ADAP, {"method.name": "fedavg_dp"}])
def test_other_methods_are_covered_too(tmp_path, changes, no_float_noise):
    named = {key.replace(".", "__"): value for key, value in changes.items()}
    execute(config(privacy__noise="grid", federation__max_rounds=2, **named), tmp_path / "run")


def test_the_statistics_of_scatter_linear_are_on_the_grid_too(tmp_path, monkeypatch, no_float_noise):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "data"
    folder.mkdir()
    random = np.random.default_rng(0)
    for name in ("a", "b", "test"):
        x = random.integers(0, 255, (40, 1, 16, 16)).astype(np.uint8)
        np.savez(folder / f"{name}.npz", x=x, y=np.arange(40) % 3)
    settings = {
        "data.name": "npz",
        "data.data_dir": str(folder),
        "data.num_classes": 3,
        "model.name": "scatter_linear",
        "model.frequencies": 1,
        "privacy.accountant": "rdp",
        "privacy.epsilon": 8.0,
        "privacy.delta": 1e-3,
        "privacy.noise": "grid",
        "privacy.sample_rate": 0.2,
        "federation.max_rounds": 3,
        "run.processes": 1,
    }
    texts = [f'{key}="{value}"' if isinstance(value, str) else f"{key}={value}" for key, value in settings.items()]
    assert execute(load_config(overrides=texts), tmp_path / "run").rounds == 1


def test_what_the_grid_does_not_cover_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="variant"):
        execute(
            config(privacy__noise="grid", method__name="pe_dpfl", method__options__variant="output"),
            tmp_path / "update",
        )
    with pytest.raises(ConfigError, match="noise"):
        execute(config(privacy__noise="grid", privacy__noise_multiplier=1000.0), tmp_path / "coarse")
    options = FlowerOptions(out=str(tmp_path / "nodes"), nodes=1)
    with pytest.raises(ConfigError, match=r"policy\.toml"):
        prepare_over_nodes(config(privacy__noise="grid"), options, None, None)


def test_only_the_grid_is_written_down():
    """A run from before there was a choice has no such key, and goes on."""
    assert "noise" not in config().to_dict()["privacy"]
    assert config(privacy__noise="grid").to_dict()["privacy"]["noise"] == "grid"


def test_in_python(no_float_noise):
    clients = [(torch.randn(60, 4), torch.randint(2, (60,))) for _ in range(2)]
    privacy = alidpfl.Privacy(epsilon=2, delta=1e-3, sample_rate=0.2, noise_multiplier=2.0, noise="grid")
    model = torch.nn.Linear(4, 2)
    with alidpfl.federate(
        model, clients, privacy=privacy, max_rounds=1, learning_rate=0.5, policy="ratio", processes=1
    ) as federation:
        assert federation.step() is not None
    with pytest.raises(ConfigError, match="noise"):
        alidpfl.Privacy(epsilon=2, delta=1e-3, sample_rate=0.2, noise_multiplier=2.0, noise="gird")
