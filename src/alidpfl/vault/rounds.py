"""A round of the vault: check the request, charge it in the ledger, train, store the answer, send it.

From the moment that a record may be touched until the end of a public time slot, nothing leaves (`slots`).

The order of these steps protects the budget (docs/how-to/vault.md). A round that was asked for before is never trained
again. The process may be killed at any moment, and the ledger then records at least what was drawn:

- Before RESERVED is on the disk, nothing was drawn.
- After that, the round is spent for ever. If it is asked for again, the vault sends the stored answer, if that is
  whole. Otherwise it refuses the round as lost: training it again would be a second release under one charge. The
  server then asks for the next round, which is charged separately.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from alidpfl.errors import ConfigError, DataError, UnsupportedModelError
from alidpfl.types import ClientPlan, ClientUpdate, loss_text
from alidpfl.vault import messages
from alidpfl.vault.accounts import charged_rate
from alidpfl.vault.enrolment import Enrolment
from alidpfl.vault.folder import AnswerStore, RefusalLog
from alidpfl.vault.ledger import Ledger, Reservation
from alidpfl.vault.messages import ReleaseRequest, Request, RoundRequest, Shapes
from alidpfl.vault.policy import Policy, check_plan, check_query, check_rounds, granted_steps, unsafe_uses
from alidpfl.vault.refusals import RefusalCode, VaultRefusedError, VaultTroubleError, refusal
from alidpfl.vault.slots import Slot, Slots

Job = Callable[[NDArray[np.float32], ClientPlan], ClientUpdate]
"""Trains from these weights by this plan, with fresh randomness in every call."""
ReleaseJob = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""Returns the noised sums that a query asks for, of the model with these weights. A query may need no weights."""

_ANSWER_OVERHEAD = 1 << 16
_LOG = logging.getLogger(__name__)


class Trainer(Protocol):
    """Holds the records. Nothing else in a vault sees them."""

    def job(self, request: RoundRequest) -> Job:
        """Prepare the request's loss without touching the records."""

    def release_job(self, request: ReleaseRequest) -> ReleaseJob:
        """Prepare a query without touching the records. Refuse one that does not fit the data set."""


@dataclass(frozen=True, kw_only=True)
class _Work:
    """What answers a request: prepared, and neither charged nor begun."""

    reservation: Reservation
    seconds: float | None
    """Length of the slot."""
    num_bytes: int
    """Room that the answer needs at most."""
    run: Callable[[], Callable[[], bytes]]
    """Reads the records. The function that it returns writes the answer, and fails for no reason in the records."""


