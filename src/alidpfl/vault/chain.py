"""An append-only file of JSON lines, each sealed by a hash and chained to the one before, and heads that follow it.

`Chain.append` is the only way to write, and in this order:

0. every head file must be there and name the chain's last line: else the anchor's disk is gone, or somebody wrote on
   from a copy of this chain, and nothing is ever written again;
1. a new head (number and hash of the line to come) is written beside every head file, and synced;
2. the line is appended with a single write, and synced;
3. the new heads take the place of the old ones, and their folders are synced;
4. only then does it return, and only then may anybody act on the line.

A process that dies, or a machine that loses power, leaves one of these, told apart when the chain is opened:

- in 1, or in 2 before the first byte: the old file. Nothing was acted on.
- in 2, with a part of the line written: a last line that is cut or does not match its hash, while every head is that of
  a line before it. By the order above nobody acted on the line: it is dropped.
- after 2: a whole line, whether or not its head is there. It counts, though nobody may have acted on it: that is the
  direction in which privacy is safe.

A head whose line is not in the file means that lines which were acted on are gone: a shortened, replaced or restored
file. That is refused. So is a bad line that others follow. A head on another disk (an anchor) also sees a folder that
was restored as a whole; a head beside the file does not, since it goes back in time together with the file.

The hashes protect from damage and from forgetting, not from an owner who writes a new history: the owner could as well
publish the records.
"""

import errno
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alidpfl.errors import DataError
from alidpfl.store.files import disk_errors, parse_json, read_bytes, sync_directory
from alidpfl.vault.refusals import RefusalCode, refusal

