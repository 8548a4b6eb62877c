"""Who held what in the cells of a grid, for the report page: drawn again from the data, where they are at hand."""

from collections.abc import Iterable

from alidpfl.data import Dataset
from alidpfl.errors import AliDpflError
from alidpfl.reporting.report_page import Split
from alidpfl.runs import Config
from alidpfl.runs.data import load_data, public_split, split_title
from reproduction.grid import Cell


def splits_of(listed: Iterable[Cell]) -> tuple[list[Split], list[str]]:
    """Of every way that records were split among clients, and the names of the data sets that are not to be had."""
    found: list[Split] = []
    absent: dict[str, None] = {}
    loaded: tuple[str, Dataset] | None = None  # one at a time: they are large
    for config in sorted(_configs(listed), key=lambda config: config.data.name):
        name = config.data.name
        if name == "npz" or name in absent:  # of users' own data it would be a leak
            continue
        try:
            if loaded is None or loaded[0] != name or name == "synthetic":  # made anew by its own settings
                loaded = (name, load_data(config))
            counts = public_split(config, loaded[1])
        except AliDpflError:
            absent[name] = None
            continue
        if counts is not None:
            found.append(Split(title=split_title(config), counts=counts))
    return found, list(absent)


def _configs(listed: Iterable[Cell]) -> list[Config]:
    """One for each split. What a method holds out for itself makes no other picture."""
    found: dict[tuple[tuple[str, str], ...], Cell] = {}
    for cell in listed:
        settings = dict(cell.settings)
        of_data = sorted((key, str(value)) for key, value in settings.items() if key.startswith("data."))
        if "data.validation" not in settings:
            found.setdefault((*of_data, ("run.seed", str(cell.seed))), cell)
    configs = [cell.config for cell in found.values()]
    return list({split_title(config): config for config in configs}.values())
