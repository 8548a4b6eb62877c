"""Progress on standard error, and printing to the terminal. On a pipe there is no progress line."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeRemainingColumn

from alidpfl.types import OnProgress

DESCRIPTION = TextColumn("{task.description}")
BAR = BarColumn(bar_width=24)
"""Short enough for a narrow terminal."""
_PIPE_WIDTH = 200


def moving_line(*columns: ProgressColumn) -> Progress:
    """Return a progress line with a spinner and `columns`. It disappears at the end."""
    console = Console(stderr=True)
    return Progress(SpinnerColumn(), *columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def progress_bar(first: str = "loading") -> Iterator[OnProgress]:
    """Show a progress bar. Call the yielded function with what is being done and the share that is done."""
    with moving_line(DESCRIPTION, BAR, TimeRemainingColumn()) as progress:
        task = progress.add_task(first, total=1.0)
        yield lambda what, share: progress.update(task, description=what, completed=share)


def wide_console() -> Console:
    """Return the terminal, or on a pipe a console that is wide enough not to fold tables."""
    console = Console()
    return console if console.is_terminal else Console(width=_PIPE_WIDTH)


def print_written(*paths: Path | None) -> None:
    """Print the files that were written."""
    for path in paths:
        if path is not None:
            wide_console().print(f"written to {path}", markup=False, highlight=False)
