"""A vault's folder: its files, how they are read together, the stored answers, the log of refusals and the status."""

import hashlib
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from alidpfl.errors import ConfigError, DataError
from alidpfl.privacy import PrivacyBudget, epsilon
from alidpfl.releases.queries import RecordPart
from alidpfl.store.access import refuse_if_shared
from alidpfl.store.files import disk_errors, new_file, parse_json, read_bytes, sync_directory, without_links
from alidpfl.store.lock import exclusive_lock, lock_holder
from alidpfl.types import protected
from alidpfl.vault.accounts import budget_of, charged_rate, evaluation_budget, make_account, make_filters
from alidpfl.vault.chain import Chain, Entry, read_entries, verified
from alidpfl.vault.enrolment import Enrolment
from alidpfl.vault.heads import (
    ONE_VAULT,
    Head,
    check_anchor,
    lock_head,
    make_state_folder,
    parse_head,
    staged,
    state_head,
)
from alidpfl.vault.ledger import Book, Ledger, pinned_anchor
from alidpfl.vault.policy import Policy, read_policy
from alidpfl.vault.refusals import RefusalCode, refusal
from alidpfl.vault.slots import SlotLog

POLICY, ENROLMENT, LEDGER, HEAD = "policy.toml", "enrolment.json", "ledger.jsonl", "head.json"
ANSWERS, REFUSALS, LOCK, SOCKET = "answers", "refusals.json", ".lock", "vault.sock"
SLOTS = "slots.json"

_LAST_REFUSALS = 20


@dataclass(frozen=True, kw_only=True)
class VaultFolder:
    """The files of a vault. Only their owner may be able to write them."""

    path: Path

    def __post_init__(self) -> None:
        if not (self.path / POLICY).is_file():
            raise ConfigError(f"{self.path} is not a vault: it has no {POLICY}; make one with `alidpfl vault init`")
        for name in ("", POLICY, ENROLMENT, LEDGER, HEAD, ANSWERS):
            refuse_if_shared(self.path / name)

    def policy(self) -> Policy:
        """Read the owner's policy."""
        return read_policy(self.path / POLICY)

    def anchor(self) -> Path | None:
        """Return the anchor that the ledger names, or None. It is only as reliable as the ledger's file."""
        return pinned_anchor(self._entries())

    def heads(self) -> list[Path]:
        """Return the files that follow the ledger: the folder's own head, the anchor and the state head, if any."""
        own, anchor = self.path / HEAD, self.anchor()
        state = state_head(Head.read(own).vault)
        return [own, *([] if anchor is None else [anchor]), *([state] if state.exists() else [])]

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder, and the heads outside it against a copy of the folder. The lock ends with the process."""
        with ExitStack() as locks:
            locks.enter_context(exclusive_lock(self.path / LOCK, owner_of=self.path, remedy=ONE_VAULT))
            if (anchor := self.anchor()) is not None:
                Head.read(anchor)  # first: if its disk is not mounted, nothing may be written to the bare mount point
                check_anchor(anchor, self.path)
                locks.enter_context(lock_head(anchor))
            state = state_head(Head.read(self.path / HEAD).vault)
            make_state_folder(state)
            locks.enter_context(lock_head(state))
            yield

    def open(
        self, policy: Policy, known_head: str | None = None, anchor: Path | None = None
    ) -> tuple[Enrolment, Ledger]:
        """Verify enrolment and ledger, and open them for serving. The caller holds `lock`.

        Args:
            policy: the owner's policy.
            known_head: a head that the owner noted; a ledger without it is refused.
            anchor: the anchor that the owner expects. Any other is refused, and so is a ledger that names none.
        """
        pinned = self.anchor()
        vault = Head.read(self.path / HEAD).vault
        known = [("the head that you gave", parse_head(known_head, vault))] if known_head else []
        if anchor is not None and anchor.resolve() != pinned:
            self._refuse_other_anchor(anchor.resolve(), pinned)
        chain = self.chain(pinned, known)
        enrolment = self._enrolment(chain.entries[0], policy)
        return enrolment, Ledger(chain, make_account(policy, enrolment.filter_order), make_filters(policy))

    def chain(self, anchor: Path | None, known: Sequence[tuple[str, Head]] = ()) -> Chain:
        """Verify the ledger against every head, and open it for writing. The caller holds `lock`.

        Without a state head, somebody else must vouch for the ledger: its anchor, or a head that the owner noted.
        Otherwise a copy from before the anchor would be served as if it were new.

        Args:
            anchor: the anchor, or None.
            known: other heads that the ledger must have, each with a name for errors.
        """
        ledger, own = self.path / LEDGER, self.path / HEAD
        heads = (own,) if anchor is None else (own, anchor)
        state = state_head(Head.read(own).vault)
        if state.exists():
            return Chain.open(ledger, (*heads, state), known)
        if anchor is None and not known:
            raise DataError(
                f"{state} is missing: this user never served this vault, or lost that file. So nothing shows that "
                f"{self.path} is the newest copy. Start once with --head and the newest head that you noted, as "
                "`alidpfl vault status` prints it; or put the file back"
            )
        make_state_folder(state)
        chain = Chain.open(ledger, heads, known)
        chain.add_head(state)
        return chain

    def read(self, policy: Policy) -> tuple[Enrolment, Book, str]:
        """Verify and return enrolment, book and head. It changes nothing, and another process may be writing."""
        heads = [(str(path), Head.read(path)) for path in self.heads()]  # first: the ledger is never behind them
        entries, _ = verified(read_bytes(self.path / LEDGER), heads, self.path / LEDGER)
        enrolment = self._enrolment(entries[0], policy)
        book = Book(entries, make_account(policy, enrolment.filter_order), make_filters(policy))
        return enrolment, book, f"{entries[-1].counter}:{entries[-1].hash}"

    def refusals(self) -> "RefusalLog":
        """Read the log of refusals."""
        return RefusalLog.read(self.path / REFUSALS)

    def slots(self) -> SlotLog:
        """Read the log of time slots."""
        return SlotLog.read(self.path / SLOTS)

    def _entries(self) -> list[Entry]:
        return read_entries(read_bytes(self.path / LEDGER) or b"")[0]

    def _refuse_other_anchor(self, anchor: Path, pinned: Path | None) -> None:
        """Refuse a folder that names another anchor than the owner. Say so first if it is an older copy."""
        if anchor.exists() and (head := Head.read(anchor)).moved_to is None:
            verified(read_bytes(self.path / LEDGER), [(str(anchor), head)], self.path / LEDGER)
        if pinned is None:
            raise ConfigError(
                f"--anchor {anchor}: this vault has no anchor; add it first by "
                f"`alidpfl vault anchor add {anchor} --dir {self.path}`"
            )
        raise ConfigError(f"--anchor {anchor}: this vault's anchor is {pinned}; give that one")

    def _enrolment(self, genesis: Entry, policy: Policy) -> Enrolment:
        """Return the enrolment that the ledger began with. It must have the policy's terms."""
        path = self.path / ENROLMENT
        content = read_bytes(path)
        if content is None or hashlib.sha256(content).hexdigest() != genesis.values.get("enrolment"):
            raise DataError(f"{path} is missing or not what the ledger began with; put it back from a copy")
        try:
            enrolment = Enrolment.model_validate_json(content)
        except ValidationError:
            raise DataError(f"{path} was written by another version of alidpfl; use that version") from None
        enrolment.check_policy(policy, self.path / POLICY)
        return enrolment


