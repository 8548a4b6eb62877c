"""Statistics that every client releases before the first round, and the data set that they standardise.

`data.standardise = "private"` takes one release and standardises the rows of a table. The features of `scatter_linear`
take two. Both are charged: see `releases_before` in prepare.py.
"""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from alidpfl.config.schema import Config
from alidpfl.data import Dataset, LabelledData
from alidpfl.data.table_sums import noised_sum_of_rows
from alidpfl.errors import ConfigError
from alidpfl.features import vector_size
from alidpfl.federation.client import release_stream
from alidpfl.federation.planning import BYTES_PER_NUMBER
from alidpfl.runs.features import Statistics, featured, features_bytes, map_for
from alidpfl.simulation.runner import SimulationData
from alidpfl.tables.schema import Schema
from alidpfl.tables.standardise import RowStandardiser, standardising_layout
from alidpfl.types import OnProgress


def with_statistics(
    config: Config,
    dataset: Dataset,
    data: SimulationData,
    statistics: Statistics | None = None,
    on_progress: OnProgress | None = None,
) -> tuple[Dataset, Statistics]:
    """Return the data set that the model learns from, and the statistics.

    Args:
        config: settings of the run.
        dataset: images or encoded rows.
        data: rows of each client, by person if that is the unit of privacy. Other rows are not in the statistics.
        statistics: those that the run has released already; None to release them now.
        on_progress: told about slow steps.
    """
    if config.has_features:
        return featured(config, dataset, data.clients, statistics, on_progress)
    schema = schema_of(dataset)
    if statistics is None:
        standardiser = _released(config, schema, data)
    else:
        standardiser = RowStandardiser.from_arrays(schema, statistics, "statistics.safetensors")
    return with_rows(dataset, standardiser), tensors_of(standardiser)


def statistics_bytes(config: Config, dataset: Dataset) -> int:
    """Return the traffic of one client before the first round: its sums up, the statistics down."""
    if config.has_features:
        return features_bytes(map_for(config, dataset.input_shape))
    schema = schema_of(dataset)
    return BYTES_PER_NUMBER * (standardising_layout(schema).size + 2 * schema.width)


def learned_shape(config: Config, dataset: Dataset) -> tuple[int, ...]:
    """Return the shape of the inputs that the model learns from."""
    return (vector_size(map_for(config, dataset.input_shape)),) if config.has_features else dataset.input_shape


def schema_of(dataset: Dataset) -> Schema:
    """Return the schema of a table."""
    if dataset.encoder is None:
        raise ConfigError(f'data.standardise="private" is for tables, and data.name="{dataset.name}"; leave it out')
    return dataset.encoder.schema


def with_rows(dataset: Dataset, standardiser: RowStandardiser) -> Dataset:
    """Return the data set with standardised rows, for training and for testing."""

    def moved(part: LabelledData) -> LabelledData:
        return replace(part, inputs=torch.from_numpy(standardiser.rows(part.inputs.numpy())))

    return replace(dataset, train=moved(dataset.train), test=moved(dataset.test))


def tensors_of(standardiser: RowStandardiser) -> dict[str, Tensor]:
    """Return what is stored with the run and the model."""
    return {name: torch.from_numpy(values) for name, values in standardiser.arrays.items()}


def _released(config: Config, schema: Schema, data: SimulationData) -> RowStandardiser:
    layout, privacy = standardising_layout(schema), config.privacy
    seed = config.run.seed if config.run.randomness == "seeded" else None
    inputs, total = data.inputs.numpy(), np.zeros(layout.size)
    for client, rows in enumerate(data.clients):
        own = noised_sum_of_rows(
            inputs if data.groups else inputs[rows.numpy()],
            None,
            layout,
            groups=data.groups[client] if data.groups else None,
            max_records=data.max_records,
            noise_multiplier=privacy.statistics_noise,
            random=release_stream(seed, config.run.name, 0, client, "statistics"),  # as in a vault
            noise=privacy.noise,
        )
        total += own.double().numpy()
    noise = privacy.statistics_noise * layout.sensitivity * math.sqrt(len(data.clients))
    return RowStandardiser.from_sum(schema, total, sum(data.sizes), noise)
