"""How a process is set up that trains: in a simulation's worker and in an owner's vault alike."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_THRESHOLD = 32 << 20  # glibc refuses more


@contextmanager
def steady_arithmetic() -> Iterator[None]:
    """Run torch in one thread, without denormal numbers.

    One thread: clients are spread over processes, and sums then have one order whatever the machine. No denormals:
    arithmetic on them takes a hundred times as long, and a hostile server can choose weights under which a single
    record meets them, so that the time of a round would tell whether it was drawn.
    """
    threads, flushed = torch.get_num_threads(), _flushes_denormals()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)  # of this thread only
    try:
        yield
    finally:
        torch.set_flush_denormal(flushed)
        torch.set_num_threads(threads)


def _flushes_denormals() -> bool:
    """Torch has no question for it."""
    return not bool(torch.full((1,), 1e-40).mul(1.0))


def keep_heap() -> None:
    """Have glibc keep freed memory instead of handing it back: a step's buffers are the same every time.

    Without it a step takes about a third longer. Other C libraries know no `mallopt`, and lose nothing else.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)
