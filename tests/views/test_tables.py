import io

import pytest
from rich.console import Console

from alidpfl.types import StopReason
from alidpfl.views import RunSnapshot
from alidpfl.views.tables import comparison_table, summary_table
from tests.views.runs import CONFIG, SUMMARY, make_run


def rendered(table):
    console = Console(file=io.StringIO(), width=200, color_system=None)
    console.print(table)
    return console.file.getvalue()


def rows(table):
    cells = [
        [cell.strip() for cell in line.strip("│┃ \n").replace("┃", "│").split("│")]
        for line in rendered(table).splitlines()
    ]
    return {first: rest for first, *rest in cells if rest}


def test_the_summary_of_a_finished_run(tmp_path):
    snapshot = RunSnapshot.load(make_run(tmp_path / "first", summary=SUMMARY))
    assert "first" in rendered(summary_table(snapshot))
    assert rows(summary_table(snapshot)) == {
        "dataset": ["mnist"],
        "model": ["paper_cnn"],
        "method": ["ali_dpfl"],
        "policy": ["corrected"],
        "schedule": ["fixed"],
        "clients": ["10"],
        "partition": ["dirichlet(0.05)"],
        "R_s": ["158"],
        "δ": ["1e-05"],
        "seed": ["7"],
        "ε spent": ["1.9877 of 2"],
        "steps": ["15"],
        "rounds": ["5"],
        "accuracy": ["63.21 %"],
        "best accuracy": ["64.00 % (round 4)"],
        "stopped by": ["privacy budget"],
        "seconds": ["12.3"],
    }


def test_a_run_without_a_summary_is_read_from_its_records(tmp_path):
    snapshot = RunSnapshot.load(make_run(tmp_path / "first", rounds=4))
    table = rows(summary_table(snapshot))
    assert table["stopped by"] == ["running or interrupted"]
    assert table["accuracy"] == ["62.00 %"]
    assert table["ε spent"] == ["0.5300 of 2"]
    assert (table["rounds"], table["steps"], table["seconds"]) == (["4"], ["12"], ["8.0"])
    assert snapshot.can_go_on


@pytest.mark.parametrize(("reason", "can_go_on"), [(StopReason.INTERRUPTED, True), (StopReason.BUDGET, False)])
def test_only_an_interrupted_run_can_go_on(tmp_path, reason, can_go_on):
    path = make_run(tmp_path / "run", summary={**SUMMARY, "stop_reason": str(reason)})
    assert RunSnapshot.load(path).can_go_on is can_go_on


def test_synthetic_data_are_labelled(tmp_path):
    by_summary = make_run(tmp_path / "a", summary={**SUMMARY, "is_synthetic": True})
    by_config = make_run(tmp_path / "b", config={**CONFIG, "data": {"name": "strokes", "is_synthetic": True}})
    assert rows(summary_table(RunSnapshot.load(by_summary)))["dataset"] == ["mnist (synthetic)"]
    assert rows(summary_table(RunSnapshot.load(by_config)))["dataset"] == ["strokes (synthetic)"]


@pytest.mark.parametrize("told_by", ["summary", "a record"])
def test_a_guarantee_that_does_not_hold_is_said_in_the_table(tmp_path, told_by):
    if told_by == "summary":
        path = make_run(tmp_path / "bad", summary={**SUMMARY, "covers_everything": False})
    else:
        path = make_run(tmp_path / "bad", summary=SUMMARY, covers_everything=False)
    bad, good = RunSnapshot.load(path), RunSnapshot.load(make_run(tmp_path / "good", summary=SUMMARY))
    assert rows(summary_table(bad))["WARNING"] == ["ε does NOT cover all that was shown"]
    assert rows(summary_table(bad))["ε spent"] == ["1.9877 of 2 (!)"]
    assert "WARNING" not in rows(summary_table(good))
    assert rendered(comparison_table([good, bad])).count("ε does NOT cover all that was shown") == 1
    assert rows(comparison_table([good, bad]))["good"][0] == "1.9877 of 2"


@pytest.mark.parametrize("config", [{}, {"data": 3, "method": {"name": [1]}}, {"privacy": {"epsilon": "two"}}])
def test_a_config_that_lacks_everything_still_shows(tmp_path, config):
    snapshot = RunSnapshot.load(make_run(tmp_path / "bare", config=config, rounds=0, summary={}))
    assert rows(summary_table(snapshot))["dataset"] == ["-"]
    assert rows(comparison_table([snapshot]))["bare"]


def test_a_comparison_shows_what_differs_and_keeps_the_rest_in_the_caption(tmp_path):
    other = {**CONFIG, "method": {**CONFIG["method"], "policy": "ratio"}}
    snapshots = [
        RunSnapshot.load(make_run(tmp_path / "one", summary=SUMMARY)),
        RunSnapshot.load(make_run(tmp_path / "two", config=other)),
    ]
    table = rows(comparison_table(snapshots))
    assert table["run"] == [
        "policy", "ε spent", "steps", "rounds", "accuracy", "best accuracy", "stopped by", "seconds"
    ]  # fmt: skip
    assert table["one"][0] == "corrected"
    assert table["two"][0] == "ratio"
    assert table["two"][-2] == "running or interrupted"
    caption = " ".join(rendered(comparison_table(snapshots)).split())
    assert "in all runs: dataset mnist, model paper_cnn, method ali_dpfl, schedule fixed" in caption


def test_a_folder_name_is_not_markup(tmp_path):
    snapshot = RunSnapshot.load(make_run(tmp_path / "[red]x[bold]", summary=SUMMARY))
    assert "[red]x[bold]" in rendered(summary_table(snapshot))
    assert "[red]x[bold]" in rendered(comparison_table([snapshot]))


def test_an_unbounded_epsilon_and_a_lost_model_still_show(tmp_path):
    path = make_run(tmp_path / "run", epsilon=float("inf"), accuracy=float("nan"))
    table = rows(summary_table(RunSnapshot.load(path)))
    assert table["ε spent"] == ["inf of 2"]
    assert table["accuracy"] == ["nan %"]


@pytest.mark.parametrize(("epsilon", "shown"), [(1.98761, "1.9877"), (0.53, "0.5300"), (2, "2.0000"), (1e-9, "0.0001")])
def test_epsilon_is_never_rounded_down(tmp_path, epsilon, shown):
    path = make_run(tmp_path / "run", summary={**SUMMARY, "epsilon": epsilon})
    assert rows(summary_table(RunSnapshot.load(path)))["ε spent"] == [f"{shown} of 2"]
