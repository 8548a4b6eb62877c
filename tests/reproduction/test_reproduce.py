"""Running a grid: cells with a result are skipped, killed cells continue, and tables show what was run."""

import csv
import dataclasses
import io
import json
import math
import random
import sqlite3
import statistics
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from alidpfl.errors import ConfigError, DataError
from alidpfl.runs import execute, load_config
from alidpfl.store import RunDirectory
from reproduction.grid import cells, load_grid
from reproduction.results import Results, read_results
from reproduction.run import _collected, reproduce, run_cell
from reproduction.tables import FORMATS, make_table

from .made import made_result

GRID = """
title = "A grid of one's own"
datasets = ["synthetic"]
accountants = ["rdp"]

[settings]
"data.clients" = 3
"model.name" = "linear"
"privacy.epsilon" = 4.0
"privacy.sample_rate" = 0.1
"privacy.noise_multiplier" = 2.0
"method.learning_rate" = 0.1
"federation.max_rounds" = {rounds}

[[columns]]
name = "few"
settings = {{ "privacy.epsilon" = 3.0 }}

[[columns]]
name = "many"
settings = {{ "privacy.epsilon" = 4.0 }}

[[methods]]
name = "ours:ratio"
settings = {{ "method.policy" = "ratio" }}

[[methods]]
name = "leaky"
settings = {{ "method.policy" = "paper", "privacy.unsafe" = ["unaccounted-signals"] }}
"""


