"""One registry a concept: names without imports, parts on first use, and parts of other packages by entry points."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from alidpfl import registry
from alidpfl.config import load_config
from alidpfl.errors import ConfigError
from alidpfl.registry import ACCOUNTANTS, DATASETS, LOSSES, METHODS, MODELS, POLICIES, Registry

REGISTRIES = [POLICIES, METHODS, MODELS, LOSSES, ACCOUNTANTS, DATASETS]

PROJECT = """
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[project]
name = "tiny-parts"
version = "1"

[tool.setuptools]
py-modules = ["tiny_parts"]

[project.entry-points."alidpfl.policies"]
one_then_two = "tiny_parts:OneThenTwo"
[project.entry-points."alidpfl.methods"]
half_clip = "tiny_parts:HalfClip"
[project.entry-points."alidpfl.datasets"]
two_blobs = "tiny_parts:load_two_blobs"
[project.entry-points."alidpfl.models"]
broken = "tiny_parts:missing"
"""

PARTS = """
from dataclasses import dataclass
from typing import ClassVar

import torch

from alidpfl.data import from_clients
from alidpfl.methods import ClipAndNoise, FedAvgDp
from alidpfl.policies import Decision


@dataclass(frozen=True, kw_only=True)
class OneThenTwo:
    most: int = 2
    name: ClassVar[str] = "one_then_two"
    needs_raw_signals: ClassVar[bool] = False
    needs_curvature: ClassVar[bool] = False

    def decide(self, situation):
        return Decision(local_steps=1 if situation.round == 0 else self.most, why="tiny")


@dataclass(frozen=True, kw_only=True)
class HalfClip(FedAvgDp):
    name: ClassVar[str] = "half_clip"
    factor: float = 0.5

    def clip_and_noise(self, state, client):
        return ClipAndNoise(clip_norm=self.clip_norm * self.factor, noise_multiplier=self.noise_multiplier)


def load_two_blobs(*, seed, shift=3.0, **_):
    random = torch.Generator().manual_seed(seed)
    def blobs(count):
        classes = torch.arange(count) % 2
        return torch.randn(count, 4, generator=random) + shift * classes[:, None], classes
    return from_clients([blobs(60), blobs(80)], test=blobs(40), name="two_blobs")


load_two_blobs.natural_clients = True
"""

CONFIG = """
[data]
name = "two_blobs"
[data.loader_options]
shift = 4.0
[model]
name = "linear"
[privacy]
accountant = "rdp"
sample_rate = 0.2
noise_multiplier = 1.0
epsilon = 20.0
delta = 1e-3
[method]
name = "half_clip"
policy = "one_then_two"
learning_rate = 1.0
[method.options]
factor = 0.25
[method.policy_options]
most = 3
[federation]
max_rounds = 3
[run]
processes = 1
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with the tiny package installed, as pip installs any other."""
    project, site = tmp_path_factory.mktemp("project"), tmp_path_factory.mktemp("site")
    (project / "pyproject.toml").write_text(PROJECT)
    (project / "tiny_parts.py").write_text(PARTS)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(site), str(project)], check=True)
    return site


def _alidpfl(site: Path, folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    code = f"import site; site.addsitedir({str(site)!r}); from alidpfl.cli import main; main()"
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


def test_parts_of_another_package_run_from_a_configuration(installed, tmp_path):
    (tmp_path / "run.toml").write_text(CONFIG)
    done = _alidpfl(installed, tmp_path, "run", "run.toml", "--out", "out")
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [(record["local_steps"], record["why"], record["clip_norm"]) for record in records] == [
        (1, "tiny", 0.25),
        (3, "tiny", 0.25),
        (3, "tiny", 0.25),
    ]
    kept = tomllib.loads((tmp_path / "out" / "config.toml").read_text())
    assert (kept["data"]["name"], kept["data"]["partition"]) == ("two_blobs", "natural")
    assert (kept["method"]["name"], kept["method"]["policy"]) == ("half_clip", "one_then_two")
    assert kept["data"]["loader_options"] == {"shift": 4.0}
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["accuracy"] > 70


def test_records_of_another_package_count_as_private(installed, tmp_path):
    (tmp_path / "run.toml").write_text(CONFIG)
    done = _alidpfl(installed, tmp_path, "run", "run.toml", "--out", "out", "--set", "data.validation=0.1")
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["covers_everything"] is False
    done = _alidpfl(installed, tmp_path, "run", "run.toml", "--out", "other", "--set", "data.partition=iid")
    assert done.returncode == 2
    assert "partition='iid'" in done.stderr


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("method.policy=one_then_tow", "'one_then_two'"),
        ("method.name=half_clipp", "'half_clip'"),
        ("method.options.factr=1", "'factor'"),
        ("method.policy_options.mots=1", "'most'"),
        ("model.name=broken", "tiny_parts:missing"),
    ],
)
def test_a_mistake_names_the_other_packages_part(installed, tmp_path, change, named):
    (tmp_path / "run.toml").write_text(CONFIG)
    done = _alidpfl(installed, tmp_path, "run", "run.toml", "--out", "out", "--set", change)
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("parts", REGISTRIES, ids=lambda parts: parts.concept)
def test_every_part_that_ships_can_be_loaded(parts):
    assert parts.shipped
    assert all(callable(parts[name]) or name in ACCOUNTANTS for name in parts.shipped)


def test_names_are_known_without_torch():
    code = "import sys, alidpfl.registry as r, alidpfl.config; print(list(r.MODELS), 'torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split()[-1] == "False"
    assert "'compact_cnn'" in done.stdout


def test_an_unknown_name_offers_the_nearest():
    with pytest.raises(ConfigError, match="'ratio'"):
        POLICIES["ratoi"]


def test_a_part_can_be_added_in_a_process_once(monkeypatch):
    own = Registry("policy", "alidpfl.none", {"fixed": "alidpfl.policies.pace:Fixed"})
    own.add("mine", dict)
    assert own["mine"] is dict
    assert list(own) == ["fixed", "mine"]
    for name in ("mine", "fixed"):
        with pytest.raises(ConfigError, match=name):
            own.add(name, list)


def test_a_part_that_ships_cannot_be_replaced_by_another_package(monkeypatch):
    found = registry.EntryPoint(name="fixed", value="os:getcwd", group="alidpfl.policies")
    monkeypatch.setattr(registry, "entry_points", lambda group: [found])
    own = Registry("policy", "alidpfl.policies", {"fixed": "alidpfl.policies.pace:Fixed"})
    with pytest.warns(UserWarning, match="os:getcwd"):
        assert list(own) == ["fixed"]
    assert own["fixed"].__name__ == "Fixed"


def test_losses_are_chosen_by_name():
    assert load_config(overrides=["model.loss=cross_entropy"]).model.loss == "cross_entropy"
    with pytest.raises(ConfigError, match=r"model\.loss"):
        load_config(overrides=["model.loss=squared"])
