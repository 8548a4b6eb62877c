"""A picture of who holds what: one column a client, one row a class, a dot as large as the number of samples."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from alidpfl.errors import ConfigError

_FORMATS = (".svg", ".png")
_LARGEST_DOT = 260.0  # square points


def save_picture(counts: NDArray[np.int64], path: Path, title: str) -> None:
    """Write the picture of `counts` (num_clients, num_classes) as SVG or PNG, by the ending of `path`."""
    if path.suffix.lower() not in _FORMATS:
        raise ConfigError(f"--plot {path} must end in {' or '.join(_FORMATS)}")
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure  # not pyplot: that keeps global state and may want a screen
    except ImportError as error:
        raise ConfigError(
            "a plot needs matplotlib; in a clone of alidpfl run: pip install -c constraints.txt '.[report]'"
        ) from error
    num_clients, num_classes = counts.shape
    figure = Figure(figsize=(min(2.5 + 0.32 * num_clients, 40), 1.5 + 0.32 * num_classes), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    clients, classes = np.nonzero(counts)
    areas = _LARGEST_DOT * counts[clients, classes] / max(int(counts.max()), 1)
    axes.scatter(clients, classes, s=areas, c=classes, cmap="tab10", vmin=-0.5, vmax=9.5)
    axes.set(xlabel="client", ylabel="class", title=title, yticks=range(num_classes), axisbelow=True)
    axes.set_xlim(-0.6, num_clients - 0.4)
    axes.set_ylim(num_classes - 0.4, -0.6)
    axes.grid(alpha=0.3)
    try:
        # Without a date and with fixed names, the same split gives the same bytes.
        with matplotlib.rc_context({"svg.hashsalt": "alidpfl"}):
            figure.savefig(path, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)
    except OSError as error:
        raise ConfigError(f"--plot {path} cannot be written ({error}); give another path") from error
