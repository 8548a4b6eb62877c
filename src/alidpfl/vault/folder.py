"""A vault's folder: which file is what, and how they are read together, by the server and by `alidpfl vault status`."""

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from alidpfl.errors import ConfigError
from alidpfl.store.files import disk_errors, parse_json, read_bytes, sync_directory
from alidpfl.vault.accounts import make_account
from alidpfl.vault.chain import Chain, Entry, Head, parse_head, verified
from alidpfl.vault.enrolment import Enrolment, parse_enrolment
from alidpfl.vault.ledger import Book, Ledger
from alidpfl.vault.policy import Policy, read_policy
from alidpfl.vault.refusals import RefusalCode, refusal

POLICY, ENROLMENT, LEDGER, HEAD = "policy.toml", "enrolment.json", "ledger.jsonl", "head.json"
ANSWERS, REFUSALS, LOCK, SOCKET = "answers", "refusals.json", ".lock", "vault.sock"

_LAST_REFUSALS = 20


@dataclass(frozen=True, kw_only=True)
class VaultFolder:
    """Paths of a vault."""

    path: Path

    def __post_init__(self) -> None:
        if not (self.path / POLICY).is_file():
            raise ConfigError(f"{self.path} is not a vault: it has no {POLICY}; make one with `alidpfl vault init`")

    def policy(self) -> Policy:
        """The owner's policy, as it stands now."""
        return read_policy(self.path / POLICY)

    @contextmanager
    def lock(self, policy: Policy) -> Iterator[None]:
        """For the one process that serves this folder, or a copy of it with the same anchor.

        The system drops it when that process dies.
        """
        from alidpfl.store.lock import exclusive_lock

        remedy = "ask it instead: two vaults on one ledger would spend twice"
        with exclusive_lock(self.path / LOCK, owner_of=self.path, remedy=remedy):
            anchor = policy.anchor_file
            if anchor is None:
                yield
                return
            Head.read(anchor)  # first: where its disk is not mounted, nothing may be written to the bare mount point
            with exclusive_lock(anchor.with_name(f".{anchor.name}{LOCK}"), owner_of=anchor, remedy=remedy):
                yield

    def served_by(self) -> str | None:
        """The process that serves this vault, such as "process 7 on host"; None: it is not served."""
        from alidpfl.store.lock import lock_holder

        with disk_errors("read", self.path / LOCK):
            return lock_holder(self.path / LOCK)

    def open(self, policy: Policy, known_head: str | None = None) -> tuple[Enrolment, Ledger]:
        """Enrolment and ledger, verified, for serving: the caller holds `lock`."""
        heads = self._heads(policy)
        vault = Head.read(heads[0]).vault
        known = [("the head that you gave", parse_head(known_head, vault))] if known_head else []
        chain = Chain.open(self.path / LEDGER, heads, known)
        enrolment = self._enrolment(chain.entries[0])
        enrolment.check_policy(policy, self.path / POLICY)
        return enrolment, Ledger(chain, make_account(policy, enrolment.filter_order))

    def read(self, policy: Policy) -> tuple[Enrolment, Book, str]:
        """Enrolment, book and head, verified, while another process may be writing: changes nothing."""
        heads = [(str(path), Head.read(path)) for path in self._heads(policy)]  # first: the ledger is never behind them
        entries, _ = verified(read_bytes(self.path / LEDGER), heads, self.path / LEDGER)
        enrolment = self._enrolment(entries[0])
        enrolment.check_policy(policy, self.path / POLICY)
        book = Book(entries, make_account(policy, enrolment.filter_order))
        return enrolment, book, f"{entries[-1].counter}:{entries[-1].hash}"

    def refusals(self) -> "RefusalLog":
        """What was refused so far."""
        return RefusalLog.read(self.path / REFUSALS)

    def _heads(self, policy: Policy) -> tuple[Path, ...]:
        own = self.path / HEAD
        return (own,) if policy.anchor_file is None else (own, policy.anchor_file)

    def _enrolment(self, genesis: Entry) -> Enrolment:
        path = self.path / ENROLMENT
        return parse_enrolment(read_bytes(path), str(genesis.values.get("enrolment")), path)


@dataclass
class RefusalLog:
    """How often what was refused, and the last few. Bounded: refusing must not fill the disk."""

    path: Path
    counts: Counter[str] = field(default_factory=Counter)
    last: list[dict[str, Any]] = field(default_factory=list)
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def read(cls, path: Path) -> "RefusalLog":
        """From its file; a missing or damaged one is an empty one, since no budget depends on it."""
        try:
            values = parse_json(path.read_bytes())
            counts = Counter({RefusalCode(k).value: int(v) for k, v in values["counts"].items()})
            return cls(path, counts, [_noted(entry) for entry in values["last"]])
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
            return cls(path)

    def note(self, code: RefusalCode, message: str) -> None:
        """Count one; a disk that is full or read-only does not turn a refusal into something else."""
        new = {"time": int(time.time()), "code": code.value, "message": message}
        staged = self.path.with_name(f".{self.path.name}.next")
        with self._one_at_a_time, suppress(OSError):
            self.counts[code.value] += 1
            self.last = [*self.last, new][-_LAST_REFUSALS:]
            staged.write_text(json.dumps({"counts": dict(self.counts), "last": self.last}) + "\n")
            os.replace(staged, self.path)


def _noted(entry: dict[str, Any]) -> dict[str, Any]:
    return {"time": int(entry["time"]), "code": RefusalCode(entry["code"]).value, "message": str(entry["message"])}


_STAGED = ".next"


class AnswerStore:
    """A folder with one file an answer, named by its reservation's number."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take_room(self, num_bytes: int) -> None:
        """Take the space of the answer to come before the round is paid for: a full disk must not cost a round."""
        staged = self._folder / _STAGED
        try:
            descriptor = os.open(staged, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, num_bytes)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            with suppress(OSError):
                staged.unlink()
            raise refusal(
                RefusalCode.DISK,
                f"the answer could not be stored ({error.strerror}); nothing was charged or trained: the owner must "
                "see to the disk",
            ) from error

    def store(self, number: int, content: bytes) -> None:
        """Put the answer where it stays, whole or not at all, into the space that `take_room` took."""
        staged = self._folder / _STAGED
        try:
            descriptor = os.open(staged, os.O_RDWR)
            try:
                _write_all(descriptor, content)
                os.ftruncate(descriptor, len(content))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(staged, self._path(number))
            sync_directory(self._folder)
        except OSError as error:
            raise refusal(
                RefusalCode.DISK,
                f"the answer could not be stored ({error.strerror}): the round is charged, its answer is lost, and the "
                "owner must see to the disk",
            ) from error

    def load(self, number: int) -> bytes | None:
        """The answer of this reservation, if it is kept."""
        try:
            return self._path(number).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise refusal(RefusalCode.DISK, f"the stored answer cannot be read ({error.strerror})") from error

    def prune(self, keep: int) -> None:
        """Delete all but the newest. A file that cannot be deleted does no harm, nor does one that is not ours."""
        names = [path.stem for path in self._folder.glob("*.safetensors")]
        numbers = sorted(int(name) for name in names if name.isdecimal() and self._path(int(name)).stem == name)
        for number in numbers[:-keep]:
            with suppress(OSError):
                self._path(number).unlink()

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}.safetensors"


def _write_all(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
