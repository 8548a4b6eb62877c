"""The data of a run: training records by client, and what may be evaluated on."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from alidpfl.config.schema import Config
from alidpfl.data import Dataset, held_out_rows, load
from alidpfl.data.own import load_public_npz
from alidpfl.data.partition import client_rows, label_counts
from alidpfl.data.persons import ROW_LEVEL
from alidpfl.data.table import NO_SCHEMA, load_public_table, output_range, target_unit, trainable_schema
from alidpfl.dpsgd import Groups
from alidpfl.errors import ConfigError
from alidpfl.federation.client import ClientData
from alidpfl.federation.settings import Part
from alidpfl.simulation.runner import SimulationData
from alidpfl.tables.encode import Encoder
from alidpfl.tables.held_out import new_key
from alidpfl.types import OnProgress


def secret_key(config: Config) -> bytes | None:
    """Return a new secret key for the held-out rows of a table; None if the run is seeded or trains on no table."""
    return new_key() if config.data.name == "table" and config.run.randomness == "secure" else None


def load_data(config: Config, on_progress: OnProgress | None = None, key: bytes | None = None) -> Dataset:
    """Load the configured data set. A table holds rows out by `key`, by default by a new secret or the seed."""
    data = config.data
    options: dict[str, Any] = dict(data.loader_options)
    if data.name == "synthetic":
        options |= {"clients": data.clients, "alpha": data.alpha, "beta": data.beta}
    elif data.name == "npz" and data.num_classes is not None:
        options |= {"num_classes": data.num_classes}
    elif data.name == "table":
        options |= {"schema_file": data.schema_file, "files": data.files, "key": key or secret_key(config)}
        options["loss"] = config.model.loss
    return load(
        data.name,
        data_dir=Path(data.data_dir) if data.data_dir else None,
        seed=config.run.seed if data.name == "synthetic" or config.has_private_data else 0,
        pixel_range=data.pixel_range,
        on_progress=on_progress,
        **options,
    )


def table_encoder(config: Config) -> Encoder | None:
    """Return the encoder of the configured schema; None for data that are no tables. No row is read."""
    if config.data.name != "table":
        return None
    if config.data.schema_file is None:
        raise ConfigError(NO_SCHEMA)
    return Encoder(trainable_schema(config.data.schema_file, config.model.loss))


def server_data(config: Config) -> Dataset | None:
    """Return what a deployment's server can evaluate on: a public data set, or public rows of a table, if any."""
    encoder, data = table_encoder(config), config.data
    folder = Path(data.data_dir) if data.data_dir else None
    if data.name == "npz":
        return load_public_npz(folder, data.pixel_range, data.num_classes)
    if encoder is None:
        return load_data(config)
    if not data.files and data.data_dir is None:
        return None
    folder = Path(data.data_dir) if data.data_dir else None
    return load_public_table(encoder, data.files, folder, config.model.loss)


def simulation_data(config: Config, dataset: Dataset) -> SimulationData:
    """Return every client's rows, and the data to evaluate on."""
    data, train, files = config.data, dataset.train, len(dataset.natural_clients or ())
    if data.name in ("npz", "table") and "clients" in data.model_fields_set and data.clients != files:
        raise ConfigError(f"data.clients={data.clients}: there are {files}, one a file; leave it out")
    private, _ = validation_split(config, dataset)
    clients = client_rows(
        dataset,
        config.partition,
        clients=data.clients,
        dirichlet_beta=data.dirichlet_beta,
        seed=config.run.seed,
        min_samples=data.min_samples,
        among=private,
    )
    evaluation = evaluation_data(config, dataset)
    groups = client_groups(config, dataset, clients)
    return SimulationData(
        inputs=train.inputs,
        targets=train.targets,
        clients=clients,
        evaluation=evaluation,
        held_out=held_out_data(config, dataset),
        groups=groups,
        max_records=config.max_records or 1,
        **prediction_scale(config, dataset),
    )


def unit_warnings(config: Config, dataset: Dataset) -> tuple[str, ...]:
    """Return the warning of a run that protects records though its data have persons."""
    return (ROW_LEVEL,) if dataset.persons is not None and config.privacy.unit == "record" else ()


def client_groups(config: Config, dataset: Dataset, clients: Sequence[Tensor]) -> tuple[Groups, ...]:
    """Return the rows of each person by client; nothing if the unit of privacy is a record.

    Args:
        config: settings of the run.
        dataset: the data set, which must say which rows are a person's.
        clients: the rows that each client trains on.

    Raises:
        ConfigError: the data have no persons.
    """
    if config.privacy.unit == "record":
        return ()
    config.check_unit()
    persons = _person_of_rows(config, dataset)
    return tuple(Groups.of(persons[rows], rows) for rows in clients)


