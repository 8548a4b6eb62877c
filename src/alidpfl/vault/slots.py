"""Time slots: an answer leaves the vault at a time that follows from public numbers.

How long training takes depends on records: on the size of a batch, and under hostile weights on a single record. So the
round begins a slot before it touches a record, and whatever comes of it leaves at the slot's end: an answer, a failure,
a full disk. The turn of the next caller begins there too. Work that takes longer leaves at the next whole multiple of
the slot. The server can see that the answer came later. The owner finds it in `slots.json`, in the log and in
`alidpfl vault status`.

The length is `seconds_per_round` + τ x `seconds_per_step`. The owner sets both in the policy. Otherwise the vault
measures them, on made-up records and the largest batch that is likely at the requested q.
"""

import hashlib
import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from alidpfl.errors import DataError
from alidpfl.store.files import new_file, parse_json, write_atomically
from alidpfl.vault.heads import staged
from alidpfl.vault.messages import ReleaseRequest, Request, RoundRequest
from alidpfl.vault.policy import PROMPT_ANSWERS, Policy

_MARGIN = 2.0  # other work on the machine, and weights that make arithmetic slower than the made-up ones
_QUANTILE = 0.8
_LEAST_SECONDS = 0.005  # per round; below it, every delay of the disk would be an overrun
_DISK_TRIALS = 3
_SMALLEST_CLASS = 30  # q below terms.sample_rate / 2^30 counts as that
_POLLED_SECONDS = 0.002
_LAST_OVERRUNS = 20
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds that a round takes: a fixed part, and a part for each step."""

    round: float
    step: float


def upper(seconds: Sequence[float]) -> float:
    """Return an upper quantile of measured times; the largest of a few."""
    return sorted(seconds)[math.ceil(_QUANTILE * (len(seconds) - 1))]


def storing_seconds(files: Iterable[Path], num_bytes: int) -> float:
    """Measure how long it takes to hash an answer of this size, and to write it to a trial file beside each of `files`.

    An unwritable disk counts as instant: the round itself reports it.
    """
    seconds, content = [], bytes(num_bytes)
    for path in files:
        trial = path.with_name(f".{path.name}.trial")
        for _ in range(_DISK_TRIALS):
            started = time.monotonic()
            hashlib.sha256(content).hexdigest()
            with suppress(DataError, OSError):
                write_atomically(trial, content)
                trial.unlink()
            seconds.append(time.monotonic() - started)
    return len(seconds) / _DISK_TRIALS * upper(seconds)


class Timetable:
    """Lengths of slots. They depend on the policy, the plan and made-up records, and not on a record."""

    def __init__(self, policy: Policy, measure: Callable[[Request], Cost], *, storing: float = 0.0) -> None:
        """Measure nothing yet.

        Args:
            policy: the owner's policy, which may set the seconds.
            measure: measures the cost of a request on made-up records.
            storing: seconds to store an answer.
        """
        self._policy, self._measure, self._storing = policy, measure, storing
        self._costs: dict[tuple[object, ...], Cost] = {}

    def cost(self, request: Request) -> Cost:
        """Return the length of a slot for this request: its fixed part, and the part for each step."""
        service = self._policy.service
        if isinstance(request, ReleaseRequest):
            return self._cost_of_query(request)
        if service.seconds_per_round is not None and service.seconds_per_step is not None:
            return Cost(round=service.seconds_per_round, step=service.seconds_per_step)
        found = self._measured(request)
        fixed = max(_LEAST_SECONDS, _MARGIN * (found.round + self._storing))
        return Cost(round=service.seconds_per_round or fixed, step=service.seconds_per_step or _MARGIN * found.step)

    def seconds(self, request: Request, steps: int) -> float | None:
        """Return the length of a slot; None if the owner lets answers leave at once."""
        if PROMPT_ANSWERS in self._policy.unsafe:
            return None
        cost = self.cost(request)
        return cost.round + steps * cost.step

    def _cost_of_query(self, request: ReleaseRequest) -> Cost:
        if (seconds := self._policy.service.seconds_per_query) is not None:
            return Cost(round=seconds, step=0.0)
        size = request.query.layout.size
        key = (request.query.kind, size.bit_length(), request.standardised)
        if key not in self._costs:
            largest = (1 << size.bit_length()) - 1  # of all that share this measurement; the time grows no faster
            self._costs[key] = Cost(round=self._measure(request).round * largest / size, step=0.0)
        return Cost(round=max(_LEAST_SECONDS, _MARGIN * (self._costs[key].round + self._storing)), step=0.0)

    def _measured(self, request: RoundRequest) -> Cost:
        """Measure once for all requests that cost alike. There are few such classes, whatever a server asks for."""
        largest = self._policy.terms.sample_rate
        halvings = min(_SMALLEST_CLASS, max(0, int(math.log2(largest / request.sample_rate))))
        draws = None if request.options is None else request.options.draws
        raw = "raw" in request.signals
        key = (request.method == "pe_dpfl", draws, request.release, raw, halvings, request.standardised)
        if key not in self._costs:
            rate = largest / 2**halvings
            self._costs[key] = self._measure(request.model_copy(update={"sample_rate": rate}))
        return self._costs[key]


@dataclass
class SlotLog:
    """The owner's file on slots: their length, how often work took longer, and the last few times. It is bounded."""

    path: Path
    cost: Cost | None = None
    overruns: int = 0
    last: list[dict[str, Any]] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "SlotLog":
        """Read the file. A missing or damaged one gives an empty log, because no budget depends on it."""
        try:
            values = parse_json(path.read_bytes())
            cost = None if values["cost"] is None else Cost(**{k: float(v) for k, v in values["cost"].items()})
            return cls(path, cost, int(values["overruns"]), [_noted(entry) for entry in values["last"]])
        except (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError):
            return cls(path)

    def note_cost(self, cost: Cost | None) -> None:
        """Keep the length of slots at the policy's largest q; None without slots."""
        self.cost = cost
        self._write()

    def note_overrun(self, run: str, number: int, slot: float, seconds: float) -> None:
        """Add a round that took longer than its slot.

        Args:
            run: name of the run.
            number: the round.
            slot: length of its slot in seconds.
            seconds: how long it took.
        """
        _LOG.warning("round %d of run %s took %.3f s, more than its slot of %.3f s", number, run, seconds, slot)
        entry = {"time": int(time.time()), "run": run, "round": number, "slot": slot, "seconds": seconds}
        self.overruns += 1
        self.last = [*self.last, entry][-_LAST_OVERRUNS:]
        self._write()

    def _write(self) -> None:
        cost = None if self.cost is None else asdict(self.cost)
        text = json.dumps({"cost": cost, "overruns": self.overruns, "last": self.last}) + "\n"
        with suppress(OSError):  # a full disk changes nothing for the caller
            with open(new_file(staged(self.path)), "w") as file:
                file.write(text)
            os.replace(staged(self.path), self.path)


