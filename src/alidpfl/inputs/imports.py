"""Code that a user names as `package.module:attribute`: import it, and hash the files of its package.

Imports nothing but what it is asked for.
"""

import hashlib
import importlib
import importlib.util
import json
import os
import pkgutil
import stat
import sys
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

from alidpfl.errors import ConfigError

NAME = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"
"""Pattern of `package.module:attribute`."""

_MOST_FILES, _MOST_BYTES = 10_000, 1 << 30
_CACHE = "__pycache__"
_PIECE = 1 << 20


def imported(name: str, what: str = "", *, from_here: bool = True) -> Any:
    """Import `package.module:attribute`.

    Args:
        name: the name.
        what: the setting that has this name, for errors.
        from_here: whether modules in the current folder are found too.

    Raises:
        ConfigError: there is no such module or attribute, or the module's own code fails.
    """
    _look_anew(from_here)
    try:
        return pkgutil.resolve_name(name)
    except Exception as error:  # any fault of the user's code, in its own words
        where = "run this in the folder of the module, or install its package" if from_here else "install its package"
        raise ConfigError(
            f"{what}{name!r} cannot be imported ({type(error).__name__}: {error}); write PACKAGE.MODULE:ATTRIBUTE, and "
            f"{where}"
        ) from error


def _look_anew(from_here: bool) -> None:
    """Let Python find files that are new, and those in the current folder."""
    if from_here and (here := os.getcwd()) not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()


@dataclass(frozen=True, kw_only=True)
class CodeFiles:
    """The files of a package, or of a module without a package."""

    package: str
    """Name of the package, or of the module."""
    files: tuple[tuple[str, str], ...]
    """Paths from the folder that holds the package, and the SHA-256 of each file."""

    @property
    def sha256(self) -> str:
        """Hash of all paths and contents."""
        return hashlib.sha256(json.dumps([self.package, self.files]).encode()).hexdigest()


def code_files(name: str, what: str = "", *, from_here: bool = True) -> CodeFiles:
    """Return the files of the package that `package.module:attribute` is in. None of them is run.

    These are all files below the package's folder, whatever they hold, without the compiled copies in `__pycache__`.
    Packages that this one imports are not among them.

    Args:
        name: the name.
        what: the setting that has this name, for errors.
        from_here: whether packages in the current folder are found too.

    Raises:
        ConfigError: there is no such package, or its files cannot be hashed.
    """
    package = name.partition(":")[0].partition(".")[0]
    _look_anew(from_here)
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError) as error:  # a loaded module without a spec
        raise ConfigError(f"{what}{name!r}: {package} has no files ({error}); name a function of a package") from None
    if spec is None:
        raise ConfigError(f"{what}{name!r}: there is no package {package}; install it, or correct the name")
    try:
        found = sorted(_hashed(spec))
    except OSError as error:
        raise ConfigError(
            f"{what}{name!r}: the files of {package} cannot be read ({error.strerror}: {error.filename}); mend them, "
            "or install it anew"
        ) from None
    except _RefusedError as error:
        raise ConfigError(f"{what}{name!r}: {error}") from None
    return CodeFiles(package=package, files=tuple(found))


class _RefusedError(Exception):
    """A package whose files say too little about what it does."""


def _hashed(spec: ModuleSpec) -> list[tuple[str, str]]:
    folders = [Path(place) for place in spec.submodule_search_locations or ()]
    if not folders:
        if not spec.has_location or spec.origin is None or not os.path.isfile(spec.origin):
            raise _RefusedError(f"{spec.name} has no files of its own; put the function into a module of yours")
        return [(Path(spec.origin).name, _file_hash(Path(spec.origin)))]
    found: list[tuple[str, str]] = []
    size = 0
    for folder in folders:
        if not folder.is_dir():
            raise _RefusedError(f"{folder} is no folder; install {spec.name} as files, not as an archive")
        for path in _files_below(folder):
            size += path.stat().st_size
            if len(found) >= _MOST_FILES or size > _MOST_BYTES:
                raise _RefusedError(
                    f"{spec.name} has more than {_MOST_FILES:,} files or {_MOST_BYTES:,} bytes, too much to check; put "
                    "the function into a small package of your own"
                )
            found.append((str(path.relative_to(folder.parent)), _file_hash(path)))
    return found


def _files_below(folder: Path) -> list[Path]:
    found = []
    for where, folders, names in os.walk(folder, onerror=_raise):
        for name in folders:
            if os.path.islink(os.path.join(where, name)):
                raise _RefusedError(f"{os.path.join(where, name)} is a link to a folder; put the folder itself there")
        folders[:] = [name for name in folders if name != _CACHE]
        for name in names:
            path = Path(where) / name
            if not stat.S_ISREG(path.stat().st_mode):
                raise _RefusedError(f"{path} is no file; remove it")
            found.append(path)
    return found


def _raise(error: OSError) -> None:
    raise error


def _file_hash(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()
