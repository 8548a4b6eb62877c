"""The sections of docs/explanation/results.md, of results whose answers are known."""

import dataclasses
import json
import re
import sys
from pathlib import Path

import pytest
from reproduction.grid import cells, load_grid
from reproduction.report import best_fixed, results_report
from reproduction.results import Results
from reproduction.tables import as_markdown, table_so_far

from alidpfl.errors import DataError

from .made import made_result, overall

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "reproduction" / "experiments"))
import adaptivity  # noqa: E402
import deciders  # noqa: E402
import differences  # noqa: E402
import figures  # noqa: E402
import quoted  # noqa: E402

sys.path.pop(0)

COLUMN = "R_s = R_c/2"
# The paper's: 97.42, -, 95.06, 96.77, 97.51, 97.49, 95.18, 97.58.
OURS = {
    "pe_dpfl": 90.0,
    "fedavg_dp:tau=1": 92.0,
    "fedavg_dp:tau=2": 96.0,
    "fedavg_dp:tau=3": 97.75,
    "fedavg_dp:tau=5": 80.0,
    "fedavg_dp:tau=10": 70.0,
    "ali_dpfl": 95.0,
    "ours:ratio": 94.0,
    "ours:ali": 96.5,
    "ours:corrected": 94.0,
}


def made(accuracies, *, seeds=1, accountant="rdp-paper"):
    """Of one column of Table I on MNIST; by seed a point less."""
    grid = load_grid("small")
    chosen = cells(grid, seeds=seeds, datasets=["mnist"], columns=[COLUMN], accountants=[accountant])
    found = {}
    for cell in chosen:
        if cell.method in accuracies:
            one = made_result(cell, accuracies[cell.method] - cell.seed)
            steps = [sum(map(ord, cell.method)), cell.seed]  # another sequence for each method and seed
            found[cell.key] = dataclasses.replace(one, local_steps=steps)
    assert len(found) == len(accuracies) * seeds
    return grid, found


def columns(section, starts):
    (row,) = [line for line in section.splitlines() if line.startswith(starts)]
    return [value.strip() for value in row.strip("|").split("|")]


def test_differences_are_ours_minus_the_papers():
    grid, known = made(OURS)
    section = differences.section([table_so_far(grid, known)], "What was tried: {what}.\n", {"what": "much"})
    row = columns(section, "| small | mnist | R_s = R_c/2 |")
    changes = [90 - 97.42, 92 - 95.06, 96 - 96.77, 97.75 - 97.51, 80 - 97.49, 70 - 95.18, 95 - 97.58]
    assert row[3] == "7 of 7"
    assert [float(value) for value in row[4:7]] == pytest.approx(
        [sum(changes) / 7, min(changes), max(changes)], abs=0.006
    )
    assert row[7:9] == ["fedavg_dp:tau=3", "ali_dpfl"]
    assert section.endswith("What was tried: much.\n")


def test_the_papers_best_is_told_even_where_ours_has_not_been_run():
    grid, known = made({"fedavg_dp:tau=1": 92.0, "fedavg_dp:tau=2": 92.0})
    row = columns(differences.section([table_so_far(grid, known)], "", {}), "| small")
    assert row[3] == "2 of 7"
    assert row[7:] == ["fedavg_dp:tau=1, fedavg_dp:tau=2", "ali_dpfl", "-"]


def test_orders_are_of_the_seeds_that_all_have():
    """A method that lacks the unlucky seed must not be the best for that."""
    grid, known = made({"fedavg_dp:tau=1": 92.0, "fedavg_dp:tau=2": 91.8}, seeds=3)
    keys = {(cell.method, cell.seed): cell.key for cell in cells(grid, seeds=3, datasets=["mnist"], columns=[COLUMN])
            if cell.key in known}  # fmt: skip
    del known[keys["fedavg_dp:tau=2", 1]], known[keys["fedavg_dp:tau=2", 2]]  # 91.8 is left, against a mean of 91
    row = columns(differences.section([table_so_far(grid, known)], "", {}), "| small")
    assert row[7] == "fedavg_dp:tau=1"
    assert row[4] == f"{(92 - 95.06 + 91.8 - 96.77) / 2:+.2f}"


