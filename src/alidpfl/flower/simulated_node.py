"""A node of Flower's simulator: it has no vault, but a share of the run's data set and seeded noise. Not private."""

import functools
import json
from typing import Any

from torch import nn

from alidpfl.config.load import parse_config
from alidpfl.config.schema import Config
from alidpfl.data import Dataset
from alidpfl.errors import ConfigError
from alidpfl.federation.tensors import trained
from alidpfl.runs.data import load_data, simulation_data
from alidpfl.runs.prepare import build_model, configured_loss
from alidpfl.simulation.runner import SimulationData
from alidpfl.types import loss_for
from alidpfl.vault import messages
from alidpfl.vault.messages import ReleaseRequest
from alidpfl.vault.policy import SEEDED_NOISE
from alidpfl.vault.refusals import RefusalCode, refusal
from alidpfl.vault.training import RecordTrainer

_TRAINERS_KEPT = 64  # a simulator's process answers for many nodes, one after the other
_PLENTY = 1_000_000_000


class SimulatedNode:
    """Answers like a vault, but without a ledger: only the server keeps accounts."""

    def __init__(self, config: Config, partition: int) -> None:
        """Load the partition's records.

        Raises:
            ConfigError: the data set may be private. Whoever submits the run chooses it, and only a vault refuses.
        """
        if config.has_private_data:
            raise ConfigError(f"data.name={config.data.name!r}: a simulation takes public data sets; use a vault")
        self._text, self._partition, self._release = json.dumps(config.to_dict()), partition, config.release
        self._model = config.model
        self._dataset, data, model = _loaded(self._text)
        if not 0 <= partition < len(data.clients):
            raise ConfigError(f"partition-id={partition} must be below {len(data.clients)}, the number of clients")
        self._num_records = len(data.clients[partition])
        self._shapes = {name: tuple(values.shape) for name, values in trained(model).items()}

    def info(self) -> dict[str, Any]:
        """Return what a vault would make public, with terms that refuse nothing."""
        return {
            "vault": f"simulated-{self._partition}",
            "num_records": self._num_records,
            "num_classes": self._dataset.num_classes,
            "kind": self._dataset.kind,
            "num_outputs": self._dataset.num_outputs,
            "loss": loss_for(self._dataset.kind, self._model.loss),
            "quantile": self._model.quantile,
            "input_shape": list(self._dataset.input_shape),
            "parameters": [[name, list(shape)] for name, shape in self._shapes.items()],
            "terms": {"sample_rate": 1.0, "min_noise_multiplier": 0.0, "release": self._release},
            "limits": {"min_clip_norm": 0.0, "max_clip_norm": 1e6, "max_steps_per_round": 1_000_000},
            "unsafe": [SEEDED_NOISE],
        }

    def release_bytes(self, content: bytes) -> bytes:
        """Refuse: a share of a public data set holds no records out."""
        raise refusal(RefusalCode.POLICY, "a simulated node holds no records out")

    def train_bytes(self, content: bytes) -> bytes:
        """Return the answer to an encoded request, by the same code as a vault's."""
        request, weights = messages.decode_request(content)
        if isinstance(request, ReleaseRequest):
            return self.release_bytes(content)
        messages.check_weights(weights, self._shapes)
        job = _trainer(self._text, self._partition).job(request)
        return messages.encode_update(
            job(messages.flat(weights, self._shapes), request.plan(request.steps)),
            request,
            digest=messages.request_digest(request, weights),
            steps=request.steps,
            steps_left=_PLENTY,
            num_records=self._num_records,
            unsafe=[SEEDED_NOISE],
            shapes=self._shapes,
        )


@functools.lru_cache(maxsize=1)
def _loaded(text: str) -> tuple[Dataset, SimulationData, nn.Module]:
    config = parse_config(json.loads(text))
    dataset = load_data(config)
    model = build_model(config, dataset.input_shape, dataset.num_outputs)
    return dataset, simulation_data(config, dataset), model


@functools.lru_cache(maxsize=_TRAINERS_KEPT)
def _trainer(text: str, partition: int) -> RecordTrainer:
    dataset, data, model = _loaded(text)
    config = parse_config(json.loads(text))
    rows, run, loss = data.clients[partition], config.run, configured_loss(config, dataset.kind)
    # Without a name, the noise is that of a simulation without a name: the server's random name could not be repeated.
    inputs, targets = data.inputs[rows], data.targets[rows]
    return RecordTrainer(model, inputs, targets, seed=run.seed, loss=loss, run_of=lambda _: run.name)
