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
import alidpfl.dpsgd
import alidpfl.models

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
MODULES = [
    f"{package.__name__}.{module.name}"
    for package in (alidpfl.dpsgd, alidpfl.models)
    for module in pkgutil.iter_modules(package.__path__)
    if module.name != "_native"  # a C library, not a module
]


@pytest.mark.parametrize("name", ["alidpfl.dpsgd", *MODULES])
def test_examples_in_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples_to_run():
    finder = doctest.DocTestFinder()
    assert (
        sum(
            bool(t.examples) for name in ["alidpfl.dpsgd", *MODULES] for t in finder.find(importlib.import_module(name))
        )
        >= 4
    )


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_the_readme_s_program_runs(code, tmp_path):
    program = tmp_path / "train.py"
    program.write_text(code)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+ steps, ε = (1\.9\d\d|2\.000)\n", done.stdout)


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
