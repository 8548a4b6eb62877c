"""The report page of a folder of results: tables, charts, caveats and splits."""

import dataclasses
import json
import re

import pytest

from alidpfl.errors import DataError
from alidpfl.privacy import SampledGaussian, epsilon
from reproduction.grid import cells, load_grid
from reproduction.report import best_fixed, results_report
from reproduction.results import Results
from reproduction.tables import as_markdown, table_so_far

from .made import OURS, made, made_result

GRID = """title = 'Mine: own'
datasets = ['synthetic']
accountants = ['{accountant}']
settings = {{ 'data.clients' = {clients}, 'privacy.epsilon' = 2.0, 'privacy.sample_rate' = 0.015 }}
[[columns]]
name = 'one'
settings = {{}}
[[methods]]
name = 'ratio'
settings = {{ 'method.policy' = 'ratio' }}
[[methods]]
name = 'paper'
settings = {{ 'method.policy' = 'paper', 'privacy.unsafe' = ['unaccounted-signals'] }}
"""


def reported(folder, *, accountant="rdp-paper", clients=4, **changes):
    """Report two runs of 40 rounds at τ = 3. Their ε is the cost of their steps, unless `changes` replace it."""
    path = folder / "mine.toml"
    path.write_text(GRID.format(accountant=accountant, clients=clients))
    grid = load_grid(str(path))
    steps = SampledGaussian(sample_rate=0.015, noise_multiplier=1.1, steps=120)
    true = {"local_steps": [3] * 40, "steps": 120, "rounds": 40, "epsilon": epsilon([steps], 1e-5, accountant)}
    results = [
        dataclasses.replace(
            made_result(cell, 70.0, covers_everything=cell.method == "ratio"),
            **{**true, **(changes if cell.method == "ratio" else {})},
        )
        for cell in cells(grid)
    ]
    lines = [json.dumps(dataclasses.asdict(result)) for result in results]
    (folder / "mine.jsonl").write_text("\n".join(lines) + "\n")
    return results_report(folder, [grid])


def epsilon_chart(page):
    (found,) = [chart for chart in page.charts if chart.name.startswith("epsilon")]
    return found


@pytest.mark.parametrize("accountant", ["rdp-paper", "pld"])
def test_epsilon_by_round_is_what_the_steps_cost(tmp_path, accountant):
    page = epsilon_chart(reported(tmp_path, accountant=accountant))
    ratio, paper = page.chart["series"]
    assert ratio["points"][0][0] == 1
    assert ratio["points"][-1][0] == 40
    for number, spent in ratio["points"]:
        steps = SampledGaussian(sample_rate=0.015, noise_multiplier=1.1, steps=3 * number)
        exact = epsilon([steps], 1e-5, accountant)
        assert exact <= spent <= 1.002 * exact  # never too small
    assert (ratio["name"], paper["name"]) == ("ratio", "paper *")
    assert "*" in page.caption
    assert page.chart["limit"]["y"] == 2.0


@pytest.mark.parametrize("changes", [{"epsilon": 1.7}, {"local_steps": [3] * 30}, {"noise_multiplier": 1.2}])
def test_an_epsilon_that_does_not_match_the_run_is_not_drawn(tmp_path, changes):
    page = epsilon_chart(reported(tmp_path, **changes))
    assert [series["name"] for series in page.chart["series"]] == ["paper *"]
    assert page.chart["series"][0]["place"] == 1  # it keeps its colour of the other charts
    assert "ratio" in page.caption


def test_each_split_is_drawn_once(tmp_path):
    page = reported(tmp_path)
    (split,) = page.splits
    assert split.title == "synthetic, natural, 4 clients, seed 0"
    assert {len(row) for row in split.counts} == {4}


