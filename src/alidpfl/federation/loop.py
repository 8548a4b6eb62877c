"""The loop over rounds: plan, charge, dispatch, inspect, aggregate, observe, record. `Federation.step` is one round."""

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch
from torch import Tensor, nn

from alidpfl.errors import ConfigError
from alidpfl.federation import server
from alidpfl.federation.curvature import CurvatureTracker
from alidpfl.federation.defence import Defence
from alidpfl.federation.inspection import honest_laws
from alidpfl.federation.noise_law import HonestLaw
from alidpfl.federation.planning import BYTES_PER_NUMBER, Observed, RoundPlanner
from alidpfl.federation.private_evaluation import PrivateEvaluation
from alidpfl.federation.server import ServerSettings, ServerState
from alidpfl.federation.settings import Engine, Evaluation, FederationSettings, Outlook, Part, Progress
from alidpfl.federation.tensors import flatten, load, steady_arithmetic, trained
from alidpfl.methods import Method
from alidpfl.policies import Decision, Policy
from alidpfl.privacy import Ledger
from alidpfl.types import ClientId, ClientPlan, ClientUpdate, RoundRecord, StopReason


class Federation:
    """Clients, server and ledger of one training. A context manager: leaving it closes the engine.

    Iterate over it for all rounds, or call `step` for one. `alidpfl.federate` makes one for clients on this machine.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        engine: Engine,
        method: Method,
        policy: Policy,
        ledger: Ledger,
        sizes: Sequence[int],
        settings: FederationSettings,
        server_settings: ServerSettings | None = None,
        bytes_before: int = 0,
        client_names: Sequence[str] = (),
        private_evaluation: PrivateEvaluation | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Tie the parts together; nothing runs yet.

        Args:
            model: what is trained, with its first weights; it is copied.
            engine: trains clients and evaluates models.
            method: sets C, σ and the local loss.
            policy: chooses τ.
            ledger: every client's account.
            sizes: number of records of each client, public by enrolment.
            settings: rounds, limits, step sizes.
            server_settings: momentum, averaging, quorum, and what protects from hostile clients.
            bytes_before: traffic before the first round.
            client_names: names of the clients by number, if they have names.
            private_evaluation: asks clients for noised evaluations; None to evaluate on the engine's own data.
            clock: returns seconds, for the time limit.
        """
        self._engine, self._method, self._policy, self._ledger = engine, method, policy, ledger
        self._model, initial = copy.deepcopy(model), flatten(trained(model))
        self._sizes = dict(enumerate(sizes))
        self.settings, self._server_settings = settings, server_settings or ServerSettings()
        self._counted = server.counted_sizes(self._sizes, self._server_settings.max_size_ratio)
        self._clock = clock
        self.client_names = tuple(client_names)
        self.private_evaluation = private_evaluation
        self._planner = RoundPlanner(
            method=method,
            policy=policy,
            ledger=ledger,
            sizes=self._sizes,
            shares=self._shares(list(self._sizes)),
            num_params=len(initial),
            settings=settings,
        )
        self.server = ServerState(params=initial)
        self.progress = Progress(bytes=bytes_before)
        self.stop_reason: StopReason | None = None
        self.last_evaluation: Evaluation | None = None
        """The evaluation of the current weights on the test part, if the last round made one."""
        self._defence = Defence(self._server_settings, len(self._sizes), len(initial))
        self._curvature = CurvatureTracker()
        self._observed = Observed(method_state=method.start())

    def __enter__(self) -> "Federation":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[RoundRecord]:
        """Run all rounds that are left; worker processes end with the last."""
        while (record := self.step()) is not None:
            yield record
        self.close()

    @steady_arithmetic()  # the server's sums too: a second thread would wait for a core that a worker has
    def step(self) -> RoundRecord | None:
        """Run one round. Return its record; None once a limit is reached, and `stop_reason` says which."""
        self.stop_reason = self._reason_to_stop()
        if self.stop_reason is not None:
            return None
        started = self._clock()
        decision, plans = self._planner.plan(self.progress, self._observed)
        self._charge(plans)  # before dispatch: a requested round counts as spent, whatever comes back
        updates = self._dispatch(plans)
        done = _as_done(plans, updates)
        laws = honest_laws(done, len(self.server.params), self._sizes)
        rejected = self._defence.rejections(updates, laws, self.server)
        accepted = [update for update in updates if update.client not in rejected]
        aggregated = len(accepted) >= self._server_settings.least_updates(len(plans))
        if aggregated:
            self._aggregate(accepted, done, laws)
        self._advance(plans, len(updates))
        record = self._record(decision, plans, updates, rejected, aggregated)
        self.stop_reason = self._reason_to_stop()
        record = self._evaluated(record)
        seconds, before = self._clock() - started, self.progress  # of the whole round, evaluation included
        slowest = max(before.slowest_round, seconds)
        self.progress = replace(before, seconds=before.seconds + seconds, slowest_round=slowest)
        self.stop_reason = self._reason_to_stop()
        return record

    def next_plans(self) -> list[ClientPlan] | None:
        """Return the plans of the next round, or None if there is none. Nothing is charged."""
        return None if self._reason_to_stop() is not None else self._planner.plan(self.progress, self._observed)[1]

    def outlook(self) -> Outlook | None:
        """Return public numbers about the next round, or None if there is none."""
        if (plans := self.next_plans()) is None:
            return None
        longest = max(plans, key=lambda plan: plan.steps)
        left, rate = self._ledger.affordable_steps(longest.client, longest.noise_multiplier), longest.sample_rate
        return Outlook(charged_by=longest.release, left=left, local_steps=longest.steps, sample_rate=rate)

    def forfeit_round(self) -> None:
        """Charge a lost round without running it, and its evaluation: it may have released something."""
        if (plans := self.next_plans()) is not None:
            self._charge(plans)
            if self.private_evaluation is not None:
                self.private_evaluation.forfeit(self.progress.round + 1, may_be_last=self._lost_may_be_last())

    def _lost_may_be_last(self) -> bool:
        """Return whether no round may have followed a lost one, which is charged. In doubt, return True.

        Its plans, and so its charges, followed from the state that is restored now. So did the number of the next
        round, and whether a client can pay for that one. Three things are lost with the round: its time, its traffic,
        and the noise of the next round if the method adapts it to what came.
        """
        limits = (self.settings.time_limit, self.settings.traffic_limit)
        if self._method.adapts_noise or any(limit is not None for limit in limits):
            return True
        after = replace(self.progress, round=self.progress.round + 1)
        return self._planner.reason_to_stop(after, self._observed.method_state) is not None

    def close(self) -> None:
        """End the worker processes or connections of the engine; the next round would start them again."""
        self._engine.close()

    @property
    def model(self) -> nn.Module:
        """A copy of the model with the current weights, in evaluation mode."""
        model = copy.deepcopy(self._model).eval()
        load(self.params, trained(model))
        return model

    def evaluate(self, part: Part = "test") -> Evaluation | None:
        """Return loss and metrics of the current weights, or None if that part of the data was not given."""
        return self._engine.evaluate(self.params, part)

    def named_params(self) -> Mapping[str, Tensor]:
        """Return the model's whole state by name, with frozen parts and buffers, as a file should hold it."""
        with torch.no_grad():
            return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    def check_time_limit(self) -> None:
        """Refuse a time limit that the first round alone would cross, as far as a rehearsal can tell."""
        limit = self.settings.time_limit
        if limit is None or (plans := self.next_plans()) is None:
            return
        needed = self._engine.seconds_for(self.server.params, plans)
        if limit < needed:
            raise ConfigError(
                f"time_limit={limit:g} (seconds) does not pay for one round, which takes about {needed:.2g} here; set "
                f"at least {math.ceil(2 * needed)}, or leave it out"
            )

    @property
    def params(self) -> Tensor:
        """(num_params,) the weights to evaluate and release."""
        return self.server.released(self._server_settings)

    @property
    def covers_everything(self) -> bool:
        """False if un-noised values are used or shown. Then ε does not cover the run."""
        return not (self._planner.uses_raw_signals or self.settings.shows_private_data)

    @property
    def epsilons(self) -> dict[ClientId, float]:
        """ε spent by every client so far, as tight as the accountant gives it."""
        return {client: self._ledger.epsilon(client) for client in self._sizes}

    def _reason_to_stop(self) -> StopReason | None:
        return self._planner.reason_to_stop(self.progress, self._observed.method_state)

    # ----------------------------------------------------------------------------------------- parts of a round

    def _charge(self, plans: Sequence[ClientPlan]) -> None:
        for plan in plans:
            rate = 1.0 if plan.release == "update" else plan.sample_rate
            units = self._planner.units(plan.steps)
            self._ledger.charge(plan.client, units, plan.noise_multiplier, sample_rate=rate)
        spent = max(self._ledger.epsilon_bound(plan.client) for plan in plans)
        self.progress = replace(self.progress, epsilon=max(self.progress.epsilon, spent))

    def _dispatch(self, plans: Sequence[ClientPlan]) -> list[ClientUpdate]:
        lost = self._planner.failures(self.progress.round, [plan.client for plan in plans])
        answering = [plan for plan in plans if plan.client not in lost]
        return self._engine.train(self.server.params, answering) if answering else []

    def _aggregate(
        self, accepted: Sequence[ClientUpdate], plans: Sequence[ClientPlan], laws: Mapping[ClientId, HonestLaw]
    ) -> None:
        """Move the model, and update what the next round's plan may depend on."""
        shares, before = self._shares([u.client for u in accepted]), self.server.params
        found = self._defence.averaged(accepted, shares, laws, before)
        self.server = server.step(self.server, found.update, self._server_settings)
        if self._policy.needs_curvature:
            by_client = {plan.client: plan for plan in plans}
            weights, mean = found.weights or shares, found.update if found.weights else None
            arrived = [(weight, by_client[u.client], u) for weight, u in zip(weights, accepted, strict=True)]
            self._curvature = self._curvature.observe(before, mean, arrived, self._sizes)
        observed = replace(self._observed, curvature=self._curvature.estimate.value)
        raw = [(share, u.raw) for share, u in zip(shares, accepted, strict=True) if u.raw is not None]
        if raw:
            gap = sum(share * (r.loss_before - r.loss_after) for share, r in raw)
            curvature = sum(share * r.curvature for share, r in raw)
            observed = replace(observed, raw_curvature=curvature, raw_heterogeneity=max(0.0, gap))
        public = self._engine.evaluate(self.params, "validation") if self._method.needs_public_loss else None
        loss = public.loss if public else None
        self._observed = replace(observed, method_state=self._method.observe(observed.method_state, accepted, loss))

    def _shares(self, clients: Sequence[ClientId]) -> list[float]:
        settings = self._server_settings
        return server.shares(self._counted, clients, settings.max_client_weight, settings.weight_exponent)

    def _advance(self, plans: Sequence[ClientPlan], arrived: int) -> None:
        before, steps = self.progress, max(plan.steps for plan in plans)
        self.progress = replace(
            before,
            round=before.round + 1,
            local_steps=before.local_steps + steps,
            previous_steps=steps,
            bytes=before.bytes + (len(plans) + arrived) * BYTES_PER_NUMBER * len(self.server.params),
        )

    def _record(
        self,
        decision: Decision,
        plans: Sequence[ClientPlan],
        updates: Sequence[ClientUpdate],
        rejected: Mapping[ClientId, str],
        aggregated: bool,
    ) -> RoundRecord:
        arrived = {update.client for update in updates}
        return RoundRecord(
            round=plans[0].round,
            local_steps=decision.local_steps,
            steps=self.progress.local_steps,
            why=decision.why,
            learning_rate=plans[0].learning_rates[0],
            clip_norm=sum(plan.clip_norm for plan in plans) / len(plans),
            noise_multiplier=plans[0].noise_multiplier,
            epsilon=self.progress.epsilon,
            client_epsilon={plan.client: self._ledger.epsilon_bound(plan.client) for plan in plans},
            covers_everything=self.covers_everything,
            dropped=tuple(plan.client for plan in plans if plan.client not in arrived),
            cut={update.client: update.steps for update in updates if update.steps is not None},
            rejected=rejected,
            aggregated=aggregated,
            bytes=self.progress.bytes,
            curvature=decision.curvature,
            heterogeneity=decision.heterogeneity,
        )

    def _evaluated(self, record: RoundRecord) -> RoundRecord:
        self.last_evaluation = None
        if self.private_evaluation is not None:
            return self._privately_evaluated(record, self.private_evaluation)
        if self.stop_reason is None and self.progress.round % self.settings.evaluate_every:
            return record
        found = self.last_evaluation = self._engine.evaluate(self.params, "test")
        if found is None:
            return record
        return replace(record, accuracy=found.accuracy, loss=found.loss, metrics=dict(found.measures.values))

    def _privately_evaluated(self, record: RoundRecord, private: PrivateEvaluation) -> RoundRecord:
        plans = private.plans(self.progress.round, is_last=self.stop_reason is not None)  # charged before dispatch
        if not plans:
            return record
        released = self._engine.release(self.params, plans)
        private.take(plans, released)
        traffic = len(plans) * len(self.server.params) + sum(len(one.values) for one in released)
        self.progress = replace(self.progress, bytes=self.progress.bytes + BYTES_PER_NUMBER * traffic)
        found = self.last_evaluation = private.evaluation(self.progress.round)
        if found is None:
            return record
        return replace(
            record,
            accuracy=found.accuracy,
            loss=found.loss,
            metrics=dict(found.measures.values),
            intervals=dict(found.measures.intervals),
            held_out=found.held_out,
        )

    # ---------------------------------------------------------------------------------------------- checkpoints

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return everything that a resumed run needs: tensors, and plain values for JSON."""
        curvature, tensors = self._curvature.to_state()
        history, sums = self._defence.history.to_state()
        observed = self._observed
        values = {
            "progress": asdict(self.progress),
            "num_averaged": self.server.num_averaged,
            "ledger": self._ledger.to_json(),
            "curvature": curvature,
            "raw": [observed.raw_curvature, observed.raw_heterogeneity],
            "method": observed.method_state,
            "history": history,
        }
        if self.private_evaluation is not None:
            values["private_evaluation"] = self.private_evaluation.to_json()
        return self.server.tensors() | tensors | sums, values

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""
        self.progress = Progress(**values["progress"])
        self._ledger.restore(values["ledger"])
        self._curvature = CurvatureTracker.from_state(values["curvature"], tensors)
        raw_curvature, raw_heterogeneity = values["raw"]
        self._observed = Observed(
            method_state=values["method"],
            curvature=self._curvature.estimate.value,
            raw_curvature=raw_curvature,
            raw_heterogeneity=raw_heterogeneity,
        )
        self.server = ServerState.restored(tensors, values["num_averaged"])
        self._defence.history.restore(values.get("history", {}), tensors)  # older checkpoints have none
        if self.private_evaluation is not None:
            self.private_evaluation.restore(values["private_evaluation"])
            self.last_evaluation = self.private_evaluation.evaluation(self.progress.round)


def _as_done(plans: Sequence[ClientPlan], updates: Sequence[ClientUpdate]) -> list[ClientPlan]:
    """Return the plans as they were carried out: a vault may have cut its steps. The charge stays."""
    run = {update.client: update.steps for update in updates if update.steps is not None}
    return [
        replace(plan, learning_rates=plan.learning_rates[: max(1, run[plan.client])]) if plan.client in run else plan
        for plan in plans
    ]
