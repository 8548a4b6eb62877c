"""Download public data sets and compare them with their published checksums."""

import http.client
import ssl
import tarfile
import time
import urllib.error
import urllib.request
import zlib
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from alidpfl.data.directories import DATA_DIR_VARIABLE, digest, is_whole
from alidpfl.data.files import replacing
from alidpfl.data.sources import SOURCES, KnownFile, Source
from alidpfl.errors import DataError
from alidpfl.inputs.names import named
from alidpfl.types import OnProgress, OnShare

_BLOCK = 1 << 16
_TIMEOUT = 30.0  # seconds without a byte
_ATTEMPTS = 4
_PAUSE = 0.5  # seconds before the next attempt, times the attempts made
_SERVER_ERROR = 500
_NETWORK_ERRORS = (urllib.error.URLError, http.client.HTTPException, ConnectionError, TimeoutError, ssl.SSLError)
_PACKING_ERRORS = (tarfile.TarError, EOFError, zlib.error)


def get(name: str | Source, into: Path, *, on_progress: OnProgress | None = None, base_url: str | None = None) -> Path:
    """Download a data set. Intact files are kept, and a file takes its name only after its checksum was compared.

    Args:
        name: one of `SOURCES`, or a source of your own.
        into: the data directory; created if it does not exist.
        on_progress: called with the file and the share that is done.
        base_url: another site that has the same files.

    Returns:
        The folder that now holds the data set.

    Raises:
        ConfigError: no data set has this name.
        DataError: the site cannot be reached, sends other contents, or the folder cannot be written.
    """
    source = named("data set", name, SOURCES) if isinstance(name, str) else name
    report = on_progress or (lambda _what, _share: None)
    folder, url = into / source.folder, base_url or source.base_url
    try:
        missing = [file for file in source.files if not is_whole(folder / file.name, file)]
        if missing and source.archive:
            _get_archive(source, url, into, report)
        elif missing:
            for file in missing:
                _get_file(source, file, url, folder, report)
    except DataError as error:
        names = source.archive or ", ".join(f"{file.name}.gz" for file in source.files)
        raise DataError(
            f"{error}; try again, or download {names} from {source.base_url} by hand into {folder}, "
            f"or set {DATA_DIR_VARIABLE} to a folder that has {source.folder}/"
        ) from error
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written ({error}); free space there, or give another --data-dir"
        ) from error
    return folder


def _get_file(source: Source, known: KnownFile, base_url: str, folder: Path, report: OnProgress) -> None:
    name = f"{known.name}.gz"
    with replacing(folder / name) as file:
        _fetch(base_url + name, file, lambda share: report(f"{source.name}: {name}", share))
        _check(file, base_url + name, known.sha256, is_packed=True)
    (folder / known.name).unlink(missing_ok=True)  # a damaged unpacked file would be read before the packed one


def _get_archive(source: Source, base_url: str, into: Path, report: OnProgress) -> None:
    archive, url = into / source.archive, base_url + source.archive
    with replacing(archive) as file:
        _fetch(url, file, lambda share: report(f"{source.name}: {source.archive}", share))
        _check(file, url, source.archive_md5, "md5")
    _unpack(source, archive, into / source.folder, report)
    archive.unlink()


def _unpack(source: Source, archive: Path, folder: Path, report: OnProgress) -> None:
    """Extract the known files, and nothing else."""
    wanted = {f"{source.folder}/{file.name}": file for file in source.files}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                known = wanted.get(member.name)
                content = tar.extractfile(member) if known is not None and member.isreg() else None
                if known is None or content is None:
                    continue
                with replacing(folder / known.name) as file:
                    while block := content.read(_BLOCK):
                        file.write(block)
                    _check(file, f"{known.name} in {archive}", known.sha256)
                del wanted[member.name]
                report(f"{source.name}: unpacking", 1 - len(wanted) / len(source.files))
    except _PACKING_ERRORS as error:
        raise DataError(f"{archive} cannot be unpacked ({error})") from error
    if wanted:
        raise DataError(f"{archive} lacks {', '.join(wanted)}")


def _check(file: IO[bytes], what: str, expected: str, algorithm: str = "sha256", *, is_packed: bool = False) -> None:
    """Compare the checksum of a file that is still open for writing."""
    file.flush()
    try:
        found = digest(Path(file.name), algorithm, is_packed=is_packed)
    except (*_PACKING_ERRORS, OSError) as error:
        found = f"none: {error}"
    if found != expected:
        raise DataError(f"{what} has other contents than published ({algorithm} {found}, expected {expected})")


def _fetch(url: str, file: IO[bytes], on_share: OnShare) -> None:
    """Download `url` into `file`. After a broken connection, go on where it broke."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise DataError(f"{url} is not an http address; give one that begins with http:// or https://")
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _fetch_rest(url, file, on_share)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code < _SERVER_ERROR:
                raise DataError(f"{url} answers {error.code} {error.reason}") from error
            failure: Exception = error
        except _NETWORK_ERRORS as error:
            failure = error
        if attempt < _ATTEMPTS:
            time.sleep(_PAUSE * attempt)
    raise DataError(f"could not reach {url} ({failure})") from failure


def _fetch_rest(url: str, file: IO[bytes], on_share: OnShare) -> None:
    """Send one request for the bytes after those that `file` has, and append them."""
    have = file.tell()
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310 - see _fetch
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310
        if not answer.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
            have = 0  # the server sends the whole file
            file.seek(0)
            file.truncate()
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        while block := answer.read(_BLOCK):
            file.write(block)
            have += len(block)
            on_share(have / total if total else 0.0)
    if total is not None and have < total:
        raise ConnectionError(f"the connection ended after {have} of {total} bytes")