@dataclass(kw_only=True, eq=False)
class Vault:
    """Serves the rounds of one data set, one at a time. The caller holds the ledger's lock."""

    policy: Policy
    enrolment: Enrolment
    ledger: Ledger
    answers: AnswerStore
    refusals: RefusalLog
    trainer: Trainer
    slots: Slots
    clock: Callable[[], float] = time.time
    _turn: threading.Lock = field(default_factory=threading.Lock, init=False)

    @property
    def most_bytes(self) -> int:
        """Largest size of a request: the weights and some overhead."""
        return 4 * self.enrolment.num_params + messages.MOST_OVERHEAD

    def answer(self, content: bytes) -> bytes:
        """Return the answer to a request at the end of its slot. Raise VaultRefusedError, logged, if it is refused."""
        with self._turn, self.slots.held() as slot:
            try:
                return self._answer(content, slot)
            except VaultRefusedError as error:
                self.refusals.note(error.code, str(error))
                raise

    def _answer(self, content: bytes, slot: Slot) -> bytes:
        request, weights = messages.decode_request(content)
        self._check_task(request)
        shapes = {**self.enrolment.shapes, **self._standardiser(request)} if request.needs_weights else {}
        messages.check_weights(weights, shapes)
        digest, book = messages.request_digest(request, weights), self.ledger.book
        if (known := book.find(request.run, request.round, request.channel)) is not None:
            return self._stored(known, digest)
        if request.round <= (last := book.last_round(request.run, request.channel)):
            told = f"round={request.round} must be above {last}, the last round of this run that was served"
            raise refusal(RefusalCode.ROUND_ORDER, told)
        start = messages.flat(weights, shapes) if shapes else np.zeros(0, np.float32)
        if isinstance(request, ReleaseRequest):
            work = self._query(request, start, digest)
        else:
            work = self._round(request, start, digest)
        self.answers.take_room(work.num_bytes + _ANSWER_OVERHEAD)
        number = self.ledger.reserve(work.reservation)
        slot.begin(work.seconds, request)
        content = _withheld(work.run)()
        self.answers.store(number, content)
        self._note_release(number, content)
        self.answers.prune(self.policy.service.keep_answers)
        return content

    def _round(self, request: RoundRequest, start: NDArray[np.float32], digest: str) -> _Work:
        """Check and prepare a round of training."""
        check_plan(request, self.policy)
        check_rounds(len(self.ledger.book.charged()), self.policy)
        rate = charged_rate(self.policy, request.sample_rate)
        affordable = self.ledger.book.account.affordable(rate, request.noise_multiplier)
        steps = granted_steps(request, self.policy, affordable)
        job, seconds = self._ready(request, steps)

        def encoded(update: ClientUpdate) -> bytes:
            return messages.encode_update(
                update,
                request,
                digest=digest,
                steps=steps,
                steps_left=self.ledger.book.account.affordable(rate, request.noise_multiplier),
                num_records=self.enrolment.num_records,
                unsafe=unsafe_uses(request, self.policy),
                shapes=self.enrolment.shapes,
            )

        return _Work(
            reservation=self._reservation(request, steps, digest, rate),
            seconds=seconds,
            num_bytes=4 * self.enrolment.num_params,
            run=lambda: partial(encoded, job(start, request.plan(steps))),
        )

    def _query(self, request: ReleaseRequest, start: NDArray[np.float32], digest: str) -> _Work:
        """Check and prepare a noised release. Its part of the records pays for it."""
        book, part = self.ledger.book, request.query.part
        check_query(request, self.policy, len(book.charged(part)))
        if book.affordable(request.noise_multiplier, part=part) < 1:
            told = "the privacy budget of these records does not pay for a query at this noise"
            raise refusal(RefusalCode.BUDGET, told)
        unsafe = unsafe_uses(request, self.policy)
        try:
            job, seconds = self.trainer.release_job(request), self.slots.timetable.seconds(request, 0)
        except ConfigError as error:  # no record was read, and nothing is charged
            raise refusal(RefusalCode.POLICY, str(error)) from None
        reservation = Reservation(
            time=int(self.clock()),
            run=request.run,
            round=request.round,
            units=1,
            steps=0,
            sample_rate=1.0,
            noise_multiplier=request.noise_multiplier,
            clip_norm=1.0,
            release=None,
            request=digest,
            unsafe=unsafe,
            query=request.query.kind,
            part=part,
        )
        encoded = partial(messages.encode_released, request=request, digest=digest, unsafe=unsafe)
        return _Work(
            reservation=reservation,
            seconds=seconds,
            num_bytes=4 * request.query.layout.size,
            run=lambda: partial(encoded, job(start)),
        )

    def _standardiser(self, request: Request) -> Shapes:
        """Return the shapes of what standardises the rows, if the request has it. Refuse it for other records."""
        if not request.standardised:
            return {}
        if self.enrolment.schema_sha256 is None:
            raise refusal(RefusalCode.POLICY, "standardised=true is for tables, and these records are no table")
        return messages.standardiser_shapes(self.enrolment.input_shape[0])

    def _check_task(self, request: Request) -> None:
        """Refuse a round of another loss, or for rows that are encoded in another way and may have the same shape."""
        if isinstance(request, RoundRequest):
            self._check_loss(request)
        if (own := self.enrolment.schema_sha256) != (asked := request.schema_sha256):
            raise refusal(
                RefusalCode.SCHEMA,
                f"the request is for {_named_schema(asked)}, and this vault has {_named_schema(own)}; the owners and "
                "the server must agree on one schema",
            )

    def _check_loss(self, request: RoundRequest) -> None:
        loss, level = self.enrolment.loss(self.policy), self.policy.model.quantile
        if request.loss != loss or (loss == "quantile" and request.quantile != level):
            raise refusal(
                RefusalCode.POLICY,
                f"the request is for {loss_text(request.loss, request.quantile)}, and this vault is enrolled for "
                f"{loss_text(loss, level)}",
            )

    def _ready(self, request: RoundRequest, steps: int) -> tuple[Job, float | None]:
        """Return the prepared training and the length of its slot. No record is read."""
        try:
            return self.trainer.job(request), self.slots.timetable.seconds(request, steps)
        except (ConfigError, UnsupportedModelError) as error:  # no record was read, and nothing is charged
            raise refusal(RefusalCode.POLICY, str(error)) from None
        except DataError:  # its text may quote torch, and we cannot vouch for that
            told = "the trial of the model on made-up samples failed; nothing was charged. The owner must repair it"
            raise refusal(RefusalCode.FAILED, told) from None

    def _reservation(self, request: RoundRequest, steps: int, digest: str, rate: float) -> Reservation:
        return Reservation(
            time=int(self.clock()),
            run=request.run,
            round=request.round,
            units=1 if request.release == "update" else steps,
            steps=steps,
            sample_rate=rate,
            noise_multiplier=request.noise_multiplier,
            clip_norm=request.clip_norm,
            release=request.release,
            request=digest,
            unsafe=unsafe_uses(request, self.policy),
        )

    def _note_release(self, number: int, content: bytes) -> None:
        try:
            self.ledger.release(number, hashlib.sha256(content).hexdigest())
        except VaultTroubleError as error:
            raise refusal(
                error.code,
                "the round is charged and its answer is stored, but the ledger cannot record that. The owner must "
                "check the disk; then ask again with the same request",
            ) from error

    def _stored(self, number: int, digest: str) -> bytes:
        """Return the answer to a round that was asked for before."""
        book = self.ledger.book
        if book.reservations[number].request != digest:
            raise refusal(
                RefusalCode.CHANGED_REPLAY,
                f"round={book.reservations[number].round} of this run was asked for with other weights or another "
                "plan; a round is trained once",
            )
        content, expected = self.answers.load(number), book.answers.get(number)
        if expected is None:  # the vault was killed before it wrote RELEASED
            if content is None or not _answers_to(content, digest):
                raise refusal(
                    RefusalCode.LOST,
                    "this round was charged, and the vault stopped before its answer was stored. It is not trained "
                    "again under the same charge: ask for the next round",
                )
            self._note_release(number, content)
            return content
        if content is None:
            raise refusal(RefusalCode.PRUNED, "the answer to this round was sent and is no longer kept")
        if hashlib.sha256(content).hexdigest() != expected:
            raise refusal(RefusalCode.PRUNED, "the answer to this round was sent, and its copy is damaged")
        return content


def _named_schema(sha256: str | None) -> str:
    return "records that are no table" if sha256 is None else f"tables of schema {sha256}"


def _answers_to(content: bytes, digest: str) -> bool:
    try:
        return messages.answered_request(content) == digest
    except VaultRefusedError:  # damaged since it was stored
        return False


def _withheld(run: Callable[[], Callable[[], bytes]]) -> Callable[[], bytes]:
    """Do the work, and withhold why it failed: the text and even the type of an error may depend on records."""
    try:
        return run()
    except Exception as error:
        _LOG.error("training failed with %s", type(error).__name__)  # only the owner sees it; it quotes no record
        told = "training failed; the details may depend on records and are withheld. The round stays charged"
        raise refusal(RefusalCode.FAILED, told) from None
