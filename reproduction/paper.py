"""The paper's own figures (arXiv 2308.10457): its accounting setting, and 320 accuracies in four tables."""

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

SAMPLE_RATE: Final = 0.015
NOISE_MULTIPLIER: Final = 1.1
DELTA: Final = 1e-5

ITERATIONS: Final[dict[float, int]] = {
    1.55: 79,
    1.75: 177,
    2.0: 317,
    2.5: 598,
    2.75: 775,
    3.25: 1123,
    3.75: 1585,
    5.25: 2990,
}
"""The number of iterations that the paper prints for each ε. Most of them overspend by the paper's own accountant."""

_FILE = Path(__file__).parent / "published.json"


def published(table: str, dataset: str, match: Mapping[str, str], method: str) -> float | None:
    """Return the accuracy in % that the paper prints, or None if it has no such cell.

    Args:
        table: The name of our grid for the paper's table, such as `small` for Table I.
        dataset: The data set.
        match: What identifies the paper's column, such as `{"rounds_over_steps": "1/2"}`.
        method: The method's name in our grids.

    >>> published("small", "mnist", {"rounds_over_steps": "1/2"}, "ali_dpfl")
    97.58
    """
    wanted = {"table": table, "dataset": dataset, "method": method, **match}
    for cell in _document()["cells"]:
        if all(cell.get(key) == value for key, value in wanted.items()):
            return float(cell["accuracy"])
    return None


def citation() -> str:
    """Return the source of the published figures."""
    return str(_document()["citation"])


@lru_cache(maxsize=1)
def _document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return document