def test_order_is_one_where_the_orders_agree():
    assert differences._agreement([1, 2, 5], [10, 11, 12]) == "+1.00"
    assert differences._agreement([5, 2, 1], [10, 11, 12]) == "-1.00"
    assert differences._agreement([1, 1, 2, 3], [1, 1, 2, 3]) == "+1.00"
    assert differences._agreement([1, 3, 2], [1, 2, 3]) == "+0.50"


def test_rules_are_held_against_ratio_and_the_best_fixed_steps():
    grid, known = made(OURS)
    section = adaptivity.section([grid], known)
    row = columns(section, "| small | mnist")
    assert row[4:] == ["94.00 (n = 1)", "τ = 3: +3.75", "+2.50", "-1.25", "+0.00", "-3.75", "+1.00", "-2.75"]
    assert overall(section, "`ali`", "`ratio`")[:4] == ["1", "1", "0", "+2.50"]
    assert overall(section, "`ali`", "best fixed τ")[:4] == ["1", "0", "1", "-1.25"]
    assert overall(section, "`corrected`", "`ratio`")[:4] == ["1", "0", "0", "+0.00"]


def test_the_page_begins_with_the_answers():
    grid, known = made(OURS)
    assert differences.in_short([table_so_far(grid, known)]) == "mnist 1 of 7 (-8.04 on average)"
    answer = adaptivity.answer([grid], known)
    assert overall(answer, "`ali`", "`ratio`")[:4] == ["1", "1", "0", "+2.50"]
    assert overall(answer, "`ali`", "best fixed τ")[:4] == ["1", "0", "1", "-1.25"]
    assert "corrected" not in answer
    assert "From 1 splits of 1 data set" in answer
    assert differences.in_short([]) == "no cell has been run yet"
    assert adaptivity.answer([grid], {}) == "No cell has been run yet."


def test_seeds_are_paired():
    grid, known = made(OURS, seeds=3)
    by_seed = {cell.seed: cell.key for cell in cells(grid, seeds=3, datasets=["mnist"], methods=["ours:ali"])
               if cell.key in known}  # fmt: skip
    known[by_seed[1]] = dataclasses.replace(known[by_seed[1]], accuracy=90.0)  # `ratio` has 93 there
    del known[by_seed[2]]
    section = adaptivity.section([grid], known)
    assert columns(section, "| small | mnist")[6] == "-0.25 (1 better, 1 worse)"
    assert overall(section, "`ali`", "`ratio`")[:4] == ["2", "1", "1", "-0.25"]


def test_one_run_in_many_cells_is_one_pair():
    """Budgets that pay for more than the rounds allow end the same way."""
    grid = load_grid("small")
    known = {}
    for cell in cells(grid, datasets=["mnist"], methods=["ours:ratio", "ours:ali"]):
        one = made_result(cell, 90.0 + (cell.method == "ours:ali"))
        known[cell.key] = dataclasses.replace(one, local_steps=[len(cell.method)])
    assert len(known) == 16
    section = adaptivity.section([grid], known)
    assert overall(section, "`ali`", "`ratio`")[:4] == ["1", "1", "0", "+1.00"]


def test_pairs_with_the_same_steps_are_left_out():
    """What differs there is C and η, or nothing."""
    grid, known = made(OURS)
    known = {key: dataclasses.replace(result, local_steps=[1, 1]) for key, result in known.items()}
    section = adaptivity.section([grid], known)
    assert columns(section, "| small | mnist")[6] == "+2.50"
    assert not [line for line in section.splitlines() if line.startswith("| `ali` |")]


