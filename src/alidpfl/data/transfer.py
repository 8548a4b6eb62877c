"""One file over HTTP: resumed where it broke off, retried, and never shared by two processes at once.

A partial download is `NAME.part` while nobody works on it. Who wants to work on it renames it to a name of its own,
which only one can do, and renames it back if the transfer fails. So no lock is needed, and none can be left behind.
"""

import http.client
import ssl
import time
import urllib.error
import urllib.request
import uuid
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from alidpfl.errors import DataError
from alidpfl.types import OnShare

_BLOCK = 1 << 16
_TIMEOUT = 30.0  # seconds without a byte
_ATTEMPTS = 4
_PAUSE = 0.5  # seconds before the next attempt, times the attempts made
_ABANDONED = 600.0  # seconds without a write after which a claimed part has no owner any more
_RANGE_NOT_SATISFIABLE = 416
_PARTIAL_CONTENT = 206
_SERVER_ERROR = 500


class _BrokenOffError(Exception):
    """The connection ended early; what came is kept."""


_NETWORK_FAULTS = (
    urllib.error.URLError,
    http.client.HTTPException,
    ConnectionError,
    TimeoutError,
    ssl.SSLError,
    _BrokenOffError,
)


@dataclass(frozen=True, kw_only=True)
class Fetched:
    """A file that came complete, but is not checked yet: whoever asked for it gives it its name, or deletes it."""

    path: Path
    was_resumed: bool
    """True where its beginning was there before."""


def fetch(url: str, target: Path, on_share: OnShare) -> Fetched:
    """Download `url` to a file beside `target`."""
    if urlsplit(url).scheme not in ("http", "https"):
        raise DataError(f"{url} is not an http address; give one that begins with http:// or https://")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = _claim(target)
    was_resumed = part.stat().st_size > 0
    is_complete = False
    try:
        _fetch_with_retries(url, part, on_share)
        is_complete = True
    finally:
        if not is_complete:
            part.replace(_free_name(target))  # for whoever tries next
    return Fetched(path=part, was_resumed=was_resumed)


def _free_name(target: Path) -> Path:
    return target.with_name(f"{target.name}.part")


def _claim(target: Path) -> Path:
    """A part of our own: one that was broken off, or a new one."""
    own = target.with_name(f"{target.name}.{uuid.uuid4().hex[:8]}.part")
    abandoned = [part for part in target.parent.glob(f"{target.name}.*.part") if _is_abandoned(part)]
    for candidate in (_free_name(target), *abandoned):
        try:
            candidate.rename(own)
        except FileNotFoundError:
            continue  # not there, or another process was faster
        own.touch()
        return own
    own.touch(exist_ok=False)
    return own


def _is_abandoned(part: Path) -> bool:
    try:
        return time.time() - part.stat().st_mtime > _ABANDONED
    except FileNotFoundError:
        return False  # its owner just finished


def _fetch_with_retries(url: str, part: Path, on_share: OnShare) -> None:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _fetch_rest(url, part, on_share)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == _RANGE_NOT_SATISFIABLE:
                part.write_bytes(b"")  # there is nothing after what we have, so what we have is not this file
            elif error.code < _SERVER_ERROR:
                raise DataError(f"{url} answers {error.code} {error.reason}") from error
            failure: Exception = error
        except _NETWORK_FAULTS as error:
            failure = error
        if attempt < _ATTEMPTS:
            time.sleep(_PAUSE * attempt)
    raise DataError(f"could not reach {url} ({failure})") from failure


def _fetch_rest(url: str, part: Path, on_share: OnShare) -> None:
    """One request for what is missing; appends to `part`."""
    have = part.stat().st_size
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310 - see fetch
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:  # noqa: S310
        if not _continues(answer, have):
            have = 0  # a server that ignores Range sends everything anew
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else None
        with part.open("r+b") as file:
            file.truncate(have)
            file.seek(have)
            while block := answer.read(_BLOCK):
                file.write(block)
                have += len(block)
                on_share(have / total if total else 0.0)
    if total is not None and have < total:
        raise _BrokenOffError(f"the connection ended after {have} of {total} bytes")


def _continues(answer: http.client.HTTPResponse, have: int) -> bool:
    content_range = answer.headers.get("Content-Range", "")
    return answer.status == _PARTIAL_CONTENT and content_range.startswith(f"bytes {have}-")
