"""Train MNIST's recipe with hostile clients: `python -m reproduction.experiments.hostile [SPLIT ...] [SEED ...]`.

Every attack meets every defence, with 1 and with 3 of 10 clients hostile. Results are appended to
reproduction/results/hostile.jsonl. Runs that have a result are skipped. A run takes about 15 seconds; the features
are computed once.

Splits are that of the recipe, where nearly every class is held by one or two clients, and `iid`. Hostile clients are
those with the lowest numbers, and act together.
"""

import math
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn import functional

from alidpfl.federation import Federation
from alidpfl.federation.inspection import honest_laws
from alidpfl.federation.noise_law import HonestLaw
from alidpfl.federation.settings import Engine, EngineWrapper
from alidpfl.runs import Config
from alidpfl.runs.data import load_data, simulation_data
from alidpfl.runs.features import featured
from alidpfl.runs.prepare import build_model, make_parts, make_settings
from alidpfl.simulation import Simulation, SimulationData
from alidpfl.types import ClientPlan, ClientUpdate
from reproduction.experiments import stored
from reproduction.experiments.best import recipe
from reproduction.results import RESULTS as FOLDER
from reproduction.results import json_lines

RESULTS = FOLDER / "hostile.jsonl"
SEEDS = (901, 902)
SPLITS: dict[str, dict[str, Any]] = {"recipe": {}, "iid": {"data.partition": "iid"}}
HOSTILE = (1, 3)
ATTACKS = {
    "absent": "they send nothing",
    "sign_flip": "train honestly, and send the opposite",
    "scaled": "the opposite, ten times as long",
    "noise_free": "the longest update that passes the length check, against the model, without noise",
    "label_flip": "train honestly, with every label y replaced by 9 − y",
    "largest_signal": "honest noise, and the largest honest signal against the model",
}
NAMED = ("sign_flip", "scaled", "noise_free", "label_flip")
"""Attacks that `reached` counts: all that do harm, but for the last."""
_NO_LIMIT = {"federation.signal_limit": 1e9}
DEFENCES: dict[str, dict[str, Any]] = {
    "default": {},
    "none": _NO_LIMIT,
    "limits": _NO_LIMIT,
    "trimmed_mean": {**_NO_LIMIT, "federation.aggregation": "trimmed_mean"},
    "median": {**_NO_LIMIT, "federation.aggregation": "median"},
    "geometric_median": {**_NO_LIMIT, "federation.aggregation": "geometric_median"},
}
_WIDTH = 120
_FEATURES = 2000  # records that hostile clients use to find the way to harm
_INSIDE = 1 - 1e-4  # of a limit


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One run of the table."""

    split: str
    seed: int
    defence: str
    attack: str
    hostile: int


def cells(splits: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
    """Return all runs. The default comes first, then every defence with three hostile clients.

    No defence changes what absent clients do.
    """
    found = [
        Cell(split=split, seed=seed, defence=defence, attack=attack, hostile=count)
        for seed in seeds
        for split in splits
        for defence in DEFENCES
        for attack, count in [("honest", 0), *((attack, count) for attack in ATTACKS for count in HOSTILE)]
        if attack != "absent" or defence == "default"
    ]
    return sorted(found, key=lambda cell: (cell.defence != "default", cell.seed, cell.hostile == 1))


def main(names: Sequence[str]) -> None:
    """Run every cell that has no result."""
    splits = [split for split in SPLITS if split in names] or list(SPLITS)
    seeds = [seed for seed in SEEDS if str(seed) in names] or list(SEEDS)
    done = [Cell(**{key: line[key] for key in Cell.__annotations__}) for line in json_lines(RESULTS)]
    data: dict[tuple[str, int], SimulationData] = {}
    for cell in cells(splits, seeds):
        if cell in done:
            continue
        if (cell.split, cell.seed) not in data:
            data = {(cell.split, cell.seed): _prepared(_config(cell))}  # one at a time: they are large
        stored.append(RESULTS, _result(cell, data[cell.split, cell.seed]))


def _config(cell: Cell) -> Config:
    changes = {"run.seed": cell.seed, "run.evaluate_every": 1000, **SPLITS[cell.split], **DEFENCES[cell.defence]}
    return recipe("mnist", stored.overrides(changes))


def _prepared(config: Config) -> SimulationData:
    dataset = load_data(config)
    dataset, _ = featured(config, dataset, simulation_data(config, dataset).clients)
    return simulation_data(config, dataset)


def _result(cell: Cell, data: SimulationData) -> dict[str, Any]:
    config, hostile = _config(cell), range(cell.hostile)
    if cell.attack == "label_flip":
        rows = torch.cat([data.clients[client] for client in hostile])
        data = replace(data, targets=data.targets.index_copy(0, rows, 9 - data.targets[rows]))
    parts, model = make_parts(config), build_model(config, data.inputs.shape[1:], 10)
    engine = Simulation(model=model, method=parts.method, data=data, seed=cell.seed, processes=1)
    federation = Federation(
        model=model,
        engine=HostileEngine(engine, cell, data),
        method=parts.method,
        policy=parts.policy,
        ledger=parts.ledger,
        sizes=data.sizes,
        settings=make_settings(config, shows_private_data=False),
        server_settings=parts.server_settings,
    )
    if cell.defence == "none":
        with patch("alidpfl.federation.defence.rejections", lambda *_: {}):
            records = list(federation)
    else:
        records = list(federation)
    rejected = [client for record in records for client in record.rejected]
    return {
        **vars(cell),
        "accuracy": records[-1].accuracy,
        "rejected_hostile": sum(client in hostile for client in rejected),
        "rejected_honest": sum(client not in hostile for client in rejected),
        "rounds": len(records),
        "seconds": round(federation.progress.seconds, 1),
    }


class HostileEngine(EngineWrapper):
    """Replaces what the hostile clients send."""

    def __init__(self, engine: Engine, cell: Cell, data: SimulationData) -> None:
        super().__init__(engine)
        self._cell, self._sizes = cell, dict(enumerate(data.sizes))
        rows = torch.cat([data.clients[client] for client in range(max(1, cell.hostile))])
        rows = rows[torch.linspace(0, len(rows) - 1, min(len(rows), _FEATURES)).long()]
        self._inputs, self._targets = data.inputs[rows], data.targets[rows]

    def train(self, params: Tensor, plans: Sequence[ClientPlan]) -> list[ClientUpdate]:
        """Return honest updates of honest clients, and those of the attack."""
        updates, hostile, attack = self._engine.train(params, plans), self._cell.hostile, self._cell.attack
        if attack == "absent":
            return [update for update in updates if update.client >= hostile]
        if attack in ("honest", "label_flip"):
            return updates
        harm = self._harm(params) if attack in ("noise_free", "largest_signal") else params
        laws = honest_laws(plans, len(params), self._sizes)
        return [
            update
            if update.client >= hostile
            else replace(update, params=self._attacked(params, update, harm, laws[update.client], plans[0].round))
            for update in updates
        ]

    def _harm(self, params: Tensor) -> Tensor:
        """Return the unit vector along which the loss of the hostile clients' records rises most."""
        weights = params.clone().requires_grad_()
        scores = functional.linear(self._inputs, weights.view(10, -1))
        (gradient,) = torch.autograd.grad(functional.cross_entropy(scores, self._targets), weights)
        return gradient / gradient.norm()

    def _attacked(self, before: Tensor, update: ClientUpdate, harm: Tensor, law: HonestLaw, number: int) -> Tensor:
        move = update.params - before
        if self._cell.attack == "sign_flip":
            return before - move
        if self._cell.attack == "scaled":
            return before - 10 * move
        if self._cell.attack == "noise_free":
            return before + harm * law.longest() * _INSIDE
        random = torch.Generator().manual_seed(self._cell.seed * 1_000_000 + number * 1000 + update.client)
        noise = torch.randn(before.shape, generator=random) * law.noise
        return before + harm * sum(law.signals) * _INSIDE + noise