def status(path: Path) -> dict[str, Any]:
    """Return what the vault in a folder has spent and refused. It verifies everything and changes nothing."""
    folder = VaultFolder(path=path)
    policy = folder.policy()
    enrolment, book, head = folder.read(policy)
    refusals, slots = folder.refusals(), folder.slots()
    reservations, spent = book.reservations, book.account.epsilon()
    with disk_errors("read", path / LOCK):
        holder = lock_holder(path / LOCK)
    rounds = {number for number, reservation in reservations.items() if reservation.query is None}
    uncovered = Counter(use for reservation in reservations.values() for use in reservation.unsafe)
    return {
        "format": "alidpfl-vault-status-1",
        "vault": enrolment.vault,
        "num_records": enrolment.num_records,
        "unit": policy.data.unit,
        "max_records": policy.data.max_records,
        "protects": protected(policy.data.unit, "this owner"),
        "epsilon": policy.budget.epsilon,
        "delta": policy.budget.delta,
        "weakness": budget_of(policy).weakness(enrolment.num_records, policy.data.unit),
        "epsilon_spent": spent,
        "epsilon_left": max(0.0, policy.budget.epsilon - spent),
        "accounting": policy.accounting.kind,
        "charged": "rounds" if policy.terms.release == "update" else "steps",
        "units_spent": book.account.units,
        "units_left": book.account.affordable(charged_rate(policy), policy.terms.min_noise_multiplier),
        "runs": len({reservation.run for reservation in reservations.values()}),
        "rounds_charged": len(rounds),
        "rounds_released": len(rounds & book.answers.keys()),
        "rounds_lost": len(rounds - book.answers.keys()),
        "rounds_left": max(0, policy.limits.max_rounds - len(rounds)),
        "evaluation": _queries(policy, book, "held_out", evaluation_budget(policy)),
        "statistics": _queries(policy, book, "training", budget_of(policy)),
        "slot": None if slots.cost is None else asdict(slots.cost),
        "overruns": slots.overruns,
        "last_overruns": slots.last,
        "refusals": dict(sorted(refusals.counts.items())),
        "last_refusals": refusals.last,
        "unsafe": list(policy.unsafe),
        "covers_everything": not uncovered,
        "rounds_not_covered": dict(sorted(uncovered.items())),
        "head": head,
        "served_by": holder,
        "anchor": None if (anchor := folder.anchor()) is None else str(anchor),
    }


