"""A package of networks as a user writes one, in a folder of its own that is the current one."""

import itertools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

NETS = """
import math
import torch
from torch import nn

def two_layers(input_shape, num_outputs, *, width=8, activation="tanh"):
    middle = {"tanh": nn.Tanh, "relu": nn.ReLU}[activation]()
    first = nn.Linear(math.prod(input_shape), width)
    return nn.Sequential(nn.Flatten(), first, middle, nn.Linear(width, num_outputs))

class Wide(nn.Module):
    def __init__(self, input_shape, num_outputs, width=8):
        super().__init__()
        self.layers = two_layers(input_shape, num_outputs, width=width)
    def forward(self, x):
        return self.layers(x)

def mixing(input_shape, num_outputs):
    size = math.prod(input_shape)
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(size), nn.Linear(size, num_outputs))

def no_module(input_shape, num_outputs):
    return [1, 2]

def broken(input_shape, num_outputs):
    raise RuntimeError("no such file")

NO_FUNCTION = 7
BUILT = nn.Linear(3, 3)
"""

_NUMBERS = itertools.count()


@dataclass(frozen=True)
class OwnPackage:
    """The package and its folder. `package` is a name that no other test has."""

    folder: Path
    package: str

    def __call__(self, function: str) -> str:
        """Return the setting that names a function."""
        return f"{self.package}.nets:{function}"

    @property
    def file(self) -> Path:
        return self.folder / self.package / "nets.py"

    def edit(self, old: str, new: str) -> None:
        """Change the file, and forget what was imported, as a new process does."""
        self.file.write_text(self.file.read_text().replace(old, new))
        self.forget()

    def forget(self) -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == self.package]:
            del sys.modules[name]


@contextmanager
def own_package(folder: Path) -> Iterator[OwnPackage]:
    """Write the package below this folder, which becomes the current one."""
    package = OwnPackage(folder, f"own_nets_{next(_NUMBERS)}")
    (folder / package.package).mkdir(parents=True)
    (folder / package.package / "__init__.py").touch()
    package.file.write_text(NETS)
    before, path = Path.cwd(), list(sys.path)
    os.chdir(folder)
    try:
        yield package
    finally:
        os.chdir(before)
        sys.path[:] = path
        package.forget()
