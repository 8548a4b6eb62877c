"""The committed results are consistent, within their budgets, and belong to today's grids and recipes."""

import json
import math
import tomllib
from functools import cache
from pathlib import Path

import pytest

from alidpfl.config import load_config
from alidpfl.privacy import SampledGaussian, epsilon
from reproduction.experiments import best, stored, tune
from reproduction.grid import MOST_SEEDS, NAMES, SEARCH, cells, load_grid
from reproduction.pages import adaptivity, deciders
from reproduction.pages.sources import load
from reproduction.paper import published
from reproduction.results import RESULTS, json_lines, read_results

EXPERIMENTS = RESULTS.parent / "experiments"
SEARCHES = sorted([*(EXPERIMENTS / "tuning").glob("*.toml"), *(EXPERIMENTS / "planner").glob("*.toml")])
TERMS = {
    "small": (158, {"R_s = 2 R_c": 1.55, "R_s = R_c": 1.75, "R_s = R_c/2": 2.0, "R_s = R_c/5": 2.75}),
    "medium": (231, {"R_s = 2 R_c": 1.75, "R_s = R_c": 2.0, "R_s = R_c/2": 2.5, "R_s = R_c/5": 3.75}),
    "large": (317, {"R_s = 2 R_c": 2.0, "R_s = R_c": 2.5, "R_s = R_c/2": 3.25, "R_s = R_c/5": 5.25}),
    "heterogeneity": (105, dict.fromkeys(["IID", "Dir(0.05)", "Dir(0.5)", "Dir(1)"], 2.0)),
}
MATCHES = {
    "R_s = 2 R_c": {"rounds_over_steps": "2"},
    "R_s = R_c": {"rounds_over_steps": "1"},
    "R_s = R_c/2": {"rounds_over_steps": "1/2"},
    "R_s = R_c/5": {"rounds_over_steps": "1/5"},
    "IID": {"partition": "iid"},
    "Dir(0.05)": {"partition": "dir:0.05"},
    "Dir(0.5)": {"partition": "dir:0.5"},
    "Dir(1)": {"partition": "dir:1"},
}
BETAS = {"IID": None, "Dir(0.5)": 0.5, "Dir(1)": 1.0}


@pytest.fixture(scope="module")
def sources():
    return load()


@cache
def cost(sample_rate, noise_multiplier, steps, delta, accountant):
    spent = SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier, steps=steps)
    return epsilon([spent], delta, accountant)


@pytest.mark.parametrize("name", [*NAMES, str(EXPERIMENTS / "control.toml")], ids=lambda name: Path(name).stem)
def test_every_line_of_a_grid(name):
    """Each line is consistent, and is a cell of today's grid. No table would show a line with other settings."""
    grid = load_grid(name)
    keys = {cell.key for cell in cells(grid, seeds=MOST_SEEDS)}
    for line in read_results(RESULTS / f"{grid.name}.jsonl"):
        settings = line.settings
        assert line.key in keys
        assert line.delta == settings["privacy.delta"]
        assert line.epsilon <= settings["privacy.epsilon"]
        assert line.covers_everything == (not settings.get("privacy.unsafe"))
        assert line.stop_reason in ("max_rounds", "privacy_budget")
        assert len(line.local_steps) == line.rounds <= settings["federation.max_rounds"]
        assert sum(line.local_steps) == line.steps
        assert line.accuracies[-1] == (line.rounds, line.accuracy)
        if settings["method.name"] != "adap_dpfl":  # its noise depends on outputs
            assert line.noise_multiplier == settings["privacy.noise_multiplier"]
            accountant = settings["privacy.accountant"]
            again = cost(settings["privacy.sample_rate"], line.noise_multiplier, line.steps, line.delta, accountant)
            assert line.epsilon == pytest.approx(again, rel=1e-6)


