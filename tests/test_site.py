"""The site of the documentation: built strictly and without a network, and read without one."""

import dataclasses
import importlib
import io
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from selenium.webdriver.support.wait import WebDriverWait

ROOT = Path(__file__).parent.parent
BUILD = """
import sys

def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        raise OSError(f"the build asks for the network: {arguments}")

sys.addaudithook(refuse)
from mkdocs.__main__ import cli
cli(["build", "--strict", "--site-dir", sys.argv[1]])
"""


def _built(root, folder):
    return subprocess.run(
        [sys.executable, "-c", BUILD, str(folder)],
        cwd=root,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = _built(ROOT, folder)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder


def test_a_link_that_leads_nowhere_stops_the_build(tmp_path):
    """With --quiet it would not stop, because strict counts only warnings that are shown."""
    for name in ("docs", "examples"):
        shutil.copytree(ROOT / name, tmp_path / name)
    for name in ("mkdocs.yml", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "src").symlink_to(ROOT / "src")
    with (tmp_path / "docs" / "how-to" / "own-model.md").open("a") as page:
        page.write("\n[broken](own-data.md#nowhere)\n")
    done = _built(tmp_path, tmp_path / "site")
    assert done.returncode != 0
    assert "nowhere" in done.stderr
    assert "--quiet" not in re.search(r"^site:.*?\n\n", (ROOT / "Makefile").read_text(), re.MULTILINE | re.DOTALL)[0]


def test_examples_in_docstrings_are_code(site):
    page = (site / "reference" / "api.html").read_text()
    assert "<blockquote>" not in page
    assert "&gt;&gt;&gt;" in page


def test_the_api_page_says_of_every_attribute_what_it_is(site):
    """Each has a type and a meaning in words. "R_s." and "q." alone help nobody."""
    page = (site / "reference" / "api.html").read_text()
    named = re.findall(r"^::: alidpfl\.(\S+)$", (ROOT / "docs" / "reference" / "api.md").read_text(), re.MULTILINE)
    classes = {name: thing for name in named if dataclasses.is_dataclass(thing := _named(name))}
    assert len(classes) > 12
    for name, described in classes.items():
        for field in dataclasses.fields(described):
            start = page.find(f'id="alidpfl.{name}.{field.name}"')
            assert start >= 0, f"{name}.{field.name} is missing"
            signature, meaning = re.sub(r"<[^>]+>", "", page[start : page.index("</p>", start)]).rsplit("\n\n\n", 1)
            assert f"{field.name}:" in signature, f"{name}.{field.name} has no type"
            assert len(meaning.split()) > 2, f"{name}.{field.name}: {meaning}"
    for name in ("alidpfl.api.Privacy.epsilon", "alidpfl.load_dataset", "alidpfl.runs.execute.execute"):
        assert f'id="{name}"' in page
    assert "docs/" not in page
    assert 'href="../explanation/floating-point.html"' in page


def _named(name):
    home, _, last = name.rpartition(".")
    return getattr(importlib.import_module(f"alidpfl.{home}".rstrip(".")), last)


def test_every_page_is_there_and_fetches_nothing(site):
    pages = {path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html")}
    assert {
        path.relative_to(ROOT / "docs").with_suffix("").as_posix() for path in (ROOT / "docs").rglob("*.md")
    } <= pages
    made = {
        "explanation/architecture",
        "how-to/contributing",
        "reference/changes",
        "reference/cli",
        "tutorials/examples",
    }
    assert made <= pages
    for path in site.rglob("*.html"):
        loaded = re.findall(r"<(?:script|img|iframe|link)[^>]+(?:src|href)=\"?(https?:[^\" >]+)", path.read_text())
        assert loaded == [], path.name


def test_every_page_is_in_the_navigation_under_its_kind(site):
    start = (site / "index.html").read_text()
    navigation = start[start.index("md-nav--primary") : start.index("<article")]
    linked = set(re.findall(r'href="([\w/-]+)\.html"', navigation))
    pages = {path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html") if path.stem != "404"}
    assert pages <= linked
    for kind in ("Tutorials", "How-to guides", "Reference", "Explanation"):
        assert re.search(rf"\b{kind}\b", navigation), kind


def test_what_is_taken_from_the_code(site):
    api, commands = ((site / f"reference/{name}.html").read_text() for name in ("api", "cli"))
    for name in ("federate", "noise_multiplier", "PerSampleClipper", "audit_config"):
        assert name in api
    for words in ("alidpfl audit", "alidpfl vault serve", "--max-epochs"):
        assert words in commands


def test_every_example_is_there_to_read(site):
    page = (site / "tutorials" / "examples.html").read_text()
    for path in (ROOT / "examples").glob("*.py"):
        if path.stem != "make_notebooks":
            assert f'<h2 id="{path.stem}">' in page
            assert f'href="#{path.stem}"' in page


def test_pages_lead_to_each_other(site):
    """There is a link to the next page, and from the first page to the commands. Titles agree with the navigation."""
    start = (site / "index.html").read_text()
    article = start[start.index("<article") : start.index("</article>")]
    assert 'href="reference/cli.html"' in article
    assert "md-footer__link--next" in start
    titles = {"configuration": "Settings", "api": "Python API", "cli": "Commands"}
    for name, title in titles.items():
        page = (site / "reference" / f"{name}.html").read_text()
        assert re.search(rf"<h1 id=[^>]+>{title}<", page), name
        assert re.search(rf'md-nav__link--active">.{{0,400}}?{title}\s*</span>', page, re.DOTALL), name


def test_links_between_folders_lead_there(site):
    """Links in the sources lead to files of the repository; on the site they lead to its pages."""
    for path in site.rglob("*.html"):
        if path.stem == "404":
            continue
        text = path.read_text()
        article = text[text.index("<article") : text.index("</article>")]
        for target in re.findall(r'(?:href|src)="(?!https?:)([^"#]+)', article):
            assert (path.parent / target).exists(), f"{path.relative_to(site)} links to {target}"


def test_stars_in_formulas_are_stars(site):
    """Between two stars Markdown reads emphasis: w* and F* would lose theirs."""
    page = (site / "explanation" / "theory.html").read_text()
    source = (ROOT / "docs" / "explanation" / "theory.md").read_text()
    text = re.sub(r"<[^>]+>", "", page[page.index("<article") : page.index("</article>")])
    for symbol in (r"\bw\*(?!\*)", r"\bF\*(?!\*)"):
        stars = re.findall(symbol, source)
        assert len(stars) > 5
        assert len(re.findall(symbol, text)) >= len(stars), symbol
    assert "<em>" in page


def test_links_that_lead_out_of_the_site_are_words(site):
    page = (site / "explanation" / "privacy.html").read_text()
    assert "tests/dpsgd/test_step.py" in page
    assert not re.search(r'href="[./]*tests', page)


def _shown(browser, width, scheme="light"):
    """Set the width of the window in pixels; below 500 it is a telephone's."""
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


@pytest.mark.slow
def test_nothing_is_cut_off(site, browser):
    """Code, diagrams and equations fit a window of 1280 pixels; no page is wider than a telephone."""
    pages = sorted(path for path in site.rglob("*.html") if path.stem != "404")
    _shown(browser, 1280)
    cut = []
    for path in pages:
        browser.get(path.as_uri())
        blocks = browser.find_elements("css selector", "article pre, article pre code")
        cut += [
            f"{path.stem}: a line of {max(map(len, block.text.splitlines()))} characters: {block.text[:60]!r}"
            for block in blocks
            if block.get_property("scrollWidth") > block.get_property("clientWidth")
        ]
    assert cut == []
    _shown(browser, 390)
    for path in pages:
        browser.get(path.as_uri())
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390, path.stem


def test_keys_options_and_defaults_are_not_broken(site, browser):
    """A key that is broken over two lines cannot be copied."""
    for width in (1280, 390):
        _shown(browser, width)
        for page, cells in (("configuration", "td:is(:first-child, :nth-child(3))"), ("cli", "td:first-child")):
            browser.get((site / "reference" / f"{page}.html").as_uri())
            keys = f"[...document.querySelectorAll('article {cells} code')]"
            broken = browser.execute_script(
                f"return {keys}.filter(e => e.getClientRects().length > 1).map(e => e.innerText)"
            )
            assert broken == [], page
            assert browser.execute_script(f"return {keys}.length") > 50


def _brightness(picture):
    """Return the median, the least and the greatest brightness of a picture on the screen."""
    pixels = np.asarray(Image.open(io.BytesIO(picture.screenshot_as_png)).convert("L"))
    return int(np.median(pixels)), int(pixels.min()), int(pixels.max())


def test_pictures_follow_the_switch_between_light_and_dark(site, browser):
    _shown(browser, 1280, "light")
    browser.get((site / "explanation" / "concepts.html").as_uri())
    pictures = browser.find_elements("css selector", "article img")
    for picture in pictures:
        paper, darkest, _ = _brightness(picture)
        assert paper > 250
        assert darkest < 80
    browser.find_element("css selector", "form[data-md-component=palette] label:not([hidden])").click()
    for picture in pictures:
        paper, _, brightest = _brightness(picture)
        assert paper < 60
        assert brightest > 200
    assert len(pictures) == 2


def test_a_browser_reads_it_from_disk_without_complaint(site, browser):
    for page, title in {"index": "alidpfl", "explanation/concepts": "Two budgets", "reference/api": "federate"}.items():
        browser.get((site / f"{page}.html").as_uri())
        assert title in browser.find_element("tag name", "article").text
        pictures = browser.find_elements("css selector", "article img")
        assert all(int(picture.get_property("naturalWidth")) > 0 for picture in pictures)
    assert [entry["message"] for entry in browser.get_log("browser")] == []


def test_search_finds_from_disk(site, browser):
    """Browsers start no workers from files. Without the replacement, all of the site's script would fail."""
    _shown(browser, 1280)
    browser.get((site / "index.html").as_uri())
    browser.find_element("css selector", "input[name=query]").send_keys("heterogeneity")
    waiting = WebDriverWait(browser, 20)
    found = waiting.until(lambda opened: opened.find_elements("css selector", ".md-search-result__link"))
    assert any("theory.html" in link.get_attribute("href") for link in found)
