"""What data there are on this machine: for each data set where it lies, in which layout, and whether it is whole."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from alidpfl.data import directories, readers
from alidpfl.data.directories import Location
from alidpfl.data.download import is_whole
from alidpfl.data.sources import CIFAR10, SOURCES, Source
from alidpfl.errors import DataError

State: TypeAlias = Literal["ok", "corrupt", "missing", "built in", "yours"]


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One data set."""

    name: str
    kind: Literal["synthetic", "real", "own"]
    state: State
    layout: str = ""
    folder: str = ""
    num_bytes: int = 0
    note: str = ""
    """What is wrong and how to mend it, or how to get the data set."""

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        return asdict(self)


def inventory(data_dir: Path | None = None) -> tuple[Entry, ...]:
    """An entry for every data set; the contents of real ones are compared with the published sums."""
    return (
        Entry(name="strokes", kind="synthetic", state="built in", note="drawn digits, 60,000 + 10,000 of 1x28x28"),
        Entry(name="synthetic", kind="synthetic", state="built in", note="Synthetic(α, β) of FedProx, 60 inputs"),
        *(_real(source, data_dir) for source in SOURCES.values()),
        Entry(
            name="npz", kind="own", state="yours", note="a folder with a .npz file (x, y) for each client: --data-dir"
        ),
    )


def _real(source: Source, data_dir: Path | None) -> Entry:
    try:
        found = directories.find(source, data_dir)
    except DataError:
        return Entry(name=source.name, kind="real", state="missing", note=directories.how_to_get(source, data_dir))
    broken = _broken_files(source, found)
    note = f"delete {', '.join(broken)} and {directories.how_to_get(source, data_dir)}" if broken else ""
    return Entry(
        name=source.name,
        kind="real",
        state="corrupt" if broken else "ok",
        layout=found.layout.name,
        folder=str(found.folder),
        num_bytes=found.num_bytes,
        note=note,
    )


def _broken_files(source: Source, found: Location) -> list[str]:
    if found.layout.name == "python":  # no sums are known for the pickles: they are read
        return [path.name for path in found.files if not _is_readable(path)]
    return [file.name for file in source.files if not is_whole(found.folder / file.name, file)]


def _is_readable(path: Path) -> bool:
    try:
        readers.read_batch(path, directories.how_to_get(CIFAR10))
    except DataError:
        return False
    return True
