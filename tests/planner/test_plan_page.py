"""The planner's page in a real browser."""

import json
import re

import pytest
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tests.planner.conftest import SEARCH


@pytest.fixture(scope="module")
def page(alidpfl, searched, tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "plan.html"
    assert alidpfl("plan", *SEARCH, "--html", path).returncode == 0
    return path


@pytest.fixture
def opened(browser, page):
    browser.set_window_size(1000, 1200)
    browser.get(page.as_uri())
    return browser


def test_it_is_one_file_without_a_network(page):
    text = page.read_text()
    assert len(text) < 200_000
    links = re.findall(r'(?:src|href)\s*=\s*"([^"]*)"', text)
    assert all(link.startswith("data:") for link in links)
    assert not re.search(r"https?://(?!www\.w3\.org)", text)  # the name space of SVG is no address


def test_it_draws_without_a_complaint(opened, searched):
    assert opened.get_log("browser") == []
    assert len(opened.find_elements(By.CSS_SELECTOR, ".plot svg")) == 3
    for name in searched["max_steps"]:
        assert opened.find_elements(By.CSS_SELECTOR, f'[data-chart="epsilon"] path[data-series="{name}"]')
    marks = [mark.get_attribute("data-mark") for mark in opened.find_elements(By.CSS_SELECTOR, "[data-mark]")]
    assert {f"R_c = {steps}" for steps in searched["max_steps"].values()} <= set(marks)
    assert "recommended" in marks


def test_an_accountant_can_be_hidden_and_shown(opened):
    box = opened.find_element(By.CSS_SELECTOR, 'input[name="rdp-paper"]')
    series = '[data-chart="epsilon"] path[data-series="rdp-paper"]'
    box.click()
    assert opened.find_elements(By.CSS_SELECTOR, series) == []
    assert opened.find_elements(By.CSS_SELECTOR, '[data-chart="epsilon"] path[data-series="pld"]')
    box.click()
    assert len(opened.find_elements(By.CSS_SELECTOR, series)) == 1


def test_hovering_tells_the_nearest_point(opened, searched):
    plot = opened.find_element(By.CSS_SELECTOR, '[data-chart="pareto"] svg')
    tip = opened.find_element(By.CSS_SELECTOR, '[data-chart="pareto"] .tip')
    assert not tip.is_displayed()
    opened.execute_script("arguments[0].scrollIntoView({block: 'center'})", plot)
    dot = opened.find_element(By.CSS_SELECTOR, '[data-chart="pareto"] [data-mark="recommended"]')
    ActionChains(opened).move_to_element(dot).perform()
    assert tip.is_displayed()
    assert tip.text.startswith(f"q = {searched['sample_rate']:g}, σ = {searched['noise_multiplier']:.4g}")
    ActionChains(opened).move_to_element(opened.find_element(By.TAG_NAME, "h1")).perform()
    assert not tip.is_displayed()


def test_a_phone_needs_no_sideways_scrolling(opened):
    opened.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 740, "deviceScaleFactor": 2, "mobile": True}
    )
    try:
        opened.refresh()
        assert opened.execute_script("return document.documentElement.scrollWidth") <= 360
        sizes = opened.execute_script(
            "return [...document.querySelectorAll('.plot text')].map(t => parseFloat(getComputedStyle(t).fontSize)"
            " * t.ownerSVGElement.clientWidth / t.ownerSVGElement.viewBox.baseVal.width)"
        )
        assert min(sizes) >= 10  # text in drawings stays readable
    finally:
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_no_text_of_a_drawing_runs_out_of_it(opened):
    script = """return [...document.querySelectorAll('.plot text')].filter(text => {
            const box = text.getBBox(), view = text.ownerSVGElement.viewBox.baseVal;
            return text.classList.contains('mark') && (box.x < 0 || box.x + box.width > view.width);
        }).map(text => text.textContent)"""
    assert opened.execute_script(script) == []


def test_on_paper_nothing_is_cut_off_and_the_legend_stays(opened):
    size = {"width": 671, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        script = "return [...document.querySelectorAll('.scroll')].filter(e => e.scrollWidth > e.clientWidth).length"
        assert opened.execute_script(script) == 0
        assert "rdp-paper" in [label.text for label in opened.find_elements(By.TAG_NAME, "label")]
    finally:
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
        opened.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_keys_tell_the_points_of_every_drawing(opened):
    for plot in opened.find_elements(By.CSS_SELECTOR, ".plot"):
        plot.send_keys(Keys.END)
        said = plot.find_element(By.XPATH, "..").find_element(By.CSS_SELECTOR, "[aria-live]")
        assert said.get_attribute("textContent")
        assert plot.find_element(By.CSS_SELECTOR, ".tip").is_displayed()


def test_it_is_dark_where_the_reader_is(opened):
    def colours():
        return opened.execute_script(
            "const style = getComputedStyle(document.body); return [style.backgroundColor, style.color]"
        )

    def set_scheme(value):
        features = [{"name": "prefers-color-scheme", "value": value}]
        opened.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    set_scheme("light")
    light = colours()
    set_scheme("dark")
    dark = colours()
    set_scheme("")

    def brightness(colour):
        return sum(map(int, re.findall(r"\d+", colour)[:3]))

    assert brightness(light[0]) > 600 > brightness(light[1])
    assert brightness(dark[0]) < 200
    assert brightness(dark[1]) > 600


def test_tables_hold_the_figures_for_those_who_see_no_drawing(opened, searched):
    text = opened.find_element(By.TAG_NAME, "body").text
    for row in searched["pareto"]:
        assert f"{row['sample_rate']:g}" in text
    for policy in searched["policies"]:
        assert policy in text
    labels = [plot.get_attribute("aria-label") for plot in opened.find_elements(By.CSS_SELECTOR, ".plot svg")]
    assert all(labels)


def test_names_cannot_break_out_of_the_page(searched):
    from alidpfl.reporting.plan_page import plan_page

    hostile = json.loads(json.dumps(searched))
    hostile["notes"] = ["</script><script>alert(1)</script>"]
    hostile["curves"]["assumed"] = "<b>bold</b>"
    text = plan_page(hostile)
    assert "<script>alert" not in text
    assert "<b>bold" not in text
