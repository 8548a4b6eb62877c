"""`alidpfl run` on a folder of files, with and without one record: what it prints and every file that it leaves.

`scatter_linear` has two releases more than the others before the first round, and standardised tables have one. They
are compared as the steps are.
"""

import json
import math
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from alidpfl import RunDirectory
from alidpfl.simulation.runner import Runner
from alidpfl.tables import read_schema
from alidpfl.tables.encode import Encoder
from alidpfl.tables.held_out import held_out_key, held_out_rows
from tests.features.filter_files import GARMENTS, LEAVES
from tests.runs.command import alidpfl
from tests.tables.parts import TOML, hospitals, table

from .coupling import Neighbour, Watch
from .federations import MODELS
from .hostile import FINITE

SHAPE, CLASSES, SIZES = (1, 16, 16), 3, (20, 12, 9)
NEIGHBOUR = Neighbour(1, 5)
PICTURES = {
    "usual": lambda picture: picture,
    "black": np.zeros_like,
    "white": lambda picture: np.full_like(picture, 255),
    "one white pixel": lambda picture: np.where(np.arange(picture.size).reshape(picture.shape) == 100, 255, 0),
    "stripes": lambda picture: np.where(np.arange(picture.size).reshape(picture.shape) % 2, 255, 0),
}
"""Features are computed of bytes, which cannot be huge."""
TOLD_BY_THE_CLOCK = {"seconds", "slowest_round", "timings_bytes"}
CASES = [
    pytest.param(model, record, marks=[] if is_quick else pytest.mark.slow)
    for model in MODELS
    for number, record in enumerate(PICTURES if model == "scatter_linear" else FINITE)
    for is_quick in [(model, number) in {("scatter_linear", 2), ("scatter_linear", 0), ("linear", 1), ("mlp", 4)}]
]


OF_FEATURES = {
    "learned": {"model.learned": json.dumps([LEAVES, GARMENTS])},
    "upright": {"model.upright": "true"},
    "positions": {"model.positions": 2},
    "grid": {"privacy.noise": '"grid"'},
}


@dataclass(frozen=True)
class Told:
    """By one run."""

    printed: str
    files: dict[str, object]
    fingerprint: str


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(("model", "record"), CASES)
def test_what_a_run_prints_and_leaves_behind(tmp_path, model, record):
    _check(tmp_path, model, record)


@pytest.mark.parametrize("name", OF_FEATURES)
def test_what_a_run_of_other_features_prints_and_leaves_behind(tmp_path, name):
    _check(tmp_path, "scatter_linear", "stripes", OF_FEATURES[name])


def _check(tmp_path, model, record, changes=None):
    watch, told = None, []
    for has_it in (True, False):
        _write_clients(tmp_path / "data", model, record, has_it)
        with Watch(NEIGHBOUR, follows=watch, num_clients=len(SIZES)) as watch:
            told.append(_run(tmp_path / str(has_it) / "run", tmp_path / "data", model, changes or {}))
    watch.check()
    assert watch.updates == watch.follows.updates
    if model == "scatter_linear":
        assert [release.what for release in watch.releases[:6]] == [("statistics", number) for number in range(6)]
        for found in (watch.comparisons[NEIGHBOUR.client], watch.comparisons[NEIGHBOUR.client + len(SIZES)]):
            assert found.distance > 0.2 * found.allowed
    assert told[0].printed == told[1].printed
    assert told[0].files == told[1].files
    # Not noised: the checkpoint stays where the records are (docs/explanation/privacy.md).
    assert told[0].fingerprint != told[1].fingerprint


