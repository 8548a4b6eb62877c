"""How far long work is: a line on standard error that moves, and is gone at the end. On a pipe there is nothing."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeRemainingColumn

from alidpfl.types import OnProgress

DESCRIPTION = TextColumn("{task.description}")
BAR = BarColumn(bar_width=24)
"""Short enough for a narrow terminal."""


def moving_line(*columns: ProgressColumn) -> Progress:
    """A spinner and `columns`."""
    console = Console(stderr=True)
    return Progress(SpinnerColumn(), *columns, console=console, transient=True, disable=not console.is_terminal)


@contextmanager
def progress_bar(first: str = "loading") -> Iterator[OnProgress]:
    """For work that tells what it does and the share of it that is done; `first` is shown until it does."""
    with moving_line(DESCRIPTION, BAR, TimeRemainingColumn()) as progress:
        task = progress.add_task(first, total=1.0)
        yield lambda what, share: progress.update(task, description=what, completed=share)


_WIDTH_OF_A_PIPE = 200


def wide_console() -> Console:
    """The terminal; on a pipe as wide as tables like to be, which are then not folded."""
    console = Console()
    return console if console.is_terminal else Console(width=_WIDTH_OF_A_PIPE)
