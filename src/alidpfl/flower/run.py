"""A run over nodes with vaults. It has the same loop, run directory and accounts as a simulated run. No Flower here."""

import functools
import hashlib
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import get_args

from torch import nn

from alidpfl.config.schema import Config
from alidpfl.data import Dataset
from alidpfl.data.persons import ROW_LEVEL
from alidpfl.data.table import target_unit
from alidpfl.errors import ConfigError, NodesMissingError
from alidpfl.federation.loop import Federation
from alidpfl.flower.config import FlowerOptions, Scalar, from_run_config
from alidpfl.flower.engine import VaultEngine
from alidpfl.flower.fitting import Wanted, shapes_of
from alidpfl.flower.nodes import Link, Member, Node, NodeId, found_again, gather, numbered
from alidpfl.flower.statistics import standardiser_over_nodes, statistics_over_nodes
from alidpfl.methods import Method
from alidpfl.metrics import headline_text
from alidpfl.privacy.client_ledger import CappedLedger
from alidpfl.reporting.tables import rounded_up
from alidpfl.runs.data import evaluation_data, prediction_scale, server_data, table_encoder
from alidpfl.runs.execute import Listener, Outcome, execute, released_before, resume
from alidpfl.runs.prepare import (
    Prepared,
    configured_loss,
    group_epsilons,
    make_parts,
    make_settings,
    model_code,
    private_evaluation,
    uncovered_signals,
)
from alidpfl.runs.standardise import tensors_of, with_rows
from alidpfl.runs.tables import with_table_defaults
from alidpfl.simulation.engine import Simulation
from alidpfl.simulation.runner import SimulationData
from alidpfl.store import RunDirectory
from alidpfl.tables.encode import Encoder
from alidpfl.tables.schema import Schema
from alidpfl.tables.standardise import RowStandardiser
from alidpfl.types import LOSS_KINDS, RoundRecord
from alidpfl.vault.messages import RoundRequest
from alidpfl.vault.policy import SEEDED_NOISE

_Tell = Callable[[str], None]


def run_over_nodes(link: Link, run_config: Mapping[str, Scalar]) -> Outcome | None:
    """Start a run, or continue the one in the directory `out`. Return None if only statistics are asked for."""
    config, options = from_run_config(run_config)
    if options.statistics:
        statistics_over_nodes(config, options, link)
        return None
    config = with_table_defaults(config)
    out = Path(options.out)

    def preparation(settings: Config, directory: RunDirectory, _listener: Listener) -> Prepared:
        return prepare_over_nodes(settings, options, link, directory)

    listener = Listener(on_round=lambda record, seconds: link.tell(_line(record, seconds)))
    if RunDirectory.is_run(out):
        _refuse_other_settings(config, RunDirectory.open(out))
        outcome = resume(out, listener=listener, preparation=preparation)
    else:
        outcome = execute(config, out, listener=listener, preparation=preparation)
    link.tell(f"the run is over after {outcome.rounds} rounds: {outcome.stop_reason}")
    link.tell(f"kept in {outcome.out}")
    return outcome


