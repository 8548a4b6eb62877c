"""What the chain's lines mean: an enrolment, then for every round RESERVED and, once its answer is stored, RELEASED.

A reservation is spent from the moment its line is written, whatever becomes of the round: it is never given back.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from alidpfl.errors import BudgetExceededError, DataError
from alidpfl.types import Release
from alidpfl.vault.accounts import Account
from alidpfl.vault.chain import Chain, Entry

ENROLLED, RESERVED, RELEASED = "ENROLLED", "RESERVED", "RELEASED"


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """A round that was paid for."""

    time: int
    """Seconds since 1970."""
    run: str
    round: int
    units: int
    """Charged: steps, or 1 where the noise goes on the update."""
    steps: int
    """Local steps that will be run, after cuts."""
    sample_rate: float
    """q of its steps; 1 where the noise goes on the update, which is a release of all records."""
    noise_multiplier: float
    clip_norm: float
    release: Release
    request: str
    """Hash of the instruction, weights included."""
    unsafe: tuple[str, ...]
    """What the owner admitted and the answer uses."""

    def to_json(self) -> dict[str, Any]:
        """As a line's values."""
        return {"kind": RESERVED, **asdict(self)}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> "Reservation":
        """Back from `to_json`."""
        fields = {key: value for key, value in values.items() if key != "kind"}
        return cls(**{**fields, "unsafe": tuple(fields["unsafe"])})


class Book:
    """The entries so far, read: who reserved what, which answers were stored, how far each run is."""

    def __init__(self, entries: Iterable[Entry], account: Account) -> None:
        self.account = account
        self.reservations: dict[int, Reservation] = {}
        self.answers: dict[int, str] = {}
        """Hash of the stored answer, by the number of its reservation."""
        self._numbers: dict[tuple[str, int], int] = {}
        self._last_rounds: dict[str, int] = {}
        for entry in entries:
            self.read(entry)

    def read(self, entry: Entry) -> None:
        """Take note of one more entry."""
        try:
            match entry.values["kind"]:
                case "ENROLLED" if entry.counter == 0:
                    return
                case "RESERVED":
                    self._reserved(entry.counter, Reservation.from_json(dict(entry.values)))
                case "RELEASED":
                    self.answers[int(entry.values["reservation"])] = str(entry.values["answer"])
                case other:
                    raise ValueError(other)
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise DataError(
                f"line {entry.counter + 1} of the ledger is not one that this version of alidpfl knows; use the "
                "version that wrote it, or a later one"
            ) from error

    def find(self, run: str, round_number: int) -> int | None:
        """Number of the reservation of this round."""
        return self._numbers.get((run, round_number))

    def last_round(self, run: str) -> int:
        """The run's latest round; -1 before the first."""
        return self._last_rounds.get(run, -1)

    @property
    def num_runs(self) -> int:
        """Runs that ever reserved a round."""
        return len(self._last_rounds)

    def _reserved(self, counter: int, reservation: Reservation) -> None:
        self.reservations[counter] = reservation
        self._numbers[reservation.run, reservation.round] = counter
        self._last_rounds[reservation.run] = max(self.last_round(reservation.run), reservation.round)
        self.account.book(reservation.units, reservation.sample_rate, reservation.noise_multiplier)


class Ledger:
    """The chain and its book together. The only writer; the caller holds the lock."""

    def __init__(self, chain: Chain, account: Account) -> None:
        self._chain = chain
        self.book = Book(chain.entries, account)

    @property
    def head(self) -> str:
        """For the owner to keep elsewhere."""
        return str(self._chain.head)

    def reserve(self, reservation: Reservation) -> int:
        """Pay for a round; returns its number. When it returns, the payment is on the disk."""
        affordable = self.book.account.affordable(reservation.sample_rate, reservation.noise_multiplier)
        if not 1 <= reservation.units <= affordable:
            raise BudgetExceededError(f"{reservation.units} units were to be charged, and {affordable} are left")
        return self._append(reservation.to_json()).counter

    def release(self, number: int, answer: str) -> None:
        """Note that the answer with this hash is stored and may be sent."""
        self._append({"kind": RELEASED, "reservation": number, "answer": answer})

    def close(self) -> None:
        """Let go of the file."""
        self._chain.close()

    def _append(self, values: dict[str, Any]) -> Entry:
        entry = self._chain.append(values)
        self.book.read(entry)
        return entry