ROWS = {
    "usual": {"age": "44", "creatinine": "1.1", "sex": "f", "smoker": "no"},
    "missing": {"age": "", "creatinine": "", "sex": "", "smoker": ""},
    "clamped": {"age": "1e300", "creatinine": "-1e300", "sex": "x", "smoker": "yes"},
}
TARGETS = {
    "number": ('{ column = "died", kind = "number", low = 0, high = 30 }', ["0", "7", "1e300"]),
    "class": ('{ column = "died", kind = "class", values = ["no", "yes"] }', ["no", "yes", "yes"]),
}


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("record", ROWS)
def test_what_a_run_on_standardised_rows_prints_and_leaves_behind(tmp_path, record, kind):
    """`test.csv` is public, so no row is held out, and places are those in the file."""
    watch, told, folder = None, [], tmp_path / "data"
    target, values = TARGETS[kind]
    folder.mkdir()
    columns = TOML.partition("[columns]")[2]
    (tmp_path / "schema.toml").write_text(f"target = {target}\n[columns]{columns}")
    for has_it in (True, False):
        for number, size in enumerate((*SIZES, 15)):
            rows = [{**row, "died": values[place % 2]} for place, row in enumerate(_texts(size, number))]
            if number == NEIGHBOUR.client:
                rows[NEIGHBOUR.place] = ROWS[record] | {"died": values[2]} if has_it else rows[0]
            name = "test" if number == len(SIZES) else number
            pl.DataFrame(rows).write_csv(folder / f"{name}.csv")
        with Watch(NEIGHBOUR, follows=watch, num_clients=len(SIZES)) as watch:
            told.append(_run(tmp_path / str(has_it) / "run", folder, "table", {}))
    watch.check()
    assert watch.updates == watch.follows.updates
    assert [release.what for release in watch.releases[:3]] == [("statistics", number) for number in range(3)]
    found = watch.comparisons[NEIGHBOUR.client]
    assert found.distance > 0.2 * found.allowed
    assert told[0].printed == told[1].printed
    assert told[0].files == told[1].files
    assert "statistics.safetensors" in told[0].files
    assert told[0].fingerprint != told[1].fingerprint


GONE = {"one row": lambda places: places[7:8], "all but one": lambda places: places[1:]}
"""Which of a client's held-out rows are missing from the second run, by their places."""


@pytest.mark.parametrize("gone", GONE)
@pytest.mark.parametrize("kind", ["class", "number", "labels"])
def test_held_out_rows_move_the_noised_sums_of_a_run_and_nothing_else(tmp_path, monkeypatch, kind, gone):
    """The second run goes on from the sums of the first. Each moves by 1 at most for a row that is missing."""
    files, release = hospitals(tmp_path, (80, 50, 60), kind=kind), Runner.release
    (tmp_path / "data").mkdir()
    rows = pl.read_csv(files[0])
    key, encoder = held_out_key(0), Encoder(read_schema(tmp_path / "schema.toml"))
    out = GONE[gone](np.flatnonzero(held_out_rows(encoder.encode(files[0], needs_target=True), 0.2, key)))
    for path in files[1:]:
        shutil.copy(path, tmp_path / "data")
    sums, told, moved = {}, [], []

    def released(runner, params, plan):
        found = release(runner, params, plan)
        before = sums.setdefault((plan.client, plan.number), (plan, found))
        assert plan == before[0]
        difference = np.linalg.norm(found.values.astype(np.float64) - before[1].values)
        moved.append((plan.client, difference / (1 + plan.noise_multiplier / 256 * math.sqrt(len(found.values)))))
        return before[1]

    monkeypatch.setattr(Runner, "release", released)
    settings = {"evaluation.private": "true", "evaluation.releases": 3, "model.name": '"linear"'}
    for places in ([], out):
        rows.filter(~np.isin(np.arange(len(rows)), places)).write_csv(tmp_path / "data" / files[0].name)
        run = tmp_path / str(len(places)) / "run"
        told.append(_run(run, tmp_path / "data", "table", settings))
        told[-1] = (told[-1].printed, told[-1].files, *(_shown(run, *more) for more in ([], ["--json"])))
    assert told[0] == told[1]
    assert len(moved) == 2 * len(sums) > 6
    assert json.loads(told[0][1]["metrics.jsonl"].splitlines()[-1])["metrics"]  # not all drown in noise
    own = sorted(path.name for path in files).index(files[0].name)
    assert max(norm for client, norm in moved if client != own) == 0
    assert 0 < max(norm for _, norm in moved) <= len(out)


