"""Engine of a deployment: it sends plans to the vaults behind nodes. Waits are bounded, and no answer is trusted."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from alidpfl.errors import NodesMissingError
from alidpfl.federation.settings import Evaluation, Part
from alidpfl.flower.nodes import Failure, Link, Member
from alidpfl.privacy.client_ledger import CappedLedger
from alidpfl.releases.queries import Released, ReleasePlan
from alidpfl.simulation.engine import Simulation
from alidpfl.tables.standardise import RowStandardiser
from alidpfl.types import ClientPlan, ClientUpdate
from alidpfl.vault import messages
from alidpfl.vault.messages import ReleaseRequest, RoundAnswer, RoundRequest, Shapes, Weights
from alidpfl.vault.refusals import RefusalCode, VaultRefusedError

_POLL_SECONDS = 0.5
_GRACE_SECONDS = 15.0  # for the other nodes, once there is a quorum
_PATIENCE = 3  # rounds in a row without a quorum
_OFFLINE = Failure(code="offline", reason="the node is offline")


@dataclass(kw_only=True, eq=False)
class VaultEngine:
    """Sends a round to the vaults of `members`, the clients by number. Reads their answers. Times are in seconds."""

    link: Link
    members: Sequence[Member]
    run: str
    """Name of the run, also after a resume. Vaults know a repeated request by it and the round's number."""
    method: str
    options: Mapping[str, Any] | None
    shapes: Shapes
    schema_sha256: str | None = None
    """Hash of the run's schema; None if the records are no tables. A vault with another one refuses."""
    loss: str = "cross_entropy"
    """Name of the loss. A vault with another one refuses."""
    quantile: float = 0.5
    """Level of the loss `quantile`."""
    ledger: CappedLedger | None
    """It is capped to what the vaults say is left. None if nothing is trained."""
    evaluator: Simulation | None
    least_updates: Callable[[int], int]
    """Returns the quorum for a number of clients."""
    round_timeout: float
    wait_for_nodes: float
    standardiser: RowStandardiser | None = None
    """What the vaults standardise their rows by. It travels with the weights."""
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    _failed_rounds: int = field(default=0, init=False)

    def seconds_for(self, params: Tensor, plans: Sequence[ClientPlan]) -> float:
        """Return 0: before the first round, nobody knows how fast the owners' machines are."""
        return 0.0

    def close(self) -> None:
        """Close the evaluator."""
        if self.evaluator is not None:
            self.evaluator.close()

    def evaluate(self, params: Tensor, part: Part) -> Evaluation | None:
        """Evaluate on the server's public data; None if it has none."""
        return None if self.evaluator is None else self.evaluator.evaluate(params, part)

    def train(self, params: Tensor, plans: Sequence[ClientPlan]) -> list[ClientUpdate]:
        """Return the updates that came in time and can be read, in the order of the plans."""
        online = self._await_quorum(plans)
        weights = self._weights(params)
        asked = {plan.client: self._request(plan) for plan in plans if self.members[plan.client].node in online}
        contents = {self.members[c].node: messages.encode(request, weights) for c, request in asked.items()}
        digests = {client: messages.request_digest(request, weights) for client, request in asked.items()}
        answers = self.link.ask("train", contents, self.round_timeout)
        updates = []
        for plan in plans:
            answer = answers.get(self.members[plan.client].node, _OFFLINE)
            update = answer if isinstance(answer, Failure) else self._opened(plan, answer, digests.get(plan.client))
            if isinstance(update, Failure):
                told = f"client {plan.client} is left out: {update.code}: {update.reason}"
                self.link.tell(f"round {plan.round + 1}: {told}")
                if update.code == RefusalCode.BUDGET and self.ledger is not None:  # the vault's own account decides
                    self.ledger.cap(plan.client, 0)
            else:
                updates.append(update)
        least = self.least_updates(len(plans))
        self._failed_rounds = 0 if len(updates) >= least else self._failed_rounds + 1
        if self._failed_rounds >= _PATIENCE:
            raise NodesMissingError(
                f"{_PATIENCE} rounds in a row had fewer than {least} answers of {len(plans)}; the log says why. Repair "
                "that and submit the run again to continue it"
            )
        return updates

    def release(self, params: Tensor, plans: Sequence[ReleasePlan]) -> list[Released]:
        """Return the noised sums that came in time and fit the query. A vault that does not answer is left out."""
        needs_weights, online = any(plan.query.needs_weights for plan in plans), self.link.online()
        weights = self._weights(params) if needs_weights else {}
        asked = {
            plan.client: ReleaseRequest(
                run=self.run,
                round=plan.number,
                client=plan.client,
                noise_multiplier=plan.noise_multiplier,
                schema_sha256=self.schema_sha256,
                standardised=needs_weights and self.standardiser is not None,
                query=plan.query,
            )
            for plan in plans
            if self.members[plan.client].node in online
        }
        contents = {self.members[client].node: messages.encode(one, weights) for client, one in asked.items()}
        answers = self.link.ask("release", contents, self.round_timeout) if contents else {}
        found = []
        for plan in plans:
            answer = answers.get(self.members[plan.client].node, _OFFLINE)
            opened = answer if isinstance(answer, Failure) else _released(answer, asked[plan.client], weights)
            if isinstance(opened, Failure):
                told = f"client {plan.client} is left out: {opened.code}: {opened.reason}"
                what = "evaluation after" if needs_weights else "statistics before"
                self.link.tell(f"{what} round {plan.number + (not needs_weights)}: {told}")
            else:
                found.append(opened)
        return found

    def _weights(self, params: Tensor) -> dict[str, NDArray[np.float32]]:
        """Return the weights by name, and what standardises the rows behind them."""
        arrays = {} if self.standardiser is None else self.standardiser.arrays
        own = {f"{messages.STANDARDISER}{name}": values for name, values in arrays.items()}
        return {**messages.named(params.numpy(), self.shapes), **own}

    def _request(self, plan: ClientPlan) -> RoundRequest:
        return RoundRequest.of_plan(
            plan,
            run=self.run,
            method=self.method,
            options=self.options,
            schema_sha256=self.schema_sha256,
            loss=self.loss,
            quantile=self.quantile,
            standardised=self.standardiser is not None,
        )

    def _await_quorum(self, plans: Sequence[ClientPlan]) -> set[int]:
        """Return the nodes that are online. Without a quorum nothing is asked: the round would cost and not count."""
        wanted, started = {self.members[plan.client].node for plan in plans}, self.clock()
        least = self.least_updates(len(plans))
        while True:
            online, waited = wanted & self.link.online(), self.clock() - started
            if online == wanted or (len(online) >= least and waited >= _GRACE_SECONDS):
                return online
            if waited >= max(self.wait_for_nodes, _GRACE_SECONDS):
                raise NodesMissingError(
                    f"{len(online)} of {len(wanted)} nodes are online and {least} are needed: nothing was asked of "
                    f"them in round {plans[0].round + 1}; start the others and submit the run again to continue it"
                )
            self.sleep(_POLL_SECONDS)

    def _opened(self, plan: ClientPlan, answer: bytes, digest: str | None) -> ClientUpdate | Failure:
        most = 4 * sum(map(math.prod, self.shapes.values())) + messages.MOST_OVERHEAD
        if len(answer) > most:
            return Failure(code=RefusalCode.TOO_LARGE, reason=f"the answer has more than {most} bytes")
        try:
            told, update = messages.decode_update(answer, plan, self.shapes)
        except VaultRefusedError as error:
            return Failure(code=error.code, reason=str(error))
        if (problem := self._problem(plan, told, digest)) is not None:
            return Failure(code="lie", reason=problem)
        if self.ledger is not None:
            self.ledger.cap(plan.client, told.steps_left)
        return update

    def _problem(self, plan: ClientPlan, told: RoundAnswer, digest: str | None) -> str | None:
        """Return what no honest vault says. The loop judges whether the weights are plausible."""
        if told.request != digest:
            return "the answer is to another request"
        if told.num_records != (size := self.members[plan.client].num_records):
            return f"it has {told.num_records} records now, and had {size} when the run began"
        if not 1 <= told.steps <= plan.steps:
            return f"it ran {told.steps} steps, and {plan.steps} were asked for"
        return None


def _released(content: bytes, request: ReleaseRequest, weights: Weights) -> Released | Failure:
    """Return the noised sums in an answer. They may be a lie, which only the metrics suffer from."""
    if len(content) > (most := 4 * request.query.layout.size + messages.MOST_OVERHEAD):
        return Failure(code=RefusalCode.TOO_LARGE, reason=f"the answer has more than {most} bytes")
    try:
        told, values = messages.decode_released(content, request)
    except VaultRefusedError as error:
        return Failure(code=error.code, reason=str(error))
    if told.request != messages.request_digest(request, weights):
        return Failure(code="lie", reason="the answer is to another request")
    return Released(client=request.client, values=values)
