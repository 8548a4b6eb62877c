"""The vault itself: one instruction in, one answer or refusal out, and the ledger between them.

The order of a round is the whole point: look it up, check it, take room on the disk for the answer, write RESERVED and
sync, only then draw batches and noise, store the answer, write RELEASED, send. Killed anywhere, what is recorded as
spent is at least what was drawn:

- before RESERVED is on the disk nothing was drawn;
- after it, the round counts as spent for ever. Asked for again, its answer is sent if it was stored whole, and
  otherwise the round is refused as lost: training it again would be a second release under one charge. A server asks
  for the next round instead, which is charged anew.
"""

import hashlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from alidpfl.errors import ConfigError, DataError, UnsupportedModelError
from alidpfl.types import ClientPlan
from alidpfl.vault import messages
from alidpfl.vault.accounts import charged_rate
from alidpfl.vault.enrolment import Enrolment
from alidpfl.vault.folder import AnswerStore, RefusalLog
from alidpfl.vault.ledger import Ledger, Reservation
from alidpfl.vault.messages import NoisedUpdate, RoundAnswer, RoundRequest
from alidpfl.vault.policy import Policy, check_plan, granted_steps, unsafe_uses
from alidpfl.vault.refusals import RefusalCode, VaultRefusedError, VaultTroubleError, refusal

Job = Callable[[NDArray[np.float32], ClientPlan], NoisedUpdate]
"""Trains from these weights by this plan; draws fresh randomness each time."""

_ANSWER_OVERHEAD = 1 << 16
_LOG = logging.getLogger(__name__)


class Trainer(Protocol):
    """Where the data are. Nothing else in a vault sees them."""

    def job(self, request: RoundRequest) -> Job:
        """Make ready for the request's loss, without touching the data."""


class Vault:
    """Serves one data set. One round at a time, whoever asks."""

    def __init__(
        self,
        *,
        policy: Policy,
        enrolment: Enrolment,
        ledger: Ledger,
        answers: AnswerStore,
        refusals: RefusalLog,
        trainer: Trainer,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.policy, self.enrolment, self.ledger, self.refusals = policy, enrolment, ledger, refusals
        self._answers, self._trainer, self._clock = answers, trainer, clock
        self._turn = threading.Lock()

    @property
    def most_bytes(self) -> int:
        """Of a request: the weights and a little more."""
        return 4 * self.enrolment.num_params + messages.MOST_OVERHEAD

    def answer(self, content: bytes) -> bytes:
        """The answer to an instruction; VaultRefusedError, which is counted, if there is none."""
        try:
            with self._turn:
                return self._answer(content)
        except VaultRefusedError as error:
            self.refusals.note(error.code, str(error))
            raise

    def _answer(self, content: bytes) -> bytes:
        request, weights = messages.decode_request(content)
        messages.check_weights(weights, self.enrolment.shapes)
        digest = messages.request_digest(request, weights)
        known = self.ledger.book.find(request.run, request.round)
        if known is not None:
            return self._stored(known, digest)
        if request.round <= (last := self.ledger.book.last_round(request.run)):
            raise refusal(
                RefusalCode.ROUND_ORDER,
                f"round={request.round} comes too late: round {last} was served; rounds only grow",
            )
        check_plan(request, self.policy)
        rate = charged_rate(self.policy, request.sample_rate)
        affordable = self.ledger.book.account.affordable(rate, request.noise_multiplier)
        steps = granted_steps(request, self.policy, affordable)
        job = self._ready(request)
        self._answers.take_room(4 * self.enrolment.num_params + _ANSWER_OVERHEAD)
        number = self.ledger.reserve(self._reservation(request, steps, digest, rate))
        update = _withheld(job, messages.flat(weights, self.enrolment.shapes), request.plan(steps))
        return self._released(number, self._encoded(request, steps, digest, update, rate))

    def _ready(self, request: RoundRequest) -> Job:
        try:
            return self._trainer.job(request)
        except (ConfigError, UnsupportedModelError) as error:  # no record was looked at, and nothing is charged
            raise refusal(RefusalCode.POLICY, str(error)) from None
        except DataError:  # in words that quote torch's, which are not ours to vouch for
            raise refusal(
                RefusalCode.FAILED,
                "the trial of the model on made-up samples failed; nothing was charged: the owner must see to it",
            ) from None

    def _reservation(self, request: RoundRequest, steps: int, digest: str, rate: float) -> Reservation:
        return Reservation(
            time=int(self._clock()),
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

    def _encoded(self, request: RoundRequest, steps: int, digest: str, update: NoisedUpdate, rate: float) -> bytes:
        answer = RoundAnswer(
            run=request.run,
            round=request.round,
            client=request.client,
            request=digest,
            steps=steps,
            steps_left=self.ledger.book.account.affordable(rate, request.noise_multiplier),
            num_records=self.enrolment.num_records,
            secants=update.secants,
            gradient_norm=update.gradient_norm,
            raw=update.raw if "raw" in request.signals else None,
            unsafe=list(unsafe_uses(request, self.policy)),
        )
        return messages.encode(answer, messages.named(update.params, self.enrolment.shapes))

    def _released(self, number: int, content: bytes) -> bytes:
        self._answers.store(number, content)
        self._note_release(number, content)
        self._answers.prune(self.policy.service.keep_answers)
        return content

    def _note_release(self, number: int, content: bytes) -> None:
        try:
            self.ledger.release(number, hashlib.sha256(content).hexdigest())
        except VaultTroubleError as error:
            raise refusal(
                error.code,
                "the round is charged and its answer stored, but the ledger cannot take note of it: once the owner has "
                "seen to the disk, ask again with the same request",
            ) from error

    def _stored(self, number: int, digest: str) -> bytes:
        """The answer of a round that was asked for before."""
        book = self.ledger.book
        if book.reservations[number].request != digest:
            raise refusal(
                RefusalCode.CHANGED_REPLAY,
                f"round={book.reservations[number].round} of this run was asked for with other weights or another "
                "plan; a round is trained once",
            )
        content, expected = self._answers.load(number), book.answers.get(number)
        if expected is None:  # killed before RELEASED
            return self._released_late(number, digest, content)
        if content is None:
            raise refusal(RefusalCode.PRUNED, "the answer to this round was sent and is no longer kept")
        if hashlib.sha256(content).hexdigest() != expected:
            raise refusal(RefusalCode.PRUNED, "the answer to this round was sent, and its copy is damaged")
        return content

    def _released_late(self, number: int, digest: str, content: bytes | None) -> bytes:
        if content is None or not _answers_to(content, digest):
            raise refusal(
                RefusalCode.LOST,
                "this round was charged, and the vault stopped before its answer was stored; it is not trained again "
                "under the same charge: ask for the next round",
            )
        self._note_release(number, content)
        return content


def _answers_to(content: bytes, digest: str) -> bool:
    try:
        return messages.decode_answer(content)[0].request == digest
    except VaultRefusedError:  # damaged since it was stored
        return False


def _withheld(job: Job, weights: NDArray[np.float32], plan: ClientPlan) -> NoisedUpdate:
    """Train; of a failure nothing is told, since its text, and even its type, may depend on records."""
    try:
        return job(weights, plan)
    except Exception as error:
        _LOG.error("training failed with %s", type(error).__name__)  # the owner's eyes only, and no record in it
        raise refusal(
            RefusalCode.FAILED,
            "training failed; the details may depend on records and are withheld. The round stays charged",
        ) from None
