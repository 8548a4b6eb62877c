"""Find data sets on disk: which directories are searched, what they hold, and whether the files are intact."""

import gzip
import hashlib
import os
import shlex
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import platformdirs

from alidpfl.data.sources import SOURCES, KnownFile, Source
from alidpfl.errors import ConfigError, DataError
from alidpfl.registry import DATASETS

DATA_DIR_VARIABLE = "ALIDPFL_DATA_DIR"

_BUILT_IN = {
    "strokes": "generated digits, 60,000 + 10,000 of 1x28x28",
    "synthetic": "Synthetic(α, β) of FedProx, 60 inputs",
}


@dataclass(frozen=True, kw_only=True)
class Location:
    """A complete copy of a data set on disk, with its files in the order of `Source.files`."""

    layout: str
    """`Source.layout`, or "debian" for the system's folder."""
    folder: Path
    files: tuple[Path, ...]

    @property
    def num_bytes(self) -> int:
        """The size on disk."""
        return sum(path.stat().st_size for path in self.files)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One line of `alidpfl data list`."""

    name: str
    kind: Literal["synthetic", "real", "own", "plug-in"]
    state: Literal["ok", "corrupt", "missing", "built in", "yours", "installed"]
    layout: str = ""
    folder: str = ""
    num_bytes: int = 0
    note: str = ""
    """How to get the data set, or what is wrong with it and how to fix it."""


def user_cache() -> Path:
    """Return the user's cache directory, on Linux $XDG_CACHE_HOME/alidpfl or ~/.cache/alidpfl. It may not exist yet."""
    return platformdirs.user_cache_path("alidpfl")


def search_path(data_dir: Path | None = None) -> tuple[Path, ...]:
    """Return the directories to search: `data_dir` alone if given, else $ALIDPFL_DATA_DIR, then the user's cache."""
    if data_dir is not None:
        if not data_dir.is_dir():
            raise ConfigError(f"data_dir={str(data_dir)!r} is not a folder; create it or give another")
        return (data_dir,)
    variable = os.environ.get(DATA_DIR_VARIABLE)
    return (Path(variable), user_cache()) if variable else (user_cache(),)


def download_directory(data_dir: Path | None = None) -> Path:
    """Return where downloads go: `data_dir`, else $ALIDPFL_DATA_DIR, else the user's cache. It may not exist yet."""
    return data_dir or search_path()[0]


def find(source: Source, data_dir: Path | None = None) -> Location:
    """Return the first complete copy of a data set. A DataError names the command that downloads a missing one."""
    incomplete = ""
    searched = search_path(data_dir)
    places = [(source.layout, directory / source.folder) for directory in searched]
    if source.system_folder:
        places.append(("debian", Path(source.system_folder)))
    for layout, folder in places:
        found = [present(folder / file.name) for file in source.files]
        if all(found):
            return Location(layout=layout, folder=folder, files=tuple(path for path in found if path is not None))
        if any(found) and not incomplete:
            absent = [file.name for file, path in zip(source.files, found, strict=True) if path is None]
            incomplete = f" ({folder} lacks {', '.join(absent)})"
    raise DataError(
        f"{source.name} is not in {', '.join(map(str, searched))}{incomplete}; {how_to_get(source, data_dir)}, "
        f"or {f'set {DATA_DIR_VARIABLE} to' if data_dir is None else 'give'} a folder that has {source.folder}/"
    )


def present(path: Path) -> Path | None:
    """Return `path`, or the same name with `.gz`, whichever exists; None if neither does."""
    packed = path.with_name(path.name + ".gz")
    return path if path.is_file() else packed if packed.is_file() else None


def is_whole(path: Path, known: KnownFile) -> bool:
    """Return True if `path`, or the same name with `.gz`, exists and has the published contents."""
    found = present(path)
    try:
        return found is not None and digest(found, is_packed=found.suffix == ".gz") == known.sha256
    except (OSError, EOFError, zlib.error):
        return False


def digest(path: Path, algorithm: str = "sha256", *, is_packed: bool = False) -> str:
    """Return the checksum of a file in hex. A file that `is_packed` is unpacked by gzip first."""
    with gzip.open(path) if is_packed else path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def how_to_get(source: Source, data_dir: Path | None = None) -> str:
    """Return the command that downloads a data set, as part of an error or a note."""
    where = "" if data_dir is None else f" --data-dir {shlex.quote(str(data_dir))}"
    return f"run `alidpfl data get {source.name}{where}` (about {source.megabytes} MB)"


def inventory(data_dir: Path | None = None) -> tuple[Entry, ...]:
    """Return an entry for every data set. The contents of downloaded ones are compared with the published checksums.

    A file that was intact is not read again as long as its size and its time of change stay the same.
    """
    plugins = [name for name in DATASETS if name not in DATASETS.shipped]
    return (
        *(Entry(name=name, kind="synthetic", state="built in", note=note) for name, note in _BUILT_IN.items()),
        *(_real(source, data_dir) for source in SOURCES.values()),
        Entry(
            name="npz", kind="own", state="yours", note="a folder with a .npz file (x, y) for each client: --data-dir"
        ),
        Entry(name="table", kind="own", state="yours", note="a schema, and a .csv or .parquet file for each client"),
        *(Entry(name=name, kind="plug-in", state="installed", note="from another package") for name in plugins),
    )


def _was_whole(path: Path, known: KnownFile) -> bool:
    """Return `is_whole`, from the cache if the file did not change since."""
    status = path.stat()
    key = f"{path.resolve()} {status.st_size} {status.st_mtime_ns} {known.sha256}"
    seen = user_cache() / "intact" / hashlib.sha256(key.encode()).hexdigest()
    if seen.exists():
        return True
    if not is_whole(path.with_name(known.name), known):
        return False
    with suppress(OSError):  # no space or no permission: the file is read again next time
        seen.parent.mkdir(parents=True, exist_ok=True)
        seen.touch()
    return True


def _real(source: Source, data_dir: Path | None) -> Entry:
    try:
        found = find(source, data_dir)
    except DataError:
        return Entry(name=source.name, kind="real", state="missing", note=how_to_get(source, data_dir))
    broken = [file.name for file, path in zip(source.files, found.files, strict=True) if not _was_whole(path, file)]
    return Entry(
        name=source.name,
        kind="real",
        state="corrupt" if broken else "ok",
        layout=found.layout,
        folder=str(found.folder),
        num_bytes=found.num_bytes,
        note=f"delete {', '.join(broken)} and {how_to_get(source, data_dir)}" if broken else "",
    )
