import io
import re
from dataclasses import replace

import pytest
from rich.console import Console

from alidpfl.metrics import CalibrationBin
from alidpfl.reporting import RunSnapshot, tables
from alidpfl.reporting.report_page import caveats
from alidpfl.reporting.snapshot import NOT_COVERED, quantities
from alidpfl.reporting.tables import comparison, metric_cells, summary_table
from alidpfl.store import RunDirectory
from alidpfl.types import StopReason
from tests.reporting.runs import CONFIG, SUMMARY, make_run


def rendered(*parts, width=200):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    for part in parts:
        console.print(part)
    return console.file.getvalue()


def compared(snapshots, width=200):
    return rendered(*comparison(snapshots, width), width=width)


def rows(*table):
    cells = [
        [cell.strip() for cell in line.strip("│┃ \n").replace("┃", "│").split("│")]
        for line in rendered(*table).splitlines()
    ]
    return {first: rest for first, *rest in cells if rest}


def test_a_run_over_vaults_names_the_owners_as_source(tmp_path):
    path = make_run(tmp_path / "deployed", summary={**SUMMARY, "randomness": "secure", "is_synthetic": True})
    RunDirectory.open(path).write_members({"run": "x", "clients": [{"node": "1"}, {"node": "2"}]})
    shown = rows(summary_table(RunSnapshot.load(path)))
    assert (shown["dataset"], shown["clients"], shown["partition"]) == (["in vaults"], ["2"], ["by owner"])
    facts = RunSnapshot.load(path).facts()
    assert (facts["randomness"], facts["is_synthetic"]) == ("secure", False)


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
        "rounds at most, R_s": ["158"],
        "sample rate q": ["0.015"],
        "noise σ": ["1.1"],
        "clip norm C": ["1"],
        "step size η": ["0.5"],
        "unit of privacy": ["record"],
        "accountant": ["pld"],
        "δ": ["1e-05"],
        "seed": ["7"],
        "batches and noise": ["-"],
        "ε spent": ["1.9877 of 2"],
        "steps": ["15"],
        "rounds": ["5"],
        "accuracy": ["63.21 %"],
        "best accuracy": ["64.00 %"],
        "best in round": ["5"],
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
    assert rows(summary_table(bad))["WARNING"] == [NOT_COVERED]
    assert rows(summary_table(bad))["ε spent"] == ["1.9877 of 2 (!)"]
    assert "WARNING" not in rows(summary_table(good))
    assert rows(*comparison([good, bad], 200))["ε covers all"] == ["yes", "NO (!)"]
    assert rows(*comparison([good, bad], 200))["ε spent"] == ["1.9877 of 2", "1.9877 of 2 (!)"]
    assert "ε covers all" not in rows(*comparison([good, good], 200))


@pytest.mark.parametrize("told_by", ["summary", "environment"])
def test_the_reasons_why_it_does_not_hold_are_said(tmp_path, told_by):
    reasons = {"uncovered": ["the number of classes", "un-noised signals"]}
    summary = {**SUMMARY, "covers_everything": False, **reasons} if told_by == "summary" else None
    path = make_run(tmp_path / "bad", summary=summary, covers_everything=False)
    if told_by == "environment":  # while it runs, there is no summary yet
        RunDirectory.open(path).write_environment(reasons)
    snapshot = RunSnapshot.load(path)
    said = rendered(summary_table(snapshot))
    assert all(f"│ not covered         │ {reason}" in said for reason in reasons["uncovered"])
    assert snapshot.facts()["uncovered"] == reasons["uncovered"]
    assert RunSnapshot.load(make_run(tmp_path / "good")).uncovered == ()


def test_noise_that_was_calibrated_is_told_by_the_run(tmp_path):
    config = {**CONFIG, "privacy": {key: v for key, v in CONFIG["privacy"].items() if key != "noise_multiplier"}}
    by_record = make_run(tmp_path / "a", config=config, noise_multiplier=2.5)
    by_summary = make_run(tmp_path / "b", config=config, rounds=0, summary={**SUMMARY, "noise_multiplier": 2.75})
    found = [rows(summary_table(RunSnapshot.load(path)))["noise σ"] for path in (by_record, by_summary)]
    assert found == [["2.5"], ["2.75"]]


@pytest.mark.parametrize("config", [{}, {"data": 3, "method": {"name": [1]}}, {"privacy": {"epsilon": "two"}}])
def test_a_config_that_lacks_everything_still_shows(tmp_path, config):
    snapshot = RunSnapshot.load(make_run(tmp_path / "bare", config=config, rounds=0, summary={}))
    assert rows(summary_table(snapshot))["dataset"] == ["-"]
    assert "bare" in compared([snapshot])


def changed(**settings):
    found = {section: dict(values) for section, values in CONFIG.items()}
    for key, value in settings.items():
        section, _, name = key.partition("__")
        found[section][name] = value
    return found