def table(split: str) -> str:
    """Return the accuracies of a split in Markdown: a row for each attack, a column for each defence.

    A seed decides the split, and with it what absence alone costs. So a cell has one figure for each seed.
    """
    found = _accuracies(split)
    rows = [("honest", 0), *((attack, count) for attack in ATTACKS for count in HOSTILE)]
    header = ["sent by the hostile clients", "hostile of 10", *(defence.replace("_", " ") for defence in DEFENCES)]
    lines = [header, ["---"] * len(header)]
    for attack, count in rows:
        told = ATTACKS.get(attack, "nobody is hostile")
        measured = ([found.get((seed, defence, attack, count)) for seed in SEEDS] for defence in DEFENCES)
        lines.append([told, str(count), *(_cell(values) for values in measured)])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(values: Sequence[float | None]) -> str:
    if all(value is None for value in values):
        return "–"
    return " / ".join("–" if value is None else f"{value:.1f}" for value in values)


def reached(split: str, within: float = 5.0) -> str:
    """Return in Markdown how often the default stays near the honest run, and near that without the hostile clients."""
    found = _accuracies(split)
    judged = [(seed, a, n) for seed in SEEDS for a in NAMED for n in HOSTILE if (seed, "default", a, n) in found]

    def lost(seed: int, attack: str, count: int, than: tuple[str, int]) -> float:
        """Return the points lost; NaN if the other run was not made."""
        return found.get((seed, "default", *than), math.nan) - found[seed, "default", attack, count]

    from_honest = [(lost(*cell, ("honest", 0)), cell) for cell in judged]
    from_absent = [lost(*cell, ("absent", cell[2])) for cell in judged]
    near = sum(points <= within for points, _ in from_honest)
    known = [points for points in from_absent if not math.isnan(points)]
    absent = sum(points <= within for points in known)
    far = [
        f"- {ATTACKS[a]}: {n} of 10, seed {s}, {points:.1f} points lost"
        for points, (s, a, n) in from_honest
        if points > within
    ]
    others = ["", f"These runs lose more than {within:g} points against the honest run:", "", *far] if far else []
    told = (
        f"The last attack is left aside here. Against the honest run, the default loses at most {within:g} points in "
        f"{near} of {len(judged)} runs. Against the run in which the hostile clients send nothing, it loses at most "
        f"{within:g} points in {absent} of {len(known)} runs."
    )
    return "\n".join([*textwrap.wrap(told, _WIDTH), *others])


def _accuracies(split: str) -> dict[tuple[int, str, str, int], float]:
    """Return the accuracy by seed, defence, attack and number of hostile clients."""
    return {
        (line["seed"], line["defence"], line["attack"], line["hostile"]): line["accuracy"]
        for line in json_lines(RESULTS)
        if line["split"] == split
    }


if __name__ == "__main__":
    main(sys.argv[1:])
