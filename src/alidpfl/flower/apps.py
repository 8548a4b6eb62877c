"""The two apps that `flwr run` starts. `alidpfl flower init` writes a folder that points here.

Each app imports what it needs when it runs, so a ClientApp loads no torch.
"""

from collections.abc import Mapping

from alidpfl.flower.client import Records, client_app
from alidpfl.flower.nodes import Link
from alidpfl.flower.server import server_app


def _run(link: Link, run_config: Mapping[str, bool | int | float | str]) -> None:
    from alidpfl.flower.run import run_over_nodes

    run_over_nodes(link, run_config)


def _simulated(run_config: Mapping[str, bool | int | float | str], partition: int) -> Records:
    from alidpfl.flower.simulated_node import simulated_node

    return simulated_node(run_config, partition)


server = server_app(_run)
client = client_app(_simulated)
