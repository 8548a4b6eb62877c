"""What the documents show is what the program does."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import alidpfl

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
MODULES = [
    module.name
    for module in pkgutil.walk_packages(alidpfl.__path__, "alidpfl.")
    if not module.name.endswith(("._native", ".__main__"))
]
PROGRAMS = [
    (document, code)
    for document in ("README.md", "docs/python.md", "docs/theory.md")
    for code in re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
]


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # typer's, on first import
def test_examples_in_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_there_are_examples_to_run():
    finder = doctest.DocTestFinder()
    assert sum(bool(t.examples) for name in MODULES for t in finder.find(importlib.import_module(name))) >= 30


@pytest.mark.parametrize(("document", "code"), PROGRAMS)
def test_the_programs_in_the_documents_run(document, code, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(code)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    for shown in re.findall(r"print\(.*\)  # (\[.*\])", code):  # what a comment says is printed
        assert shown in done.stdout
    if document == "README.md":
        assert re.search(r"5 clients, ε = (1\.9\d\d|2\.000)\n", done.stdout)


def test_there_are_programs_to_run():
    assert len(PROGRAMS) == 7


def test_the_reference_of_settings_is_that_of_the_program():
    from alidpfl.runs.reference import reference

    assert (ROOT / "docs" / "configuration.md").read_text() == reference()


def test_the_readme_shows_the_accounting_table_as_it_is_printed():
    done = subprocess.run([sys.executable, "-m", "alidpfl", "account"], capture_output=True, text=True, check=True)
    shown = [line.strip() for line in README.splitlines()]
    for line in done.stdout.strip().splitlines():
        assert line.strip() in shown


@pytest.mark.parametrize(
    "document", sorted(p.relative_to(ROOT).as_posix() for p in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
)
def test_links_lead_somewhere(document):
    text = (ROOT / document).read_text()
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert ((ROOT / document).parent / target).exists(), f"{document} links to {target}"


def test_the_layout_in_the_architecture_names_every_module():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for path in (ROOT / "src" / "alidpfl").rglob("*.py"):
        if path.stem.startswith("_") or path.name in ("checks.py", "paper.py", "paper_cnn.py"):
            continue
        assert path.name in text, f"ARCHITECTURE.md does not mention {path.name}"


def test_the_version_stands_in_one_place():
    assert f"version: {alidpfl.__version__}" in (ROOT / "CITATION.cff").read_text()
    assert "__version__" not in (ROOT / "pyproject.toml").read_text().replace("alidpfl._version.__version__", "")


def test_public_names_exist():
    for package in (alidpfl, alidpfl.dpsgd, alidpfl.models):
        assert all(hasattr(package, name) for name in package.__all__)
