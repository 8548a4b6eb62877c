"""`alidpfl report`: one page of runs and tables, in a real browser."""

import json
import re
import shutil
from dataclasses import asdict

import numpy as np
import pytest
from selenium.webdriver.common.by import By

from alidpfl.reporting import RunSnapshot
from alidpfl.reporting.report_page import caveats, report_page
from alidpfl.runs import execute, load_config
from alidpfl.store import RunDirectory
from reproduction.grid import cells, load_grid
from tests.reporting.conftest import SETTINGS, command
from tests.reporting.runs import SUMMARY, make_run
from tests.reproduction.made import made_result


def test_one_small_file_without_a_network(report):
    text = report.read_text()
    assert len(text) < 6_000_000
    assert not re.search(r"https?://(?!www\.w3\.org)", text)
    assert "<b>leaky" not in text  # the folder's name is text, not markup


def test_it_opens_without_a_complaint_and_draws(browser, report):
    browser.set_window_size(1000, 1200)
    browser.get(report.as_uri())
    assert browser.get_log("browser") == []
    charts = {plot.get_attribute("data-chart") for plot in browser.find_elements(By.CSS_SELECTOR, ".plot")}
    of_results = {"fixed-small-mnist", "sequence-small-mnist", *(f"accuracy-small-mnist-{n}" for n in range(4))}
    assert {"accuracy", "local_steps", "epsilon", "calibration"} | of_results == charts
    for plot in browser.find_elements(By.CSS_SELECTOR, ".plot svg"):
        assert plot.find_elements(By.CSS_SELECTOR, "path.series")
        assert plot.get_attribute("aria-label")
    dashed = browser.find_elements(By.CSS_SELECTOR, 'path[stroke-dasharray="7 5"]')
    assert {path.get_attribute("data-series") for path in dashed} >= {"ours:ali"}  # the seventh, as the first is blue
    box = browser.find_element(By.CSS_SELECTOR, 'input[name="careful"]')
    before = len(browser.find_elements(By.CSS_SELECTOR, 'path[data-series="careful"]'))
    box.click()
    assert len(browser.find_elements(By.CSS_SELECTOR, 'path[data-series="careful"]')) == before - 1


def test_it_says_what_epsilon_does_not_cover(browser, report):
    browser.get(report.as_uri())
    caveat = browser.find_element(By.CSS_SELECTOR, ".caveats").text
    assert re.search(r"<b>leaky: .*NOT cover.*signals", caveat)
    assert "synthetic" in caveat
    assert "seed" in caveat
    assert "ali_dpfl *" in browser.find_element(By.TAG_NAME, "body").text


def test_tables_and_figures_are_of_the_results(report):
    text = report.read_text()
    assert re.search(r"<li>&lt;b&gt;leaky: .*NOT cover.*signals", text)  # also where there is no browser
    assert re.search(r"<li>.*NOT cover ali_dpfl", text)
    assert "paper 97.58" in text
    assert "(Fig. 5)" in text
    charts = json.loads(re.search(r'id="charts">(.*?)</script>', text)[1])
    sequence = charts["sequence-small-mnist"]["series"][0]["points"]
    assert sequence == [[1, 1.0], [2, 2.0], [3, 3.0]]
    fixed = charts["fixed-small-mnist"]["series"]
    assert [series["name"] for series in fixed] == ["R_s = 2 R_c", "R_s = R_c", "R_s = R_c/2", "R_s = R_c/5"]


def test_results_are_summed_up_with_what_to_keep_in_mind(browser, report, results):
    browser.get(report.as_uri())
    text = browser.find_element(By.TAG_NAME, "body").text
    assert "Table I rdp-paper 28 of 120" in text  # 7 methods, 4 columns
    assert "Table I pld 28 of 120" in text
    assert "98.50 (2 seeds) 97.58 +0.92" in text
    listed = [item.text for item in browser.find_elements(By.CSS_SELECTOR, ".caveats li")]
    assert any("NOT cover ali_dpfl" in item for item in listed)
    assert any(results.name in item and "killers.json" in item for item in listed)
    assert not any("one seed" in item for item in listed)


