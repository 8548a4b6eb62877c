"""The paper's own figures: 320 cells of four tables, as printed."""

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib.resources import files
from typing import Any


def published(table: str, dataset: str, match: Mapping[str, str], method: str) -> float | None:
    """The accuracy that the paper prints, in %; None where it has no such cell.

    >>> published("small", "mnist", {"rounds_over_steps": "1/2"}, "ali_dpfl")
    97.58
    """
    wanted = {"table": table, "dataset": dataset, "method": method, **match}
    for cell in _document()["cells"]:
        if all(cell.get(key) == value for key, value in wanted.items()):
            return float(cell["accuracy"])
    return None


def citation() -> str:
    """Where the figures are from."""
    return str(_document()["citation"])


@lru_cache(maxsize=1)
def _document() -> dict[str, Any]:
    content = (files("reproduction") / "published.json").read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(content)
    return document