_SEAL = ', "hash": "{}"}}\n'
_SEAL_BYTES = len(_SEAL.format("0" * 64))
_PRIVATE = 0o600


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A line."""

    counter: int
    """From 0, one more each line."""
    hash: str
    values: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Head:
    """The last line of a chain, as kept elsewhere."""

    vault: str
    """Of which vault: a random name given at enrolment."""
    counter: int
    hash: str

    def to_bytes(self) -> bytes:
        """One line of JSON."""
        return (json.dumps({"vault": self.vault, "counter": self.counter, "hash": self.hash}) + "\n").encode()

    @classmethod
    def read(cls, path: Path) -> "Head":
        """The head in a file."""
        content = read_bytes(path)
        if content is None:
            raise DataError(
                f"{path} is missing: it is the ledger's head, without which a ledger that was cut cannot be told from "
                "a whole one; put it back from a copy, and mount the anchor's disk if that is where it lies"
            )
        try:
            values = parse_json(content)
            counter = values["counter"]
            if type(counter) is not int or counter < 0:
                raise ValueError(counter)
            return cls(vault=str(values["vault"]), counter=counter, hash=str(values["hash"]))
        except (ValueError, TypeError, KeyError):
            raise DataError(f"{path} is damaged: it is not a ledger's head; put it back from a copy") from None

    def __str__(self) -> str:
        return f"{self.counter}:{self.hash}"


def parse_head(text: str, vault: str) -> Head:
    """A head that the owner noted down, as `alidpfl vault status` prints it.

    >>> parse_head("7:" + "ab" * 32, "a-vault").counter
    7
    """
    counter, _, found = text.partition(":")
    if not (counter.isdecimal() and len(found) == 64):  # noqa: PLR2004
        raise DataError(f"head {text!r} must be counter:hash, as `alidpfl vault status` prints it")
    return Head(vault=vault, counter=int(counter), hash=found)


def sealed_line(counter: int, previous: str, values: Mapping[str, Any]) -> tuple[bytes, Entry]:
    """The line of an entry."""
    text = json.dumps({"counter": counter, "previous": previous, **values})
    found = hashlib.sha256(text.encode()).hexdigest()
    return (text[:-1] + _SEAL.format(found)).encode(), Entry(counter=counter, hash=found, values=dict(values))


def read_entries(content: bytes) -> tuple[list[Entry], bytes]:
    """The longest whole and unbroken beginning, and the bytes after it."""
    entries: list[Entry] = []
    position = 0
    while (end := content.find(b"\n", position) + 1) > 0:
        entry = _opened(content[position:end], entries[-1] if entries else None)
        if entry is None:
            break
        entries.append(entry)
        position = end
    return entries, content[position:]


def verified(content: bytes | None, heads: Sequence[tuple[str, Head]], source: Path) -> tuple[list[Entry], bytes]:
    """All entries, and the bytes of a last line that nobody acted on. DataError for whatever else is wrong."""
    if content is None:
        raise DataError(f"{source} is missing: what was spent is not known, and nothing is served. {_REMEDY}")
    entries, rest = read_entries(content)
    if not entries:
        raise DataError(f"{source} does not begin with an enrolment. {_REMEDY}")
    for where, head in heads:
        _check_head(head, entries, where, source)
    if rest and b"\n" in rest[:-1]:
        raise DataError(f"{source} line {len(entries) + 1} is damaged, and others follow it. {_REMEDY}")
    if _seal_of(rest) is not None:  # whole, and yet not the next one: somebody else wrote it, and acted on it
        raise DataError(f"{source} line {len(entries) + 1} does not follow the one before: two vaults wrote. {_REMEDY}")
    return entries, rest


_REMEDY = (
    "Put back the newest copy of the whole folder; if that copy is older than the last round served, the rounds since "
    "then are spent and not recorded: enrol with what is left, or not at all (docs/how-to/vault.md, recovery)"
)


def _check_head(head: Head, entries: Sequence[Entry], where: str, source: Path) -> None:
    if head.vault != entries[0].values.get("vault"):
        raise DataError(f"{where} belongs to another vault than {source}; give this vault its own")
    if head.counter >= len(entries):
        raise DataError(
            f"{source} has {len(entries)} whole lines, but {where} knows of {head.counter + 1}: it was cut, damaged or "
            f"restored from an older copy. {_REMEDY}"
        )
    if entries[head.counter].hash != head.hash:
        raise DataError(f"{source} tells another history than {where} from line {head.counter + 1} on. {_REMEDY}")


def _opened(line: bytes, before: Entry | None) -> Entry | None:
    """The entry in a line; None if the line is not whole, or not the one that comes next."""
    if (found := _seal_of(line)) is None:
        return None
    try:
        values = parse_json(_unsealed(line))
        counter, previous = values.pop("counter"), values.pop("previous")
    except (ValueError, AttributeError, KeyError, TypeError):  # sealed by somebody else's program
        return None
    expected = (0, "") if before is None else (before.counter + 1, before.hash)
    return Entry(counter=counter, hash=found, values=values) if (counter, previous) == expected else None


def _seal_of(line: bytes) -> str | None:
    """The hash of a line that is as somebody wrote it; None of any other."""
    found = hashlib.sha256(_unsealed(line)).hexdigest()
    return found if line[-_SEAL_BYTES:] == _SEAL.format(found).encode() else None


def _unsealed(line: bytes) -> bytes:
    return line[:-_SEAL_BYTES] + b"}"


class Chain:
    """An open chain, for its one writer: the caller holds the folder's lock."""

    def __init__(self, path: Path, heads: tuple[Path, ...], entries: list[Entry], descriptor: int) -> None:
        self.path, self.entries = path, entries
        self._heads, self._descriptor = heads, descriptor
        self._size = os.fstat(descriptor).st_size
        self._broken = ""

    @classmethod
    def create(cls, path: Path, heads: tuple[Path, ...], values: Mapping[str, Any]) -> "Chain":
        """A new chain whose first line is `values`, which name the vault."""
        with disk_errors("create", path):
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL, _PRIVATE)
        chain = cls(path, heads, [], descriptor)
        chain.append(values)
        return chain

    @classmethod
    def open(cls, path: Path, heads: tuple[Path, ...], known: Sequence[tuple[str, Head]] = ()) -> "Chain":
        """An existing chain, checked against its heads and against those that the owner kept elsewhere."""
        told = [(str(head), Head.read(head)) for head in heads]
        entries, rest = verified(read_bytes(path), [*told, *known], path)
        with disk_errors("open", path):
            descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
            if rest:  # a last line that nobody acted on
                os.ftruncate(descriptor, os.fstat(descriptor).st_size - len(rest))
            os.fsync(descriptor)  # what was read may not be on the disk yet, and what follows builds on it
        chain = cls(path, heads, entries, descriptor)
        with disk_errors("follow the ledger in", heads[0]):
            chain._stage(chain.head)
            chain._commit()
        return chain

    @property
    def head(self) -> Head:
        """Of the last line."""
        last = self.entries[-1]
        return Head(vault=str(self.entries[0].values["vault"]), counter=last.counter, hash=last.hash)

    def append(self, values: Mapping[str, Any]) -> Entry:
        """Add a line. When it returns, the line is on the disk and the heads know of it."""
        self._refuse_if_broken()
        previous = self.entries[-1].hash if self.entries else ""
        line, entry = sealed_line(len(self.entries), previous, values)
        vault = str((self.entries[0] if self.entries else entry).values["vault"])
        try:
            self._stage(Head(vault=vault, counter=entry.counter, hash=entry.hash))
            self._write(line)
        except OSError as error:
            raise refusal(
                RefusalCode.DISK,
                f"the ledger cannot be written ({error.strerror}); nothing was charged or trained: the owner must see "
                "to the disk",
            ) from error
        self._size += len(line)
        self.entries.append(entry)  # from here on it counts
        try:
            os.fsync(self._descriptor)
            self._commit()
        except OSError as error:
            self._broken = f"the ledger could not be brought to the disk ({error.strerror})"
            self._refuse_if_broken()
        return entry

    def close(self) -> None:
        """Let go of the file."""
        os.close(self._descriptor)

    def _write(self, line: bytes) -> None:
        """All of the line or nothing of it; where that fails too, the next look at the file's size finds out."""
        written = -1
        try:
            written = os.write(self._descriptor, line)
        finally:
            if written != len(line):
                os.ftruncate(self._descriptor, self._size)
        if written != len(line):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _refuse_if_broken(self) -> None:
        if not self._broken and self._was_exchanged():
            self._broken = "the ledger's file was moved, deleted or changed while it was in use"
        if not self._broken and self.entries and not self._heads_agree():
            self._broken = (
                "the ledger's head or its anchor is missing, or knows of another last line: is the anchor's disk "
                "mounted, was a copy of the vault's folder served"
            )
        if self._broken:
            raise refusal(RefusalCode.LEDGER, f"{self._broken}; nothing is served until the owner restarts the vault")

    def _was_exchanged(self) -> bool:
        try:
            ours = os.fstat(self._descriptor)
            return ours.st_size != self._size or not os.path.samestat(os.stat(self.path), ours)
        except OSError:
            return True

    def _heads_agree(self) -> bool:
        expected = self.head.to_bytes()
        try:
            return all(path.read_bytes() == expected for path in self._heads)
        except OSError:
            return False

    def _stage(self, head: Head) -> None:
        """Write the new heads beside the old ones."""
        for path in self._heads:
            descriptor = os.open(staged(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, _PRIVATE)
            try:
                content = head.to_bytes()
                if os.write(descriptor, content) != len(content):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)

    def _commit(self) -> None:
        """Have the new heads take the place of the old ones, for good."""
        for path in self._heads:
            os.replace(staged(path), path)
            sync_directory(path.parent)


def staged(path: Path) -> Path:
    """Where the next head waits for its line."""
    return path.with_name(f".{path.name}.next")
