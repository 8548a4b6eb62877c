"""How a process is set up that trains: in a simulation's worker and in an owner's vault alike."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST_THRESHOLD = 32 << 20  # glibc refuses more


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch in one thread: clients are spread over processes, and sums then have one order whatever the machine."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def keep_heap() -> None:
    """Have glibc keep freed memory instead of handing it back: a step's buffers are the same every time.

    Without it a step takes about a third longer. Other C libraries know no `mallopt`, and lose nothing else.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_THRESHOLD)
        mallopt(_M_TRIM_THRESHOLD, 1 << 30)
