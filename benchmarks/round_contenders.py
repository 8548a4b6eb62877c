"""Build one federated round of each contender, except the peer.

Every builder returns a function that makes one round: ten clients take three steps each from the same weights, then
their weights are averaged. Clients are spread over persistent worker processes of one thread each, which keep their
heap.
"""

import multiprocessing
import os
from collections.abc import Callable
from functools import partial
from multiprocessing.connection import Connection, wait

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alidpfl.dpsgd.relu_pool import join_relu_and_pool
from alidpfl.federation.loop import Federation
from alidpfl.federation.planning import make_ledger
from alidpfl.federation.settings import FederationSettings
from alidpfl.federation.tensors import flatten, keep_heap, load, trained
from alidpfl.methods import make_method
from alidpfl.models.cnn import paper_cnn
from alidpfl.policies import make_policy
from alidpfl.privacy import PrivacyBudget
from alidpfl.simulation import Simulation, SimulationData

Round = Callable[[], None]
CLIENTS, RECORDS, SHAPE = 10, 6000, (1, 28, 28)
SAMPLE_RATE, LOCAL_STEPS, BATCH_SIZE, PROCESSES = 0.015, 3, 90, 2
CLIP_NORM, NOISE_MULTIPLIER, LEARNING_RATE = 1.0, 1.1, 0.01
_FOREVER = 1_000_000


def made_up_data() -> tuple[Tensor, Tensor]:
    """Return made-up records of MNIST's shape. Client i has rows i·6000 up to (i + 1)·6000."""
    random = torch.Generator().manual_seed(0)
    inputs = torch.rand(CLIENTS * RECORDS, *SHAPE, generator=random)
    return inputs, torch.randint(10, (CLIENTS * RECORDS,), generator=random)


def initial_model() -> nn.Sequential:
    """Return the paper's CNN with the same weights every time."""
    torch.manual_seed(0)
    return paper_cnn(SHAPE)


# ---- ours


def ours(accountant: str) -> Round:
    """Build a round of this package: simulation engine, secure noise, checks of updates, accounting."""
    inputs, targets = made_up_data()
    method = make_method("fedavg_dp", clip_norm=CLIP_NORM, noise_multiplier=NOISE_MULTIPLIER)
    budget = PrivacyBudget(epsilon=8.0, delta=1e-5)
    rows = list(torch.arange(len(inputs)).split(RECORDS))
    data = SimulationData(inputs=inputs, targets=targets, clients=rows, evaluation={})
    model = initial_model()
    federation = Federation(
        model=model,
        engine=Simulation(model=model, method=method, data=data, seed=None, processes=PROCESSES),
        sizes=data.sizes,
        method=method,
        policy=make_policy("fixed", local_steps=LOCAL_STEPS),
        ledger=make_ledger(method, budget, SAMPLE_RATE, NOISE_MULTIPLIER, accountant),
        settings=FederationSettings(
            max_rounds=_FOREVER, evaluate_every=_FOREVER, sample_rate=SAMPLE_RATE, learning_rate=LEARNING_RATE
        ),
    )

    def one_round() -> None:
        record = federation.step()
        if record is None or not record.aggregated or record.local_steps != LOCAL_STEPS:
            raise RuntimeError(
                f"expected a full round of {LOCAL_STEPS} steps: {record}, stopped by {federation.stop_reason}"
            )

    return one_round


# ---- plain SGD


def fixed_batch() -> Tensor:
    """Return the rows of a batch of exactly 90 records."""
    return torch.randint(RECORDS, (BATCH_SIZE,))


def poisson_batch() -> Tensor:
    """Return the rows of a Poisson batch: each record by its own coin, 90 on average."""
    return (torch.rand(RECORDS) < SAMPLE_RATE).nonzero().squeeze(1)


def plain_sgd(draw: Callable[[], Tensor], *, joined: bool = False) -> Round:
    """Build a round of plain SGD, channels-last, without clipping, noise, checks or accounting."""
    data, model = made_up_data(), initial_model().to(memory_format=torch.channels_last)
    weights = torch.zeros(1 + CLIENTS, sum(p.numel() for p in model.parameters())).share_memory_()
    weights[0] = flatten(trained(model))
    network = join_relu_and_pool(model) if joined else model
    context = multiprocessing.get_context("fork")
    pipes = []
    for _ in range(PROCESSES):
        here, there = context.Pipe()
        context.Process(target=_train_clients, args=(there, weights, network, data, draw), daemon=True).start()
        pipes.append(here)

    def one_round() -> None:
        _spread_clients(pipes)
        torch.mean(weights[1:], dim=0, out=weights[0])

    return one_round


def _spread_clients(pipes: list[Connection]) -> None:
    """Give each client to the next worker that is free."""
    for client in range(CLIENTS):
        if client < len(pipes):
            pipe = pipes[client]
        else:
            pipe = next(ready for ready in wait(pipes) if isinstance(ready, Connection))
            pipe.recv()
        pipe.send(client)
    for pipe in pipes:
        pipe.recv()


def _train_clients(
    pipe: Connection, weights: Tensor, model: nn.Module, data: tuple[Tensor, Tensor], draw: Callable[[], Tensor]
) -> None:
    """Train clients in a worker process, until the parent ends."""
    torch.set_num_threads(1)
    torch.manual_seed(os.getpid())
    keep_heap()
    parameters = trained(model)
    while True:
        client = pipe.recv()
        load(weights[0], parameters)
        for _ in range(LOCAL_STEPS):
            rows = draw() + client * RECORDS
            _step(model, parameters, *(tensor[rows] for tensor in data))
        weights[1 + client] = flatten(parameters)
        pipe.send(client)


def _step(model: nn.Module, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> None:
    loss = F.cross_entropy(model(x.to(memory_format=torch.channels_last)), y)
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    with torch.no_grad():
        for parameter, gradient in zip(parameters.values(), gradients, strict=True):
            parameter.sub_(gradient, alpha=LEARNING_RATE)


YARDSTICK = "plain SGD, batches of 90"
CONTENDERS: dict[str, Callable[[], Round]] = {
    YARDSTICK: partial(plain_sgd, fixed_batch),
    "plain SGD, Poisson batches": partial(plain_sgd, poisson_batch),
    "plain SGD, joined relu+pool, batches of 90": partial(plain_sgd, fixed_batch, joined=True),
    "ours": partial(ours, "pld"),
    "ours, RDP accountant": partial(ours, "rdp"),
    "ours, pure torch": partial(ours, "pld"),
}
EXTRA_ENVIRONMENT = {"ours, pure torch": {"ALIDPFL_NATIVE": "0"}}