def _shown(out: Path, *more: str) -> str:
    result = alidpfl("show", out, *more)
    assert result.exit_code == 0, result.stderr
    return re.sub(r'"(seconds|slowest_round)": [\d.e-]+', "TIME", _plain(result.stdout, out))


def _texts(size: int, seed: int) -> list[dict[str, str]]:
    rows = table(size, seed).drop("died").to_dicts()
    return [{name: "" if value is None else str(value) for name, value in row.items()} for row in rows]


def _write_clients(folder: Path, model: str, record: str, has_it: bool) -> None:
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(0)
    for number, size in enumerate((*SIZES, 15)):
        y = random.integers(CLASSES, size=size)
        x = random.integers(256, size=(size, *SHAPE)).astype(np.uint8)
        if model != "scatter_linear":
            x = (x / 255).astype(np.float32)
        if number == NEIGHBOUR.client:
            place = NEIGHBOUR.place
            x[place] = _spoilt(x[place], model, record) if has_it else x[place, :, ::-1]
            y[place] = 0 if has_it else 1
        np.savez(folder / f"{'test' if number == len(SIZES) else number}.npz", x=x, y=y)


def _spoilt(picture, model: str, record: str):
    return PICTURES[record](picture) if model == "scatter_linear" else FINITE[record](torch.from_numpy(picture)).numpy()


def _run(out: Path, data: Path, model: str, changes: dict[str, object]) -> Told:
    values = {
        "data.name": '"npz"',
        "data.data_dir": f'"{data}"',
        "data.num_classes": CLASSES,
        "model.name": f'"{model}"',
        "privacy.epsilon": 30.0,
        "privacy.accountant": '"rdp"',
        "privacy.sample_rate": 0.4,
        "method.name": '"ali_dpfl"',
        "method.clip_norm": 0.2,
        "method.learning_rate": 0.05,
        "federation.max_rounds": 5,
        "run.evaluate_every": 2,
        "run.processes": 1,
    }
    if model == "scatter_linear":
        values |= {"model.frequencies": 3}
    if model == "table":
        del values["data.num_classes"]
        values |= {
            "data.name": '"table"',
            "data.schema_file": f'"{data.parent / "schema.toml"}"',
            "data.standardise": '"private"',
            "model.name": '"linear"',
            "method.policy": '"fixed"',
            "privacy.statistics_noise": 3.0,
            "privacy.max_steps": 4,
            "run.seed": 0,
        }
    values |= changes
    arguments = [part for key, value in values.items() for part in ("--set", f"{key}={value}")]
    result = alidpfl("run", *arguments, "--out", out)
    assert result.exit_code == 0, result.stderr
    printed = result.stdout + result.stderr
    files = {path.name: _content(path) for path in sorted(out.iterdir()) if path.name != "timings.jsonl"}
    state = RunDirectory.open(out).read_checkpoint().state
    fingerprint = state["identity"].pop("clients")
    files["checkpoint.safetensors"] = (_tensors(out), _without_clock(state))
    return Told(printed=_plain(printed, out), files=files, fingerprint=fingerprint)


def _content(path: Path) -> object:
    if path.name == "summary.json":
        return _without_clock({**json.loads(path.read_text()), "out": ""})
    return path.read_bytes()


def _without_clock(values):
    if not isinstance(values, dict):
        return values
    return {key: _without_clock(value) for key, value in values.items() if key not in TOLD_BY_THE_CLOCK}


def _tensors(out: Path) -> dict[str, bytes]:
    tensors = RunDirectory.open(out).read_checkpoint().tensors
    return {name: values.numpy().tobytes() for name, values in tensors.items()}


def _plain(printed: str, out: Path) -> str:
    """Without the clock, the folder's name, and the widths of a table that follow from both."""
    words = " ".join(re.sub(r"[\u2500-\u257f]+", " ", printed.replace(str(out), "OUT")).split())
    return re.sub(r"seconds [\d.]+|[\d.]+ (s|min|h)\b", "TIME", words)