@pytest.mark.parametrize("name", TERMS)
def test_the_terms_of_a_table_are_those_of_the_paper(name):
    """Each of our columns has the ε, split and rounds of the paper's column next to it."""
    grid, (max_rounds, epsilons) = load_grid(name), TERMS[name]
    assert {column.name: column.match for column in grid.columns} == {column: MATCHES[column] for column in epsilons}
    for cell in cells(grid, datasets=grid.datasets[:1]):
        config = cell.config
        beta = BETAS.get(cell.column, 0.05)
        assert config.partition == ("iid" if beta is None else "dirichlet")
        assert beta is None or config.data.dirichlet_beta == beta
        assert (config.data.clients, config.model.name) == (10, "cnn")
        assert (config.privacy.epsilon, config.privacy.delta) == (epsilons[cell.column], 1e-5)
        assert config.federation.max_rounds == max_rounds
        assert config.data.validation == (0.02 if cell.method == "adap_dpfl" else 0.0)
        assert (config.run.evaluate_on, config.run.seed) == ("test", 0)


def test_every_line_of_the_recipes():
    assert {name: (rounds, list(ratios.values())) for name, (rounds, ratios) in best.TABLES.items()} == {
        name: (rounds, list(epsilons.values())) for name, (rounds, epsilons) in TERMS.items() if name in best.TABLES
    }
    lines = json_lines(best.RESULTS)
    assert len(lines) == 51
    for line in lines:
        rounds, epsilons = best.TABLES[line["table"]]
        assert line["epsilon_allowed"] == epsilons[line["ratio"]]
        assert 0 < line["epsilon"] <= line["epsilon_allowed"]
        assert line["covers_everything"] is True
        assert line["rounds"] == rounds
        match = {"rounds_over_steps": line["ratio"]}
        assert line["paper"] == published(line["table"], line["dataset"], match, "ali_dpfl")


def test_the_recipes_are_those_that_were_run():
    """`python -m reproduction.experiments.best` writes recipes.json with its results."""
    assert json.loads(best.RECIPES.read_text()) == best.recipes()


@pytest.mark.parametrize("dataset", best.DATASETS)
def test_every_line_of_the_papers_network_outside_the_grids(dataset):
    lines = json_lines(RESULTS / f"{dataset}.jsonl")
    assert lines
    for line in lines:
        assert 0 < line["epsilon"] <= 2
        assert line["paper"] == published("small", dataset, {"rounds_over_steps": "1/2"}, "ali_dpfl")


@pytest.mark.parametrize("path", sorted((EXPERIMENTS / "policies").glob("*.toml")), ids=lambda path: path.stem)
def test_every_line_of_a_comparison_of_policies(path):
    settings = tomllib.loads(path.read_text())
    compare = settings.pop("compare")
    lines = json_lines(RESULTS / "policies" / f"{path.stem}.jsonl")
    assert {(line["seed"], line["arm"]) for line in lines} == {
        (seed, arm) for seed in compare["seeds"] for arm in compare["arms"]
    }
    for line in lines:
        changes = stored.overrides(compare["arms"][line["arm"]])
        config = load_config(overrides=[*stored.overrides(settings), *changes])
        assert 0 < line["epsilon"] <= config.privacy.epsilon
        assert line["covers_everything"] == (not config.privacy.unsafe)
        assert line["rounds"] <= config.federation.max_rounds


@pytest.mark.parametrize("path", SEARCHES, ids=lambda path: f"{path.parent.stem}-{path.stem}")
def test_no_search_uses_the_test_set_or_a_seed_of_the_results(path, monkeypatch):
    monkeypatch.chdir(RESULTS.parents[1])  # the search for a recipe names its filters from the root
    settings = tomllib.loads(path.read_text())
    points = list(tune.combinations(settings.pop("search")))
    for point in points:
        config = load_config(overrides=[*stored.overrides(settings), *stored.overrides(point)])
        assert config.run.evaluate_on == "validation"
        assert config.data.validation > 0
        assert config.run.seed >= 100
    for line in json_lines(RESULTS / path.parent.stem / f"{path.stem}.jsonl"):
        assert line["point"] in points


