"""Training on the owner's records. No other part of a vault sees them.

The code is the `LocalTrainer` of a simulation. The difference is the randomness, which comes from the system.
"""

import copy
from collections import OrderedDict
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from alidpfl.dpsgd import RandomStream, cross_entropy
from alidpfl.errors import DataError
from alidpfl.federation.client import ClientData, LocalTrainer, check_grid
from alidpfl.federation.tensors import num_params, trained
from alidpfl.methods import make_method
from alidpfl.models import make_model
from alidpfl.types import ClientPlan, ClientUpdate, NoiseKind
from alidpfl.vault.enrolment import Enrolment, content_hash
from alidpfl.vault.messages import RoundRequest
from alidpfl.vault.policy import Policy
from alidpfl.vault.refusals import RefusalCode, refusal
from alidpfl.vault.rounds import Job

_LOSSES_KEPT = 2  # each keeps a copy of the model


class RecordTrainer:
    """Trains on the owner's records.

    Args:
        model: the enrolled model; it is copied for every loss.
        inputs: the records' inputs.
        targets: the records' labels.
        seed: seed of the noise, to compare with a simulation. None draws fresh entropy for every round.
        noise: kind of the noise.
    """

    def __init__(
        self, model: nn.Module, inputs: Tensor, targets: Tensor, *, seed: int | None, noise: NoiseKind = "gaussian"
    ) -> None:
        """Hold the records of one owner.

        Args:
            model: what is trained; it is copied.
            inputs: the records.
            targets: their classes.
            seed: makes noise repeatable, for comparing with a simulation; None for fresh entropy in every round.
            noise: "grid" for exact noise, one record at a time.
        """
        self._model, self._seed, self._noise = model, seed, noise
        self._data = ClientData(inputs=inputs, targets=targets, rows=torch.arange(len(targets)))
        self._trainers: OrderedDict[str, LocalTrainer] = OrderedDict()

    def job(self, request: RoundRequest) -> Job:
        """Prepare the request's loss. The trial of the model uses made-up samples, not records."""
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
        return partial(self._trained, self._trainers[key])

    def _trained(self, trainer: LocalTrainer, weights: NDArray[np.float32], plan: ClientPlan) -> ClientUpdate:
        seed = self._seed  # if there is one, the noise has the keys of a simulation
        random = RandomStream.secure() if seed is None else RandomStream.seeded(seed, plan.round, plan.client)
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
