"""What is committed under results/ is consistent, within its budget, and of today's grids, recipes and pictures."""

import json
import math
import re
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from reproduction.grid import MOST_SEEDS, NAMES, SEARCH, cells, load_grid
from reproduction.published import published
from reproduction.results import read_results
from reproduction.tables import table_so_far

from alidpfl.privacy import SampledGaussian, epsilon
from alidpfl.runs import load_config

from .made import overall

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "reproduction" / "experiments"))
import best  # noqa: E402
import stored  # noqa: E402
import tune  # noqa: E402

sys.path.pop(0)

RESULTS = ROOT / "reproduction" / "results"
SEARCHES = sorted(
    [
        *(ROOT / "reproduction/experiments/tuning").glob("*.toml"),
        *(ROOT / "reproduction/experiments/planner").glob("*.toml"),
    ]
)
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


@cache
def cost(sample_rate, noise_multiplier, steps, delta, accountant):
    spent = SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier, steps=steps)
    return epsilon([spent], delta, accountant)


@pytest.mark.parametrize(
    "name", [*NAMES, str(ROOT / "reproduction" / "experiments" / "control.toml")], ids=lambda name: Path(name).stem
)
def test_every_line_of_a_grid(name):
    """Consistent in itself, and a cell of today's grid: one of other settings would stand in no table."""
    grid = load_grid(name)
    keys = {cell.key for cell in cells(grid, seeds=MOST_SEEDS)}
    for line in read_results(RESULTS / f"{grid.name}.jsonl"):
        told = line.settings
        assert line.key in keys
        assert line.delta == told["privacy.delta"]
        assert line.epsilon <= told["privacy.epsilon"]
        assert line.covers_everything == (not told.get("privacy.unsafe"))
        assert line.stop_reason in ("max_rounds", "privacy_budget")
        assert len(line.local_steps) == line.rounds <= told["federation.max_rounds"]
        assert sum(line.local_steps) == line.steps
        assert line.accuracies[-1] == (line.rounds, line.accuracy)
        if told["method.name"] != "adap_dpfl":  # whose σ follows outputs
            assert line.noise_multiplier == told["privacy.noise_multiplier"]
            accountant = told["privacy.accountant"]
            again = cost(told["privacy.sample_rate"], line.noise_multiplier, line.steps, line.delta, accountant)
            assert line.epsilon == pytest.approx(again, rel=1e-6)


@pytest.mark.parametrize("name", TERMS)
def test_the_terms_of_a_table_are_those_of_the_paper(name):
    """Which column of ours stands beside which of its figures, at what ε, split and number of rounds."""
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
    lines = stored.lines(best.RESULTS)
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
    """reproduction/results/recipes.json is written by reproduction/experiments/best.py with its results."""
    told = json.loads(best.RECIPES.read_text())
    assert told == {name: best.settings(name) for name in best.DATASETS}, (
        "run reproduction/experiments/best.py again"
    )


@pytest.mark.parametrize("dataset", best.DATASETS)
def test_every_line_of_the_papers_network_outside_the_grids(dataset):
    lines = stored.lines(RESULTS / f"{dataset}.jsonl")
    assert lines
    for line in lines:
        assert 0 < line["epsilon"] <= 2
        assert line["paper"] == published("small", dataset, {"rounds_over_steps": "1/2"}, "ali_dpfl")


@pytest.mark.parametrize(
    "path", sorted((ROOT / "reproduction/experiments/policies").glob("*.toml")), ids=lambda path: path.stem
)
def test_every_line_of_a_comparison_of_policies(path):
    settings = tomllib.loads(path.read_text())
    compare = settings.pop("compare")
    lines = stored.lines(RESULTS / "policies" / f"{path.stem}.jsonl")
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
def test_no_search_sees_the_test_set_nor_a_seed_of_the_results(path):
    settings = tomllib.loads(path.read_text())
    points = list(tune.combinations(settings.pop("search")))
    for point in points:
        config = load_config(overrides=[*stored.overrides(settings), *stored.overrides(point)])
        assert config.run.evaluate_on == "validation"
        assert config.data.validation > 0
        assert config.run.seed >= 100
    for line in stored.lines(RESULTS / path.parent.stem / f"{path.stem}.jsonl"):
        assert line["point"] in points


def test_a_search_that_would_see_the_test_set_is_refused(tmp_path):
    search = tmp_path / "search.toml"
    search.write_text('[run]\nevaluate_on = "test"\n[search]\n"run.seed" = [100]\n')
    with pytest.raises(SystemExit, match="must not look at the test set"):
        tune.main(str(search), str(tmp_path / "out.jsonl"))
    assert not (tmp_path / "out.jsonl").exists()


def test_there_is_something_to_look_at():
    assert len(list(read_results(RESULTS / "small.jsonl"))) >= 84
    assert len(list(read_results(RESULTS / f"{SEARCH}.jsonl"))) >= 104
    assert len(SEARCHES) == 10
    assert math.isclose(cost(0.015, 1.1, 158, 1e-5, "pld"), 1.05, abs_tol=0.1)


