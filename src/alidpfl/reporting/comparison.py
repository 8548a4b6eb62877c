"""Show several runs side by side: a row for each result and each setting that differs, a column for each run."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from alidpfl.reporting.snapshot import RunSnapshot
from alidpfl.reporting.tables import RESULTS, shown

_BORDER = 3  # a line, and a space on both sides of every cell


def comparison(snapshots: Sequence[RunSnapshot], width: int) -> list[Table | Text]:
    """Return tables of at most `width` characters, and notes about them.

    Columns have the names of the runs. If names make the table too wide, columns have numbers and a legend. If that
    is still too wide, the runs are shown in several tables.
    """
    settings, shared = _settings(snapshots)
    facts = [snapshot.facts() for snapshot in snapshots]
    rows = {key: [Text(shown(value)) for value in values] for key, values in settings.items()}
    rows |= {heading: [cell(f) for f in facts] for heading, cell in RESULTS.items()}
    if not all(snapshot.covers_everything for snapshot in snapshots):
        no = Text("NO (!)", style="bold red")
        rows["ε covers all"] = [Text("yes") if snapshot.covers_everything else no for snapshot in snapshots]
    names = [snapshot.name for snapshot in snapshots]
    parts: list[Table | Text] = []
    if len(_blocks(rows, names, width)) > 1:
        parts.append(Text("\n".join(f"run {place}: {name}" for place, name in enumerate(names, 1))))
        names = [str(place) for place in range(1, len(names) + 1)]
    parts += [_table(rows, names, block, len(settings)) for block in _blocks(rows, names, width)]
    if len(snapshots) > 1:
        count = len(settings)
        differ = {0: "no setting differs", 1: "1 setting differs"}.get(count, f"{count} settings differ")
        parts.append(Text(f"{differ}, {shared} are the same (config.toml of each run has all)"))
    return parts


def _settings(snapshots: Sequence[RunSnapshot]) -> tuple[dict[str, list[Any]], int]:
    """Return the values of the keys that differ (None for a key that a run lacks), and the number of other keys."""
    configs = [snapshot.effective_settings() for snapshot in snapshots]
    keys = dict.fromkeys(key for config in configs for key in config)
    values = {key: [config.get(key) for config in configs] for key in keys}
    differing = {key: found for key, found in values.items() if any(value != found[0] for value in found)}
    return differing, len(keys) - len(differing)


def _blocks(rows: Mapping[str, Sequence[Text]], names: Sequence[str], width: int) -> list[range]:
    """Return the runs of each table, as many as fit. A run that is too wide gets a table with folded cells."""
    first = max(map(len, rows)) + _BORDER + 1
    blocks, start, room = [], 0, width - first
    for i, name in enumerate(names):
        needed = _BORDER + max(len(name), *(len(cells[i].plain) for cells in rows.values()))
        if needed > room and i > start:
            blocks.append(range(start, i))
            start, room = i, width - first
        room -= needed
    return [*blocks, range(start, len(names))] if names else []


def _table(rows: Mapping[str, Sequence[Text]], names: Sequence[str], block: range, num_settings: int) -> Table:
    # As Text, because a folder name may look like markup.
    table = Table(Column("run"), *(Column(Text(names[i]), overflow="fold") for i in block))
    for place, (heading, cells) in enumerate(rows.items(), 1):
        table.add_row(Text(heading), *(cells[i] for i in block), end_section=place == num_settings)
    return table
