"""Reading a page: by keyboard, screen reader, on paper, in dark mode, on a phone and without scripts."""

import dataclasses
import json
import re
from contextlib import contextmanager
from html import unescape

import pytest
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from alidpfl.reporting import RunSnapshot
from alidpfl.reporting.report_page import ResultReport, ResultTable, Split, report_page
from reproduction.grid import cells, load_grid
from reproduction.report import results_report
from tests.reproduction.made import made_result

A4_WIDTH = 671
"""Pixels between Chromium's margins on A4."""


@pytest.fixture
def opened(browser, report):
    browser.set_window_size(1000, 1200)
    browser.get(report.as_uri())
    return browser


@contextmanager
def seen_as(browser, width, *, media="screen", scheme="light"):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": features})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def cut_off(browser):
    """Return the tables that are wider than the paper."""
    return browser.execute_script(
        """document.querySelectorAll('details').forEach(details => { details.open = true })
        return [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth)
            .map(e => e.getAttribute('aria-label'))"""
    )


def test_on_paper_nothing_is_cut_off(opened):
    with seen_as(opened, A4_WIDTH, media="print"):
        assert cut_off(opened) == []
        assert opened.execute_script("return document.documentElement.scrollWidth") <= A4_WIDTH


def test_on_paper_wide_tables_and_long_words_are_not_cut_off_either(browser, tmp_path):
    words = ["/a/folder/" + "x" * 200, *(f"fedavg_dp:tau={number}" for number in range(14))]
    many = ResultTable(title="many", caption="", head=words, rows=[words, ["86.93 (1 seed), paper 91.24"] * 15])
    few = ResultTable(title="few", caption="", head=words[:2], rows=[["paths", words[0] * 3]])
    results = ResultReport(summary=few, caveats=[], tables=[many], charts=[])
    path = tmp_path / "wide.html"
    path.write_text(report_page([], [Split(title="split", counts=[[6000] * 100] * 3)], [results]))
    browser.get(path.as_uri())
    with seen_as(browser, A4_WIDTH, media="print"):
        assert cut_off(browser) == []


def test_on_paper_lines_can_be_told_apart(opened):
    opened.find_element(By.CSS_SELECTOR, 'input[name="careful"]').click()  # its line is hidden: so is its name
    script = """const shown = e => e && e.getClientRects().length > 0;
        return [...document.querySelectorAll('figure')].map(figure => ({
            lines: figure.querySelectorAll('path.series').length,
            names: [...figure.querySelectorAll('label')].filter(shown).map(e => e.textContent.trim()),
            swatches: [...figure.querySelectorAll('.swatch')].filter(shown)
                .map(e => getComputedStyle(e)).map(s => s.borderTopWidth + s.borderTopColor + s.borderTopStyle),
            boxes: [...figure.querySelectorAll('input')].filter(shown).length}))"""
    with seen_as(opened, A4_WIDTH, media="print"):
        figures = opened.execute_script(script)
    assert len(figures) > 5
    assert figures[0]["names"] == ["<b>leaky"]
    for figure in figures:
        assert len(figure["names"]) == len(set(figure["swatches"])) == figure["lines"] > 0
        assert not figure["boxes"]
        assert not any(swatch.startswith("0px") for swatch in figure["swatches"])  # backgrounds are not printed


def test_a_line_alone_is_named_too(browser, runs, tmp_path):
    path = tmp_path / "one.html"
    path.write_text(report_page([RunSnapshot.load(runs[1])]))
    browser.get(path.as_uri())
    for figure in browser.find_elements(By.TAG_NAME, "figure"):
        is_calibration = figure.find_elements(By.CSS_SELECTOR, '[data-chart="calibration"]')
        named = ["<b>leaky", *(["exact"] if is_calibration else [])]
        assert figure.find_element(By.CSS_SELECTOR, ".legend").text.splitlines() == named
        assert bool(figure.find_elements(By.TAG_NAME, "input")) == bool(is_calibration)


def tabbed(browser):
    """Return every element that the Tab key reaches, in order."""
    browser.execute_script("document.activeElement.blur(); window.scrollTo(0, 0); window.reached = []")
    script = """const here = document.activeElement;
        if (here === document.body || window.reached.includes(here)) return false;
        window.reached.push(here); return true"""
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    while browser.execute_script(script):
        browser.switch_to.active_element.send_keys(Keys.TAB)
    return browser.execute_script("return window.reached")


