"""What every fuzz test is held to: it works, or it is refused in one clear line; no hang, no memory without bound."""

import os
import resource
import signal
from contextlib import contextmanager

from hypothesis import HealthCheck, settings

from alidpfl.errors import AliDpflError
from tests.runs.command import alidpfl

FACTOR = int(os.environ.get("ALIDPFL_FUZZ", "1"))
"""How many times the examples of CI; above 1 they are drawn anew every time: `make fuzz`."""

_SECONDS = 30
_LONGEST_TEXT = 2000
_ROOM = 1 << 30  # bytes that a single call may take beyond what the process has


def examples(count: int) -> settings:
    """So many examples in CI, always the same ones."""
    unhealthy = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large]
    return settings(
        max_examples=count * FACTOR,
        derandomize=FACTOR == 1,
        deadline=None,
        database=None,
        suppress_health_check=unhealthy,
    )


def fine_or_refused(work, never: tuple[str, ...] = ()):
    """The result of `work`, or None where it was refused in our words, `never` with these in them."""
    try:
        with _bounded():
            return work()
    except AliDpflError as error:
        check_text(str(error), never)
        return None


def command(*arguments) -> tuple[int, str]:
    """Exit status and everything told by the command, which must be 0, or 2 and one line."""
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
    """One clear line, whatever was in the file that it is about."""
    assert not [mark for mark in never if mark in text], text
    assert text.strip()
    assert len(text) <= _LONGEST_TEXT, text[:300]
    assert text.isprintable(), repr(text)
    assert "Traceback" not in text


@contextmanager
def _bounded():
    """In seconds of the processor (others may be at work on it), in the clock's where it waits, and in memory."""
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
