"""Reads the lines of metrics.jsonl and timings.jsonl, of which a kill may have cut the last."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alidpfl.errors import DataError
from alidpfl.store.files import parse_json
from alidpfl.types import RoundRecord

_NUMBERS = ("round", "local_steps", "steps", "learning_rate", "clip_norm", "noise_multiplier", "epsilon", "bytes")
_OPTIONAL_NUMBERS = ("curvature", "heterogeneity", "accuracy", "loss")


@dataclass(frozen=True, kw_only=True)
class RoundTiming:
    """How long a round took. Not part of RoundRecord, whose bytes must not depend on the clock."""

    round: int
    """k, from 0."""
    seconds: float
    """Of this round."""
    seconds_total: float
    """Of the run so far, without the time between a crash and its resume."""


def complete_lines(content: bytes) -> Iterator[tuple[int, bytes]]:
    """Line numbers from 1, and lines. What follows the last line break was cut by a kill, or is being written now."""
    return enumerate(content.split(b"\n")[:-1], start=1)


def parse_record(line: bytes, number: int, source: Path) -> RoundRecord:
    """The RoundRecord in a line of metrics.jsonl."""
    try:
        values = _object(line)
        record = RoundRecord.from_json(values)
        _check_numbers(values, _NUMBERS)
        _check_numbers({k: v for k, v in values.items() if v is not None}, _OPTIONAL_NUMBERS)
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError):
        raise _bad_line(source, number, "round record") from None
    return record


def parse_timing(line: bytes, number: int, source: Path) -> RoundTiming:
    """The RoundTiming in a line of timings.jsonl."""
    try:
        values = _object(line)
        timing = RoundTiming(**values)
        _check_numbers(values, tuple(values))
    except (ValueError, TypeError):
        raise _bad_line(source, number, "timing") from None
    return timing


def _object(line: bytes) -> dict[str, Any]:
    values = parse_json(line)
    if not isinstance(values, dict):
        raise TypeError
    return values


def _check_numbers(values: dict[str, Any], names: tuple[str, ...]) -> None:
    for name in names:
        if isinstance(values.get(name, 0), bool) or not isinstance(values.get(name, 0), int | float):
            raise TypeError(name)


def _bad_line(source: Path, number: int, what: str) -> DataError:
    return DataError(
        f"{source} line {number} is not a {what}: the file was edited, damaged, or written by another version of "
        "alidpfl; restore it from a copy"
    )