def test_pairs_with_another_step_size_are_told_apart():
    grid, known = made(OURS)
    (key,) = [result.key for result in known.values() if result.settings.get("method.policy") == "ali"]
    other = {**known[key].settings, "method.learning_rate": 0.123}
    known[key] = dataclasses.replace(known[key], settings=other)
    section = adaptivity.section([grid], known)
    assert overall(section, "`ali`", "`ratio`") == ["1", "1", "0", "+2.50", "0", "-", "-", "-"]
    assert overall(section, "`corrected`", "`ratio`")[4:] == ["1", "0", "0", "+0.00"]


def test_a_cell_with_more_seeds_does_not_weigh_more():
    """Three seeds with + 3 in one column, one seed with - 1 in another."""
    grid, known = load_grid("small"), {}
    for column, seeds, change in (("R_s = R_c/2", 3, 3.0), ("R_s = R_c", 1, -1.0)):
        chosen = {"datasets": ["mnist"], "columns": [column], "methods": ["ours:ratio", "ours:ali"]}
        for cell in cells(grid, seeds=seeds, accountants=["rdp-paper"], **chosen):
            one = made_result(cell, 90.0 + change * (cell.method == "ours:ali"))
            known[cell.key] = dataclasses.replace(one, local_steps=[len(cell.method)])
    assert overall(adaptivity.section([grid], known), "`ali`", "`ratio`")[:4] == ["4", "3", "1", "+1.00"]


def test_equal_runs_of_two_seeds_are_two_pairs():
    grid, known = made({"ours:ratio": 90.0, "ours:ali": 91.0}, seeds=3)
    known = {
        key: dataclasses.replace(
            result, accuracy=90.0 + (result.settings["method.policy"] == "ali"), local_steps=result.local_steps[:1]
        )
        for key, result in known.items()
    }
    assert overall(adaptivity.section([grid], known), "`ali`", "`ratio`")[:4] == ["3", "3", "0", "+1.00"]


def test_partitions_of_one_data_set_are_splits_of_their_own():
    """Table IV has four of them at each seed; a run that ends alike in two of them is two runs."""
    grid = load_grid("heterogeneity")
    wanted = cells(grid, methods=["ours:ratio", "ours:ali"])
    known = {
        cell.key: dataclasses.replace(
            made_result(cell, 90.0 + (cell.method == "ours:ali")), local_steps=[len(cell.method)]
        )
        for cell in wanted
    }
    section = adaptivity.section([grid], known)
    assert "From 4 splits of 1 data set; pairs of one split are not independent." in section
    assert overall(section, "`ali`", "`ratio`")[:4] == ["4", "4", "0", "+1.00"]


def test_the_best_fixed_steps_are_compared_over_the_seeds_that_all_have():
    """τ = 3 is best in seed 0, and τ = 2 has two more seeds, in which it did better than anything else."""
    grid, known = made(OURS)
    _, more = made({"fedavg_dp:tau=2": 102.0}, seeds=3)
    known |= {key: result for key, result in more.items() if result.settings["run.seed"] > 0}
    assert best_fixed(table_so_far(grid, known)) == {1: 0, 2: 0, 3: 1, 5: 0, 10: 0}
    assert columns(adaptivity.section([grid], known), "| small | mnist")[5] == "τ = 3: +3.75"


def test_the_best_fixed_steps_are_best_on_average_not_once():
    grid, known = made(OURS, seeds=3)
    for result in list(known.values()):
        if result.settings["run.seed"] == 2 and result.settings.get("method.local_steps") == 1:
            known[result.key] = dataclasses.replace(result, accuracy=99.0)  # 92, 91, 99: 94 on average, below 96.75
    assert columns(adaptivity.section([grid], known), "| small | mnist")[5].startswith("τ = 3: +3.75")