def test_the_keyboard_reaches_everything_and_soon(opened):
    tabbed(opened)
    script = """const reached = new Set(window.reached), has = e => reached.has(e);
        const wanted = [...document.querySelectorAll('.plot, summary, .scroll')].filter(e => !e.closest('details')
            || e.tagName === 'SUMMARY');
        const inputs = [...document.querySelectorAll('input')].filter(has);
        return {missed: wanted.filter(e => !has(e)).map(e => e.outerHTML.slice(0, 80)), inputs: inputs.length,
            charts: document.querySelectorAll('.plot').length,
            tables: [...document.querySelectorAll('table')]
                .every(t => t.caption && t.querySelector('th[scope=row]'))}"""
    found = opened.execute_script(script)
    assert found["missed"] == []
    assert found["tables"]
    assert 0 < found["inputs"] <= found["charts"]  # one stop for all lines of a chart, not one for each


def test_arrow_keys_go_through_the_lines_of_a_legend(opened):
    bar = '[role="toolbar"]'
    first = opened.find_element(By.CSS_SELECTOR, f"{bar} input")
    first.send_keys(Keys.ARROW_RIGHT)
    second = opened.switch_to.active_element
    assert second.get_attribute("name") == "<b>leaky"
    assert (first.get_attribute("tabIndex"), second.get_attribute("tabIndex")) == ("-1", "0")
    line = '[data-chart="accuracy"] path[data-series="<b>leaky"]'
    assert opened.find_elements(By.CSS_SELECTOR, line)
    second.send_keys(Keys.SPACE)
    assert not opened.find_elements(By.CSS_SELECTOR, line)
    second.send_keys(Keys.HOME)
    assert opened.switch_to.active_element == first


def test_legends_and_headings_name_their_drawing(opened):
    titles = opened.execute_script("return [...document.querySelectorAll('h2')].map(e => e.textContent)")
    assert len(set(titles)) == len(titles)
    charts = opened.execute_script("return JSON.parse(document.getElementById('charts').textContent)")
    labels = [chart["label"] for chart in charts.values()]
    assert len(set(labels)) == len(labels)
    legends = opened.execute_script(
        "return [...document.querySelectorAll('[role=toolbar]')].map(e => e.getAttribute('aria-label'))"
    )
    named = [f"Lines of: {chart['label']}" for chart in charts.values() if len(chart["series"]) > 1]
    assert sorted(legends) == sorted(named)
    assert "Table I: accuracy, mnist, R_s = R_c" in labels


def test_two_tables_of_one_data_set_are_told_apart(tmp_path):
    lines = []
    for grid in ("small", "heterogeneity"):
        listed = cells(load_grid(grid), datasets=["fashion_mnist"])
        lines = [json.dumps(dataclasses.asdict(made_result(cell, 60.0))) for cell in listed]
        (tmp_path / f"{grid}.jsonl").write_text("\n".join(lines) + "\n")
    titles = [chart.title for chart in results_report(tmp_path).charts]
    assert len(titles) == len(set(titles)) > 10
    assert "Table IV: fixed τ, fashion_mnist (Fig. 1)" in titles


def test_arrow_keys_tell_the_points_of_a_chart(opened):
    plot = opened.find_element(By.CSS_SELECTOR, '[data-chart="sequence-small-mnist"]')
    figure = plot.find_element(By.XPATH, "..")
    said, tip = figure.find_element(By.CSS_SELECTOR, "[aria-live]"), plot.find_element(By.CSS_SELECTOR, ".tip")
    described = opened.find_element(By.ID, plot.get_attribute("aria-describedby"))
    assert "Escape" in described.get_attribute("textContent")

    def pressed(*keys):
        plot.send_keys(*keys)
        assert tip.is_displayed()
        text = said.get_attribute("textContent")
        assert text == tip.text.replace("\n", ", ")
        return text

    assert pressed(Keys.ARROW_RIGHT) == "ali_dpfl, R_s = 2 R_c, round: 1, local steps τ: 1"
    assert pressed(Keys.ARROW_RIGHT) == "ali_dpfl, R_s = 2 R_c, round: 2, local steps τ: 2"
    assert pressed(Keys.ARROW_DOWN) == "ours:ali, R_s = 2 R_c, round: 2, local steps τ: 2"
    assert "round: 3" in pressed(Keys.END)
    assert "round: 3" in pressed(Keys.ARROW_RIGHT)  # there is no more
    assert "round: 1" in pressed(Keys.HOME)
    assert pressed(Keys.ARROW_UP) == "ali_dpfl, R_s = 2 R_c, round: 1, local steps τ: 1"
    plot.send_keys(Keys.ESCAPE)
    assert opened.switch_to.active_element != plot
    assert not tip.is_displayed()
    assert said.get_attribute("textContent") == ""
    opened.find_element(By.CSS_SELECTOR, 'input[name="careful"]').click()
    assert opened.get_log("browser") == []


