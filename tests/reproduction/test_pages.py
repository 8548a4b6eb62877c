"""The pages about the results: generating them changes nothing, and their figures are those of the runs."""

import dataclasses
import re
from pathlib import Path

import pytest

from reproduction.grid import cells, load_grid
from reproduction.pages import PAGES, adaptivity, blocks, deciders, differences, figures, pages, pictures, template
from reproduction.pages.adaptivity import ALI, BEST, CORRECTED, EARLY, PAPER, RATIO, Summary
from reproduction.pages.sources import load
from reproduction.tables import table_so_far

from .made import COLUMN, OURS, made, made_result, sources_of

ROOT = Path(__file__).parents[2]


def rows_of(lines, *starts):
    """Return the cells of the rows of a Markdown table that start with these cells."""
    rows = [[value.strip() for value in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if row[: len(starts)] == list(starts)]


@pytest.fixture(scope="module")
def real():
    return load()


# ------------------------------------------------------------------------------------------------------- the whole


def test_generating_the_pages_changes_nothing():
    for path, content in pages().items():
        assert path.read_text(encoding="utf-8") == content, "run `python -m reproduction report`"


@pytest.mark.slow
def test_drawing_the_pictures_changes_nothing(tmp_path):
    for path in pictures.draw_all(tmp_path):
        kept = ROOT / "docs" / "pictures" / path.name
        assert path.read_bytes() == kept.read_bytes(), "run `python -m reproduction report`"
    assert {path.name for path in tmp_path.iterdir()} == {
        path.name for path in (ROOT / "docs" / "pictures").glob("*.svg")
    }


def test_every_figure_that_is_computed_is_shown():
    named = {name for page in PAGES for name in re.findall(r"\{(\w+)\}", template(page))}
    assert named == blocks().keys()


def test_the_findings_are_short():
    assert len((ROOT / "docs" / PAGES["findings"]).read_text(encoding="utf-8").split()) <= 1500


# ------------------------------------------------------------------------------------------- differences from the paper


def test_differences_are_ours_minus_the_papers():
    grid, known = made(OURS)
    ((_, _, _, methods, *numbers, best, papers_best, _),) = rows_of(
        differences._table([table_so_far(grid, known)]), "small", "mnist", COLUMN
    )
    changes = [90 - 97.42, 92 - 95.06, 96 - 96.77, 97.75 - 97.51, 80 - 97.49, 70 - 95.18, 95 - 97.58]
    assert methods == "7 of 7"
    assert list(map(float, numbers)) == pytest.approx([sum(changes) / 7, min(changes), max(changes)], abs=0.006)
    assert (best, papers_best) == ("fedavg_dp:tau=3", "ali_dpfl")


def test_the_papers_best_counts_even_if_we_have_not_run_it():
    grid, known = made({"fedavg_dp:tau=1": 92.0, "fedavg_dp:tau=2": 92.0})
    (row,) = rows_of(differences._table([table_so_far(grid, known)]), "small")
    assert row[3] == "2 of 7"
    assert row[7:] == ["fedavg_dp:tau=1, fedavg_dp:tau=2", "ali_dpfl", "-"]


def test_orders_use_the_seeds_that_all_have():
    """A method that lacks the unlucky seeds must not be the best because of that."""
    grid, known = made({"fedavg_dp:tau=1": 92.0, "fedavg_dp:tau=2": 91.8}, seeds=3)
    keys = {
        (cell.method, cell.seed): cell.key
        for cell in cells(grid, seeds=3, datasets=["mnist"], columns=[COLUMN])
        if cell.key in known
    }
    del known[keys["fedavg_dp:tau=2", 1]], known[keys["fedavg_dp:tau=2", 2]]  # 91.8 is left, against a mean of 91
    (row,) = rows_of(differences._table([table_so_far(grid, known)]), "small")
    assert row[7] == "fedavg_dp:tau=1"
    assert row[4] == f"{(92 - 95.06 + 91.8 - 96.77) / 2:+.2f}"


@pytest.mark.parametrize(
    ("ours", "papers", "order"),
    [
        ([1, 2, 5], [10, 11, 12], "+1.00"),
        ([5, 2, 1], [10, 11, 12], "-1.00"),
        ([1, 1, 2, 3], [1, 1, 2, 3], "+1.00"),
        ([1, 3, 2], [1, 2, 3], "+0.50"),
        ([1, 1], [1, 2], "-"),
    ],
)
def test_the_order_is_one_if_the_orders_agree(ours, papers, order):
    assert differences._agreement(ours, papers) == order


def test_figures_that_we_reach_are_counted():
    grid, known = made(OURS)
    table = table_so_far(grid, known)
    ((_, reached, mean, _),) = rows_of(differences.reached_by_dataset([table]), "MNIST")
    assert (reached, mean) == ("1 of 7", "-8.04")
    assert differences.reached([table])[2:] == ["| Table I | MNIST | R_s = R_c/2 | `fedavg_dp:tau=3` |"]
    assert differences.reached([])[2:] == []


def test_figures_in_the_text_are_those_of_the_runs(real):
    _, known = made(OURS)
    found = differences.blocks(sources_of(real, known))
    assert found["ali"] == "96.50 % (1 seed)"
    assert found["early_ends"] == "not run"


def test_tight_accounting_is_compared_where_steps_are_scarce(real):
    grid = load_grid("small")
    wanted = cells(grid, datasets=["mnist"], columns=["R_s = 2 R_c"], methods=["fedavg_dp:tau=1", "ali_dpfl"])
    gain = {"pld": 10.0, "rdp-paper": 1.0}
    known = {cell.key: made_result(cell, 85.0 + gain[cell.accountant]) for cell in wanted}
    lines = differences.blocks(sources_of(real, known))["tight_accounting"].splitlines()
    assert rows_of(lines, "mnist") == [["mnist", "-0.10 to +0.35", "+8.90 to +9.35"]]  # the paper: 85.65 and 86.10


# ---------------------------------------------------------------------------------------------------------- adaptivity


def tally(grid, known, rule, against):
    return adaptivity.compared([grid], known)[1][rule, against]


def test_rules_are_compared_with_ratio_and_the_best_fixed_steps():
    grid, known = made(OURS)
    (row,), tallies = adaptivity.compared([grid], known)
    assert row[4:] == ["94.00 (1 seed)", "τ = 3: +3.75", "+2.50", "-1.25", "+0.00", "-3.75", "+1.00", "-2.75"]
    assert tallies[ALI, RATIO].all == Summary(1, 1, 0, 2.5)
    assert tallies[ALI, BEST].all == Summary(1, 0, 1, -1.25)
    assert tallies[CORRECTED, RATIO].all == Summary(1, 0, 0, 0.0)
    assert tallies[PAPER, RATIO].all == Summary(1, 1, 0, 1.0)
    assert adaptivity.compared([grid], {}) == ([], {})


def test_seeds_are_paired():
    grid, known = made(OURS, seeds=3)
    by_seed = {
        cell.seed: cell.key
        for cell in cells(grid, seeds=3, datasets=["mnist"], methods=["ours:ali"])
        if cell.key in known
    }
    known[by_seed[1]] = dataclasses.replace(known[by_seed[1]], accuracy=90.0)  # `ratio` has 93 there
    del known[by_seed[2]]
    (row,), tallies = adaptivity.compared([grid], known)
    assert row[6] == "-0.25 (1 better, 1 worse)"
    assert tallies[ALI, RATIO].all == Summary(2, 1, 1, -0.25)


def test_one_run_in_several_cells_is_one_pair():
    """Budgets that pay for more than the rounds allow end in the same way."""
    grid = load_grid("small")
    known = {}
    for cell in cells(grid, datasets=["mnist"], methods=["ours:ratio", "ours:ali"]):
        one = made_result(cell, 90.0 + (cell.method == "ours:ali"))
        known[cell.key] = dataclasses.replace(one, local_steps=[len(cell.method)])
    assert len(known) == 16
    assert tally(grid, known, ALI, RATIO).all == Summary(1, 1, 0, 1.0)


def test_pairs_with_the_same_steps_are_left_out():
    """Only C and η can make a difference there."""
    grid, known = made(OURS)
    known = {key: dataclasses.replace(result, local_steps=[1, 1]) for key, result in known.items()}
    (row,), tallies = adaptivity.compared([grid], known)
    assert row[6] == "+2.50"
    assert tallies == {}


def test_pairs_with_another_step_size_are_kept_apart():
    grid, known = made(OURS)
    (key,) = [result.key for result in known.values() if result.settings.get("method.policy") == "ali"]
    other = {**known[key].settings, "method.learning_rate": 0.123}
    known[key] = dataclasses.replace(known[key], settings=other)
    _, tallies = adaptivity.compared([grid], known)
    assert (tallies[ALI, RATIO].all.pairs, tallies[ALI, RATIO].same_step.pairs) == (1, 0)
    assert tallies[CORRECTED, RATIO].same_step == Summary(1, 0, 0, 0.0)


def test_a_cell_with_more_seeds_does_not_weigh_more():
    """One column has three seeds with +3, another has one seed with -1."""
    grid, known = load_grid("small"), {}
    for column, seeds, change in (("R_s = R_c/2", 3, 3.0), ("R_s = R_c", 1, -1.0)):
        chosen = {"datasets": ["mnist"], "columns": [column], "methods": ["ours:ratio", "ours:ali"]}
        for cell in cells(grid, seeds=seeds, accountants=["rdp-paper"], **chosen):
            one = made_result(cell, 90.0 + change * (cell.method == "ours:ali"))
            known[cell.key] = dataclasses.replace(one, local_steps=[len(cell.method)])
    assert tally(grid, known, ALI, RATIO).all == Summary(4, 3, 1, 1.0)


def test_equal_runs_of_several_seeds_are_several_pairs():
    grid, known = made({"ours:ratio": 90.0, "ours:ali": 91.0}, seeds=3)
    known = {
        key: dataclasses.replace(
            result, accuracy=90.0 + (result.settings["method.policy"] == "ali"), local_steps=result.local_steps[:1]
        )
        for key, result in known.items()
    }
    assert tally(grid, known, ALI, RATIO).all == Summary(3, 3, 0, 1.0)


def test_partitions_of_one_data_set_are_different_splits():
    """Table IV has four partitions for each seed. Equal runs in two of them are two runs."""
    grid = load_grid("heterogeneity")
    known = {
        cell.key: dataclasses.replace(
            made_result(cell, 90.0 + (cell.method == "ours:ali")), local_steps=[len(cell.method)]
        )
        for cell in cells(grid, methods=["ours:ratio", "ours:ali"])
    }
    assert len(tally(grid, known, ALI, RATIO).splits) == 4
    assert tally(grid, known, ALI, RATIO).all == Summary(4, 4, 0, 1.0)


def test_the_best_fixed_steps_use_the_seeds_that_all_have():
    """τ = 3 is best in seed 0. τ = 2 has two more seeds, in which it is better than anything else."""
    grid, known = made(OURS)
    _, more = made({"fedavg_dp:tau=2": 102.0}, seeds=3)
    known |= {key: result for key, result in more.items() if result.settings["run.seed"] > 0}
    ((*_, best),) = [row[:6] for row in adaptivity.compared([grid], known)[0]]
    assert best == "τ = 3: +3.75"


def test_the_best_fixed_steps_are_best_on_average():
    grid, known = made(OURS, seeds=3)
    for result in list(known.values()):
        if result.settings["run.seed"] == 2 and result.settings.get("method.local_steps") == 1:
            known[result.key] = dataclasses.replace(result, accuracy=99.0)  # 92, 91, 99: mean 94, below 96.75
    assert adaptivity.compared([grid], known)[0][0][5].startswith("τ = 3: +3.75")


def test_there_is_no_best_fixed_steps_without_all_of_them():
    grid, known = made({name: value for name, value in OURS.items() if name != "fedavg_dp:tau=10"})
    assert adaptivity.compared([grid], known)[0][0][5:8] == ["-", "+2.50", "-"]


def test_a_seed_that_one_fixed_step_lacks_is_left_out():
    grid, known = made(OURS, seeds=2)
    (missing,) = [
        result.key
        for result in known.values()
        if (result.settings["run.seed"], result.settings["method.name"]) == (1, "fedavg_dp")
        and result.settings["method.local_steps"] == 3
    ]
    del known[missing]
    row = adaptivity.compared([grid], known)[0][0]
    assert row[4:8] == ["93.50 (2 seeds)", "τ = 3: +3.75", "+2.50 (2 better, 0 worse)", "-1.25"]  # over seed 0


def test_what_decided_the_steps_of_ali_is_counted():
    """At R_s = 158 and R_c = 314 even paces are 1 and 2, and the cap is 4. Rounds under Lemma 1 do not count."""
    grid = load_grid("small")
    listed = {c.column: c for c in cells(grid, datasets=["mnist"], methods=["ours:ali"], accountants=["rdp-paper"])}
    half = dataclasses.replace(made_result(listed["R_s = R_c/2"], 90.0), local_steps=[1, 4, 3])
    twice = dataclasses.replace(made_result(listed["R_s = 2 R_c"], 90.0), local_steps=[1, 1])
    split = "mnist, Dir(0.05), seed 0"
    assert deciders.decided({half.key: half}) == {split: {deciders.PACE: 1, deciders.CAP: 1, deciders.LEMMA_2: 1}}
    assert deciders.decided({twice.key: twice}) == {}
    found = deciders.blocks({half.key: half, twice.key: twice})
    assert (found["rounds_counted"], found["lemma2_share"]) == ("3", "1 of 2")


def test_the_search_is_no_run_of_ali():
    searched = next(cells(load_grid("tuning"), datasets=["mnist"], methods=["ours:ali"]))
    result = dataclasses.replace(made_result(searched, 90.0), local_steps=[1, 4])
    assert deciders.decided({result.key: result}) == {}


def test_ali_is_compared_with_its_control_in_the_same_cells(real):
    grid, known = made({"ours:ali": 96.5, "ours:ratio": 94.0}, seeds=2)
    assert adaptivity.control(grid, real.control, known) == ([], {})
    chosen = cells(real.control, seeds=2, datasets=["mnist"], columns=[COLUMN], accountants=["rdp-paper"])
    for cell, accuracy, steps in zip(chosen, (97.0, 94.5), ([7], [8]), strict=True):
        known[cell.key] = dataclasses.replace(made_result(cell, accuracy), local_steps=steps)
    ((*place, early, against_early, gain, against_best),), tallies = adaptivity.control(grid, real.control, known)
    assert place == ["mnist", COLUMN, "rdp-paper"]
    assert early == "95.75 (2 seeds)"
    assert against_early == "+0.25 (1 better, 1 worse)"
    assert gain == "+2.25 (2 better, 0 worse)"
    assert against_best == "-"
    assert tallies[ALI, EARLY].all == Summary(2, 1, 1, 0.25)


def test_the_control_differs_from_ali_only_in_its_rule(real):
    rule = {"method.policy", "method.local_steps", "method.policy_options.pace_limit"}
    places = {"seeds": 3, "columns": ["R_s = R_c/2", "R_s = R_c/5"], "datasets": ["mnist", "fashion_mnist"]}
    ours, theirs = cells(load_grid("small"), methods=["ours:ali"], **places), cells(real.control, **places)
    for one, other in zip(ours, theirs, strict=True):
        assert {key: value for key, value in other.settings if key not in rule} == {
            key: value for key, value in one.settings if key not in rule
        }


# -------------------------------------------------------------------------------------------------- the paper's figures


def test_sequences_of_local_steps_are_shortened():
    assert figures.sequence_text([1, 1, 2, 2, 2]) == "1 (2 rounds), 2 (3 rounds)"
    many = figures.sequence_text([1, 2, 1, 2, 1, 2, 1, 2, 5])
    assert many == "1 to 5, mean 1.89: 1 in round 1, 1 in round 3, 1 in round 5, 1 in round 7, 5 in round 9"


def test_sequences_are_those_of_the_adaptive_rules(real):
    _, known = made(OURS, seeds=2)
    rule = {
        result.settings["run.seed"]: result
        for result in known.values()
        if result.settings.get("method.policy") == "paper"
    }
    for seed, steps in ((0, [2, 3]), (1, [1, 7])):
        known[rule[seed].key] = dataclasses.replace(rule[seed], local_steps=steps)
    found = figures.blocks(sources_of(real, known))
    lines = found["sequences"].splitlines()
    assert [row[3:6] for row in rows_of(lines, "small", "mnist", COLUMN, "ali_dpfl")] == [
        ["ali_dpfl", "0", "2 (1 round), 3 (1 round)"],
        ["ali_dpfl", "1", "1 (1 round), 7 (1 round)"],
    ]
    assert {row[3] for row in rows_of(lines, "small")} == {"ali_dpfl", "ours:ali"}
    assert found["step_ranges"] == "1 to 7 at R_s = R_c/2"
    best = found["best_fixed"].splitlines()
    assert rows_of(best, "small, ours") == [["small, ours", "0", "0", "1", "0", "0"]]
    assert rows_of(best, "small, printed") == [["small, printed", "2", "0", "2", "0", "0"]]  # of all four columns