def prepare_over_nodes(config: Config, options: FlowerOptions, link: Link, directory: RunDirectory) -> Prepared:
    """Find the nodes, number them as clients, and return the run, ready for its first or next round.

    Args:
        config: the run's configuration.
        options: the settings of a run over nodes.
        link: the connection to the nodes.
        directory: the run directory. It names the clients of a run that is continued.

    Raises:
        ConfigError: nodes cannot run this configuration.
        NodesMissingError: too few nodes fit the run.
    """
    parts = make_parts(config)
    refuse_what_nodes_cannot(config, options, parts.method)
    encoder = table_encoder(config)
    dataset = server_data(config) if options.evaluate else None
    kept = directory.members() if RunDirectory.is_run(directory.path) else None  # a killed start may leave a file
    tell = functools.cache(link.tell)  # each line once, although the nodes are checked whenever one comes
    wanted = Wanted(config, parts, dataset, encoder, tell)
    known = [Member.from_json(values) for values in kept["clients"]] if kept else []
    nodes = _present(options, link, wanted, known)
    model = wanted.model(task := wanted.task(nodes))
    fitting = wanted.fitting(nodes, task)
    members = _clients(fitting, known, options, tell, wanted.schema_conflict(nodes))
    run = kept["run"] if kept else config.run.name or secrets.token_hex(8)
    ledger = CappedLedger(parts.ledger)
    engine = VaultEngine(
        link=link,
        members=members,
        run=run,
        method=config.method.name,
        options=config.method.options if config.method.name == "pe_dpfl" else None,  # the other losses have none
        shapes=shapes_of(model),
        schema_sha256=wanted.schema_sha256,
        loss=wanted.loss(task),
        quantile=config.model.quantile,
        ledger=ledger,
        evaluator=None,
        least_updates=parts.server_settings.least_updates,
        round_timeout=options.round_timeout,
        wait_for_nodes=options.wait_for_nodes,
    )
    if encoder is not None and config.has_statistics:
        engine.standardiser = _standardiser(config, engine, encoder.schema, directory)
        dataset = dataset and with_rows(dataset, engine.standardiser)
    if dataset is not None:
        engine.evaluator = _evaluator(config, dataset, model, parts.method)
    limits = {client: member.most_steps for client, member in enumerate(members)}
    evaluation = private_evaluation(
        config,
        task.kind,
        task.num_outputs,
        clients=_evaluated(config, members, has_public_data=dataset is not None),
        unit=1.0 if encoder is None else target_unit(encoder.schema),
    )
    federation = Federation(
        model=model,
        engine=engine,
        sizes=[member.num_records for member in members],
        method=parts.method,
        policy=parts.policy,
        ledger=ledger,
        settings=replace(make_settings(config, shows_private_data=False), client_limits=limits),
        server_settings=parts.server_settings,
        private_evaluation=evaluation,
    )
    for warning in (warnings := _unit_warnings(config, encoder)):
        tell(f"warning: {warning}")
    told = json.dumps([[member.vault, member.num_records] for member in members])
    # Last: a run that never began must not bind the next attempt to its nodes.
    directory.write_members({"run": run, "clients": [member.to_json() for member in members]})
    return Prepared(
        dataset=dataset,
        federation=federation,
        noise_multiplier=parts.noise_multiplier,
        task=(task.input_shape, task.num_outputs),
        clients=hashlib.sha256(told.encode()).hexdigest(),
        uncovered=uncovered_signals(parts.policy, parts.method),
        weakness=config.budget.weakness(max(member.num_records for member in members), config.privacy.unit),
        warnings=warnings,
        group_epsilon=group_epsilons(config.privacy.unit, parts.ledger, evaluation),
        has_persons=encoder is not None and encoder.schema.person is not None,
        code=model_code(config),
        encoder=encoder,
        statistics={} if engine.standardiser is None else tensors_of(engine.standardiser),
        records="in vaults",
        randomness="seeded" if any(SEEDED_NOISE in node.info.unsafe for node in fitting) else "secure",
        repeats_rounds=True,  # a vault keeps its answers
    )


def _unit_warnings(config: Config, encoder: Encoder | None) -> tuple[str, ...]:
    """Return the warning of a run that protects records though its schema names a person column."""
    has_persons = encoder is not None and encoder.schema.person is not None
    return (ROW_LEVEL,) if has_persons and config.privacy.unit == "record" else ()


def _standardiser(config: Config, engine: VaultEngine, schema: Schema, directory: RunDirectory) -> RowStandardiser:
    """Return what standardises rows: as the continued run released it, or newly released by all vaults."""
    if (kept := released_before(config, directory)) is not None:
        return RowStandardiser.from_arrays(schema, kept, str(directory.path / "statistics.safetensors"))
    return standardiser_over_nodes(engine, engine.members, schema, config.privacy.statistics_noise)


def _evaluated(config: Config, members: Sequence[Member], *, has_public_data: bool) -> list[int]:
    """Return the clients to ask for evaluations on their held-out records. By default only without public data."""
    able = [client for client, member in enumerate(members) if member.evaluates]
    if config.evaluation.private and not able:
        raise ConfigError(
            "evaluation.private=true, and no vault of this run answers evaluations: leave it out, or ask the "
            "owners to enrol tables that hold rows out, without `--no-evaluate`"
        )
    wanted = not has_public_data if config.evaluation.private is None else config.evaluation.private
    return able if wanted else []


def _present(options: FlowerOptions, link: Link, wanted: Wanted, known: Sequence[Member]) -> list[Node]:
    """Return the nodes that introduce themselves in time: as many as wanted, or all clients of a continued run."""

    def is_enough(nodes: Mapping[NodeId, Node]) -> bool:
        if known:
            return {member.node for member in found_again(known, nodes)} <= nodes.keys()
        there = len(wanted.usable([*nodes.values()]))
        if there < options.nodes:
            seconds = options.wait_for_nodes
            wanted.tell(f"{there} of {options.nodes} nodes that fit are online; waiting up to {seconds:g} s for more")
        return there >= options.nodes

    return [*gather(link, is_enough, seconds=options.wait_for_nodes).values()]