def test_every_drawing_has_its_figures_as_a_table_without_scripts(report):
    text = report.read_text()
    charts = json.loads(re.search(r'id="charts">(.*?)</script>', text)[1])
    figures = re.findall(r"<figure>.*?</figure>", text, re.DOTALL)
    assert len(figures) == len(charts)
    for figure, (name, chart) in zip(figures, charts.items(), strict=True):
        assert f'data-chart="{name}"' in figure
        table = re.search(r"<details>.*<table>(.*)</table>", figure, re.DOTALL)[1]
        rows = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in re.findall(r"<tr>(.*?)</tr>", table)]
        head, body = [unescape(cell) for cell in rows[0]], {row[0]: row[1:] for row in rows[1:]}
        assert head == [chart["x"], *(series["name"] for series in chart["series"])]
        for column, series in enumerate(chart["series"]):
            listed = {float(x): float(row[column]) for x, row in body.items() if row[column] != "-"}
            assert listed == pytest.approx({float(f"{x:.6g}"): y for x, y, *_ in series["points"]}, rel=1e-5)


@pytest.mark.slow
def test_long_runs_are_drawn(browser, runs, tmp_path):
    rounds = 70_000
    short = RunSnapshot.load(runs[0])
    records = tuple(
        dataclasses.replace(short.records[0], round=number, local_steps=1 + number % 5) for number in range(rounds)
    )
    snapshots = [dataclasses.replace(short, name=name, records=records) for name in ("one", "two")]
    path = tmp_path / "long.html"
    path.write_text(report_page(snapshots))
    assert path.stat().st_size < 6_000_000
    browser.get(path.as_uri())
    assert browser.get_log("browser") == []
    assert len(browser.find_elements(By.CSS_SELECTOR, '[data-chart="local_steps"] path.series')) == 2
    plot = browser.find_element(By.CSS_SELECTOR, '[data-chart="local_steps"]')
    plot.send_keys(Keys.END)
    plot.send_keys(Keys.ARROW_LEFT)
    said = plot.find_element(By.XPATH, "..").find_element(By.CSS_SELECTOR, "[aria-live]").get_attribute("textContent")
    assert said == "one, round: 69,999, local steps τ: 4"  # not 70,000
    assert path.read_text().count("<tr>") < 5000  # of the table


def test_it_is_dark_where_the_reader_is(opened):
    script = """const styles = names => [...document.querySelectorAll(names)].map(e => getComputedStyle(e));
        return [styles('body')[0].backgroundColor, ...styles('td, th, h2, summary, label, li').map(s => s.color),
            ...styles('.plot text').map(s => s.fill)]"""

    def brightness(colour):
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    with seen_as(opened, 1000, scheme="light"):
        paper, *ink = map(brightness, opened.execute_script(script))
    assert paper > 700
    assert max(ink) < 450
    with seen_as(opened, 1000, scheme="dark"):
        paper, *ink = map(brightness, opened.execute_script(script))
    assert paper < 100
    assert min(ink) > 450
    with seen_as(opened, A4_WIDTH, media="print", scheme="dark"):  # paper is white
        assert brightness(opened.execute_script(script)[0]) > 700


def test_a_phone_needs_no_sideways_scrolling(opened):
    with seen_as(opened, 390):
        opened.execute_script("document.querySelectorAll('details').forEach(details => { details.open = true })")
        assert opened.execute_script("return document.documentElement.scrollWidth") <= 390
