"""Runs and results for the report page, made once."""

import json
from dataclasses import asdict

import pytest
from typer.testing import CliRunner

from alidpfl.runs import execute, load_config
from reproduction.grid import cells, load_grid
from tests.reproduction.made import made_result

SETTINGS = ["data.name=synthetic", "data.clients=3", "model.name=linear", "federation.max_rounds=6", "run.processes=1"]
LEAKY = ['method.policy="paper"', 'privacy.unsafe=["unaccounted-signals"]']


def command(*arguments):
    from alidpfl.cli import app

    return CliRunner().invoke(app, ["report", *map(str, arguments)])


@pytest.fixture(scope="session")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    execute(load_config(overrides=[*SETTINGS, "run.evaluate_every=2"]), folder / "careful")
    execute(load_config(overrides=[*SETTINGS, *LEAKY]), folder / "<b>leaky")
    return [folder / "careful", folder / "<b>leaky"]


@pytest.fixture(scope="session")
def results(tmp_path_factory):
    """A folder of results like that of `reproduce`, with invented figures."""
    folder, lines = tmp_path_factory.mktemp("results"), []
    methods = [*(f"fedavg_dp:tau={steps}" for steps in (1, 2, 3, 5, 10)), "ali_dpfl", "ours:ali"]
    for place, cell in enumerate(cells(load_grid("small"), datasets=["mnist"], methods=methods, seeds=2)):
        result = made_result(cell, 50.0 + place % 50, covers_everything=cell.method != "ali_dpfl")
        lines.append(json.dumps(asdict(result)))
    (folder / "small.jsonl").write_text("\n".join(lines) + "\n")
    best = {"table": "small", "ratio": "1/2", "dataset": "mnist", "paper": 97.58, "epsilon_allowed": 2.0}
    best |= {"epsilon": 1.9, "covers_everything": True}
    (folder / "best.jsonl").write_text("".join(json.dumps(best | {"accuracy": a}) + "\n" for a in (98.0, 99.0)))
    (folder / "killers.json").write_text("{}")
    return folder


@pytest.fixture(scope="session")
def report(runs, results, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    done = command(*runs, results, "-o", path)
    assert done.exit_code == 0, done.stderr
    return path
