"""One registry a concept: names without imports, parts on first use, and parts of other packages by entry points."""

import json
import subprocess
import sys
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from alidpfl import registry
from alidpfl.config import load_config
from alidpfl.data import from_clients
from alidpfl.errors import ConfigError
from alidpfl.flower.simulated_node import SimulatedNode
from alidpfl.methods import FedAvgDp
from alidpfl.registry import ACCOUNTANTS, DATASETS, LOSSES, METHODS, MODELS, POLICIES, Registry
from alidpfl.reporting import RunSnapshot
from alidpfl.reporting.report_page import report_page
from alidpfl.runs import execute
from alidpfl.runs.prepare import prepare

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
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["accuracy"] > 70
    assert [reason for reason in summary["uncovered"] if "classes" in reason]  # counted in private labels
    assert summary["covers_everything"] is False


def test_records_of_another_package_count_as_private(installed, tmp_path):
    (tmp_path / "run.toml").write_text(CONFIG)
    done = _alidpfl(installed, tmp_path, "run", "run.toml", "--out", "out", "--set", "data.validation=0.1")
    assert done.returncode == 0, done.stderr
    uncovered = json.loads((tmp_path / "out" / "summary.json").read_text())["uncovered"]
    assert [reason for reason in uncovered if "data.validation" in reason]
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


@dataclass(frozen=True, kw_only=True)
class _Talkative(FedAvgDp):
    signals: ClassVar = frozenset({"raw"})


def _own_data(*, held_out: bool = False, num_classes: int | None = 2, **_):
    records = (torch.randn(40, 4), torch.arange(40) % 2)
    made = from_clients([records, records], test=records, name="mine", num_classes=num_classes)
    return replace(made, test_is_held_out=held_out)


_own_data.natural_clients = True


@pytest.fixture
def own_parts(monkeypatch):
    """A data set and a method that are registered in this process only."""
    monkeypatch.setitem(DATASETS._loaded, "mine", _own_data)
    monkeypatch.setitem(METHODS._loaded, "talkative", _Talkative)


def _prepared(*changes: str):
    settings = ["data.name=mine", "model.name=linear", "privacy.accountant=rdp", "run.processes=1", *changes]
    return prepare(load_config(overrides=settings))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (["data.loader_options={held_out = true}"], "metrics on records of the clients"),
        (["data.loader_options={num_classes = 0}"], None),
        (["method.name=talkative", 'privacy.unsafe=["unaccounted-signals"]'], "un-noised signals"),
    ],
)
def test_what_no_epsilon_covers_is_named_for_own_parts(own_parts, changes, reason):
    if reason is None:
        assert _prepared().uncovered == ()
        assert _prepared().federation.covers_everything
        return
    found = _prepared(*changes)
    assert [text for text in found.uncovered if text.startswith(reason)]
    assert not found.federation.covers_everything


def test_whoever_submits_a_run_cannot_have_a_node_train_on_private_data_without_a_vault(own_parts):
    config = load_config(overrides=["data.name=mine", "model.name=linear"])
    with pytest.raises(ConfigError, match=r"data\.name='mine'"):
        SimulatedNode(config, 0)


def test_options_of_a_loader_stay_out_of_pages(tmp_path, own_parts):
    config = load_config(
        overrides=["data.name=mine", "model.name=linear", "max_rounds=1", "data.loader_options={key = 'secret-7'}"]
    )
    execute(config, tmp_path / "run")
    page = report_page([RunSnapshot.load(tmp_path / "run")], [], [])
    assert "mine" in page
    assert "secret-7" not in page


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
    offered = [("fixed", "os:getcwd"), ("mine", "os:listdir"), ("mine", "os:getpid")]
    points = [registry.EntryPoint(name=name, value=value, group="alidpfl.policies") for name, value in offered]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)
    own = Registry("policy", "alidpfl.policies", {"fixed": "alidpfl.policies.pace:Fixed"})
    with pytest.warns(UserWarning, match="ignored") as caught:
        assert list(own) == ["fixed", "mine"]
    assert ["os:getcwd" in str(caught[0].message), "os:getpid" in str(caught[1].message)] == [True, True]
    assert (own["fixed"].__name__, own["mine"].__name__) == ("Fixed", "listdir")


def test_losses_are_chosen_by_name():
    for name in ("cross_entropy", "squared"):
        assert load_config(overrides=[f"model.loss={name}"]).model.loss == name
    with pytest.raises(ConfigError, match=r"model\.loss"):
        load_config(overrides=["model.loss=cubed"])
