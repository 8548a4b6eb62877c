"""The engine of a deployment: plans go to vaults behind nodes. Waits are bounded, and no answer is trusted."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from alidpfl.errors import NodesMissingError
from alidpfl.federation.settings import Evaluation, Part
from alidpfl.flower.nodes import Failure, Link, Member
from alidpfl.privacy.client_ledger import CappedLedger
from alidpfl.simulation.engine import Simulation
from alidpfl.types import ClientPlan, ClientUpdate
from alidpfl.vault import messages
from alidpfl.vault.messages import NoisedUpdate, RoundAnswer, RoundRequest, Shapes, Weights
from alidpfl.vault.refusals import RefusalCode, VaultRefusedError

_POLL_SECONDS = 0.5
_GRACE_SECONDS = 15.0  # for the rest of the nodes, once there is a quorum
_PATIENCE = 3  # rounds in a row without a quorum
_OFFLINE = Failure(code="offline", reason="the node is not there")


class VaultEngine:
    """Sends a round to its clients' vaults and opens what comes back."""

    def __init__(
        self,
        *,
        link: Link,
        members: Sequence[Member],
        run: str,
        method: str,
        options: Mapping[str, Any] | None,
        shapes: Shapes,
        ledger: CappedLedger,
        evaluator: Simulation | None,
        least_updates: Callable[[int], int],
        round_timeout: float,
        wait_for_nodes: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """Nothing is sent yet.

        Args:
            link: to the nodes.
            members: the run's clients, by number.
            run: name of the run, the same after a resume: by it and the round's number vaults know a repeated question.
            method: of the local loss.
            options: of the method, where its loss has some.
            shapes: of the trained parameters.
            ledger: is told what vaults say is left.
            evaluator: evaluates on public data; None if there are none.
            least_updates: how many answers make a quorum of a round.
            round_timeout: seconds for a round's answers to come.
            wait_for_nodes: seconds for a quorum of nodes to be there.
            clock: seconds.
            sleep: waits.
        """
        self._link, self._members, self._run = link, members, run
        self._method, self._options, self._shapes = method, options, shapes
        self._ledger, self._evaluator, self._least_updates = ledger, evaluator, least_updates
        self._round_timeout, self._wait_for_nodes = round_timeout, wait_for_nodes
        self._clock, self._sleep = clock, sleep
        self._most_bytes = 4 * sum(map(messages.num_values, shapes.values())) + messages.MOST_OVERHEAD
        self._failed_rounds = 0

    def seconds_for(self, params: Tensor, plans: Sequence[ClientPlan]) -> float:
        """Nobody knows how fast the owners' machines are before the first round: 0."""
        return 0.0

    def close(self) -> None:
        """End what evaluates."""
        if self._evaluator is not None:
            self._evaluator.close()

    def evaluate(self, params: Tensor, part: Part) -> Evaluation | None:
        """On the server's public data, if it has any."""
        return None if self._evaluator is None else self._evaluator.evaluate(params, part)

    def train(self, params: Tensor, plans: Sequence[ClientPlan]) -> list[ClientUpdate]:
        """Ask the plans' clients; the updates that came in time and can be read, in the plans' order."""
        online = self._await_quorum(plans)
        weights = messages.named(params.numpy(), self._shapes)
        asked = {plan.client: self._request(plan) for plan in plans if self._members[plan.client].node in online}
        contents = {self._members[c].node: messages.encode(request, weights) for c, request in asked.items()}
        answers = self._link.ask("train", contents, self._round_timeout)
        updates = []
        for plan in plans:
            answer = answers.get(self._members[plan.client].node, _OFFLINE)
            update = self._opened(plan, answer, asked.get(plan.client), weights)
            if isinstance(update, Failure):
                self._note(plan, update)
            else:
                updates.append(update)
        self._count_failures(len(updates), len(plans))
        return updates

    def _request(self, plan: ClientPlan) -> RoundRequest:
        request: RoundRequest = RoundRequest.of_plan(plan, run=self._run, method=self._method, options=self._options)
        return request

    def _await_quorum(self, plans: Sequence[ClientPlan]) -> set[int]:
        """Nodes that are there. Without a quorum nothing is asked: a round that cannot count would only cost."""
        wanted, started = {self._members[plan.client].node for plan in plans}, self._clock()
        least = self._least_updates(len(plans))
        while True:
            online, waited = wanted & self._link.online(), self._clock() - started
            if online == wanted or (len(online) >= least and waited >= _GRACE_SECONDS):
                return online
            if waited >= max(self._wait_for_nodes, _GRACE_SECONDS):
                raise NodesMissingError(
                    f"{len(online)} of {len(wanted)} nodes are there and {least} are needed: nothing was asked of them "
                    f"in round {plans[0].round + 1}; see to the others and submit the run again, it goes on from here"
                )
            self._sleep(_POLL_SECONDS)

    def _opened(
        self, plan: ClientPlan, answer: bytes | Failure, asked: RoundRequest | None, weights: Weights
    ) -> ClientUpdate | Failure:
        if isinstance(answer, Failure) or asked is None:
            return answer if isinstance(answer, Failure) else Failure(code="unasked", reason="it was not asked")
        if len(answer) > self._most_bytes:
            return Failure(code=RefusalCode.TOO_LARGE, reason=f"the answer has more than {self._most_bytes} bytes")
        try:
            told, trained = messages.decode_answer(answer)
        except VaultRefusedError as error:
            return Failure(code=error.code, reason=str(error))
        if (problem := self._problem(plan, asked, weights, told, trained)) is not None:
            return Failure(code="lie", reason=problem)
        self._ledger.cap(plan.client, told.steps_left)
        return self._update(plan, told, trained)

    def _problem(
        self, plan: ClientPlan, asked: RoundRequest, weights: Weights, told: RoundAnswer, trained: Weights
    ) -> str | None:
        """What an honest vault never says. Whether the weights are plausible is the loop's to judge."""
        if told.request != messages.request_digest(asked, weights):
            return "the answer is to another request"
        if told.num_records != (size := self._members[plan.client].num_records):
            return f"it has {told.num_records} records now, and had {size} when the run began"
        if not 1 <= told.steps <= plan.steps:
            return f"{told.steps} steps were run where {plan.steps} were asked for"
        shapes = {name: tuple(values.shape) for name, values in trained.items()}
        if shapes != dict(self._shapes):
            return "the weights have other names or shapes than the model"
        if any(values.dtype != "float32" for values in trained.values()):
            return "the weights are not float32"
        return None

    def _update(self, plan: ClientPlan, told: RoundAnswer, trained: Weights) -> ClientUpdate:
        """Only signals that were asked for, and finite ones."""
        signals = plan.signals
        update = NoisedUpdate(
            params=messages.flat(trained, self._shapes),
            secants=told.secants if "secants" in signals else None,
            gradient_norm=told.gradient_norm if "gradient_norm" in signals else None,
            raw=told.raw if "raw" in signals else None,
        )
        return ClientUpdate(
            client=plan.client,
            params=torch.from_numpy(update.params),
            secants=update.secants,
            gradient_norm=update.gradient_norm,
            raw=update.raw,
            steps=None if told.steps == plan.steps else told.steps,
        )

    def _note(self, plan: ClientPlan, failure: Failure) -> None:
        self._link.tell(f"round {plan.round + 1}: client {plan.client} is left out: {failure.code}: {failure.reason}")
        if failure.code == RefusalCode.BUDGET:  # its own account has the last word
            self._ledger.cap(plan.client, 0)

    def _count_failures(self, arrived: int, asked: int) -> None:
        self._failed_rounds = 0 if arrived >= self._least_updates(asked) else self._failed_rounds + 1
        if self._failed_rounds >= _PATIENCE:
            raise NodesMissingError(
                f"{_PATIENCE} rounds in a row had fewer than {self._least_updates(asked)} answers of {asked}; the log "
                "says why. Submit the run again once that is mended: it goes on from here"
            )
