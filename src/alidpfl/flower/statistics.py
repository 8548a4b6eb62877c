"""Statistics over nodes: what the vaults release before the first round, or alone."""

import json
import math
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from alidpfl.config.schema import Config
from alidpfl.errors import ConfigError, NodesMissingError
from alidpfl.flower.config import FlowerOptions
from alidpfl.flower.engine import VaultEngine
from alidpfl.flower.fitting import statistics_problem
from alidpfl.flower.nodes import Link, Member, Node, NodeId, gather, numbered
from alidpfl.releases.queries import Released, ReleasePlan, StatisticsQuery
from alidpfl.runs.data import table_encoder
from alidpfl.runs.statistics import NoisedSum, TableStatistics
from alidpfl.runs.tables import default_statistics_noise
from alidpfl.store.files import disk_errors, write_atomically
from alidpfl.tables.schema import Schema
from alidpfl.tables.standardise import RowStandardiser, standardising_layout
from alidpfl.tables.statistics import Layout

FILE = "statistics.json"
_CLEAR = 10.0  # deviations of its noise that a sum may be beyond what its rows can add up to


def ask_for_sums(
    engine: VaultEngine, members: Sequence[Member], layout: Layout, query: StatisticsQuery, noise_multiplier: float
) -> dict[int, NoisedSum]:
    """Return the sums of the clients that answer.

    A sum may be a lie. Beyond what the rows of its client can add up to, with much noise, it is cut.

    Args:
        engine: asks the vaults.
        members: the clients by number.
        layout: what the sums are of.
        query: the question.
        noise_multiplier: σ of each sum.
    """
    plans = [
        ReleasePlan(client=client, number=0, noise_multiplier=noise_multiplier, query=query)
        for client in range(len(members))
    ]
    found: list[Released] = engine.release(torch.zeros(0), plans)
    sums = {}
    for released in found:
        rows = members[released.client].num_records
        most = rows + _CLEAR * noise_multiplier * layout.sensitivity
        total = np.clip(released.values, -most, most).astype(np.float32)
        sums[released.client] = NoisedSum(total=total, rows=rows, noise_multiplier=noise_multiplier)
    return sums


def standardiser_over_nodes(
    engine: VaultEngine, members: Sequence[Member], schema: Schema, noise_multiplier: float
) -> RowStandardiser:
    """Ask all clients for the release that standardises rows.

    Args:
        engine: asks the vaults.
        members: the clients by number.
        schema: the schema of the rows.
        noise_multiplier: σ of each client's release.

    Raises:
        NodesMissingError: too few clients answered for a quorum.
    """
    layout = standardising_layout(schema)
    query = StatisticsQuery(bins=0, with_target=False, size=layout.size)
    sums = ask_for_sums(engine, members, layout, query, noise_multiplier)
    if len(sums) < (least := engine.least_updates(len(members))):
        raise NodesMissingError(
            f"{len(sums)} of {len(members)} vaults released statistics and {least} are needed; the log says why. What "
            "was released stays charged. With run.name set, the same vaults send the same answers again"
        )
    total = np.stack([found.total for found in sums.values()]).sum(axis=0, dtype=np.float64)
    noise = noise_multiplier * layout.sensitivity * math.sqrt(len(sums))
    return RowStandardiser.from_sum(schema, total, sum(found.rows for found in sums.values()), noise)


def statistics_over_nodes(config: Config, options: FlowerOptions, link: Link) -> Path:
    """Ask the nodes for statistics alone, and write `statistics.json` into the run directory. Return its path.

    Args:
        config: the settings; only the schema, the budget, the unit of privacy, `privacy.statistics_noise` and
            `run.name` are read.
        options: the settings of a run over nodes.
        link: the connection to the nodes.

    Raises:
        ConfigError: the settings are not for tables, or the file is there.
        NodesMissingError: too few nodes fit, or answer.
    """
    path = Path(options.out) / FILE
    if path.exists():
        raise ConfigError(f"{path} exists, and a new release costs epsilon again; keep it, and give another out")
    if (encoder := table_encoder(config)) is None:
        raise ConfigError(f"statistics=true is for tables, and data.name={config.data.name!r}; set data.schema_file")
    schema, sigma = encoder.schema, config.privacy.statistics_noise
    if "statistics_noise" not in config.privacy.model_fields_set:
        sigma = default_statistics_noise(config.budget)
    layout = Layout(schema, bins=options.bins)
    members = _members(config, schema, sigma, options, link)
    engine = VaultEngine(
        link=link,
        members=members,
        run=config.run.name or secrets.token_hex(8),
        method=config.method.name,
        options=None,
        shapes={},
        schema_sha256=schema.sha256,
        ledger=None,
        evaluator=None,
        least_updates=lambda _: options.least_nodes,
        round_timeout=options.round_timeout,
        wait_for_nodes=options.wait_for_nodes,
    )
    query = StatisticsQuery(bins=options.bins, with_target=True, size=layout.size)
    sums = ask_for_sums(engine, members, layout, query, sigma)
    if not sums:
        raise NodesMissingError("no vault released statistics; the log says why")
    named = {members[client].vault: found for client, found in sums.items()}
    found = TableStatistics(schema=schema, bins=options.bins, sums=named, budget=None, max_records=config.max_records)
    with disk_errors("create", path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, (json.dumps(found.to_json(), indent=2, allow_nan=False) + "\n").encode())
    link.tell(f"statistics of {len(sums)} vaults are in {path}; show them with: alidpfl statistics --show {path}")
    return path


def _members(
    config: Config, schema: Schema, noise_multiplier: float, options: FlowerOptions, link: Link
) -> list[Member]:
    """Return the nodes with vaults that would answer."""

    def problem_of(node: Node) -> str | None:
        return statistics_problem(node, config, schema.sha256, noise_multiplier)

    def fitting(nodes: Sequence[Node]) -> list[Node]:
        return [node for node in nodes if problem_of(node) is None]

    def is_enough(nodes: Mapping[NodeId, Node]) -> bool:
        return len(fitting([*nodes.values()])) >= options.nodes

    nodes = [*gather(link, is_enough, seconds=options.wait_for_nodes).values()]
    for node in nodes:
        if (problem := problem_of(node)) is not None:
            link.tell(f"node {node.node} with the vault {node.info.vault!r} is left out: {problem}")
    chosen = numbered(fitting(nodes), link.tell)[: options.nodes]
    if len(chosen) < options.least_nodes:
        raise NodesMissingError(
            f"{len(chosen)} nodes would release statistics and {options.least_nodes} are needed; the log says which "
            "were left out and why. Start more nodes, or set privacy.statistics_noise"
        )
    return [Member(node=n.node, vault=n.info.vault, num_records=n.info.num_records, most_steps=0) for n in chosen]
