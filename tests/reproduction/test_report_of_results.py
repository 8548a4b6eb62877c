"""What the report page draws of results: ε by round where it is known, and who holds what where the data are."""

import dataclasses
import json

import pytest
from reproduction.grid import cells, load_grid
from reproduction.report import results_report

from alidpfl.privacy import SampledGaussian, epsilon
from tests.reproduction.made import made_result

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
    """A report of two runs of 40 rounds at τ = 3, whose ε is what their steps cost, unless `changes` say otherwise."""
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


def epsilon_chart(made):
    (found,) = [chart for chart in made.charts if chart.name.startswith("epsilon")]
    return found


@pytest.mark.parametrize("accountant", ["rdp-paper", "pld"])
def test_epsilon_by_round_is_what_the_steps_cost(tmp_path, accountant):
    made = epsilon_chart(reported(tmp_path, accountant=accountant))
    ratio, paper = made.chart["series"]
    assert ratio["points"][0][0] == 1
    assert ratio["points"][-1][0] == 40
    for number, spent in ratio["points"]:
        steps = SampledGaussian(sample_rate=0.015, noise_multiplier=1.1, steps=3 * number)
        exact = epsilon([steps], 1e-5, accountant)
        assert exact <= spent <= 1.002 * exact  # never less than was spent
    assert (ratio["name"], paper["name"]) == ("ratio", "paper *")
    assert "* of its steps only: clients' values were used without noise" in made.caption
    assert made.chart["limit"]["y"] == 2.0


@pytest.mark.parametrize("changes", [{"epsilon": 1.7}, {"local_steps": [3] * 30}, {"noise_multiplier": 1.2}])
def test_no_epsilon_is_drawn_that_is_not_the_runs_own(tmp_path, changes):
    made = epsilon_chart(reported(tmp_path, **changes))
    assert [series["name"] for series in made.chart["series"]] == ["paper *"]
    assert made.chart["series"][0]["place"] == 1  # of the colour that it has in the other drawings
    assert "Not drawn: ratio" in made.caption


def test_who_holds_what_is_drawn_once_for_each_split(tmp_path):
    made = reported(tmp_path)
    (split,) = made.splits
    assert split.title == "synthetic, natural, 4 clients, seed 0"
    assert {len(row) for row in split.counts} == {4}
    assert not any("Who holds what" in caveat for caveat in made.caveats)


def test_splits_that_differ_in_beta_alone_are_two(tmp_path, monkeypatch):
    monkeypatch.setattr("reproduction.splits.load_data", lambda config: config.data.name)
    monkeypatch.setattr("reproduction.splits.public_split", lambda config, dataset: [[1]])
    listed = cells(load_grid("heterogeneity"), methods=["ours:ali", "adap_dpfl"])
    lines = [json.dumps(dataclasses.asdict(made_result(cell, 60.0))) for cell in listed]
    (tmp_path / "heterogeneity.jsonl").write_text("\n".join(lines) + "\n")
    titles = [split.title for split in results_report(tmp_path).splits]
    told = ["iid", "dirichlet(0.05)", "dirichlet(0.5)", "dirichlet(1)"]
    assert titles == [f"fashion_mnist, {split}, 10 clients, seed 0" for split in told]


def test_without_the_data_a_sentence_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("ALIDPFL_DATA_DIR", str(tmp_path / "nothing"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "nothing"))
    monkeypatch.setenv("HOME", str(tmp_path))
    listed = cells(load_grid("small"), datasets=["mnist"], methods=["ours:ali"])
    lines = [json.dumps(dataclasses.asdict(made_result(cell, 60.0))) for cell in listed]
    (tmp_path / "small.jsonl").write_text("\n".join(lines) + "\n")
    made = results_report(tmp_path)
    assert made.splits == []
    assert "Who holds what is not shown of mnist: these data cannot be read on this machine." in made.caveats


def test_a_table_of_one_data_set_names_the_settings_of_that_one(tmp_path):
    chosen = cells(load_grid("small"), datasets=["mnist", "fashion_mnist"], methods=["ours:ali"])
    lines = [json.dumps(dataclasses.asdict(made_result(cell, 70.0))) for cell in chosen]
    (tmp_path / "small.jsonl").write_text("\n".join(lines) + "\n")
    captions = {table.title.rpartition(": ")[2]: table.caption for table in results_report(tmp_path).tables}
    assert "mnist: C = 1, η = 1" in captions["mnist"]
    assert "fashion_mnist: C = 1, η = 2" in captions["fashion_mnist"]
    assert "fashion_mnist" not in captions["mnist"]