def test_a_search_on_the_test_set_is_refused(tmp_path):
    search = tmp_path / "search.toml"
    search.write_text('[run]\nevaluate_on = "test"\n[search]\n"run.seed" = [100]\n')
    with pytest.raises(SystemExit, match=r"run\.evaluate_on"):
        tune.main(str(search), str(tmp_path / "out.jsonl"))
    assert not (tmp_path / "out.jsonl").exists()


def test_the_tests_above_have_something_to_check():
    assert len(list(read_results(RESULTS / "small.jsonl"))) >= 84
    assert len(list(read_results(RESULTS / f"{SEARCH}.jsonl"))) >= 104
    assert len(SEARCHES) == 8
    assert math.isclose(cost(0.015, 1.1, 158, 1e-5, "pld"), 1.05, abs_tol=0.1)


# The pages say these things in words, above tables that are computed.


def test_ali_beats_ratio_and_not_the_best_fixed_steps(sources):
    _, tallies = adaptivity.compared(sources.grids, sources.known)
    against_ratio, against_best = (tallies[adaptivity.ALI, other].all for other in (adaptivity.RATIO, adaptivity.BEST))
    assert against_ratio.better > against_ratio.pairs / 2
    assert against_best.better < against_best.pairs / 2
    assert against_ratio.mean > 0 > against_best.mean


def test_lemma_2_hardly_ever_chooses_the_steps_of_ali(sources):
    for counts in (decided := deciders.decided(sources.known)).values():
        assert counts[deciders.LEMMA_2] <= 0.5 * (counts[deciders.CAP] + counts[deciders.LEMMA_2])
    own, cap = (sum(counts[name] for counts in decided.values()) for name in (deciders.LEMMA_2, deciders.CAP))
    assert 0 < own < 0.05 * (own + cap)


def test_the_control_is_better_than_ali_on_mnist_only(sources):
    rows, tallies = adaptivity.control(sources.grids[0], sources.control, sources.known)
    against_early = tallies[adaptivity.ALI, adaptivity.EARLY].all
    assert against_early.pairs >= 6
    assert against_early.worse > 2 * against_early.better
    assert against_early.mean < 0 < tallies[adaptivity.EARLY, adaptivity.RATIO].all.mean
    assert {row[0] for row in rows} == {"mnist"}
    assert len(rows) == 4


def test_more_steps_make_ratio_worse_in_all_but_one_place(sources):
    (table,) = [table for table in sources.tables if table.grid.name == "small"]
    means = {(e.dataset, e.accountant, e.column): e.mean for e in table.entries if e.method == "ours:ratio"}
    changes = {
        (dataset, accountant): means[dataset, accountant, "R_s = R_c/5"] - means[dataset, accountant, "R_s = R_c/2"]
        for dataset, accountant, _ in means
    }
    assert [place for place, change in changes.items() if change > 0] == [("fashion_mnist", "rdp-paper")]
    assert len(changes) == 6


@pytest.mark.parametrize("name", ["strokes-linear", "strokes-cnn"])
def test_ratio_with_late_decay_beats_spending_early_on_drawn_digits(name):
    accuracy = {
        (line["arm"], line["seed"]): line["accuracy"] for line in json_lines(RESULTS / f"policies/{name}.jsonl")
    }
    for seed in range(5):
        for other in ("ali + late decay", "early + late decay"):
            assert accuracy["ratio + late decay", seed] > accuracy[other, seed]


def test_the_papers_rule_runs_away_on_drawn_digits():
    runs = [line for line in json_lines(RESULTS / "policies/strokes-linear.jsonl") if line["arm"].startswith("paper")]
    assert (min(run["local_steps"][1] for run in runs), max(run["local_steps"][1] for run in runs)) == (61, 95)
    assert {run["rounds"] for run in runs} == {4, 5}
