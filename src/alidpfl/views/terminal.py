"""Where tables are printed."""

from rich.console import Console

_WIDTH_OF_A_PIPE = 200


def wide_console() -> Console:
    """The terminal; on a pipe as wide as tables like to be, which are then not folded."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH_OF_A_PIPE)
