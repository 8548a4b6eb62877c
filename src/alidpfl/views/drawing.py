"""What every drawing needs of matplotlib, which is an extra (`report`)."""

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from alidpfl.errors import ConfigError
from alidpfl.store.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FORMATS = (".png", ".svg")


def figure_class() -> "type[Figure]":
    """The Figure of matplotlib. Not pyplot: no global state, no window."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError(
            "drawing a figure needs matplotlib: in a clone of alidpfl run `pip install -c constraints.txt '.[report]'`,"
            " or leave --plot out"
        ) from None
    return Figure


def check_extension(path: Path) -> str:
    """The extension, in small letters; refuses what cannot be drawn."""
    kind = path.suffix.lower()
    if kind not in _FORMATS:
        raise ConfigError(f"cannot draw {path}: its extension must be {' or '.join(_FORMATS)}")
    return kind


def save(draw: "Callable[[], Figure]", path: str | Path) -> None:
    """Writes the figure to `path`, as PNG or SVG by its extension, which is looked at before anything is drawn."""
    target = Path(path)
    kind = check_extension(target)
    figure, content = draw(), io.BytesIO()
    import matplotlib as mpl

    # Without date and random names inside, the same values give the same bytes.
    metadata = {"Date": None} if kind == ".svg" else None
    with mpl.rc_context({"svg.hashsalt": "alidpfl"}):
        figure.savefig(content, format=kind.removeprefix("."), dpi=150, metadata=metadata)
    write_atomically(target, content.getvalue())