def test_the_pictures_are_drawn_from_these_results(tmp_path, monkeypatch):
    sys.path.insert(0, str(ROOT / "reproduction" / "experiments"))
    try:
        import pictures
    finally:
        sys.path.pop(0)
    monkeypatch.setattr(pictures, "OUT", tmp_path)
    pictures.main()
    drawn = sorted(path.name for path in tmp_path.iterdir())
    assert drawn == ["accuracy.svg", "budget.svg", "policies.svg"]
    for name in drawn:
        kept = (ROOT / "docs/pictures" / name).read_bytes()
        assert (tmp_path / name).read_bytes() == kept, "run reproduction/experiments/pictures.py again"


def test_the_answer_on_adaptivity_is_still_what_the_page_says():
    """The sentence is written by hand; the figures under it are not."""
    report = (ROOT / "docs" / "results.md").read_text()
    short = report[: report.index("## Beyond")]
    assert "`ali` most often beats `ratio`, and not the best fixed τ" in " ".join(short.split())
    (pairs, better, _, mean), (_, _, _, beside) = (
        overall(short, "`ali`", other)[:4] for other in ("`ratio`", "best fixed τ")
    )
    assert int(better) > int(pairs) / 2
    assert float(mean) > 0 > float(beside)
    told = r"its τ lay below the cap in (\d+) of (\d+) rounds"
    its_own, could = map(int, re.search(told, short).groups())
    assert its_own < 0.05 * could  # else "mostly whether" in reproduction/experiments/deciders.py must be thought over
    by_split = [tuple(map(int, found)) for found in re.findall(r"seed \d+: (\d+) of (\d+)", short)]
    assert sum(own for own, _ in by_split) == its_own
    assert all(own < 0.5 * of for own, of in by_split)


def test_the_control_is_still_better_than_ali():
    """As "In short" and the paragraph above its table say, by hand."""
    report = (ROOT / "docs" / "results.md").read_text()
    (pairs, better, worse, mean), (_, gained, lost, gain) = (
        overall(report, one, other)[:4] for one, other in (("`ali`", "`early`"), ("`early`", "`ratio`"))
    )
    assert int(pairs) >= 6
    assert int(worse) > 2 * int(better)
    assert float(mean) < 0 < float(gain)
    assert int(gained) > 2 * int(lost)


def test_where_more_steps_make_ratio_worse_is_still_what_the_page_says():
    """The sentence of reproduction/experiments/adaptivity.py is written by hand: everywhere but on Fashion-MNIST by rdp-paper."""
    table = table_so_far(load_grid("small"), {result.key: result for result in read_results(RESULTS / "small.jsonl")})
    means = {(e.dataset, e.accountant, e.column): e.mean for e in table.entries if e.method == "ours:ratio"}
    changes = {
        (dataset, accountant): means[dataset, accountant, "R_s = R_c/5"] - means[dataset, accountant, "R_s = R_c/2"]
        for dataset, accountant, _ in means
    }
    assert [place for place, change in changes.items() if change > 0] == [("fashion_mnist", "rdp-paper")]
    assert len(changes) == 6


@pytest.mark.parametrize(
    ("one", "other", "told"),
    [
        ("ali", "early", "by {digits} and {network} on drawn digits, and by {synthetic} on Synthetic(1, 1)"),
        ("ali", "ratio", "gains on `ratio` at a constant step ({digits} and {network}, all 5 seeds)"),
        ("early", "ratio", "`early` gains too ({digits}, {network})"),
        (
            "ratio + late decay",
            "ratio at twice the step",
            "late decay gains {digits} (3 of 5 seeds) and {network} (2 of 5) on drawn digits, where η could be larger "
            "still, and {synthetic} (9 of 10) on Synthetic(1, 1)",
        ),
        ("ali at twice the step", "ratio + late decay", "constant: {digits} and {network} on `ratio + late decay`"),
    ],
)
def test_the_notes_on_policies_quote_the_runs(one, other, told):
    def mean(name):
        lines = [
            json.loads(line)
            for line in (ROOT / "reproduction" / "results" / "policies" / f"{name}.jsonl").read_text().splitlines()
        ]
        accuracy = {(line["arm"], line["seed"]): line["accuracy"] for line in lines}
        pairs = [accuracy[one, seed] - accuracy[other, seed] for arm, seed in accuracy if arm == one]
        return f"{sum(pairs) / len(pairs):+.2f}".replace("+", "+ ").replace("-", "- ")

    notes = " ".join((ROOT / "reproduction" / "experiments" / "notes.md").read_text().split())
    figures = {"digits": "strokes-linear", "network": "strokes-cnn", "synthetic": "synthetic"}
    assert told.format(**{place: mean(name) for place, name in figures.items()}) in notes
