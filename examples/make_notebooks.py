"""Write the notebooks anew from the scripts beside them, and run them: `python examples/make_notebooks.py`.

A script is cut into cells at lines that begin with `# %%`, as editors know them. What the cells print and draw
is kept.
"""

import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
SCRIPTS = tuple(path for path in sorted(FOLDER.glob("*.py")) if path.name != Path(__file__).name)


def notebook(script: str) -> nbformat.NotebookNode:
    """The script's cells."""
    cells = []
    for number, cell in enumerate(script.split("# %%")[1:]):
        kind, _, text = cell.partition("\n")
        if kind.strip() == "[markdown]":
            words = "\n".join(line.removeprefix("#").removeprefix(" ") for line in text.strip().splitlines())
            made = nbformat.v4.new_markdown_cell(words)
        else:
            made = nbformat.v4.new_code_cell(text.strip())
        made.id = f"cell-{number}"  # else drawn at random, and every writing a change
        cells.append(made)
    about = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    return nbformat.v4.new_notebook(cells=cells, metadata=about)


def run(book: nbformat.NotebookNode, folder: str) -> None:
    """Fill in what the cells print and draw. No clock: it would only make every writing a change."""
    place = {"metadata": {"path": folder}}
    NotebookClient(book, timeout=300, record_timing=False, coalesce_streams=True, resources=place).execute()
    del book.metadata["language_info"]  # which Python it was


if __name__ == "__main__":
    for path in SCRIPTS:
        made = notebook(path.read_text())
        with tempfile.TemporaryDirectory() as folder:
            run(made, folder)
        nbformat.write(made, path.with_suffix(".ipynb"))
        print(path.with_suffix(".ipynb").name)
