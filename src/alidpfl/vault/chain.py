"""An append-only file of JSON lines. Each line has a hash and names the hash before it; head files follow the chain.

`Chain.append` is the only way to write. It works in this order:

0. Every head file must exist and name the chain's last line. Otherwise the anchor's disk is gone, or a copy of this
   chain was continued elsewhere: nothing is ever written again.
1. Write the new head (number and hash of the coming line) beside every head file, and sync it.
2. Append the line with a single write, and sync it.
3. Replace the old heads by the new ones, and sync their folders.
4. Return. Only now may anybody act on the line.

So a crash leaves one of three states (docs/how-to/vault.md):

- The new line is not there: nobody acted on it.
- It is cut or does not match its hash, and every head names an earlier line: nobody acted on it, and it is dropped.
- It is whole, with or without its head: it counts, even if nobody acted on it. That is the safe direction for privacy.

Anything else is refused, such as a head that names a line which is not in the file: somebody acted on that line.
The hashes detect damage and lost lines. They do not stop an owner from writing a new history; that owner could as well
publish the records.
"""

import errno
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from alidpfl.errors import DataError
from alidpfl.store.files import disk_errors, new_file, parse_json, read_bytes, sync_directory
from alidpfl.vault.heads import Head, staged
from alidpfl.vault.refusals import RefusalCode, refusal

