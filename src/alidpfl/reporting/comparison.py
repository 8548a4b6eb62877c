"""Several runs side by side: every setting that differs and every result a row, every run a column."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from alidpfl.reporting.snapshot import RunSnapshot
from alidpfl.reporting.tables import RESULTS, UNKNOWN, number

_BORDER = 3  # a line and a space on both sides of every cell


def comparison(snapshots: Sequence[RunSnapshot], width: int) -> list[Table | Text]:
    """Tables of at most `width` characters, and what to know about them.

    Columns bear the runs' names; where these make the table too wide, numbers with a legend, and where that is too
    wide as well, several tables below one another.
    """
    settings, shared = _settings(snapshots)
    facts = [snapshot.facts() for snapshot in snapshots]
    rows = {key: [Text(_shown(value)) for value in values] for key, values in settings.items()}
    rows |= {heading: [cell(f) for f in facts] for heading, cell in RESULTS.items()}
    if not all(snapshot.covers_everything for snapshot in snapshots):
        rows["ε covers all"] = [_covered(snapshot) for snapshot in snapshots]
    names = [snapshot.name for snapshot in snapshots]
    parts: list[Table | Text] = []
    if len(_blocks(rows, names, width)) > 1:
        parts.append(Text("\n".join(f"run {place}: {name}" for place, name in enumerate(names, 1))))
        names = [str(place) for place in range(1, len(names) + 1)]
    parts += [_table(rows, names, block, len(settings)) for block in _blocks(rows, names, width)]
    if len(snapshots) > 1:
        differ = {0: "no setting differs", 1: "1 setting differs"}.get(
            len(settings), f"{len(settings)} settings differ"
        )
        parts.append(Text(f"{differ}, {shared} are the same (config.toml of each run has all)"))
    return parts


def _settings(snapshots: Sequence[RunSnapshot]) -> tuple[dict[str, list[Any]], int]:
    """Values by key where runs differ, and how many keys are the same in all; a key that a run lacks is None."""
    configs = [snapshot.effective_settings() for snapshot in snapshots]
    keys = dict.fromkeys(key for config in configs for key in config)
    values = {key: [config.get(key) for config in configs] for key in keys}
    differing = {key: found for key, found in values.items() if any(value != found[0] for value in found)}
    return differing, len(keys) - len(differing)


def _shown(value: object) -> str:
    return UNKNOWN if value is None else number(value)


def _covered(snapshot: RunSnapshot) -> Text:
    return Text("yes") if snapshot.covers_everything else Text("NO (!)", style="bold red")


def _blocks(rows: Mapping[str, Sequence[Text]], names: Sequence[str], width: int) -> list[range]:
    """Runs of one table each, as many as fit; a run that does not fit has a table of its own, with folded cells."""
    first = max(map(len, rows)) + _BORDER + 1
    widths = [
        _BORDER + max(len(name), *(len(cells[i].plain) for cells in rows.values())) for i, name in enumerate(names)
    ]
    blocks, start = [], 0
    while start < len(names):
        count = max(1, sum(1 for _ in _fitting(widths[start:], width - first)))
        blocks.append(range(start, start + count))
        start += count
    return blocks


def _fitting(widths: Sequence[int], room: int) -> Iterator[int]:
    for one in widths:
        room -= one
        if room < 0:
            return
        yield one


def _table(rows: Mapping[str, Sequence[Text]], names: Sequence[str], block: range, num_settings: int) -> Table:
    # As Text, because a folder name may hold what rich would take for markup.
    table = Table(Column("run"), *(Column(Text(names[i]), overflow="fold") for i in block))
    for place, (heading, cells) in enumerate(rows.items(), 1):
        table.add_row(Text(heading), *(cells[i] for i in block), end_section=place == num_settings)
    return table
