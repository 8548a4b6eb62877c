"""A node of Flower's simulator: no vault, a share of the run's own data set, noise from the run's seed. Not private."""

import functools
import json
from collections.abc import Mapping
from typing import Any

import torch

from alidpfl.config.load import parse_config
from alidpfl.config.schema import Config
from alidpfl.data import Dataset
from alidpfl.errors import ConfigError
from alidpfl.federation.tensors import trained
from alidpfl.flower.config import Scalar, from_run_config
from alidpfl.runs.data import load_data, simulation_data
from alidpfl.runs.prepare import build_model
from alidpfl.simulation.runner import SimulationData
from alidpfl.vault import messages
from alidpfl.vault.messages import RoundAnswer
from alidpfl.vault.policy import SEEDED_NOISE
from alidpfl.vault.training import RecordTrainer

_TRAINERS_KEPT = 64
_PLENTY = 1_000_000_000


class SimulatedNode:
    """Answers as a vault would, without its ledger: the server's accounts are all there is."""

    def __init__(self, config: Config, partition: int) -> None:
        self._text, self._partition, self._release = json.dumps(config.to_dict()), partition, config.release
        dataset, data = _loaded(self._text)
        if not 0 <= partition < len(data.clients):
            raise ConfigError(f"partition-id={partition}: the data set has {len(data.clients)} clients, from 0")
        self._dataset, self._num_records = dataset, len(data.clients[partition])

    def info(self) -> dict[str, Any]:
        """As a vault's, with nothing to refuse."""
        model = _model(self._text)
        return {
            "vault": f"simulated-{self._partition}",
            "num_records": self._num_records,
            "num_classes": self._dataset.num_classes,
            "input_shape": list(self._dataset.input_shape),
            "parameters": [[name, list(values.shape)] for name, values in trained(model).items()],
            "terms": {"sample_rate": 1.0, "min_noise_multiplier": 0.0, "release": self._release},
            "limits": {"min_clip_norm": 0.0, "max_clip_norm": 1e6, "max_steps_per_round": 1_000_000},
            "unsafe": [SEEDED_NOISE],
        }

    def train_bytes(self, content: bytes) -> bytes:
        """A round, by the same code and encoding as a vault's."""
        request, weights = messages.decode_request(content)
        shapes = {name: tuple(values.shape) for name, values in trained(_model(self._text)).items()}
        messages.check_weights(weights, shapes)
        job = _trainer(self._text, self._partition).job(request)
        update = job(messages.flat(weights, shapes), request.plan(request.steps))
        answer = RoundAnswer(
            run=request.run,
            round=request.round,
            client=request.client,
            request=messages.request_digest(request, weights),
            steps=request.steps,
            steps_left=_PLENTY,
            num_records=self._num_records,
            secants=update.secants,
            gradient_norm=update.gradient_norm,
            raw=update.raw if "raw" in request.signals else None,
            unsafe=[SEEDED_NOISE],
        )
        return messages.encode(answer, messages.named(update.params, shapes))


def simulated_node(run_config: Mapping[str, Scalar], partition: int) -> SimulatedNode:
    """The node of this partition, in the run's configuration."""
    return SimulatedNode(from_run_config(run_config)[0], partition)


# A simulator's process answers for many nodes, one after the other: data and models are loaded once.


@functools.lru_cache(maxsize=1)
def _loaded(text: str) -> tuple[Dataset, SimulationData]:
    config = parse_config(json.loads(text))
    dataset = load_data(config)
    return dataset, simulation_data(config, dataset)


@functools.lru_cache(maxsize=1)
def _model(text: str) -> torch.nn.Module:
    dataset, _ = _loaded(text)
    return build_model(parse_config(json.loads(text)), dataset.input_shape, dataset.num_classes)


@functools.lru_cache(maxsize=_TRAINERS_KEPT)
def _trainer(text: str, partition: int) -> RecordTrainer:
    data = _loaded(text)[1]
    rows, seed = data.clients[partition], parse_config(json.loads(text)).run.seed
    return RecordTrainer(_model(text), data.inputs[rows], data.targets[rows], seed=seed)
