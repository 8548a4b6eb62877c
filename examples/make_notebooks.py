"""Make the notebooks from the scripts beside them, and run them: `python examples/make_notebooks.py`.

The scripts have cells that begin with `# %%`, as editors and jupytext know them. Outputs are kept in the notebooks.
"""

import tempfile
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
SCRIPTS = tuple(path for path in sorted(FOLDER.glob("*.py")) if path.name != Path(__file__).name)


def notebook(script: str) -> nbformat.NotebookNode:
    """Return the script as a notebook without outputs."""
    book = jupytext.reads(script, fmt="py:percent")
    for number, cell in enumerate(book.cells):
        cell.id = f"cell-{number}"  # random ids would make each run a change in git
    book.metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return book


def run(book: nbformat.NotebookNode, folder: str) -> None:
    """Run the cells in a folder and keep what they print and draw. Timings are left out: they change in each run."""
    place = {"metadata": {"path": folder}}
    NotebookClient(book, timeout=300, record_timing=False, coalesce_streams=True, resources=place).execute()
    del book.metadata["language_info"]  # the version of Python


if __name__ == "__main__":
    for path in SCRIPTS:
        made = notebook(path.read_text())
        with tempfile.TemporaryDirectory() as folder:
            run(made, folder)
        nbformat.write(made, path.with_suffix(".ipynb"))
        print(path.with_suffix(".ipynb").name)
