"""The rules of every fuzz test: input works or is refused in one clear line, in bounded time and memory."""

import os
import resource
import signal
from contextlib import contextmanager

from hypothesis import HealthCheck, settings

from alidpfl.errors import AliDpflError
from tests.runs.command import alidpfl

FACTOR = int(os.environ.get("ALIDPFL_FUZZ", "1"))
"""Multiplies the number of examples. Above 1, as in `make fuzz`, every run draws new examples."""

_SECONDS = 30
_LONGEST_TEXT = 2000
_ROOM = 1 << 30  # bytes that a single call may take beyond what the process has


def examples(count: int) -> settings:
    """Set the number of examples. CI always draws the same ones."""
    unhealthy = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return settings(
        max_examples=count * FACTOR,
        derandomize=FACTOR == 1,
        deadline=None,
        database=None,
        suppress_health_check=unhealthy,
    )


def fine_or_refused(work, never: tuple[str, ...] = ()):
    """Return the result of `work`, or None if alidpfl refused it. The error must not contain any text of `never`."""
    try:
        with _bounded():
            return work()
    except AliDpflError as error:
        check_text(str(error), never)
        return None


def command(*arguments) -> tuple[int, str]:
    """Return the exit status and the output of a command. The status must be 0, or 2 with one line."""
    with _bounded():
        done = alidpfl(*arguments)
    told = done.stdout + done.stderr
    assert done.exit_code in (0, 2), told
    if done.exit_code == 2:
        *_, last = done.stderr.splitlines()
        assert last.startswith("alidpfl: "), told
        check_text(last.removeprefix("alidpfl: "))
        assert "Traceback" not in told
    return done.exit_code, told


def check_text(text: str, never: tuple[str, ...] = ()) -> None:
    """Check that an error is one short printable line."""
    assert not [mark for mark in never if mark in text], text
    assert text.strip()
    assert len(text) <= _LONGEST_TEXT, text[:300]
    assert text.isprintable(), repr(text)
    assert "Traceback" not in text


@contextmanager
def _bounded():
    """Limit processor time, waiting time and memory of the block."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        mapped = int(file.read().split()[0]) * resource.getpagesize()
    timers = {signal.SIGPROF: (signal.ITIMER_PROF, _SECONDS), signal.SIGALRM: (signal.ITIMER_REAL, 10 * _SECONDS)}
    old = {number: signal.signal(number, _too_long) for number in timers}
    for timer, seconds in timers.values():
        signal.setitimer(timer, seconds)
    resource.setrlimit(resource.RLIMIT_AS, (mapped + _ROOM, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
        for number, (timer, _) in timers.items():
            signal.setitimer(timer, 0)
            signal.signal(number, old[number])


def _too_long(_number, _frame):
    raise AssertionError(f"it takes longer than {_SECONDS} seconds")
