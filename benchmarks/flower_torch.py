"""Our two apps, with torch imported in every process of the ClientApp, as in most apps."""

import torch  # noqa: F401 - this is what is measured

from alidpfl.flower.apps import client, server

__all__ = ["client", "server"]