def _person_of_rows(config: Config, dataset: Dataset) -> Tensor:
    """Return the number of the person of every row of the training part, -1 for rows of no client."""
    if dataset.persons is None or dataset.natural_clients is None:
        remedy = {
            "table": f'name the column in {config.data.schema_file}: person = "patient"',
            "npz": "add an array `person` of one name for each record to every client's file",
        }.get(config.data.name, "use a data set with persons")
        raise ConfigError(
            f'privacy.unit="person": {dataset.name} does not say which records are a person\'s; {remedy}, or leave the '
            "unit out"
        )
    found = torch.full((len(dataset.train),), -1)
    for rows, persons in zip(dataset.natural_clients, dataset.persons, strict=True):
        found[rows] = persons
    return found


def validation_split(config: Config, dataset: Dataset) -> tuple[Tensor, Tensor]:
    """Return the rows that clients may hold, and those of `data.validation`, both sorted.

    If the data have persons, they are chosen as a whole.
    """
    share, seed, train = config.data.validation, config.run.seed, dataset.train
    if share == 0 or dataset.persons is None or dataset.natural_clients is None:
        return held_out_rows(len(train), share, seed)
    everyone = torch.full((len(train),), -1)  # numbers of persons over all clients
    count = 0
    for rows, persons in zip(dataset.natural_clients, dataset.persons, strict=True):
        everyone[rows] = count + persons
        count += 1 + int(persons.max()) if len(persons) else 0
    _, public = held_out_rows(count, share, seed)
    is_public = torch.isin(everyone, public)
    return torch.nonzero(~is_public).flatten(), torch.nonzero(is_public).flatten()


def evaluates_privately(config: Config, dataset: Dataset) -> bool:
    """Return whether clients release noised evaluations of their held-out rows, and nothing without noise."""
    wanted, rows = config.evaluation.private, dataset.held_out_clients
    if wanted and rows is None:
        raise ConfigError(
            "evaluation.private=true needs rows that a table's clients hold out by a hash of each row: use tables "
            "without public test rows, or leave it out"
        )
    return rows is not None and (config.run.randomness == "secure" if wanted is None else wanted)


def held_out_data(config: Config, dataset: Dataset) -> list[ClientData]:
    """Return the rows that each client holds out; none if there are no evaluations with noise."""
    test, clients, persons = dataset.test, dataset.held_out_clients, dataset.held_out_persons
    if clients is None or not evaluates_privately(config, dataset):
        return []
    if config.max_records is None:
        return [ClientData(inputs=test.inputs, targets=test.targets, rows=rows) for rows in clients]
    if persons is None:
        raise ConfigError(
            f'privacy.unit="person": {dataset.name} does not say which held-out records are a person\'s; set '
            "evaluation.private=false, or leave the unit out"
        )
    return [
        ClientData(
            inputs=test.inputs,
            targets=test.targets,
            rows=rows,
            groups=Groups.of(own, rows),
            max_records=config.max_records,
        )
        for rows, own in zip(clients, persons, strict=True)
    ]


def prediction_scale(config: Config, dataset: Dataset) -> dict[str, Any]:
    """Return how the outputs of a number task become predictions, as arguments of `SimulationData`."""
    if dataset.encoder is None:
        return {}
    schema, loss = dataset.encoder.schema, config.model.loss
    return {"unit": target_unit(schema), "output_range": output_range(schema, loss)}


def evaluation_data(config: Config, dataset: Dataset) -> dict[Part, tuple[Tensor, Tensor]]:
    """Return the data that is not private: the test set, and the rows that no client holds."""
    train, test = dataset.train, dataset.test
    _, public = validation_split(config, dataset)
    evaluation: dict[Part, tuple[Tensor, Tensor]] = {}
    if len(public):
        evaluation["validation"] = (train.inputs[public], train.targets[public])
    if evaluates_privately(config, dataset):
        return evaluation  # the test part is the clients' own: only noised sums of it may be seen
    if config.run.evaluate_on == "test":
        evaluation["test"] = (test.inputs, test.targets)
    elif not len(public):
        raise ConfigError('run.evaluate_on="validation" needs data.validation, such as 0.1')
    else:  # evaluate on the held-out part; the test set is not even loaded
        evaluation["test"] = evaluation["validation"]
    return evaluation


def public_split(config: Config, dataset: Dataset | None = None) -> list[list[int]] | None:
    """Return, for each class, the number of records of each client; None for private data: its counts are private too.

    `dataset` is the configured data set, if it has been loaded already.
    """
    if config.has_private_data:
        return None
    dataset = dataset or load_data(config)
    parts = [rows.numpy() for rows in simulation_data(config, dataset).clients]
    counts = label_counts(dataset.train.targets.numpy(), parts, dataset.num_classes)
    return [[int(count) for count in row] for row in counts.T]


def split_title(config: Config) -> str:
    """Return a title that tells one split from another."""
    beta = f"({config.data.dirichlet_beta:g})" if config.partition == "dirichlet" else ""
    return f"{config.data.name}, {config.partition}{beta}, {config.data.clients} clients, seed {config.run.seed}"