@pytest.fixture
def grid(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(GRID.format(rounds=6))
    return load_grid(str(path))


@pytest.fixture
def store(tmp_path):
    return Results(tmp_path / "results" / "results.sqlite")


def command(*arguments):
    return [sys.executable, "-m", "alidpfl", *map(str, arguments)]


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Run a grid of one column, two methods and two seeds."""
    folder = tmp_path_factory.mktemp("ran")
    (folder / "own.toml").write_text(GRID.format(rounds=6))
    grid, results = load_grid(str(folder / "own.toml")), Results(folder / "results.sqlite")
    listed, seen = list(cells(grid, seeds=2, columns=["few"])), []
    tally = reproduce(listed, results, folder / "runs", jobs=2, on_progress=lambda t, now: seen.append(len(now)))
    assert (tally.total, tally.stored, tally.finished, tally.failed) == (4, 0, 4, {})
    assert max(seen) == 2
    return grid, listed, results, folder


def test_every_cell_is_run_once_and_then_skipped(ran):
    _, listed, results, folder = ran
    assert results.keys() == {cell.key for cell in listed}
    assert list((folder / "runs").iterdir()) == []  # nothing is left behind
    again = reproduce(listed, results, folder / "runs")
    assert (again.stored, again.finished) == (4, 0)


def test_the_result_is_that_of_the_run(ran, tmp_path):
    _, (cell, *_), results, _ = ran
    result = results.get(cell.key)
    outcome = execute(cell.config, tmp_path / "alone")
    assert (result.accuracy, result.epsilon, result.steps) == (outcome.accuracy, outcome.epsilon, outcome.steps)
    assert sum(result.local_steps) == result.steps
    assert result.accuracies[-1] == (result.rounds, result.accuracy)


def test_a_result_is_of_the_last_round_not_of_the_best(ran, tmp_path):
    _, (cell, *_), _, _ = ran
    outcome = execute(cell.config, tmp_path / "alone")
    metrics = tmp_path / "alone" / "metrics.jsonl"
    lines = [json.loads(line) for line in metrics.read_text().splitlines()]
    lines[0] |= {"accuracy": 99.9, "loss": 0.1}
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = _collected(cell, tmp_path / "alone")
    assert result.accuracies[0] == (1, 99.9)
    assert result.accuracy == outcome.accuracy < 99.9


def test_a_result_says_whether_epsilon_covers_it(ran):
    _, listed, results, _ = ran
    covered = {(cell.method, results.get(cell.key).covers_everything) for cell in listed}
    assert covered == {("ours:ratio", True), ("leaky", False)}


@pytest.mark.slow
def test_a_cell_that_fails_is_named_and_the_others_run(grid, store, tmp_path):
    few, many = grid.columns
    broken = grid.model_copy(update={"columns": (few.model_copy(update={"settings": {"privacy.epsilon": 1e-6}}), many)})
    tally = reproduce(list(cells(broken, methods=["ours:ratio"])), store, tmp_path / "runs", jobs=2)
    assert tally.finished == 1
    (error,) = tally.failed.values()
    assert "epsilon=1e-06" in error


class EnoughError(Exception):
    """Raised by a test once it has seen enough."""


def endless(tmp_path):
    """Return a cell that takes hours, and a function that returns its number of rounds."""
    path = tmp_path / "own.toml"
    path.write_text(GRID.format(rounds=100_000).replace('multiplier" = 2.0', 'multiplier" = 50.0'))
    listed = list(cells(load_grid(str(path)), columns=["few"], methods=["ours:ratio"]))
    metrics = tmp_path / "runs" / listed[0].key / "metrics.jsonl"

    def rounds():
        return len(metrics.read_text().splitlines()) if metrics.exists() else 0

    return listed, rounds


@pytest.mark.slow
def test_a_stopped_cell_continues_in_the_next_call(tmp_path, store):
    listed, rounds = endless(tmp_path)

    def until(count):
        def stop(_tally, _running):
            if rounds() >= count:
                raise EnoughError

        with pytest.raises(EnoughError):
            reproduce(listed, store, tmp_path / "runs", on_progress=stop)
        return rounds()

    first = until(1)
    assert until(first + 5) >= first + 5
    assert store.keys() == set()


def test_a_limit_is_kept(grid, store, tmp_path):
    tally = reproduce(list(cells(grid)), store, tmp_path / "runs", limit=0.0)
    assert (tally.finished, tally.total) == (0, 4)
    assert tally.seconds_left is None


@pytest.mark.slow
def test_what_runs_at_the_limit_is_stopped(tmp_path, store):
    listed, rounds = endless(tmp_path)
    limit = 1.0
    while rounds() == 0:  # the interpreter needs the first seconds
        limit *= 2
        tally = reproduce(listed, store, tmp_path / "runs", limit=limit)
        assert tally.seconds >= limit
        assert (tally.finished, tally.failed) == (0, {})
    done = rounds()
    time.sleep(1)
    assert rounds() == done


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 8])
def test_a_killed_cell_continues_and_has_the_same_result(tmp_path, kills):
    path, moments = tmp_path / "own.toml", random.Random(kills)  # noqa: S311
    path.write_text(GRID.format(rounds=40))
    arguments = ("reproduce", path, "--methods", "ours:ratio", "--jobs", "2")
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    subprocess.run(command(*arguments, "--store", tmp_path / "whole"), check=True, **quiet)

    def rounds():
        return sum(path.read_bytes().count(b"\n") for path in (tmp_path / "killed").glob("runs/*/metrics.jsonl"))

    for _ in range(kills):
        child, before = subprocess.Popen(command(*arguments, "--store", tmp_path / "killed"), **quiet), rounds()
        while rounds() <= before and child.poll() is None:
            time.sleep(0.01)
        time.sleep(moments.random() * 0.05 * (kills > 1))
        child.kill()  # only the parent, as when memory runs out: its jobs must end too
        child.wait()
    if kills == 1:
        assert rounds()  # in the middle of a run
    subprocess.run(command(*arguments, "--store", tmp_path / "killed"), check=True, **quiet)

    def results(folder):
        lines = [json.loads(line) for line in (tmp_path / folder / "own.jsonl").read_text().splitlines()]
        return [{key: value for key, value in line.items() if key != "seconds"} for line in lines]

    assert results("whole") == results("killed")
    assert len(results("whole")) == 2


def test_a_folder_in_use_is_not_touched(grid, tmp_path):
    (cell, *_) = cells(grid)
    settings = [f"{key}={json.dumps(value)}" for key, value in cell.settings]
    run = RunDirectory.create(tmp_path / "run")
    with run.lock():
        (tmp_path / "run" / "environment.json").write_text("{}")
        with pytest.raises(ConfigError, match="run"):
            run_cell(settings, tmp_path / "run", tmp_path)
        assert (tmp_path / "run" / "environment.json").read_text() == "{}"
    assert run_cell(settings, tmp_path / "run", tmp_path).rounds == 6  # a killed start left it


def test_tables_in_every_format(ran):
    grid, listed, results, _ = ran
    table = make_table(grid, cells(grid, seeds=2), results.all())
    rows = list(csv.DictReader(io.StringIO(FORMATS["csv"](table))))
    assert len(rows) == 4
    assert {row["n"] for row in rows if row["column"] == "many"} == {"0"}
    ours = next(row for row in rows if (row["column"], row["method"]) == ("few", "ours:ratio"))
    found = [results.get(cell.key).accuracy for cell in listed if cell.method == "ours:ratio"]
    assert float(ours["mean"]) == pytest.approx(statistics.mean(found), rel=1e-5)
    assert float(ours["sd"]) == pytest.approx(statistics.stdev(found), rel=1e-4)
    assert (ours["n"], ours["covered"]) == ("2", "True")
    markdown = FORMATS["markdown"](table)
    assert "| leaky * | rdp |" in markdown  # no ε covers it, and the table marks it
    assert f"{statistics.mean(found):.2f} ± {statistics.stdev(found):.2f} (2 seeds)" in markdown
    latex = FORMATS["latex"](table)
    assert latex.count(r"\\") >= 4
    assert r"$\pm$" in latex


def test_ours_stands_beside_the_papers(store):
    grid = load_grid("small")
    place = {"datasets": ["mnist"], "columns": ["R_s = R_c/2"], "methods": ["fedavg_dp:tau=1"]}
    for cell in cells(grid, seeds=2, accountants=["pld"], **place):
        store.add(made_result(cell, 96.06 + 0.2 * cell.seed))
    table = make_table(grid, cells(grid, seeds=2, datasets=["mnist"]), store.all())
    markdown = FORMATS["markdown"](table)
    assert "96.16 ± 0.14 (2 seeds), paper 95.06, +1.10" in markdown
    assert "not run, paper 97.58" in markdown
    assert "2308.10457" in markdown
    assert "| ali_dpfl * | rdp-paper |" in markdown  # marked before it has been run
    assert "| ours:ali | rdp-paper |" in markdown
    assert "| mnist | C = 0.3, η = 3, smallest C = 0.3 | `adap_dpfl` |" in markdown  # the settings have a table
    assert "Chosen settings: mnist" not in markdown


def test_a_data_set_that_was_not_searched_is_named(store):
    grid = load_grid("small").model_copy(update={"tuned": {"mnist": {"ours:ali": {"method.learning_rate": 2.0}}}})
    caption = make_table(grid, cells(grid, datasets=["mnist", "cifar10"]), store.all()).caption
    assert "mnist: η = 2 (ours:ali)" in caption
    assert "cifar10" in caption
    assert "cifar10" not in make_table(grid, cells(grid, datasets=["mnist"]), store.all()).caption


def test_a_caption_is_of_what_the_table_has(store):
    grid = load_grid("small")
    caption = make_table(grid, cells(grid, datasets=["mnist"], methods=["ours:ali"]), store.all()).caption
    assert "mnist: C = 1, η = 1 (ours:ali)." in caption
    assert "cifar10" not in caption


def test_a_line_that_was_corrected_replaces_what_is_stored(store, tmp_path):
    (cell,) = cells(load_grid("small"), datasets=["mnist"], columns=["R_s = R_c"], methods=["adap_dpfl"])
    store.add(made_result(cell, 50.0))
    store.write_lines(tmp_path / "small.jsonl", {cell.key})
    (tmp_path / "small.jsonl").write_text((tmp_path / "small.jsonl").read_text().replace("50.0", "60.0"))
    assert store.read_lines(tmp_path / "small.jsonl") == 1
    assert store.get(cell.key).accuracy == 60.0
    store.write_lines(tmp_path / "small.jsonl", {cell.key})
    assert [result.accuracy for result in read_results(tmp_path / "small.jsonl")] == [60.0]


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"key": "0" * 24}, "key"),
        ({"epsilon": 99.0}, "epsilon=99.*privacy.epsilon=1.75"),
        ({"stop_reason": "interrupted"}, "stop_reason='interrupted'"),
        ({"stop_reason": "luck"}, "stop_reason='luck'"),
        ({"accuracy": 133.54}, ""),
        ({"accuracy": math.nan}, ""),
        ({"accuracies": [(1, math.inf)]}, ""),
    ],
)
def test_a_result_that_no_run_can_have_is_refused(store, tmp_path, change, names):
    (cell,) = cells(load_grid("small"), datasets=["mnist"], columns=["R_s = R_c"], methods=["adap_dpfl"])
    store.add(made_result(cell, 50.0))
    wrong = json.dumps(dataclasses.asdict(made_result(cell, 50.0)) | change)
    (tmp_path / "small.jsonl").write_text(f"{wrong}\n")
    with pytest.raises(DataError, match=rf"line 1 of .*{names}"):
        store.read_lines(tmp_path / "small.jsonl")
    assert store.get(cell.key).accuracy == 50.0
    with sqlite3.connect(store.path) as connection:
        connection.execute("UPDATE results SET result = ?", (wrong,))
    for look in (store.all, lambda: store.get(cell.key)):
        with pytest.raises(DataError, match=rf"a row of .*{names}"):
            look()


def test_a_row_under_the_key_of_another_run_is_refused(store):
    one, other = cells(load_grid("small"), datasets=["mnist", "cifar10"], columns=["R_s = R_c"], methods=["adap_dpfl"])
    store.add(made_result(one, 50.0))
    with sqlite3.connect(store.path) as connection:
        connection.execute("UPDATE results SET key = ?", (other.key,))
    with pytest.raises(DataError, match="key"):
        store.all()


def test_a_run_that_was_started_with_other_settings_is_started_again(grid, tmp_path):
    """For example a run of an older version with other defaults."""
    cell, *_ = cells(grid, methods=["ours:ratio"], columns=["few"])
    directory, settings = tmp_path / cell.key, [f"{key}={json.dumps(value)}" for key, value in cell.settings]
    execute(load_config(overrides=[*settings, "federation.momentum=0.5"]), directory)
    before = (directory / "summary.json").read_bytes()
    (tmp_path / "rounds").mkdir()
    outcome = run_cell(settings, directory, tmp_path / "rounds")
    assert (directory / "summary.json").read_bytes() != before
    assert outcome.accuracy == execute(cell.config, tmp_path / "alone").accuracy
    done = (directory / "summary.json").stat().st_mtime_ns
    run_cell([*settings, "run.evaluate_every=7"], directory, tmp_path / "rounds")  # the result does not depend on it
    assert (directory / "summary.json").stat().st_mtime_ns == done


def test_looking_writes_nothing(store, tmp_path):
    cell, *_ = cells(load_grid("small"), datasets=["mnist"])
    store.add(made_result(cell, 50.0))
    folder = tmp_path / "published"
    store.write_lines(folder / "small.jsonl", {cell.key})
    page = tmp_path / "report.html"
    shown = subprocess.run(command("tables", "small", "--store", folder), capture_output=True, text=True, check=True)
    subprocess.run(command("report", folder, "-o", page), capture_output=True, check=True)
    assert "50.00 (1 seed)" in shown.stdout
    assert "50.00 (1 seed)" in page.read_text()
    assert [path.name for path in folder.iterdir()] == ["small.jsonl"]


def test_results_travel_as_lines(ran, tmp_path):
    _, listed, results, _ = ran
    lines = tmp_path / "own.jsonl"
    results.write_lines(lines, results.keys())
    other = Results(tmp_path / "other.sqlite")
    assert other.read_lines(lines) == 4
    assert other.read_lines(lines) == 0
    assert [other.get(cell.key) for cell in listed] == [results.get(cell.key) for cell in listed]
    lines.write_text("{}\n")
    with pytest.raises(DataError, match=r"line 1 of .*own\.jsonl"):
        other.read_lines(lines)
    (tmp_path / "bad.sqlite").write_text("this is no data base, whatever its name says")
    with pytest.raises(DataError, match=r"bad\.sqlite"):
        Results(tmp_path / "bad.sqlite")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("reproduce", "smal"), "did you mean 'small'"),
        (("reproduce", "small", "--limit", "soon"), "limit='soon'"),
        (("reproduce", "small", "--seeds", "0"), "seeds=0"),
        (("reproduce", "small", "--jobs", "0"), "jobs=0"),
        (("tables", "small", "--format", "word"), "format"),
    ],
)
def test_mistakes_are_named(arguments, says, tmp_path):
    from alidpfl.cli import app

    done = CliRunner().invoke(app, [*arguments, "--store", str(tmp_path)])
    assert done.exit_code == 2
    assert says in done.stderr


def test_jobs_must_be_some(store, tmp_path):
    with pytest.raises(ConfigError, match="jobs=0"):
        reproduce([], store, tmp_path, jobs=0)


def test_tables_of_a_folder_that_is_not_there(tmp_path):
    from alidpfl.cli import app

    done = CliRunner().invoke(app, ["tables", "small", "--store", str(tmp_path / "typo")])
    assert done.exit_code == 2
    assert not (tmp_path / "typo").exists()
    done = CliRunner().invoke(app, ["tables", "nosuch", "--store", str(tmp_path / "typo")])
    assert (done.exit_code, "nosuch" in done.stderr) == (2, True)


def test_a_grid_of_ones_own_claims_no_search_and_no_paper(ran):
    grid, _, results, _ = ran
    caption = make_table(grid, cells(grid), results.all()).caption
    assert "held-out" not in caption
    assert "arXiv" not in caption


def test_missing_data_are_named_once_before_the_first_cell(tmp_path, monkeypatch):
    from alidpfl.cli import app

    monkeypatch.setenv("ALIDPFL_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    done = CliRunner().invoke(app, ["reproduce", "small", "--datasets", "mnist", "--store", str(tmp_path / "store")])
    assert done.exit_code == 2
    assert done.stderr.count("alidpfl:") == 1
    assert "mnist" in done.stderr
    assert not (tmp_path / "store/runs").exists()


def test_only_tables_claim_test_accuracies():
    searched, tabled = (make_table(grid := load_grid(name), cells(grid), {}) for name in ("tuning", "small"))
    assert "test accuracy" not in searched.caption.lower()
    assert "test accuracy" in tabled.caption.lower()
