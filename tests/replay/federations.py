"""Small federations over all that ships: methods with their variants, policies and models, from the registries."""

import inspect
import itertools
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import torch
from torch import Tensor

from alidpfl.dpsgd import Groups, cross_entropy
from alidpfl.errors import AliDpflError
from alidpfl.federation.loop import Federation
from alidpfl.federation.planning import make_ledger
from alidpfl.federation.settings import FederationSettings
from alidpfl.methods import METHODS, Loss, Method, make_method
from alidpfl.models import MODELS as MODEL_REGISTRY
from alidpfl.models import make_model
from alidpfl.policies import POLICIES, make_policy
from alidpfl.privacy import PrivacyBudget
from alidpfl.simulation import Simulation, SimulationData
from alidpfl.types import NoiseKind, TaskKind

from .coupling import Neighbour
from .hostile import HOSTILE

SIZES = (14, 9, 1)
NEIGHBOURS = (Neighbour(0, 0), Neighbour(1, 4), Neighbour(0, 13), Neighbour(2, 0))
"""First, middle, last, and one that was its client's only record: without it, all batches are empty."""
SAMPLE_RATE, NOISE, CLIP_NORM, CLASSES = 0.4, 1.0, 0.3, 3
IMAGE, VECTOR = (1, 16, 16), (40,)
MODELS = tuple(MODEL_REGISTRY.shipped)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One thing to train."""

    method: str
    options: tuple[tuple[str, Any], ...]
    policy: str
    model: str

    def __str__(self) -> str:
        method = "-".join([self.method, *(str(value) for _, value in self.options)])
        return f"{method}, {self.policy}, {self.model}"

    def built(self) -> Method:
        return make_method(self.method, clip_norm=CLIP_NORM, noise_multiplier=NOISE, **dict(self.options))


def variants(method: str) -> list[tuple[tuple[str, Any], ...]]:
    """Every choice of the method's settings that are choices: those of PE-DPFL's `variant`."""
    parameters = inspect.signature(METHODS[method], eval_str=True).parameters.values()
    choices = [
        [(parameter.name, value) for value in get_args(parameter.annotation)]
        for parameter in parameters
        if get_origin(parameter.annotation) is Literal
    ]
    return list(itertools.product(*choices))


def is_raw(policy: str) -> bool:
    """Whether the policy asks for un-noised signals."""
    return POLICIES[policy].needs_raw_signals


def settings() -> list[Setting]:
    """Every method and variant with every policy that it admits and every model."""
    found = [
        Setting(method=method, options=options, policy=policy, model=model)
        for method in METHODS
        for options in variants(method)
        for policy in POLICIES
        for model in MODELS
    ]
    return [setting for setting in found if setting.built().release == "step" or setting.policy == "fixed"]


def federation(
    setting: Setting,
    data: SimulationData,
    *,
    noise: NoiseKind = "gaussian",
    loss: Loss = cross_entropy,
    outputs: int = CLASSES,
    **changes: Any,
) -> Federation:
    """Three rounds of three clients, or with `changes` to the settings."""
    method, is_fixed = setting.built(), setting.policy == "fixed"
    shape = VECTOR if setting.model == "scatter_linear" else IMAGE
    model = make_model(setting.model, shape, outputs, hidden=8, seed=1)
    return Federation(
        model=model,
        engine=Simulation(model=model, method=method, data=data, seed=7, processes=1, noise=noise, loss=loss),
        sizes=data.sizes,
        method=method,
        policy=make_policy(setting.policy, **({"local_steps": 2} if is_fixed else {})),
        ledger=make_ledger(method, PrivacyBudget(epsilon=40.0, delta=1e-3), SAMPLE_RATE, NOISE, "rdp"),
        settings=FederationSettings(
            sample_rate=SAMPLE_RATE,
            learning_rate=0.02,
            evaluate_every=2,
            unsafe=frozenset({"unaccounted-signals"} if is_raw(setting.policy) else ()),
            **{"max_rounds": 3, "max_local_steps": 3, **changes},
        ),
    )


def neighbours(model: str, neighbour: Neighbour, hostile: str) -> tuple[SimulationData, SimulationData]:
    """D with the hostile record, and D' with another one in its place, which no coin ever reaches."""
    random = torch.Generator().manual_seed(3)
    shape = VECTOR if model == "scatter_linear" else IMAGE
    targets = torch.randint(CLASSES, (sum(SIZES) + 20,), generator=random)
    inputs = torch.randn(len(targets), *shape, generator=random) + targets.view(-1, *[1] * len(shape))
    row = sum(SIZES[: neighbour.client]) + neighbour.place
    with_it, without = inputs.clone(), inputs.clone()
    with_it[row] = HOSTILE[hostile](inputs[row])
    without[row] = -2.0 * inputs[row] + 1.0
    other_label = targets.clone()
    other_label[row] = (targets[row] + 1) % CLASSES
    return _simulated(with_it, targets), _simulated(without, other_label)