def test_splits_that_differ_in_beta_alone_are_two(tmp_path, monkeypatch):
    monkeypatch.setattr("reproduction.splits.load_data", lambda config: config.data.name)
    monkeypatch.setattr("reproduction.splits.public_split", lambda config, dataset: [[1]])
    listed = cells(load_grid("heterogeneity"), methods=["ours:ali", "adap_dpfl"])
    lines = [json.dumps(dataclasses.asdict(made_result(cell, 60.0))) for cell in listed]
    (tmp_path / "heterogeneity.jsonl").write_text("\n".join(lines) + "\n")
    titles = [split.title for split in results_report(tmp_path).splits]
    splits = ["iid", "dirichlet(0.05)", "dirichlet(0.5)", "dirichlet(1)"]
    assert titles == [f"fashion_mnist, {split}, 10 clients, seed 0" for split in splits]


def test_without_the_data_a_caveat_names_them(tmp_path, monkeypatch):
    monkeypatch.setenv("ALIDPFL_DATA_DIR", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))
    monkeypatch.setenv("HOME", str(tmp_path))
    listed = cells(load_grid("small"), datasets=["mnist"], methods=["ours:ali"])
    lines = [json.dumps(dataclasses.asdict(made_result(cell, 60.0))) for cell in listed]
    (tmp_path / "small.jsonl").write_text("\n".join(lines) + "\n")
    page = results_report(tmp_path)
    assert page.splits == []
    assert sum("mnist" in caveat for caveat in page.caveats) == 1


def test_a_table_of_one_data_set_names_the_settings_of_that_one(tmp_path):
    chosen = cells(load_grid("small"), datasets=["mnist", "fashion_mnist"], methods=["ours:ali"])
    lines = [json.dumps(dataclasses.asdict(made_result(cell, 70.0))) for cell in chosen]
    (tmp_path / "small.jsonl").write_text("\n".join(lines) + "\n")
    captions = {table.title.rpartition(": ")[2]: table.caption for table in results_report(tmp_path).tables}
    assert "mnist: C = 1, η = 1" in captions["mnist"]
    assert "fashion_mnist: C = 1, η = 2" in captions["fashion_mnist"]
    assert "fashion_mnist" not in captions["mnist"]


def test_what_epsilon_does_not_cover_is_marked_whatever_the_reason(tmp_path):
    grid, known = made(OURS)
    (key,) = [key for key, result in known.items() if result.settings.get("method.policy") == "ali"]
    assert not known[key].settings.get("privacy.unsafe")
    known[key] = dataclasses.replace(known[key], covers_everything=False)
    (entry,) = [e for e in table_so_far(grid, known).entries if e.method == "ours:ali" and e.accuracies]
    assert not entry.covered
    assert re.search(r"^\| ours:ali \* \|", as_markdown(table_so_far(grid, known)), re.MULTILINE)
    results = Results(tmp_path / "results.sqlite")
    for result in known.values():
        results.add(result)
    (caveat,) = [line for line in results_report(tmp_path).caveats if "does NOT cover" in line]
    assert "ali_dpfl, ours:ali" in caveat


@pytest.mark.parametrize("wrong", [{"epsilon": 80.0}, {"covers_everything": False}, {"covers_everything": None}])
def test_a_recipe_beyond_its_epsilon_is_not_shown(tmp_path, wrong):
    line = {"table": "small", "ratio": "1/2", "dataset": "mnist", "accuracy": 99.9, "paper": 97.58}
    line |= {"epsilon_allowed": 2.0, "epsilon": 1.9, "covers_everything": True}
    (tmp_path / "small.jsonl").write_text("")
    (tmp_path / "best.jsonl").write_text(json.dumps(line) + "\n")
    assert "99.90 (1 seed)" in results_report(tmp_path).tables[0].rows[0]
    (tmp_path / "best.jsonl").write_text(json.dumps(line | wrong) + "\n")
    with pytest.raises(DataError, match=r"line 1 .*epsilon"):
        results_report(tmp_path)