_SEAL = ', "hash": "{}"}}\n'
_SEAL_BYTES = len(_SEAL.format("0" * 64))
_PRIVATE = 0o600
_REMEDY = (
    "Put back the newest copy of the whole folder. If that copy is older than the last round served, the rounds since "
    "then are spent and not recorded: enrol with what is left, or not at all (docs/how-to/vault.md, recovery)"
)


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A line of the chain. `counter` is its number, from 0."""

    counter: int
    hash: str
    values: Mapping[str, Any]


def read_entries(content: bytes) -> tuple[list[Entry], bytes]:
    """Return the entries up to the first line that is not whole, and the bytes after them."""
    entries: list[Entry] = []
    position = 0
    while (end := content.find(b"\n", position) + 1) > 0:
        if (entry := _opened(content[position:end], entries[-1] if entries else None)) is None:
            break
        entries.append(entry)
        position = end
    return entries, content[position:]


def verified(content: bytes | None, heads: Sequence[tuple[str, Head]], source: Path) -> tuple[list[Entry], bytes]:
    """Return all entries, and the bytes of a last line on which nobody acted. Raise DataError for other damage."""
    if content is None:
        raise DataError(f"{source} is missing: nobody knows what was spent, so nothing is served. {_REMEDY}")
    entries, rest = read_entries(content)
    if not entries:
        raise DataError(f"{source} does not begin with an enrolment. {_REMEDY}")
    for where, head in heads:
        _check_head(head, entries, where, source)
    if rest and b"\n" in rest[:-1]:
        raise DataError(f"{source} line {len(entries) + 1} is damaged, and others follow it. {_REMEDY}")
    if _seal_of(rest) is not None:  # whole, but not the next line: another process wrote it, and acted on it
        raise DataError(f"{source} line {len(entries) + 1} does not follow the one before: two vaults wrote. {_REMEDY}")
    return entries, rest


def _check_head(head: Head, entries: Sequence[Entry], where: str, source: Path) -> None:
    if head.vault != entries[0].values.get("vault"):
        raise DataError(f"{where} belongs to another vault than {source}; use the head of this vault")
    if head.moved_to is not None:
        again = f"`alidpfl vault anchor move {head.moved_to} --dir {source.parent}`"
        raise DataError(
            f"{where} was the anchor of {source} until it moved to {head.moved_to}. If the move was interrupted, "
            f"repeat {again}. If that is refused too, this folder is an older copy. {_REMEDY}"
        )
    if head.counter >= len(entries):
        raise DataError(
            f"{source} has {len(entries)} whole lines, but {where} knows of {head.counter + 1}: it was cut, damaged or "
            f"restored from an older copy. {_REMEDY}"
        )
    if entries[head.counter].hash != head.hash:
        raise DataError(f"{source} has another history than {where} from line {head.counter + 1} on. {_REMEDY}")


def _opened(line: bytes, before: Entry | None) -> Entry | None:
    """Return the entry in a line; None if the line is not whole or not the next one."""
    if (found := _seal_of(line)) is None:
        return None
    try:
        values = parse_json(line[:-_SEAL_BYTES] + b"}")
        counter, previous = values.pop("counter"), values.pop("previous")
    except (ValueError, AttributeError, KeyError, TypeError):  # another program sealed it
        return None
    expected = (0, "") if before is None else (before.counter + 1, before.hash)
    return Entry(counter=counter, hash=found, values=values) if (counter, previous) == expected else None


def _seal_of(line: bytes) -> str | None:
    """Return the hash of a line that matches its seal; None for any other line."""
    found = hashlib.sha256(line[:-_SEAL_BYTES] + b"}").hexdigest()
    return found if line[-_SEAL_BYTES:] == _SEAL.format(found).encode() else None


class Chain:
    """An open chain for its one writer. The caller holds the folder's lock."""

    def __init__(self, path: Path, heads: tuple[Path, ...], entries: list[Entry], descriptor: int) -> None:
        """Take over an open file; use `Chain.open` or `Chain.create`.

        Args:
            path: the file of lines.
            heads: files that hold the head.
            entries: the lines so far.
            descriptor: the open file.
        """
        self.path, self.entries = path, entries
        self._heads, self._descriptor = heads, descriptor
        self._size = os.fstat(descriptor).st_size
        self._broken = ""

    @classmethod
    def create(cls, path: Path, heads: tuple[Path, ...], values: Mapping[str, Any]) -> "Chain":
        """Create a chain. Its first line holds `values`, which must name the vault."""
        with disk_errors("create", path):
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, _PRIVATE)
        chain = cls(path, heads, [], descriptor)
        chain.append(values)
        return chain

    @classmethod
    def open(cls, path: Path, heads: tuple[Path, ...], known: Sequence[tuple[str, Head]] = ()) -> "Chain":
        """Open a chain and check it against its head files and against heads that the owner noted."""
        told = [(str(head), Head.read(head)) for head in heads]
        entries, rest = verified(read_bytes(path), [*told, *known], path)
        with disk_errors("open", path):
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
            if rest:  # a last line on which nobody acted
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - len(rest))
            os.fsync(descriptor)  # what was read may not be on the disk yet, and new lines build on it
        chain = cls(path, heads, entries, descriptor)
        with disk_errors("update the ledger's head", heads[0]):
            chain._stage(chain.head, heads)
            chain._commit(heads)
        return chain

    @property
    def head(self) -> Head:
        """Head of the last line."""
        last = self.entries[-1]
        return Head(vault=str(self.entries[0].values["vault"]), counter=last.counter, hash=last.hash)

    def append(self, values: Mapping[str, Any]) -> Entry:
        """Add a line. When this returns, the line is on the disk and all heads name it."""
        self._refuse_if_broken()
        counter, previous = len(self.entries), self.entries[-1].hash if self.entries else ""
        text = json.dumps({"counter": counter, "previous": previous, **values})
        entry = Entry(counter=counter, hash=hashlib.sha256(text.encode()).hexdigest(), values=dict(values))
        line = (text[:-1] + _SEAL.format(entry.hash)).encode()
        vault = str((self.entries[0] if self.entries else entry).values["vault"])
        try:
            self._stage(Head(vault=vault, counter=entry.counter, hash=entry.hash), self._heads)
            self._write(line)
        except OSError as error:
            raise refusal(
                RefusalCode.DISK,
                f"the ledger cannot be written ({error.strerror}); nothing was charged or trained. The owner must "
                "check the disk",
            ) from error
        self._size += len(line)
        self.entries.append(entry)  # from here on it counts
        try:
            os.fsync(self._descriptor)
            self._commit(self._heads)
        except OSError as error:
            self._broken = f"the ledger could not be synced to the disk ({error.strerror})"
            self._refuse_if_broken()
        return entry

    def check(self, head: Head, where: str) -> None:
        """Raise DataError if a head belongs to another chain, or names a line that this chain lacks."""
        _check_head(head, self.entries, where, self.path)

    def add_head(self, path: Path) -> None:
        """Let one more file follow the chain. What the file held before is lost."""
        self._place(path, self.head)
        self._heads = (*self._heads, path)

    def retire_head(self, path: Path, moved_to: Path) -> None:
        """Leave a note in a head file that another replaces. No ledger is served with it again."""
        self._place(path, replace(self.head, moved_to=str(moved_to)))
        self._heads = tuple(head for head in self._heads if head != path)

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def _write(self, line: bytes) -> None:
        """Write the whole line or nothing. If undoing fails too, the next check of the file's size finds it."""
        try:
            _write_whole(self._descriptor, line)
        except BaseException:
            os.ftruncate(self._descriptor, self._size)
            raise

    def _refuse_if_broken(self) -> None:
        self._broken = self._broken or self._problem()
        if self._broken:
            raise refusal(RefusalCode.LEDGER, f"{self._broken}; nothing is served until the owner restarts the vault")

    def _problem(self) -> str:
        """Return what happened to the files since the last line; nothing if they are as this process left them."""
        problem = "the ledger's file was moved, deleted or changed while it was in use"
        with suppress(OSError):
            ours = os.fstat(self._descriptor)
            if ours.st_size != self._size or not os.path.samestat(os.stat(self.path), ours):
                return problem
            problem = (
                "the ledger's head or its anchor is missing, or knows of another last line (is the anchor's disk "
                "mounted? was a copy of the vault's folder served?)"
            )
            if not self.entries or all(path.read_bytes() == self.head.to_bytes() for path in self._heads):
                return ""
        return problem

    def _place(self, path: Path, head: Head) -> None:
        with disk_errors("write", path):
            self._stage(head, (path,))
            self._commit((path,))

    def _stage(self, head: Head, paths: Sequence[Path]) -> None:
        """Write the new heads beside the old ones. A link that somebody planted there is not followed."""
        for path in paths:
            with open(new_file(staged(path)), "wb") as file:
                _write_whole(file.fileno(), head.to_bytes())
                os.fsync(file.fileno())

    def _commit(self, paths: Sequence[Path]) -> None:
        """Replace the old heads by the new ones."""
        for path in paths:
            os.replace(staged(path), path)
            sync_directory(path.parent)


def _write_whole(descriptor: int, content: bytes) -> None:
    if os.write(descriptor, content) != len(content):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
