"""Plans of runs on tables tell nothing of held-out rows."""

import json
from dataclasses import asdict

import numpy as np
import polars as pl
import pytest

from alidpfl.planner import Setting
from alidpfl.runs import auto_plan, load_config, prepare
from alidpfl.runs.data import load_data
from alidpfl.runs.tables import with_table_defaults
from alidpfl.store import RunDirectory
from alidpfl.tables.encode import Encoder
from alidpfl.tables.held_out import held_out_rows
from tests.runs.command import alidpfl as command
from tests.tables.parts import hospitals, schema

KEY = bytes(range(32))


@pytest.fixture
def folder(tmp_path):
    hospitals(tmp_path)
    return tmp_path


def test_held_out_rows_change_nothing(folder, monkeypatch):
    """Not even by rounding: of five tables, each has a few held-out rows less than the one before."""
    files = json.dumps([str(path) for path in sorted(folder.glob("*.csv"))])
    own = ("data.name=table", f"data.schema_file={folder / 'schema.toml'}", f"data.files={files}")
    settings, asked = with_table_defaults(load_config(overrides=[*own, "run.randomness=secure"])), []

    def asks(question, _compute, **_names):
        asked.append(question)
        return asdict(Setting(sample_rate=0.1, noise_multiplier=2.0, local_steps=1, steps=3, signal_to_noise=1.0))

    monkeypatch.setattr(auto_plan, "cached", asks)
    rows = pl.read_csv(folder / "north.csv", infer_schema=False)
    encoded = Encoder(schema()).encode(rows, needs_target=True)
    is_out = np.flatnonzero(held_out_rows(encoded, 0.2, KEY))
    for dropped in (0, 1, 2, 5, 10):
        kept = ~np.isin(np.arange(len(rows)), is_out[:dropped])
        rows.filter(pl.Series(kept)).write_csv(folder / "north.csv")
        auto_plan.planned(settings, held_out_key=KEY)
    assert asked[0]["request"]["samples"] == len(load_data(settings, key=KEY).train)
    assert all(question == asked[0] for question in asked[1:])


@pytest.mark.parametrize("given", [(), ("--plan", "auto")])
def test_plan_and_run_hold_the_same_rows_out(folder, monkeypatch, given):
    found = []
    for module in (auto_plan, prepare):

        def loads(settings, on_progress, key, load=module.load_data):
            found.append((key, load(settings, on_progress, key)))
            return found[-1][1]

        monkeypatch.setattr(module, "load_data", loads)
    files = [f"--data={path}" for path in sorted(folder.glob("*.csv"))]
    quick = ("--set", "privacy.accountant=rdp", "--set", "privacy.sample_rate=0.5", "--set", "run.processes=1")
    named = ("--schema", folder / "schema.toml", *files, "--out", folder / "run")
    done = command("run", *named, "--rounds=1", *quick, *given)
    assert done.exit_code == 0, done.stderr
    (key, planned), (used, ran) = found
    assert key == used == RunDirectory.open(folder / "run").held_out_key() is not None
    assert [len(rows) for rows in planned.natural_clients] == [len(rows) for rows in ran.natural_clients]
