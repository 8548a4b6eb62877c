"""A picture of who holds what: one column a client, one row a class, a dot as large as the number of samples."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from alidpfl.views.drawing import figure_class, save

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_LARGEST_DOT = 260.0  # square points


def save_split_figure(counts: NDArray[np.int64], path: str | Path, title: str) -> None:
    """Draws `counts` (num_clients, num_classes) into `path`, as PNG or SVG by its extension."""
    save(lambda: split_figure(counts, title), path)


def split_figure(counts: NDArray[np.int64], title: str) -> "Figure":
    """The figure, unsaved."""
    num_clients, num_classes = counts.shape
    size = (min(2.5 + 0.32 * num_clients, 40), 1.5 + 0.32 * num_classes)
    figure = figure_class()(figsize=size, layout="constrained")
    axes = figure.add_subplot()
    clients, classes = np.nonzero(counts)
    areas = _LARGEST_DOT * counts[clients, classes] / max(int(counts.max()), 1)
    axes.scatter(clients, classes, s=areas, c=classes, cmap="tab10", vmin=-0.5, vmax=9.5)
    axes.set(xlabel="client", ylabel="class", title=title, yticks=range(num_classes), axisbelow=True)
    axes.set_xlim(-0.6, num_clients - 0.4)
    axes.set_ylim(num_classes - 0.4, -0.6)
    axes.grid(alpha=0.3)
    return figure
