"""Downloads a public data set into a data directory, checked against its published contents."""

import hashlib
import tarfile
import zlib
from pathlib import Path
from typing import IO

from alidpfl.data.directories import DATA_DIR_VARIABLE, present
from alidpfl.data.files import digest, replacing, settle
from alidpfl.data.sources import SOURCES, KnownFile, Source
from alidpfl.data.transfer import fetch
from alidpfl.errors import DataError
from alidpfl.inputs.names import named
from alidpfl.types import OnProgress, OnShare


def get(name: str | Source, into: Path, *, on_progress: OnProgress | None = None, base_url: str | None = None) -> Path:
    """Download the data set `name` into the data directory `into`, and return the folder that now has it.

    Files that are there and whole are kept; a broken transfer goes on where it stopped. A file takes its name only
    after its contents were compared with the published sum.

    Args:
        name: one of `SOURCES`, or a source of your own.
        into: the data directory; made where it is missing.
        on_progress: told of every step.
        base_url: another place to take the files from; their contents must be the same.
    """
    source = named("data set", name, SOURCES) if isinstance(name, str) else name
    report = on_progress or (lambda _what, _share: None)
    folder = into / source.folder
    try:
        missing = [file for file in source.files if not is_whole(folder / file.name, file)]
        if missing and source.archive is not None:
            _get_archive(source, base_url or source.base_url, into, report)
        elif missing:
            for file in missing:
                _get_file(source, file, base_url or source.base_url, folder, report)
    except DataError as error:
        raise DataError(f"{error}; {_by_hand(source, folder)}") from error
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written ({error}); free space there, or give another --data-dir"
        ) from error
    return folder


def is_whole(path: Path, known: KnownFile) -> bool:
    """True where `path`, or the same with `.gz`, is there and holds what was published."""
    found = present(path)
    try:
        return found is not None and digest(found) == known.sha256
    except (OSError, EOFError, zlib.error):
        return False


def _by_hand(source: Source, folder: Path) -> str:
    names = source.archive.name if source.archive else ", ".join(f"{file.name}.gz" for file in source.files)
    return (
        f"try again, or download {names} from {source.base_url} by hand into {folder}, "
        f"or set {DATA_DIR_VARIABLE} to a folder that has {source.folder}/"
    )


def _get_file(source: Source, known: KnownFile, base_url: str, folder: Path, report: OnProgress) -> None:
    target = folder / f"{known.name}.gz"
    label = f"{source.name}: {target.name}"
    _fetch_checked(base_url + target.name, target, known.sha256, "sha256", lambda share: report(label, share))
    (folder / known.name).unlink(missing_ok=True)  # a broken unpacked file would be read before the packed one


def _get_archive(source: Source, base_url: str, into: Path, report: OnProgress) -> None:
    assert source.archive is not None  # noqa: S101 - for mypy
    target = into / source.archive.name
    label = f"{source.name}: {target.name}"
    _fetch_checked(base_url + target.name, target, source.archive.md5, "md5", lambda share: report(label, share))
    _unpack(source, target, into / source.folder, report)
    target.unlink()


def _fetch_checked(url: str, target: Path, expected: str, algorithm: str, on_share: OnShare) -> None:
    """Download to `target`; what does not have the expected sum is thrown away."""
    while True:
        fetched = fetch(url, target, on_share)
        found = _sum_of_part(fetched.path, target, algorithm)
        if found == expected:
            settle(fetched.path, target)
            return
        fetched.path.unlink()
        if not fetched.was_resumed:  # otherwise its beginning may have been of another file: once more, from the start
            raise DataError(f"{url} sends other contents than published ({algorithm} {found}, expected {expected})")


def _sum_of_part(part: Path, target: Path, algorithm: str) -> str:
    try:
        is_packed = algorithm == "sha256" and target.suffix == ".gz"
        return digest(part, algorithm, is_packed=is_packed)
    except (EOFError, zlib.error, OSError) as error:
        return f"none: {error}"


def _unpack(source: Source, archive: Path, folder: Path, report: OnProgress) -> None:
    """Take the known files, and nothing else, out of the archive."""
    wanted = {f"{source.folder}/{file.name}": file for file in source.files}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                known = wanted.get(member.name)
                content = tar.extractfile(member) if known is not None and member.isreg() else None
                if known is not None and content is not None:
                    tarfile.data_filter(member, str(folder))
                    _write_checked(content, folder / known.name, known)
                    del wanted[member.name]
                    report(f"{source.name}: unpacking", 1 - len(wanted) / len(source.files))
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise DataError(f"{archive} cannot be unpacked ({error})") from error
    if wanted:
        raise DataError(f"{archive} lacks {', '.join(wanted)}")


def _write_checked(content: IO[bytes], path: Path, known: KnownFile) -> None:
    total = hashlib.sha256()
    with replacing(path) as file:
        while block := content.read(1 << 20):
            file.write(block)
            total.update(block)
        if total.hexdigest() != known.sha256:  # inside `with`: then the file never takes its name
            raise DataError(f"{known.name} in the archive has other contents than published")


# What a damaged file can raise: zipfile and numpy check most of it, each in its own way, and so do decompressors,
# which a damaged directory may call for. A header may also ask for more memory than there is.