def _noted(entry: dict[str, Any]) -> dict[str, Any]:
    whole = {name: int(entry[name]) for name in ("time", "round")}
    return {**whole, "run": str(entry["run"]), **{name: float(entry[name]) for name in ("slot", "seconds")}}


def wait_until(moment: float) -> None:
    """Return at this moment of the monotonic clock.

    The last milliseconds are polled. A processor that slept wakes up late, by a time that depends on how long it slept.
    """
    time.sleep(max(0.0, moment - time.monotonic() - _POLLED_SECONDS))
    while time.monotonic() < moment:
        pass


@dataclass(kw_only=True)
class Slots:
    """Holds rounds until the end of their slots."""

    timetable: Timetable
    log: SlotLog
    clock: Callable[[], float] = time.monotonic
    wait_until: Callable[[float], None] = wait_until

    @contextmanager
    def held(self) -> Iterator["Slot"]:
        """Wait at the end of this block, and also after an error, if a slot was begun inside it."""
        slot = Slot(self.clock)
        try:
            yield slot
        finally:
            if slot.seconds is not None:
                if (taken := self.clock() - slot.start) > slot.seconds:
                    self.log.note_overrun(slot.run, slot.round, slot.seconds, taken)  # also takes time
                periods = max(1, math.ceil((self.clock() - slot.start) / slot.seconds))
                self.wait_until(slot.start + periods * slot.seconds)


class Slot:
    """A round's slot. It has no length before it is begun: a refusal that touches no record leaves at once."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self.start, self.run, self.round = clock, 0.0, "", 0
        self.seconds: float | None = None

    def begin(self, seconds: float | None, request: Request) -> None:
        """Begin a slot of this length, or none. Records may be touched from here on."""
        self.start, self.seconds, self.run, self.round = self._clock(), seconds, request.run, request.round