def test_without_all_of_them_nobody_is_the_best_fixed_steps():
    grid, known = made({name: value for name, value in OURS.items() if name != "fedavg_dp:tau=10"})
    assert columns(adaptivity.section([grid], known), "| small | mnist")[5:8] == ["-", "+2.50", "-"]
    grid, known = made(OURS, seeds=2)
    (missing,) = [
        result.key
        for result in known.values()
        if result.settings["run.seed"] == 1 and result.settings.get("method.local_steps") == 3
        and result.settings["method.name"] == "fedavg_dp"
    ]  # fmt: skip
    del known[missing]
    row = columns(adaptivity.section([grid], known), "| small | mnist")
    assert row[4:8] == ["93.50 (n = 2)", "τ = 3: +3.75", "+2.50 (2 better, 0 worse)", "-1.25"]  # over seed 0


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
    assert "99.90 (n = 1)" in results_report(tmp_path).tables[0].rows[0]
    (tmp_path / "best.jsonl").write_text(json.dumps(line | wrong) + "\n")
    with pytest.raises(DataError, match="is not covered by its ε"):
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


def test_sequences_of_local_steps_are_told():
    assert figures.told([1, 1, 2, 2, 2]) == "1 (2 rounds), 2 (3 rounds)"
    many = figures.told([1, 2, 1, 2, 1, 2, 1, 2, 5])
    assert many == "1 to 5, mean 1.89: 1 in round 1, 1 in round 3, 1 in round 5, 1 in round 7, 5 in round 9"
    grid, known = made(OURS)
    section = figures.section([table_so_far(grid, known)], known)
    assert "| small | mnist | R_s = R_c/2 | ours:ali | 0 |" in section
    assert "ours:ratio" not in section
    assert "| small, ours | 0 | 0 | 1 | 0 | 0 |" in section
    assert "| small, printed | 2 | 0 | 2 | 0 | 0 |" in section  # of the four columns, whatever ours has of them


def test_sequences_of_all_seeds_are_told_with_the_range_of_the_papers_rule():
    grid, known = made(OURS, seeds=2)
    rule = {result.settings["run.seed"]: result for result in known.values()
            if result.settings.get("method.policy") == "paper"}  # fmt: skip
    for seed, steps in ((0, [2, 3]), (1, [1, 7])):
        known[rule[seed].key] = dataclasses.replace(rule[seed], local_steps=steps)
    section = figures.section([table_so_far(grid, known)], known)
    assert "| small | mnist | R_s = R_c/2 | ali_dpfl | 0 | 2 (1 round), 3 (1 round) |" in section
    assert "| small | mnist | R_s = R_c/2 | ali_dpfl | 1 | 1 (1 round), 7 (1 round) |" in section
    assert "data sets: 1 to 7 where R_s = R_c/2." in section


def test_figures_in_the_text_are_those_of_the_runs():
    grid, known = made(OURS)
    told = quoted.quoted([table_so_far(grid, known)], known)
    assert told["ali"] == "96.50 % (n = 1)"
    assert told["reached"] == "mnist, R_s = R_c/2 (small): fedavg_dp:tau=3"
    assert told["early_ends"] == "not run"
    braces = set(re.findall(r"\{(\w+)\}", (ROOT / "reproduction" / "experiments" / "differences.md").read_text()))
    assert braces == told.keys()  # nothing is quoted by hand that could be computed, or computed in vain


def test_no_accuracy_in_the_text_is_written_by_hand():
    """But for the paper's own, and for what is told of C and η."""
    text = (ROOT / "reproduction" / "experiments" / "differences.md").read_text()
    assert set(re.findall(r"\d+\.\d+ ?%", text)) == {"97.58 %"}


def test_tight_accounting_is_told_where_steps_are_scarce():
    grid = load_grid("small")
    wanted = cells(grid, datasets=["mnist"], columns=["R_s = 2 R_c"], methods=["fedavg_dp:tau=1", "ali_dpfl"])
    gain = {"pld": 10.0, "rdp-paper": 1.0}
    known = {cell.key: made_result(cell, 85.0 + gain[cell.accountant]) for cell in wanted}
    told = quoted.quoted([table_so_far(grid, known)], known)["tight"]
    assert "| mnist | -0.10 to +0.35 | +8.90 to +9.35 |" in told  # the paper has 85.65 and 86.10


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
    assert "Table I: 10 of 20 cells have one seed: small differences may be chance." in page.caveats