def test_a_grid_of_ones_own(tmp_path):
    grid = tmp_path / "mine.toml"
    grid.write_text(
        "title = 'Mine'\ndatasets = ['synthetic']\naccountants = ['pld']\n[[columns]]\nname = 'one'\nsettings = {}\n"
        "[[methods]]\nname = 'ratio'\nsettings = { 'method.policy' = 'ratio' }\n"
    )
    (cell,) = cells(load_grid(str(grid)))
    (tmp_path / "results").mkdir()
    (tmp_path / "results/mine.jsonl").write_text(json.dumps(asdict(made_result(cell, 71.5))) + "\n")
    (tmp_path / "results/results.sqlite").touch()
    done = command(tmp_path / "results", "-o", tmp_path / "r.html")
    assert done.exit_code == 2
    assert "mine.toml" in done.stderr
    assert command(grid, "-o", tmp_path / "r.html").exit_code == 2
    assert command(tmp_path / "results", grid, "-o", tmp_path / "r.html").exit_code == 0
    text = (tmp_path / "r.html").read_text()
    assert "71.50 (1 seed)" in text
    assert "1 of 1" in text


def test_a_line_that_is_no_best_result(results, tmp_path):
    import shutil

    shutil.copytree(results, tmp_path / "results")
    (tmp_path / "results/best.jsonl").write_text('{"table": "small"}\n')
    done = command(tmp_path / "results", "-o", tmp_path / "r.html")
    assert done.exit_code == 2
    assert "line 1 of" in done.stderr


def test_the_split_is_shown_of_public_data_only(tmp_path):
    random = np.random.default_rng(0)
    for name in ("a", "b", "test"):
        np.savez(tmp_path / f"{name}.npz", x=random.normal(size=(40, 3)).astype("float32"), y=np.arange(40) % 2)
    own = ["data.name=npz", f'data.data_dir="{tmp_path}"', "data.num_classes=2", *SETTINGS[2:]]
    execute(load_config(overrides=[*own, "federation.max_rounds=2"]), tmp_path / "own")
    done = command(tmp_path / "own", "-o", tmp_path / "own.html")
    assert done.exit_code == 0, done.stderr
    text = (tmp_path / "own.html").read_text()
    assert RunSnapshot.load(tmp_path / "own").facts()["clients"] == 2  # as the files say, not the configuration
    assert 'class="heat"' not in text  # label counts are the clients' own


def test_the_intervals_are_said_to_cover_noise(tmp_path):
    """Those of an evaluation with noise cover sampling and noise."""
    summary = {**SUMMARY, "metrics": {"auc": 0.8}, "intervals": {"auc": [0.7, 0.9]}}
    page = report_page([RunSnapshot.load(make_run(tmp_path / "run", summary=summary))], [])
    assert "If the evaluation has noise, it covers that too" in page


def test_all_metrics_have_intervals_and_trivial_values(browser, report, runs):
    browser.get(report.as_uri())
    (table,) = browser.find_elements(By.XPATH, "//table[starts-with(caption, 'All metrics')]")
    rows = [
        [cell.text for cell in row.find_elements(By.XPATH, "./*")] for row in table.find_elements(By.TAG_NAME, "tr")
    ]
    assert rows[0] == ["metric", "run", "value", "95 % interval", "trivial model"]
    names = ["accuracy", "auc", "log_loss", "brier", "macro_f1", "calibration"]
    assert [row[:2] for row in rows[1:]] == [[name, run.name] for name in names for run in runs]
    summary = RunSnapshot.load(runs[0]).summary
    low, high = summary["intervals"]["accuracy"]
    accuracy, trivial = summary["accuracy"], summary["baselines"]["accuracy"]
    assert rows[1][2:] == [f"{accuracy:.2f} %", f"{low:.2f} % to {high:.2f} %", f"{trivial:.2f} %"]
    assert rows[-2][3] == "-"  # the calibration error has no interval


