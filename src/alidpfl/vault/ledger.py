"""The ledger: what the chain's lines mean.

The first line is the enrolment. Every round adds RESERVED, and RELEASED once its answer is stored. A reservation is
spent from the moment its line is written, whatever happens to the round. It is never given back. A query adds the same
two lines, and its RESERVED names the part of the records that it is charged to. ANCHORED names the anchor from there
on, as the enrolment may.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from alidpfl.errors import BudgetExceededError, DataError
from alidpfl.releases.queries import RecordPart
from alidpfl.types import Release
from alidpfl.vault.accounts import Account, Filters
from alidpfl.vault.chain import Chain, Entry

ENROLLED, RESERVED, RELEASED, ANCHORED = "ENROLLED", "RESERVED", "RELEASED", "ANCHORED"


def pinned_anchor(entries: Sequence[Entry]) -> Path | None:
    """Return the anchor that the last such line names, with all links resolved; None if no line names one.

    Links are resolved because replacing a link would write to the link's own disk.
    """
    named = (entry.values.get("anchor") for entry in reversed(entries))
    return next((Path(anchor).resolve() for anchor in named if isinstance(anchor, str)), None)


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A round or a query that was charged. `time` is in seconds since 1970; `steps` are the local steps after cuts."""

    time: int
    run: str
    round: int
    units: int
    """What is charged: steps, or 1 if the noise is on the update. A query is charged as one release of its part."""
    steps: int
    sample_rate: float
    """q of the steps. It is 1 if the noise is on the update, which is a release of all records."""
    noise_multiplier: float
    clip_norm: float
    release: Release | None
    """Where the noise of a round is; None for a query."""
    request: str
    """Hash of the request and its weights."""
    unsafe: tuple[str, ...]
    """What the answer uses that no ε covers. The owner allowed it."""
    query: str | None = None
    """Kind of a query; None for a round of training."""
    part: RecordPart = "training"
    """The records that are charged."""

    @property
    def channel(self) -> str:
        """What its round is counted by, see `messages.Request`."""
        return self.query or "train"

    def to_json(self) -> dict[str, Any]:
        """Return plain values. Rounds of training leave out what only queries have, as in older ledgers."""
        values = asdict(self)
        return values if self.query is not None else {k: v for k, v in values.items() if k not in ("query", "part")}


class Book:
    """The ledger's content: reservations, stored answers, the last round of each run, and the accounts."""

    def __init__(self, entries: Iterable[Entry], account: Account, filters: Filters | None = None) -> None:
        self.account = account
        self.filters = dict(filters or {})
        """The accounts of the queries."""
        self.reservations: dict[int, Reservation] = {}
        self.answers: dict[int, str] = {}
        """Hash of each stored answer, by the number of its reservation."""
        self._numbers: dict[tuple[str, str, int], int] = {}
        self._last_rounds: dict[tuple[str, str], int] = {}
        for entry in entries:
            self.read(entry)

    def read(self, entry: Entry) -> None:
        """Take in one more entry. Raise DataError if its kind is unknown."""
        try:
            match dict(entry.values):
                case {"kind": "ENROLLED"} if entry.counter == 0:
                    return
                case {"kind": "ANCHORED", "anchor": str()}:
                    return
                case {"kind": "RESERVED", **fields}:
                    new = Reservation(**{**fields, "unsafe": tuple(fields["unsafe"])})
                    self.reservations[entry.counter] = new
                    self._numbers[new.run, new.channel, new.round] = entry.counter
                    latest = max(self.last_round(new.run, new.channel), new.round)
                    self._last_rounds[new.run, new.channel] = latest
                    self._book(new)
                case {"kind": "RELEASED", "reservation": number, "answer": answer}:
                    self.answers[int(number)] = str(answer)
                case other:
                    raise ValueError(other)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"this version of alidpfl does not know line {entry.counter + 1} of the ledger; use the version that "
                "wrote it, or a later one"
            ) from error

    def _book(self, new: Reservation) -> None:
        if new.query is None:
            self.account.book(new.units, new.sample_rate, new.noise_multiplier)
        else:
            self.filters[new.part] = self.filters[new.part].booked(new.noise_multiplier)

    def affordable(self, noise_multiplier: float, *, sample_rate: float = 1.0, part: RecordPart | None = None) -> int:
        """Return how many more queries of a part can be paid for; of None, how many units of training."""
        if part is None:
            return self.account.affordable(sample_rate, noise_multiplier)
        return self.filters[part].affordable(noise_multiplier) if part in self.filters else 0

    def find(self, run: str, round_number: int, channel: str = "train") -> int | None:
        """Return the number of a round's reservation; None if the round was never reserved."""
        return self._numbers.get((run, channel, round_number))

    def last_round(self, run: str, channel: str = "train") -> int:
        """Return the run's latest round; -1 before the first."""
        return self._last_rounds.get((run, channel), -1)

    def charged(self, part: RecordPart | None = None) -> list[Reservation]:
        """Return the queries of a part that were charged; of None, the rounds of training."""
        return [r for r in self.reservations.values() if (None if r.query is None else r.part) == part]


class Ledger:
    """The chain together with its book. It is the only writer; the caller holds the lock."""

    def __init__(self, chain: Chain, account: Account, filters: Filters | None = None) -> None:
        self._chain = chain
        self.book = Book(chain.entries, account, filters)

    @property
    def head(self) -> str:
        """The chain's head, which the owner may note elsewhere."""
        return str(self._chain.head)

    @property
    def anchor(self) -> Path | None:
        """The anchor that the ledger names, or None."""
        return pinned_anchor(self._chain.entries)

    def reserve(self, reservation: Reservation) -> int:
        """Charge a round or a query and return its number. When this returns, the charge is on the disk."""
        part = None if reservation.query is None else reservation.part
        noise, rate = reservation.noise_multiplier, reservation.sample_rate
        affordable = self.book.affordable(noise, sample_rate=rate, part=part)
        if not 1 <= reservation.units <= affordable:
            raise BudgetExceededError(f"cannot charge {reservation.units} units: {affordable} are left")
        return self._append({"kind": RESERVED, **reservation.to_json()}).counter

    def release(self, number: int, answer: str) -> None:
        """Record that the answer with this hash is stored and may be sent."""
        self._append({"kind": RELEASED, "reservation": number, "answer": answer})

    def close(self) -> None:
        """Close the ledger's file."""
        self._chain.close()

    def _append(self, values: dict[str, Any]) -> Entry:
        entry = self._chain.append(values)
        self.book.read(entry)
        return entry
