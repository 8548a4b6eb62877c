"""Data sets, and how their records are split among clients.

>>> from alidpfl import data
>>> dataset = data.load("synthetic", clients=3, seed=0)
>>> clients = data.iid(len(dataset.train), num_clients=5, seed=0)
>>> sum(len(client) for client in clients) == len(dataset.train)
True
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alidpfl.data.dataset import Dataset, LabelledData, load, scaled_images
    from alidpfl.data.directories import download_directory
    from alidpfl.data.download import get
    from alidpfl.data.own import from_clients
    from alidpfl.data.partition import dirichlet, held_out_rows, iid, label_counts, small_clients
    from alidpfl.data.sources import SOURCES, Source

_MODULES = {
    "dataset": ("Dataset", "LabelledData", "load", "scaled_images"),
    "directories": ("download_directory",),
    "download": ("get",),
    "own": ("from_clients",),
    "partition": ("dirichlet", "held_out_rows", "iid", "label_counts", "small_clients"),
    "sources": ("SOURCES", "Source"),
}

__all__ = ["SOURCES", "Dataset", "LabelledData", "Source", "dirichlet", "download_directory", "from_clients", "get"]
__all__ += ["held_out_rows", "iid", "label_counts", "load", "scaled_images", "small_clients"]


def __getattr__(name: str) -> Any:
    # Imported on first use: `alidpfl data list` must not wait for torch.
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"alidpfl.data.{module}"), name)
    raise AttributeError(f"module 'alidpfl.data' has no attribute {name!r}")
