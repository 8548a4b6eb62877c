"""The two apps that `flwr run` starts. `alidpfl flower init` writes a folder that points here.

Each app imports what it needs when it runs, so a ClientApp loads no torch.
"""

from alidpfl.flower.client import client
from alidpfl.flower.server import server

__all__ = ["client", "server"]
