"""The examples run as they are, as scripts and as notebooks, from a folder that is not ours."""

import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient

from tests.examples.parts import ROOT, load_script

make_notebooks = load_script("examples/make_notebooks.py")
NAMES = [path.stem for path in make_notebooks.SCRIPTS]


def test_what_examples_there_are():
    assert NAMES == ["custom_policy", "own_cnn", "read_runs", "stepping", "tabular_silos"]


@pytest.mark.parametrize("name", NAMES)
def test_a_script_runs(name, tmp_path):
    script = ROOT / "examples" / f"{name}.py"
    done = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert list(tmp_path.iterdir()) == []  # what it writes goes to folders of its own


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_that_of_its_script(name):
    kept = nbformat.read(ROOT / "examples" / f"{name}.ipynb", as_version=4)
    made = make_notebooks.notebook((ROOT / "examples" / f"{name}.py").read_text())
    assert kept.cells == made.cells, "run `python examples/make_notebooks.py`"


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(name, tmp_path):
    book = nbformat.read(ROOT / "examples" / f"{name}.ipynb", as_version=4)
    NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    printed = [output for cell in book.cells if cell.cell_type == "code" for output in cell.outputs]
    assert not [output for output in printed if output.output_type == "error"]
    assert [output for output in printed if output.get("name") == "stdout"]
