"""The examples run as they are, as scripts and as notebooks, from a folder that is not ours."""

import os
import subprocess
import sys

import nbformat
import pytest

from tests.examples.parts import ROOT, load_script

make_notebooks = load_script("examples/make_notebooks.py")
NAMES = [path.stem for path in make_notebooks.SCRIPTS]


def test_what_examples_there_are():
    assert NAMES == ["custom_policy", "own_cnn", "read_runs", "stepping", "tabular_silos"]


LONG = {"own_cnn", "read_runs", "tabular_silos"}


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in NAMES])
def test_a_script_runs(name, tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / f"{name}.py"],
        cwd=tmp_path,
        env=os.environ | {"MPLBACKEND": "Agg"},  # on a desktop a window would wait for somebody
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert list(tmp_path.iterdir()) == []  # what it writes goes to folders of its own


def kept(name):
    return nbformat.read(ROOT / "examples" / f"{name}.ipynb", as_version=4)


def outputs(book):
    return [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]


def sources(book):
    return [(cell.id, cell.cell_type, cell.source) for cell in book.cells]


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_that_of_its_script(name):
    made = make_notebooks.notebook((ROOT / "examples" / f"{name}.py").read_text())
    assert sources(kept(name)) == sources(made), "run `python examples/make_notebooks.py`"


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_kept_with_what_it_showed(name):
    assert_it_shows_something(kept(name))


@pytest.mark.parametrize("name", [NAMES[0], *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])])
def test_a_notebook_runs(name, tmp_path):
    """It has the cells of its script, which runs above: one notebook shows that cells run as a script does."""
    book = make_notebooks.notebook((ROOT / "examples" / f"{name}.py").read_text())
    make_notebooks.run(book, str(tmp_path))
    assert_it_shows_something(book)


def assert_it_shows_something(book):
    assert not [output for output in outputs(book) if output.output_type == "error"]
    assert not [output for output in outputs(book) if output.get("name") == "stderr"]
    assert [output for output in outputs(book) if output.get("name") == "stdout"]
    assert [output for output in outputs(book) if "image/png" in output.get("data", {})]
