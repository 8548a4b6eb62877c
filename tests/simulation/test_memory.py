"""Memory grows with the clients of a round, not with all of them, and workers hold no copy of the data."""

import multiprocessing
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from alidpfl.simulation.runner import SimulationData

from .parts import plan, simulation, zeros

_MEGABYTE = 2**20

_MANY_CLIENTS = """
import resource
import torch
from torch import nn
from alidpfl.simulation.runner import SimulationData
from tests.simulation.parts import federation
inputs, targets = torch.randn(20_000, 100), torch.randint(1000, (20_000,))
for clients in (1_000, 10_000):
    rows = torch.arange(20_000).split(20_000 // clients)
    data = SimulationData(inputs=inputs, targets=targets, clients=rows, evaluation={})
    with federation(model=nn.Linear(100, 1000), data=data, rounds=2, clients_per_round=100) as found:
        records = list(found)
    assert len(records) == 2 and all(len(r.client_epsilon) == 100 and r.aggregated for r in records)
    assert len(set(c for r in records for c in r.client_epsilon)) > 150
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_ten_thousand_clients_take_the_memory_of_a_thousand():
    """A copy of the 101,000 weights for each client would be 4 GB, and for each of the further 9,000 clients 3.6 GB."""
    command = [sys.executable, "-c", _MANY_CLIENTS]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    thousand, ten_thousand = map(int, done.stdout.split())
    assert ten_thousand < thousand + 60  # MB


def _own_megabytes(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024


def test_workers_share_the_data_of_their_parent():
    records = 200 * _MEGABYTE // (4 * 512)
    inputs = torch.ones(records, 512)
    data = SimulationData(
        inputs=inputs,
        targets=torch.zeros(records, dtype=torch.int64),
        clients=torch.arange(records).split(records // 50 + 1),
        evaluation={"test": (inputs, torch.zeros(records, dtype=torch.int64))},
    )
    model = nn.Linear(512, 3)
    with simulation(2, data=data, model=model) as engine:
        engine.evaluate(zeros(model), "test")  # reads all of it
        engine.train(zeros(model), [plan(client) for client in range(50)])
        workers = [child.pid for child in multiprocessing.active_children()]
        assert len(workers) == 2
        assert all(_own_megabytes(pid) < 100 for pid in workers)
