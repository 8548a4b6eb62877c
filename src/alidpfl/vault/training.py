"""Training on the owner's records. No other part of a vault sees them.

The code is the `LocalTrainer` of a simulation. The difference is the randomness, which comes from the system.
"""

import copy
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from operator import attrgetter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from alidpfl.dpsgd import RandomStream, cross_entropy
from alidpfl.errors import DataError
from alidpfl.federation.client import ClientData, LocalTrainer, check_grid, training_stream
from alidpfl.federation.noise_law import largest_batch
from alidpfl.federation.tensors import flatten, num_params, trained
from alidpfl.methods import make_method
from alidpfl.models import make_model
from alidpfl.types import ClientPlan, ClientUpdate, NoiseKind, Signal
from alidpfl.vault.enrolment import Enrolment, content_hash
from alidpfl.vault.messages import RoundRequest
from alidpfl.vault.policy import Policy
from alidpfl.vault.refusals import RefusalCode, refusal
from alidpfl.vault.rounds import Job
from alidpfl.vault.slots import Cost, upper

_LOSSES_KEPT = 2  # each keeps a copy of the model
_TRIAL_SECONDS, _FEWEST_TRIALS, _MOST_TRIALS = 0.2, 3, 30
_TRIAL_RECORDS, _TRIAL_RATE = 256, 0.1
_NOISED_SIGNALS: frozenset[Signal] = frozenset({"secants", "gradient_norm"})
_LOG_ODDS = math.log(1e9)  # a batch larger than those that slots are measured with comes once in a billion steps


class RecordTrainer:
    """Trains on the owner's records."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Tensor,
        targets: Tensor,
        *,
        seed: int | None,
        noise: NoiseKind = "gaussian",
        run_of: Callable[[RoundRequest], str | None] = attrgetter("run"),
    ) -> None:
        """Hold the records of one owner.

        Args:
            model: the enrolled model; it is copied for every loss.
            inputs: the records' inputs.
            targets: the records' labels.
            seed: makes noise repeatable, for comparing with a simulation; None for fresh entropy in every round.
            noise: "grid" for exact noise, one record at a time.
            run_of: returns the run that seeded noise is keyed by. For a vault it is the request's.
        """
        self._model, self._seed, self._noise, self._run_of = model, seed, noise, run_of
        self._data = ClientData(inputs=inputs, targets=targets, rows=torch.arange(len(targets)))
        self._trainers: OrderedDict[str, LocalTrainer] = OrderedDict()

    def job(self, request: RoundRequest) -> Job:
        """Prepare the request's loss. The trial of the model uses made-up samples, not records."""
        return partial(self._trained, self._trainer(request), self._run_of(request))

    def cost(self, request: RoundRequest) -> Cost:
        """Measure a request's round and step on made-up records, with the largest batch that is likely at its q."""
        trainer, data = self._trainer(request), self._made_up()
        rate = math.ceil(largest_batch(len(data), request.sample_rate, _LOG_ODDS)) / len(data)
        plan = replace(request.plan(1), sample_rate=rate, signals=_NOISED_SIGNALS | request.plan(1).signals)
        params = flatten(trained(self._model))

        def seconds(steps: int) -> float:
            started = time.monotonic()
            random = RandomStream.secure()
            trainer.train(params, data, replace(plan, learning_rates=(_TRIAL_RATE,) * steps), random)
            return time.monotonic() - started

        seconds(2)  # the first steps allocate memory
        rounds: list[float] = []
        pairs: list[float] = []  # of steps, because one step has no secant
        end = time.monotonic() + _TRIAL_SECONDS
        while len(pairs) < _FEWEST_TRIALS or (time.monotonic() < end and len(pairs) < _MOST_TRIALS):
            rounds.append(seconds(0))
            pairs.append(seconds(2))
        # A few of the pairs hold a trial for mixing. Every round has room for one.
        return Cost(round=upper(rounds) + max(pairs) - upper(pairs), step=upper(pairs) / 2)

    def _made_up(self) -> ClientData:
        """Return made-up records, as many as there are records. They share a few rows of memory."""
        records, random = self._data, torch.Generator().manual_seed(0)
        count = min(len(records), _TRIAL_RECORDS)
        return ClientData(
            inputs=torch.randn((count, *records.inputs.shape[1:]), generator=random).to(records.inputs.dtype),
            targets=torch.zeros((count, *records.targets.shape[1:]), dtype=records.targets.dtype),
            rows=torch.arange(len(records)) % count,
        )

    def _trainer(self, request: RoundRequest) -> LocalTrainer:
        options = {} if request.options is None else request.options.model_dump()
        method = make_method(request.method, clip_norm=1.0, noise_multiplier=1.0, **options)
        if method.release != request.release:  # what is charged must be what is done
            raise refusal(RefusalCode.POLICY, f"{request.method} does not add its noise to the {request.release}")
        if self._noise == "grid":
            check_grid(request.release, request.noise_multiplier, num_params(trained(self._model)))
        key = "plain" if request.method != "pe_dpfl" else str(sorted(options.items()))
        if key not in self._trainers:
            objective = method.objective(copy.deepcopy(self._model).train(), cross_entropy)
            trainer = LocalTrainer(objective, noise=self._noise)
            trainer.rehearse(self._data)
            self._trainers[key] = trainer
        self._trainers.move_to_end(key)
        while len(self._trainers) > _LOSSES_KEPT:
            self._trainers.popitem(last=False)
        return self._trainers[key]

    def _trained(
        self, trainer: LocalTrainer, run: str | None, weights: NDArray[np.float32], plan: ClientPlan
    ) -> ClientUpdate:
        random = training_stream(self._seed, run, plan)  # with a seed, the keys are those of a simulation
        return trainer.train(torch.from_numpy(weights), self._data, plan, random)


def load_trainer(enrolment: Enrolment, policy: Policy) -> RecordTrainer:
    """Load the records and build the model. Raise DataError if the records are not the enrolled ones."""
    records, num_classes = enrolment.source.load()
    if content_hash(records) != enrolment.data_sha256:
        raise DataError(
            "the records are not the enrolled ones: their content, order or scaling changed. Put them back. Changed "
            "records are a new data set with its own ledger, and a person in both data sets spends in both"
        )
    shape, model = tuple(enrolment.input_shape), policy.model
    built = make_model(model.name, shape, num_classes, hidden=model.hidden, seed=0)
    return RecordTrainer(built, records.inputs, records.targets, seed=policy.seed, noise=policy.noise)