def test_other_models_are_not_taken_for_the_papers(tmp_path):
    best = {"table": "small", "ratio": "1/2", "dataset": "mnist", "paper": 97.58, "epsilon_allowed": 2.0}
    best |= {"epsilon": 1.9, "covers_everything": True, "accuracy": 98.0}
    (tmp_path / "best.jsonl").write_text(json.dumps(best))
    results = Results(tmp_path / "results.sqlite")
    for result in made(OURS)[1].values():
        results.add(result)
    *_, last = results_report(tmp_path).tables
    assert last.title == "Beyond the paper"
    assert "by other models than the paper's" in last.caption
    assert "looked at on the test set" in last.caption


def test_what_decided_the_steps_of_ali_is_counted():
    """R_s = 158, R_c = 314: even paces are 1 and 2, the cap 4. Lemma 1's rounds are not counted."""
    grid = load_grid("small")
    listed = {c.column: c for c in cells(grid, datasets=["mnist"], methods=["ours:ali"], accountants=["rdp-paper"])}
    half = made_result(listed["R_s = R_c/2"], 90.0)
    known = {half.key: dataclasses.replace(half, noise_multiplier=1.1, local_steps=[1, 4, 3])}
    told = deciders.section(known)
    assert "In 3 rounds" in told
    assert "twice the even pace, in 1;" in told
    assert "of its noise, in 1;" in told
    assert "itself chose, in 1." in told
    assert "below the cap in 1 of 2 rounds (mnist, Dir(0.05), seed 0: 1 of 2; in none of the 0 other splits)" in told
    at_the_cap = {half.key: dataclasses.replace(half, noise_multiplier=1.1, local_steps=[1, 4])}
    assert "below the cap in 0 of 1 rounds (in no split)" in deciders.in_short(at_the_cap)
    twice = made_result(listed["R_s = 2 R_c"], 90.0)
    lemma_1 = {twice.key: dataclasses.replace(twice, noise_multiplier=1.1, local_steps=[1, 1])}
    assert deciders.section(lemma_1) == ""
    assert deciders.in_short(lemma_1) == "The step size was constant."


def test_ali_is_held_against_its_control_in_the_same_cells():
    grid, known = made({"ours:ali": 96.5, "ours:ratio": 94.0}, seeds=2)
    beside = load_grid(str(ROOT / "reproduction" / "experiments" / "control.toml"))
    assert adaptivity.control(grid, beside, known) == ""
    chosen = cells(beside, seeds=2, datasets=["mnist"], columns=[COLUMN], accountants=["rdp-paper"])
    for cell, accuracy, steps in zip(chosen, (97.0, 94.5), ([7], [8]), strict=True):
        known[cell.key] = dataclasses.replace(made_result(cell, accuracy), local_steps=steps)
    told = adaptivity.control(grid, beside, known)
    row = ["95.75 (n = 2)", "+0.25 (1 better, 1 worse)", "+2.25 (2 better, 0 worse)", "-"]
    assert columns(told, "| mnist | R_s = R_c/2 | rdp-paper |")[3:] == row
    assert overall(told, "`ali`", "`early`")[:4] == ["2", "1", "1", "+0.25"]


def test_the_control_differs_from_ali_in_its_rule_alone():
    table, beside = load_grid("small"), load_grid(str(ROOT / "reproduction" / "experiments" / "control.toml"))
    rule = {"method.policy", "method.local_steps", "method.policy_options.pace_limit"}
    places = {"seeds": 3, "columns": ["R_s = R_c/2", "R_s = R_c/5"], "datasets": ["mnist", "fashion_mnist"]}
    ours, theirs = cells(table, methods=["ours:ali"], **places), cells(beside, **places)
    for one, other in zip(ours, theirs, strict=True):
        assert {key: value for key, value in other.settings if key not in rule} == {
            key: value for key, value in one.settings if key not in rule
        }
