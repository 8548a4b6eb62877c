"""Where data sets lie on disk: which folders are searched, in which order, and which layouts are understood."""

import os
import shlex
from dataclasses import dataclass
from pathlib import Path

from alidpfl.data.sources import Source
from alidpfl.errors import ConfigError, DataError

DATA_DIR_VARIABLE = "ALIDPFL_DATA_DIR"


@dataclass(frozen=True, kw_only=True)
class Layout:
    """A folder of known files."""

    name: str
    folder: str
    """Below a data directory, or absolute."""
    files: tuple[str, ...]
    """Each as it is or with `.gz`."""


@dataclass(frozen=True, kw_only=True)
class Location:
    """A data set found on disk, complete."""

    layout: Layout
    folder: Path

    @property
    def files(self) -> tuple[Path, ...]:
        """The files, in the order of the layout."""
        found = [present(self.folder / name) for name in self.layout.files]
        return tuple(path for path in found if path is not None)

    @property
    def num_bytes(self) -> int:
        """Size on disk."""
        return sum(path.stat().st_size for path in self.files)


def layouts(source: Source) -> tuple[Layout, ...]:
    """The layouts in which the data set may lie, best first."""
    files = tuple(file.name for file in source.files)
    names = {"cifar10": "binary"}
    own = Layout(name=names.get(source.name, "torchvision"), folder=source.folder, files=files)
    match source.name:
        case "fashion_mnist":  # of the Debian package dataset-fashion-mnist
            return own, Layout(name="debian", folder="/usr/share/datasets/fashion-mnist", files=files)
        case _:
            return (own,)


def search_path(data_dir: Path | None = None) -> tuple[Path, ...]:
    """The directories that are searched: `data_dir` alone if given, else $ALIDPFL_DATA_DIR, then the user's cache."""
    if data_dir is not None:
        if not data_dir.is_dir():
            raise ConfigError(f"data_dir={str(data_dir)!r} is not a folder; create it or give another")
        return (data_dir,)
    named = os.environ.get(DATA_DIR_VARIABLE)
    return (Path(named), user_cache()) if named else (user_cache(),)


def download_directory(data_dir: Path | None = None) -> Path:
    """Where a download goes: `data_dir`, else $ALIDPFL_DATA_DIR, else the user's cache. It need not exist yet."""
    named = os.environ.get(DATA_DIR_VARIABLE)
    return data_dir or (Path(named) if named else user_cache())


def present(path: Path) -> Path | None:
    """`path`, or the same with `.gz`, whichever is there."""
    packed = path.with_name(path.name + ".gz")
    return path if path.is_file() else packed if packed.is_file() else None


def find(source: Source, data_dir: Path | None = None) -> Location:
    """The first complete copy of the data set; DataError that says where it was looked for and how to get it."""
    missing = ""
    searched = search_path(data_dir)
    for directory in searched:
        for layout in layouts(source):
            folder = directory / layout.folder
            absent = [name for name in layout.files if present(folder / name) is None]
            if not absent:
                return Location(layout=layout, folder=folder)
            if len(absent) < len(layout.files) and not missing:
                missing = f" ({folder} lacks {', '.join(absent)})"
    raise DataError(
        f"{source.name} is not in {', '.join(map(str, searched))}{missing}; {how_to_get(source, data_dir)}, "
        f"or {f'set {DATA_DIR_VARIABLE} to' if data_dir is None else 'give'} a folder that has {source.folder}/"
    )


def how_to_get(source: Source, data_dir: Path | None = None) -> str:
    """The command that downloads the data set."""
    where = "" if data_dir is None else f" --data-dir {shlex.quote(str(data_dir))}"
    return f"run `alidpfl data get {source.name}{where}` (about {source.megabytes} MB)"


def user_cache() -> Path:
    """$XDG_CACHE_HOME/alidpfl, else ~/.cache/alidpfl. It need not exist yet."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification: a relative path is to be ignored.
    return (Path(base) if Path(base).is_absolute() else Path.home() / ".cache") / "alidpfl"
