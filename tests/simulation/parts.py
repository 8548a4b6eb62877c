"""Small federations for the tests of the engines."""

import copy
import os
import time
from pathlib import Path

import torch
from torch import nn

from alidpfl.federation.loop import Federation
from alidpfl.federation.planning import make_ledger
from alidpfl.federation.settings import FederationSettings
from alidpfl.methods import make_method
from alidpfl.policies import make_policy
from alidpfl.privacy import PrivacyBudget
from alidpfl.simulation.engine import Simulation
from alidpfl.simulation.runner import SimulationData
from alidpfl.types import ClientPlan

SAMPLE_RATE, NOISE = 0.2, 1.0
NUM_CLIENTS, RECORDS = 5, 30


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 3))


def cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3))


MODELS = {"linear": linear, "cnn": cnn}


def made_data(clients: int = NUM_CLIENTS, records: int = RECORDS, test: int = 2500) -> SimulationData:
    """Images of 6 x 6 in three classes that can be told apart; clients of growing size."""
    random = torch.Generator().manual_seed(1)
    sizes = [records + 3 * number for number in range(clients)]
    total = sum(sizes) + test
    targets = torch.randint(3, (total,), generator=random)
    inputs = torch.randn(total, 1, 6, 6, generator=random) + targets.view(-1, 1, 1, 1)
    public = slice(total - test, total)
    return SimulationData(
        inputs=inputs,
        targets=targets,
        clients=torch.arange(sum(sizes)).split(sizes),
        evaluation=dict.fromkeys(("test", "validation"), (inputs[public], targets[public])),
    )


METHODS = {
    "fedavg_dp": ("fedavg_dp", {}, "fixed"),
    "ali_dpfl": ("ali_dpfl", {}, "ali"),
    "adap_dpfl": ("adap_dpfl", {}, "fixed"),
    "pe_dpfl": ("pe_dpfl", {}, "fixed"),
    "pe_dpfl-output": ("pe_dpfl", {"variant": "output"}, "fixed"),
}


def federation(
    name: str = "fedavg_dp",
    *,
    model: nn.Module | None = None,
    data: SimulationData | None = None,
    seed: int | None = 0,
    processes: int | None = 1,
    rounds: int = 3,
    **settings,
) -> Federation:
    method_name, options, policy = METHODS[name]
    method = make_method(method_name, clip_norm=1.0, noise_multiplier=NOISE, **options)
    model = linear() if model is None else model
    data = made_data() if data is None else data
    return Federation(
        model=model,
        engine=Simulation(model=model, method=method, data=data, seed=seed, processes=processes),
        sizes=data.sizes,
        method=method,
        policy=make_policy(policy, **({"local_steps": 2} if policy == "fixed" else {})),
        ledger=make_ledger(method, PrivacyBudget(epsilon=8.0, delta=1e-3), SAMPLE_RATE, NOISE, "rdp"),
        settings=FederationSettings(
            max_rounds=rounds, sample_rate=SAMPLE_RATE, learning_rate=0.5, evaluate_every=1, seed=3, **settings
        ),
    )


def simulation(
    processes: int, *, data: SimulationData | None = None, model: nn.Module | None = None, **options
) -> Simulation:
    return Simulation(
        model=linear() if model is None else model,
        method=make_method("fedavg_dp", clip_norm=1.0, noise_multiplier=NOISE),
        data=made_data() if data is None else data,
        seed=0,
        processes=processes,
        **options,
    )


def plan(client: int, *, steps: int = 1, round_number: int = 0) -> ClientPlan:
    return ClientPlan(
        client=client,
        round=round_number,
        sample_rate=SAMPLE_RATE,
        noise_multiplier=NOISE,
        clip_norm=1.0,
        learning_rates=(0.5,) * steps,
    )


def zeros(model: nn.Module | None = None) -> torch.Tensor:
    model = copy.deepcopy(linear() if model is None else model)
    return torch.zeros(sum(p.numel() for p in model.parameters()))


def wait_until(is_true, seconds: float = 20.0) -> bool:
    """Whether it became true in time."""
    end = time.monotonic() + seconds
    while not is_true():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def is_gone(pid: int) -> bool:
    """Ended: not there, or a zombie that waits for whoever adopted it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def open_files() -> set[str]:
    """What this process's file descriptors point at, with their numbers."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:  # that of the listing itself
            continue
    return found
