"""The only part of a vault that sees records: the same `LocalTrainer` as in a simulation, with the system's entropy."""

import copy
from collections import OrderedDict
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from alidpfl.dpsgd import RandomStream
from alidpfl.errors import DataError
from alidpfl.federation.client import ClientData, LocalTrainer, check_grid
from alidpfl.federation.tensors import num_params, trained
from alidpfl.methods import make_method
from alidpfl.models import make_model
from alidpfl.types import ClientPlan, NoiseKind
from alidpfl.vault.enrolment import Enrolment, content_hash
from alidpfl.vault.messages import NoisedUpdate, RoundRequest
from alidpfl.vault.policy import Policy
from alidpfl.vault.refusals import RefusalCode, refusal
from alidpfl.vault.rounds import Job

_LOSSES_KEPT = 2  # one copy of the model each


class RecordTrainer:
    """Trains on the owner's records."""

    def __init__(
        self, model: nn.Module, inputs: Tensor, targets: Tensor, *, seed: int | None, noise: NoiseKind = "gaussian"
    ) -> None:
        """`seed` None, but in comparisons with a simulation: fresh entropy for every round, kept nowhere."""
        self._model, self._seed, self._noise = model, seed, noise
        self._data = ClientData(inputs=inputs, targets=targets, rows=torch.arange(len(targets)))
        self._trainers: OrderedDict[str, LocalTrainer] = OrderedDict()

    def job(self, request: RoundRequest) -> Job:
        """Make the request's loss ready; its trial runs on made-up samples."""
        options = {} if request.options is None else request.options.model_dump()
        method = make_method(request.method, clip_norm=1.0, noise_multiplier=1.0, **options)
        if method.release != request.release:  # what is charged must be what is done
            raise refusal(RefusalCode.POLICY, f"{request.method} does not put its noise on the {request.release}")
        if self._noise == "grid":
            check_grid(request.release, request.noise_multiplier, num_params(trained(self._model)))
        key = "plain" if request.method != "pe_dpfl" else str(sorted(options.items()))
        if key not in self._trainers:
            trainer = LocalTrainer(method.objective(copy.deepcopy(self._model).train()), noise=self._noise)
            trainer.rehearse(self._data)
            self._trainers[key] = trainer
        self._trainers.move_to_end(key)
        while len(self._trainers) > _LOSSES_KEPT:
            self._trainers.popitem(last=False)
        return partial(self._trained, self._trainers[key])

    def _trained(self, trainer: LocalTrainer, weights: NDArray[np.float32], plan: ClientPlan) -> NoisedUpdate:
        update = trainer.train(torch.from_numpy(weights), self._data, plan, self._random(plan))
        return NoisedUpdate(
            params=update.params.numpy(),
            secants=update.secants,
            gradient_norm=update.gradient_norm,
            raw=update.raw,
        )

    def _random(self, plan: ClientPlan) -> RandomStream:
        if self._seed is None:
            return RandomStream.secure()
        return RandomStream.seeded(self._seed, plan.round, plan.client)  # as a simulation keys it


def load_trainer(enrolment: Enrolment, policy: Policy) -> RecordTrainer:
    """Load the records, which must be those that were enrolled."""
    records, num_classes = enrolment.source.load()
    if content_hash(records) != enrolment.data_sha256:
        raise DataError(
            "the data are not those that were enrolled: another content, order or scaling. Put them back; changed "
            "records are a data set of their own, with a ledger of its own, and whoever is in both spends in both"
        )
    shape, model = tuple(enrolment.input_shape), policy.model
    built = make_model(model.name, shape, num_classes, hidden=model.hidden, seed=0)
    return RecordTrainer(built, records.inputs, records.targets, seed=policy.seed, noise=policy.noise)