def task_neighbours(
    kind: TaskKind, neighbour: Neighbour, hostile: str, where: Literal["inputs", "targets"]
) -> tuple[SimulationData, SimulationData]:
    """D with a record that is hostile in its inputs or its target, and D' with another one in its place."""
    random = torch.Generator().manual_seed(3)
    count = sum(SIZES) + 20
    inputs = torch.randn(count, *IMAGE, generator=random)
    numbers = torch.rand(count, *((3,) if kind == "labels" else ()), generator=random)
    targets = numbers.round() if kind == "labels" else numbers
    row = sum(SIZES[: neighbour.client]) + neighbour.place
    with_it, without = (inputs.clone(), targets.clone()), (inputs.clone(), targets.clone())
    part = 0 if where == "inputs" else 1
    with_it[part][row] = HOSTILE[hostile](with_it[part][row])
    without[0][row] = -2.0 * inputs[row] + 1.0
    without[1][row] = 1.0 - targets[row]
    return _simulated(*with_it), _simulated(*without)


PERSONS = (6, 4, 1)
"""Persons of each client, with 1 to k + 2 records each."""
MOST = 3
"""k."""
PERSON_NEIGHBOURS = (Neighbour(0, 0), Neighbour(1, 2, appears=True), Neighbour(0, 5, appears=True), Neighbour(2, 0))


def person_neighbours(
    model: str, neighbour: Neighbour, hostile: str, records: int
) -> tuple[SimulationData, SimulationData]:
    """The first and the second data set. In one a person has this many hostile records.

    In the other one, somebody else has the place, with another number of records, and no coin ever reaches it.
    """
    shape = VECTOR if model == "scatter_linear" else IMAGE

    def person(client: int, number: int) -> tuple[Tensor, Tensor]:
        random = torch.Generator().manual_seed(100 * client + number)
        count = 1 + (client + number) % (MOST + 2)
        targets = torch.randint(CLASSES, (count,), generator=random)
        inputs = torch.randn(count, *shape, generator=random) + targets.view(-1, *[1] * len(shape))
        return inputs, targets

    random = torch.Generator().manual_seed(5)
    usual = torch.randn(records, *shape, generator=random)
    with_it = torch.stack([HOSTILE[hostile](one) for one in usual]), torch.arange(records) % CLASSES
    other = 1.0 - 2.0 * torch.randn(1 + records % (MOST + 2), *shape, generator=random)
    without = other, (torch.arange(len(other)) + 1) % CLASSES
    found = []
    for its_place in (with_it, without):
        persons = [[person(client, number) for number in range(count)] for client, count in enumerate(PERSONS)]
        persons[neighbour.client][neighbour.place] = its_place
        found.append(_of_persons(persons, shape))
    return (found[1], found[0]) if neighbour.appears else (found[0], found[1])


def _of_persons(persons: list[list[tuple[Tensor, Tensor]]], shape: tuple[int, ...]) -> SimulationData:
    public = torch.zeros(20, *shape), torch.arange(20) % CLASSES
    everyone = [records for own in persons for records in own]
    clients, groups, start = [], [], 0
    for own in persons:
        sizes = torch.tensor([len(targets) for _, targets in own])
        rows = torch.arange(start, start + int(sizes.sum()))
        clients.append(rows)
        groups.append(Groups.of(torch.repeat_interleave(torch.arange(len(own)), sizes), rows))
        start += len(rows)
    return SimulationData(
        inputs=torch.cat([inputs for inputs, _ in everyone] + [public[0]]),
        targets=torch.cat([targets for _, targets in everyone] + [public[1]]),
        clients=clients,
        evaluation={"test": public, "validation": public},
        groups=groups,
        max_records=MOST,
    )


def _simulated(inputs: Tensor, targets: Tensor) -> SimulationData:
    count = sum(SIZES)
    public = inputs[count:], targets[count:]
    return SimulationData(
        inputs=inputs,
        targets=targets,
        clients=torch.arange(count).split(list(SIZES)),
        evaluation={"test": public, "validation": public},
    )


def told_by(federation: Federation) -> dict[str, object]:
    """All that anybody can read after a run but what clients sent, which `Watch.updates` has."""
    records, states, error = [], [], None
    with _everything_logged() as lines:
        try:
            with federation:
                for record in federation:
                    records.append(json.dumps(record.to_json()))
                    states.append(_state(federation))
        except AliDpflError as caught:
            error = f"{type(caught).__name__}: {caught}"
    return {
        "records": records,
        "states": states,
        "error": error,
        "logs": lines,
        "stop": federation.stop_reason,
        "epsilons": federation.epsilons,
        "model": {name: values.numpy().tobytes() for name, values in federation.named_params().items()},
    }


@contextmanager
def _everything_logged() -> Iterator[list[str]]:
    """All that any logger is told, at any level."""
    root, lines = logging.getLogger(), list[str]()
    handler, level = logging.Handler(), root.level
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


def _state(federation: Federation) -> tuple[object, ...]:
    """What a checkpoint holds, but for the clock."""
    tensors, values = federation.state()
    progress = {key: value for key, value in values["progress"].items() if key not in ("seconds", "slowest_round")}
    plain = json.dumps({**values, "progress": progress}, sort_keys=True)
    return plain, {name: (values.dtype, values.numpy().tobytes()) for name, values in tensors.items()}