def _queries(policy: Policy, book: Book, part: RecordPart, budget: PrivacyBudget | None) -> dict[str, Any] | None:
    """Return what the queries of a part have spent; None if the policy does not open it."""
    if part not in book.filters or budget is None:
        return None
    asked, accountant = book.charged(part), policy.accounting.accountant
    return {
        "epsilon": budget.epsilon,
        "epsilon_spent": epsilon(book.filters[part].mechanisms, budget.delta, accountant),
        "answered": len(asked),
        "left": max(0, policy.limits.max_queries - len(asked)),
        "share_spent": min(1.0, book.filters[part].spent / book.filters[part].limit),
    }


@dataclass
class RefusalLog:
    """Counts of refusals and the last few of them. Its size is bounded, so that refusing never fills the disk."""

    path: Path
    counts: Counter[str] = field(default_factory=Counter)
    last: list[dict[str, Any]] = field(default_factory=list)
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def read(cls, path: Path) -> "RefusalLog":
        """Read the log. A missing or damaged file gives an empty log, because no budget depends on it."""
        try:
            values = parse_json(path.read_bytes())
            counts = Counter({RefusalCode(k).value: int(v) for k, v in values["counts"].items()})
            return cls(path, counts, [_noted(entry) for entry in values["last"]])
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
            return cls(path)

    def note(self, code: RefusalCode, message: str) -> None:
        """Add a refusal. A disk that is full or read-only does not change what the caller is told."""
        new = {"time": int(time.time()), "code": code.value, "message": message}
        with self._one_at_a_time, suppress(OSError):
            self.counts[code.value] += 1
            self.last = [*self.last, new][-_LAST_REFUSALS:]
            with open(new_file(staged(self.path)), "w") as file:
                file.write(json.dumps({"counts": dict(self.counts), "last": self.last}) + "\n")
            os.replace(staged(self.path), self.path)


def _noted(entry: dict[str, Any]) -> dict[str, Any]:
    return {"time": int(entry["time"]), "code": RefusalCode(entry["code"]).value, "message": str(entry["message"])}


class AnswerStore:
    """A folder with one file per answer, named by the number of its reservation."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._coming = folder, folder / ".next"

    def take_room(self, num_bytes: int) -> None:
        """Take the disk space of the coming answer before the round is charged: a full disk must not cost a round."""
        try:
            with open(new_file(self._coming, flags=os.O_RDWR), "rb") as file:
                os.posix_fallocate(file.fileno(), 0, num_bytes)
                os.fsync(file.fileno())
        except OSError as error:
            with suppress(OSError):
                self._coming.unlink()
            raise refusal(
                RefusalCode.DISK,
                f"the answer could not be stored ({error.strerror}); nothing was charged or trained. The owner must "
                "check the disk",
            ) from error

    def store(self, number: int, content: bytes) -> None:
        """Store an answer, whole or not at all, in the space that `take_room` took."""
        try:
            with open(self._coming, "rb+", opener=without_links) as file:
                left = memoryview(content)
                while left:
                    left = left[os.write(file.fileno(), left) :]
                os.ftruncate(file.fileno(), len(content))
                os.fsync(file.fileno())
            os.replace(self._coming, self._path(number))
            sync_directory(self._folder)
        except OSError as error:
            raise refusal(
                RefusalCode.DISK,
                f"the answer could not be stored ({error.strerror}): the round is charged and its answer is lost. The "
                "owner must check the disk",
            ) from error

    def load(self, number: int) -> bytes | None:
        """Return the answer of a reservation; None if it is not kept."""
        try:
            return self._path(number).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise refusal(RefusalCode.DISK, f"the stored answer cannot be read ({error.strerror})") from error

    def prune(self, keep: int) -> None:
        """Delete all but the newest answers. Other files stay, and a file that cannot be deleted does no harm."""
        names = [path.stem for path in self._folder.glob("*.safetensors")]
        numbers = sorted(int(name) for name in names if name.isdecimal() and self._path(int(name)).stem == name)
        for number in numbers[:-keep]:
            with suppress(OSError):
                self._path(number).unlink()

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}.safetensors"
