"""Write grids/tuned.toml from what the grid `tuning` found: `python reproduction/experiments/choose.py`."""

from pathlib import Path

from reproduction.grid import SEARCH, load_grid
from reproduction.results import Results
from reproduction.search import chosen

from alidpfl.store.toml_writer import to_toml

ROOT = Path(__file__).parent.parent
TUNED = ROOT / "src/alidpfl/reproduction/grids/tuned.toml"

HEAD = """\
# Written by reproduction/experiments/choose.py from reproduction/results/tuning.jsonl: for every data set and method what was best on held-out
# training data. What has not been searched is not here, and is run with the defaults.

"""


def main() -> None:
    """Only rows of which every point was tried."""
    results = Results(ROOT / "reproduction/results/results.sqlite")
    results.read_lines(ROOT / f"results/{SEARCH}.jsonl")
    TUNED.write_text(HEAD + to_toml(chosen(load_grid(SEARCH), results)))


if __name__ == "__main__":
    main()
