"""Draw the splits of a grid again from the data, for the report page."""

from collections.abc import Iterable

from alidpfl.data import Dataset
from alidpfl.errors import AliDpflError
from alidpfl.reporting.report_page import Split
from alidpfl.runs import Config
from alidpfl.runs.data import load_data, public_split, split_title
from reproduction.grid import Cell


def splits_of(listed: Iterable[Cell]) -> tuple[list[Split], list[str]]:
    """Return how records were split among clients, and the names of data sets that cannot be read.

    Args:
        listed: The cells.

    Returns:
        One entry for every different split, and the missing data sets.
    """
    found: list[Split] = []
    absent: dict[str, None] = {}
    loaded: tuple[str, Dataset] | None = None  # only one at a time, because they are large
    for config in sorted(_configs(listed), key=lambda config: config.data.name):
        name = config.data.name
        if name == "npz" or name in absent:  # counts of private data would leak
            continue
        try:
            if loaded is None or loaded[0] != name or name == "synthetic":  # synthetic data depend on the configuration
                loaded = (name, load_data(config))
            counts = public_split(config, loaded[1])
        except AliDpflError:
            absent[name] = None
            continue
        if counts is not None:
            found.append(Split(title=split_title(config), counts=counts))
    return found, list(absent)


def _configs(listed: Iterable[Cell]) -> list[Config]:
    """Return one configuration for each split. Cells with a validation part are left out: they repeat a split."""
    found: dict[tuple[tuple[str, str], ...], Cell] = {}
    for cell in listed:
        settings = dict(cell.settings)
        of_data = sorted((key, str(value)) for key, value in settings.items() if key.startswith("data."))
        if "data.validation" not in settings:
            found.setdefault((*of_data, ("run.seed", str(cell.seed))), cell)
    configs = [cell.config for cell in found.values()]
    return list({split_title(config): config for config in configs}.values())