def test_the_calibration_curve_has_bars_and_the_exact_line(browser, report, runs):
    browser.get(report.as_uri())
    plot = browser.find_element(By.CSS_SELECTOR, '.plot[data-chart="calibration"]')
    drawn = {path.get_attribute("data-series") for path in plot.find_elements(By.CSS_SELECTOR, "path.series")}
    assert drawn == {"careful", "<b>leaky", "exact"}
    curves = [RunSnapshot.load(run).calibration() for run in runs]
    bars = plot.find_elements(By.CSS_SELECTOR, "line.bar")
    assert len(bars) == sum(map(len, curves)) > 4
    for bar, part in zip(bars, curves[0], strict=False):
        height = float(bar.get_attribute("y1")) - float(bar.get_attribute("y2"))
        assert height > 0
        assert part.low < part.high


def test_a_run_on_numbers_is_shown_by_its_own_metric(runs):
    """Without accuracy, R² stands in the table, among the facts and in the curve."""
    import dataclasses

    run = RunSnapshot.load(runs[0])
    records = [dataclasses.replace(record, accuracy=None, metrics={"r2": 0.5}) for record in run.records]
    summary = {**run.summary, "accuracy": None, "metrics": {"r2": 0.5}, "calibration": []}
    found = dataclasses.replace(run, name="numbers", summary=summary, records=tuple(records))
    text = report_page([found])
    assert "<dt>r2</dt><dd>0.5</dd>" in text
    assert '"r2":{"label":"test R² by round"' in text.replace("\\u00b2", "²")
    assert "accuracy" not in re.sub(r"(?s)<script.*?</script>|<style.*?</style>", "", text)
    assert 'data-chart="calibration"' not in text
    both = report_page([found, run])
    assert all(
        part in both for part in ("<td>r2 0.5</td>", "<td>accuracy ", 'data-chart="r2"', 'data-chart="accuracy"')
    )


def test_a_page_is_not_called_otherwise(runs, tmp_path):
    done = command(*runs, "-o", tmp_path / "report.pdf")
    assert done.exit_code == 2
    assert "report.pdf" in done.stderr
    assert not (tmp_path / "report.pdf").exists()


def test_a_running_run_is_marked(runs):
    import dataclasses

    done = RunSnapshot.load(runs[0])
    running = dataclasses.replace(done, summary={**done.summary, "stop_reason": "interrupted"})
    (added,) = set(caveats(running)) - set(caveats(done))
    assert f"<li>careful: {added}</li>" in report_page([running])


@pytest.mark.parametrize("content", [None, "nothing"])
def test_what_is_neither_run_nor_results_is_refused(tmp_path, content):
    if content:
        (tmp_path / "x").write_text(content)
    done = command(tmp_path, "-o", tmp_path / "r.html")
    assert done.exit_code == 2
    assert str(tmp_path) in done.stderr
    assert not (tmp_path / "r.html").exists()


def test_of_a_deployment_nobodys_split_is_drawn(tmp_path, runs):
    """Its configuration describes a simulation, but the records belong to the owners of the vaults."""
    shutil.copytree(runs[0], tmp_path / "deployed")
    alone = command(runs[0], "-o", tmp_path / "alone.html")
    RunDirectory(tmp_path / "deployed").write_members({"run": "r", "clients": []})
    done = command(tmp_path / "deployed", "-o", tmp_path / "deployed.html")
    assert (alone.exit_code, done.exit_code) == (0, 0)
    assert 'class="heat"' in (tmp_path / "alone.html").read_text()
    text = (tmp_path / "deployed.html").read_text()
    assert 'class="heat"' not in text
    assert "data.clients" not in text
    assert "noise σ" in text