def _clients(
    fitting: Sequence[Node], known: Sequence[Member], options: FlowerOptions, tell: _Tell, conflict: str
) -> list[Member]:
    """Return the clients: new ones, or those of the continued run. A client's number and size never change.

    Args:
        fitting: the nodes with vaults that would serve the run.
        known: the clients of a continued run.
        options: the settings of a run over nodes.
        tell: writes a line to the log.
        conflict: a sentence for the error if schemas differ.

    Raises:
        NodesMissingError: too few nodes fit.
    """
    if known:
        again = found_again(known, {node.node: node for node in fitting})
        for client, (before, now) in enumerate(zip(known, again, strict=True)):
            if now.node != before.node:
                tell(f"client {client} was node {before.node} and is node {now.node}, which says it has {now.vault!r}")
        return again
    chosen = numbered(fitting, tell)[: options.nodes]
    if len(chosen) < options.least_nodes:
        raise NodesMissingError(
            f"{len(chosen)} nodes fit this run, and {options.least_nodes} are wanted. {conflict}The log says which "
            "were left out and why. Change the run (`alidpfl flower init --set`) or start more nodes"
        )
    return [
        Member(
            node=node.node,
            vault=node.info.vault,
            num_records=node.info.num_records,
            most_steps=node.info.limits.max_steps_per_round,
            evaluates=node.info.evaluation is not None,
        )
        for node in chosen
    ]


def refuse_what_nodes_cannot(config: Config, options: FlowerOptions, method: Method) -> None:
    """Raise ConfigError for settings that a run over nodes cannot have. It can be called before submitting."""
    if method.needs_public_loss and not options.evaluate:
        raise ConfigError(f"{method.name} needs the loss on public data: set evaluate=true")
    for key, name, known in (
        ("method.name", config.method.name, get_args(RoundRequest.model_fields["method"].annotation)),
        ("model.loss", config.model.loss or "cross_entropy", LOSS_KINDS),
    ):
        if name not in known:
            raise ConfigError(f'{key}="{name}" is for `alidpfl run`; vaults know only {", ".join(known)}')
    _refuse_model(config, options)
    if config.privacy.noise != "gaussian":
        raise ConfigError(
            f'privacy.noise="{config.privacy.noise}" is for `alidpfl run`; over nodes each owner chooses it: set '
            f'noise = "{config.privacy.noise}" in the policy.toml of the vaults'
        )
    for key in ("dropout_rate", "straggler_rate"):
        if getattr(config.federation, key):
            raise ConfigError(f"federation.{key} simulates failures; over nodes they are real: set federation.{key}=0")


def _refuse_model(config: Config, options: FlowerOptions) -> None:
    """Raise ConfigError for a model that nodes cannot train."""
    if config.model.factory is not None and not options.simulation:
        raise ConfigError(f"{config.model.setting} is for `alidpfl run`; vaults take models by name: set model.name")
    if config.has_features:
        raise ConfigError(
            f'model.name="{config.model.name}" needs statistics that vaults do not release: choose another model, or '
            "run it with `alidpfl run`"
        )


def _refuse_other_settings(config: Config, directory: RunDirectory) -> None:
    kept, now = directory.config(), json.loads(json.dumps(config.to_dict()))
    for section in kept.keys() | now.keys():
        before, after = kept.get(section, {}), now.get(section, {})
        if changed := sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key)):
            key = changed[0]
            raise ConfigError(
                f"{directory.path} holds a run with {section}.{key}={before.get(key)!r}, not {after.get(key)!r}: put "
                "it back to continue that run, or give another out"
            )


def _evaluator(config: Config, dataset: Dataset, model: nn.Module, method: Method) -> Simulation:
    data = SimulationData(
        inputs=dataset.train.inputs[:0],
        targets=dataset.train.targets[:0],
        clients=[],
        evaluation=evaluation_data(config, dataset),
        **prediction_scale(config, dataset),
    )
    loss, processes = configured_loss(config, dataset.kind), config.run.processes or 1
    return Simulation(model=model, method=method, data=data, seed=0, processes=processes, loss=loss)


def _line(record: RoundRecord, seconds: float) -> str:
    seen = f", {found}" if (found := headline_text(record.accuracy, record.metrics)) else ""
    cut = "" if not record.cut else f", cut by their vaults to {dict(record.cut)}"
    lost = "" if not record.dropped else f", without clients {list(record.dropped)}"
    refused = "" if not record.rejected else f", refused {dict(record.rejected)}"
    return (
        f"round {record.number}: {record.local_steps} steps ({record.why}), "
        f"epsilon {rounded_up(record.epsilon)} asked for{seen}{cut}{lost}{refused}, {seconds:.1f} s"
    )