def test_the_best_fixed_steps_are_counted_where_all_have_been_run():
    grid, known = made(OURS)
    assert best_fixed(table_so_far(grid, known)) == {1: 0, 2: 0, 3: 1, 5: 0, 10: 0}
    _, tight = made(dict.fromkeys(OURS, 90.0), accountant="pld")
    assert best_fixed(table_so_far(grid, known | tight)) == {1: 0, 2: 0, 3: 1, 5: 0, 10: 0}
    _, equal = made(dict.fromkeys(OURS, 90.0))
    assert best_fixed(table_so_far(grid, equal)) == {1: 1, 2: 0, 3: 0, 5: 0, 10: 0}
    _, most = made({name: accuracy for name, accuracy in OURS.items() if name != "fedavg_dp:tau=10"})
    assert set(best_fixed(table_so_far(grid, most)).values()) == {0}


def test_the_summary_keeps_accountants_apart(tmp_path):
    _, known = made({"fedavg_dp:tau=1": 92.06, "fedavg_dp:tau=2": 97.77})
    _, tight = made({"fedavg_dp:tau=1": 99.06}, accountant="pld")
    results = Results(tmp_path / "results.sqlite")
    for result in (known | tight).values():
        results.add(result)
    page = results_report(tmp_path)
    assert page.summary.rows == [
        ["Table I", "rdp-paper", "2 of 120", "1", "-1.00", "1 of 2"],
        ["Table I", "pld", "1 of 120", "1", "+4.00", "1 of 1"],
        ["Table I", "rdp", "0 of 12", "-", "-", "-"],
    ]
    drawn = {chart.name: chart.chart for chart in page.charts}
    assert [line["name"] for line in drawn["accuracy-small-mnist-2"]["series"]] == [
        "fedavg_dp:tau=1",
        "fedavg_dp:tau=2",
    ]
    assert drawn["accuracy-small-mnist-2"]["series"][0]["points"] == [[3, 92.06]]
    settings = next(table for table in page.tables if table.title.endswith("settings"))
    assert ["privacy.noise_multiplier", "1.1"] in settings.rows
    assert ["R_s = R_c/2", "privacy.epsilon = 2"] in settings.rows
    assert ["fedavg_dp:tau=5", "method.name = fedavg_dp, method.local_steps = 5"] in settings.rows


def test_charts_are_of_the_papers_accountant_and_of_one_seed(tmp_path):
    _, known = made(OURS, seeds=2)
    known |= made({name: value - 30 for name, value in OURS.items()}, accountant="pld")[1]
    results = Results(tmp_path / "results.sqlite")
    for result in known.values():
        results.add(result)
    page = results_report(tmp_path)
    drawn = {chart.name: chart.chart["series"] for chart in page.charts}
    (fixed,) = drawn["fixed-small-mnist"]
    assert fixed["points"] == [[1.0, 91.5], [2.0, 95.5], [3.0, 97.25], [5.0, 79.5], [10.0, 69.5]]  # means of two seeds
    assert [series["points"][-1] for series in drawn["sequence-small-mnist"]] == [[2, 0.0], [2, 0.0]]  # τ of seed 0
    assert len(drawn["accuracy-small-mnist-2"]) == len(OURS)
    assert any("10 of 20 cells have one seed" in caveat for caveat in page.caveats)


def test_other_models_are_not_taken_for_the_papers(tmp_path):
    best = {"table": "small", "ratio": "1/2", "dataset": "mnist", "paper": 97.58, "epsilon_allowed": 2.0}
    best |= {"epsilon": 1.9, "covers_everything": True, "accuracy": 98.0}
    (tmp_path / "best.jsonl").write_text(json.dumps(best))
    results = Results(tmp_path / "results.sqlite")
    for result in made(OURS)[1].values():
        results.add(result)
    *_, last = results_report(tmp_path).tables
    assert last.rows[0][:4] == ["mnist", "1/2", "small", "2"]
    assert "other models" in last.caption
    assert "test set" in last.caption
