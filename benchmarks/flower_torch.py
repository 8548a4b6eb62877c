"""Our two apps as most are written: the ClientApp's module imports torch, in each of its processes."""

import torch  # noqa: F401 - this is what is measured

from alidpfl.flower.apps import client, server

__all__ = ["client", "server"]
