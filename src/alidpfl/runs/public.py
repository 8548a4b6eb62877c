"""What is no secret about a run before it begins: for the planner and for reports."""

from dataclasses import dataclass

from alidpfl.data import Dataset
from alidpfl.data.partition import label_counts
from alidpfl.features import vector_size
from alidpfl.federation.params import num_params, trained
from alidpfl.runs.build import accountant_of, build_model, check_choices
from alidpfl.runs.config import Config
from alidpfl.runs.featured import map_for
from alidpfl.runs.run_data import load_data, simulation_data
from alidpfl.types import OnProgress


@dataclass(frozen=True, kw_only=True)
class PublicFacts:
    """Sizes, not records."""

    clients: int
    samples: int
    num_params: int
    accountant: str


def public_facts(config: Config, *, on_progress: OnProgress | None = None) -> PublicFacts:
    """For the planner."""
    check_choices(config)
    dataset = load_data(config, on_progress)
    clients = simulation_data(config, dataset).clients
    shape = dataset.input_shape
    if config.has_statistics:
        shape = (vector_size(map_for(config, shape)),)
    model = build_model(config, shape, dataset.num_classes)
    return PublicFacts(
        clients=len(clients),
        samples=sum(len(rows) for rows in clients),
        num_params=num_params(trained(model)),
        accountant=accountant_of(config),
    )


def public_split(config: Config, dataset: Dataset | None = None) -> list[list[int]] | None:
    """Records of each class at each client, for data that are public anyway; None for users' own.

    `dataset` spares reading what was read before.
    """
    if config.data.name == "npz":
        return None
    dataset = dataset or load_data(config)
    parts = [rows.numpy() for rows in simulation_data(config, dataset).clients]
    counts = label_counts(dataset.train.targets.numpy(), parts, dataset.num_classes)
    return [[int(count) for count in row] for row in counts.T]


def split_title(config: Config) -> str:
    """What tells one split from another."""
    beta = f"({config.data.dirichlet_beta:g})" if config.partition == "dirichlet" else ""
    return f"{config.data.name}, {config.partition}{beta}, {config.data.clients} clients, seed {config.run.seed}"
