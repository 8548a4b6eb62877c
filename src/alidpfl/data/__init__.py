"""Data sets, and how they are shared out among clients.

>>> from alidpfl import data
>>> dataset = data.load("synthetic", clients=3, seed=0)
>>> clients = data.iid(len(dataset.train), num_clients=5, seed=0)
>>> sum(len(client) for client in clients) == len(dataset.train)
True
"""

from alidpfl.data.catalogue import NAMES, load
from alidpfl.data.dataset import Dataset, LabelledData, scaled_images
from alidpfl.data.directories import download_directory
from alidpfl.data.download import get
from alidpfl.data.own import from_clients
from alidpfl.data.partition import dirichlet, held_out_rows, iid, label_counts, small_clients
from alidpfl.data.sources import SOURCES, Source

__all__ = [
    "NAMES",
    "SOURCES",
    "Dataset",
    "LabelledData",
    "Source",
    "dirichlet",
    "download_directory",
    "from_clients",
    "get",
    "held_out_rows",
    "iid",
    "label_counts",
    "load",
    "scaled_images",
    "small_clients",
]
