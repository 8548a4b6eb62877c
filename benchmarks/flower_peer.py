"""The peer: Flower's simulation with Opacus clients, set up as in their documentation and examples.

It gets three advantages: clients' data stay in memory between rounds, the layout is channels-last, and
benchmarks.round runs Ray's workers at normal priority.
"""

import functools
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.nn.functional as F
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from benchmarks import round_contenders as setting


@functools.cache
def _data() -> tuple[Tensor, Tensor]:
    return setting.made_up_data()


def _records(client: int) -> TensorDataset:
    rows = slice(client * setting.RECORDS, (client + 1) * setting.RECORDS)
    return TensorDataset(*(tensor[rows] for tensor in _data()))


def _train(message: Message, context: Context) -> Message:
    from opacus import PrivacyEngine

    warnings.filterwarnings("ignore")
    model = setting.initial_model()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model = model.to(memory_format=torch.channels_last).train()
    records = _records(int(context.node_config["partition-id"]))
    private, optimizer, loader = PrivacyEngine().make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=setting.LEARNING_RATE),
        data_loader=DataLoader(records, batch_size=setting.BATCH_SIZE),
        noise_multiplier=setting.NOISE_MULTIPLIER,
        max_grad_norm=setting.CLIP_NORM,
    )
    for _, (x, y) in zip(range(setting.LOCAL_STEPS), loader, strict=False):
        optimizer.zero_grad()
        F.cross_entropy(private(x.to(memory_format=torch.channels_last)), y).backward()
        optimizer.step()
    content = {
        "arrays": ArrayRecord({name: tensor.contiguous() for name, tensor in model.state_dict().items()}),
        "metrics": MetricRecord({"num-examples": len(records)}),
    }
    return Message(RecordDict(content), reply_to=message)


class _TimedFedAvg(FedAvg):
    """FedAvg that waits for its turn before each round, and reports how long the round took."""

    def __init__(self, wait_for_turn: Callable[[], None], report: Callable[[float], None]) -> None:
        clients = setting.CLIENTS
        super().__init__(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        self._wait_for_turn, self._report = wait_for_turn, report
        self._started = 0.0

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Begin a round."""
        self._wait_for_turn()
        self._started = time.perf_counter()
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Any:
        """End a round."""
        replies = list(replies)
        failed = [reply.error for reply in replies if reply.has_error()]
        if failed or len(replies) != setting.CLIENTS:
            raise RuntimeError(f"{len(replies)} replies, failures {failed}")
        result = super().aggregate_train(server_round, replies)
        self._report(time.perf_counter() - self._started)
        return result


def serve(num_rounds: int, wait_for_turn: Callable[[], None], report: Callable[[float], None]) -> None:
    """Start Flower and Ray, then make rounds, and report the seconds of each."""
    server, client = ServerApp(), ClientApp()
    client.train()(_train)

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        arrays = ArrayRecord(setting.initial_model().state_dict())
        _TimedFedAvg(wait_for_turn, report).start(grid=grid, initial_arrays=arrays, num_rounds=num_rounds)

    run_simulation(
        server_app=server,
        client_app=client,
        num_supernodes=setting.CLIENTS,
        backend_config={
            "init_args": {"num_cpus": setting.PROCESSES, "include_dashboard": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