def test_a_comparison_shows_every_setting_that_differs_and_no_other(tmp_path):
    other = changed(method__learning_rate=4.0, privacy__accountant="rdp", privacy__sample_rate=0.04, run__extra=True)
    other["method"]["options"] = {"draws": 2}
    snapshots = [
        RunSnapshot.load(make_run(tmp_path / "one", summary=SUMMARY)),
        RunSnapshot.load(make_run(tmp_path / "two", config=other)),
    ]
    table = rows(*comparison(snapshots, 200))
    assert table.pop("run") == ["one", "two"]
    settings = {key: cells for key, cells in table.items() if "." in key}
    assert settings == {
        "privacy.accountant": ["pld", "rdp"],
        "privacy.sample_rate": ["0.015", "0.04"],
        "method.learning_rate": ["0.5", "4"],
        "method.options.draws": ["-", "2"],
        "run.extra": ["-", "True"],
    }
    assert table["accuracy"] == ["63.21 %", "64.00 %"]
    assert table["stopped by"] == ["privacy budget", "running or interrupted"]
    assert re.search(r"\b5 .* differ, 14 ", compared(snapshots))
    assert re.search(r"\bno .* differs, 17 ", compared(snapshots[:1] * 2))


def test_many_runs_fit_eighty_columns(tmp_path):
    snapshots = [
        RunSnapshot.load(make_run(tmp_path / f"strokes-ali_dpfl-ratio-20261116-{n}", config=changed(run__seed=n)))
        for n in range(7)
    ]
    said = compared(snapshots, width=80)
    assert max(map(len, said.splitlines())) <= 80
    for place, snapshot in enumerate(snapshots, 1):
        assert f"run {place}: {snapshot.name}\n" in said
    seeds = [cell.strip() for line in said.splitlines() if "run.seed" in line for cell in line.split("│")[2:-1]]
    assert seeds == [str(n) for n in range(7)]
    heads = [cell.strip() for line in said.splitlines() if line.startswith("┃ run") for cell in line.split("┃")[2:-1]]
    assert heads == [str(n) for n in range(1, 8)]
    assert said.count("┃ run") == 4  # two runs a table: "running or interrupted" is wide
    assert said.count("…") == 0


def test_a_folder_name_is_not_markup(tmp_path):
    snapshot = RunSnapshot.load(make_run(tmp_path / "[red]x[bold]", summary=SUMMARY))
    assert "[red]x[bold]" in rendered(summary_table(snapshot))
    assert "[red]x[bold]" in compared([snapshot])


def test_an_unbounded_epsilon_and_a_lost_model_still_show(tmp_path):
    path = make_run(tmp_path / "run", epsilon=float("inf"), accuracy=float("nan"))
    table = rows(summary_table(RunSnapshot.load(path)))
    assert table["ε spent"] == ["inf of 2"]
    assert table["accuracy"] == ["nan %"]


@pytest.mark.parametrize(
    ("epsilon", "shown"), [(1.98761, "1.9877"), (0.53, "0.5300"), (2, "2.0000"), (9.871e-7, "9.9e-7"), (1e-9, "1.0e-9")]
)
def test_epsilon_is_never_rounded_down(tmp_path, epsilon, shown):
    path = make_run(tmp_path / "run", summary={**SUMMARY, "epsilon": epsilon})
    assert rows(summary_table(RunSnapshot.load(path)))["ε spent"] == [f"{shown} of 2"]


def test_what_is_left_and_lower_bounds_are_never_rounded_up():
    assert tables.rounded_down(1.99996) == "1.9999"
    assert tables.rounded_down(0.1879, 3) == "0.187"
    assert tables.rounded_down(0.0) == "0.0000"
    assert tables.rounded_down(float("inf")) == "inf"


def test_noise_on_a_grid_is_called_so():
    assert "grid" in str(tables._noise({"noise_multiplier": 2.0, "noise_kind": "grid"}))
    assert "grid" not in str(tables._noise({"noise_multiplier": 2.0, "noise_kind": None}))


def test_rounds_in_which_nobody_answered_are_told(tmp_path):
    """They are charged, and do not change the model."""
    lost = RunSnapshot.load(make_run(tmp_path / "lost", rounds=3, aggregated=False))
    assert rows(summary_table(lost))["WARNING"][0].startswith("in 3 rounds")
    assert any("3 rounds" in caveat for caveat in caveats(lost))
    assert "WARNING" not in rows(summary_table(RunSnapshot.load(make_run(tmp_path / "good"))))


def test_noise_that_was_found_for_the_budget_is_a_setting_like_others(tmp_path):
    config = {**CONFIG, "privacy": {k: v for k, v in CONFIG["privacy"].items() if k != "noise_multiplier"}}
    snapshot = RunSnapshot.load(make_run(tmp_path / "run", config=config, summary={**SUMMARY, "noise_multiplier": 4.5}))
    assert snapshot.effective_settings()["privacy.noise_multiplier"] == 4.5


def test_over_vaults_the_settings_of_data_and_seed_are_nobodys(tmp_path):
    path = make_run(tmp_path / "run", config={**CONFIG, "run": {"seed": 3, "randomness": "seeded"}})
    RunDirectory(path).write_members({"run": "r", "clients": []})
    snapshot = RunSnapshot.load(path)
    assert not [key for key in snapshot.effective_settings() if key.startswith("data.") or key == "run.seed"]
    assert snapshot.facts()["seed"] is None
    assert not snapshot.is_seeded


def test_an_empty_summary_does_not_take_the_caveat_away(tmp_path):
    path = make_run(tmp_path / "run", config={**CONFIG, "run": {"seed": 3, "randomness": "seeded"}}, summary={})
    assert any("seed" in caveat for caveat in caveats(RunSnapshot.load(path)))


def test_a_metric_has_its_interval_and_trivial_value_and_edited_files_do_no_harm(tmp_path):
    made = {"metrics": {"auc": 0.8125, "brier": "x"}, "baselines": {"auc": 0.5}, "intervals": {"auc": [0.75, 0.875]}}
    snapshot = RunSnapshot(name="a", path=tmp_path, config={}, summary=made)
    assert metric_cells(snapshot) == {"metric auc": "0.8125 (0.75 to 0.875), trivial 0.5"}
    for damaged in (None, 3, [], {"auc": [0.1]}):
        broken = RunSnapshot(name="a", path=tmp_path, config={}, summary={**made, "intervals": damaged})
        assert metric_cells(broken) == {"metric auc": "0.8125, trivial 0.5"}


def test_a_comparison_has_the_metrics_of_runs_that_have_them(tmp_path):
    runs = [
        RunSnapshot(name="a", path=tmp_path, config={}, summary={"metrics": {"auc": 0.75}}),
        RunSnapshot(name="b", path=tmp_path, config={}, summary={}),
    ]
    (table, *_) = comparison(runs, 100)
    cells = [[str(cell) for cell in column.cells] for column in table.columns]
    place = cells[0].index("metric auc")
    assert [column[place] for column in cells[1:]] == ["0.75", "-"]


def test_the_accuracy_stands_once_with_its_interval(tmp_path):
    found = {"metrics": {"accuracy": 63.21, "auc": 0.75}, "intervals": {"accuracy": [62.2, 64.4]}}
    found |= {"baselines": {"accuracy": 11.35}}
    snapshot = RunSnapshot.load(make_run(tmp_path / "run", summary={**SUMMARY, **found}))
    table = rows(summary_table(snapshot))
    assert table["accuracy"] == ["63.21 % (62.20 to 64.40), trivial 11.35 %"]
    assert table["metric auc"] == ["0.75"]
    assert rendered(summary_table(snapshot)).count("63.21") == 1
    assert rows(*comparison([snapshot, snapshot], 200))["accuracy"] == table["accuracy"] * 2


@pytest.mark.parametrize(
    ("metrics", "name", "best", "number"),
    [
        ({"r2": 0.25, "rmse": 3.0}, "r2", "0.5", "4"),
        ({"rmse": 3.0, "mae": 1}, "rmse", "2", "2"),
        ({"auc": 0.25}, "auc", "0.5", "4"),
    ],
)
def test_a_run_without_accuracy_is_shown_by_the_metric_of_its_task(tmp_path, metrics, name, best, number):
    run = RunSnapshot.load(make_run(tmp_path / "run", summary={**SUMMARY, "accuracy": None, "metrics": metrics}))
    values = {"r2": [0.1, 0.2, 0.3, 0.5, 0.25], "rmse": [4.0, 2.0, 5.0, 2.0, 3.0], "auc": [0.1, 0.2, 0.3, 0.5, 0.25]}[
        name
    ]
    records = [
        replace(record, accuracy=None, metrics={name: value}) for record, value in zip(run.records, values, strict=True)
    ]
    snapshot = replace(run, records=tuple(records))
    assert snapshot.headline == name
    table = rows(summary_table(snapshot))
    assert (table[f"best {name}"], table["best in round"]) == ([best], [number])
    assert table[f"metric {name}"] == [f"{metrics[name]:.4g}"]
    assert not [heading for heading in table if "accuracy" in heading]
    assert list(quantities([snapshot])) == [name, "local_steps", "epsilon"]
    assert [value for _, value in snapshot.points(name)] == values
    assert replace(snapshot, summary=None).headline == name  # while it runs


def test_a_calibration_curve_of_edited_files_does_no_harm(tmp_path):
    good = {"predicted": 0.25, "observed": 0.5, "low": 0.25, "high": 0.75, "count": 8}
    edited = [{**good, "predicted": 0.125}, {**good, "low": None}, {**good, "high": float("nan")}, {}, 3, "x"]
    for told, kept in (([good, *edited], [0.125, 0.25]), (None, []), ("x", []), ({"a": 1}, [])):
        snapshot = RunSnapshot(name="a", path=tmp_path, config={}, summary={"calibration": told})
        assert [part.predicted for part in snapshot.calibration()] == kept
    assert RunSnapshot(name="a", path=tmp_path, config={}, summary={"calibration": [good]}).calibration() == [
        CalibrationBin(**good)
    ]
