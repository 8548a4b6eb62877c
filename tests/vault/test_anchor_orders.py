"""Every order of rounds, copies, restores and changes of the anchor: no round has two answers or is unpaid."""

from pathlib import Path

import pytest

from alidpfl.vault import anchor as anchor_module

from .parts import machine, made_vault, opened
from .worlds import Rules, Stage, World, explore, read_files

EVENTS = ("round", "copy", "add a", "move b", "move a", "delete", "restore 0", "restore 1")
AFFORDABLE = 5  # steps: two rounds and a half


class Clock:
    """Stands for `time`: the same events give the same files."""

    @staticmethod
    def time() -> float:
        return 0.0


@pytest.fixture(autouse=True)
def _no_time(monkeypatch):
    monkeypatch.setattr(anchor_module, "time", Clock)


def first_world(root: Path, anchor: str | None) -> World:
    for name in "ab":
        (root / f"disk-{name}").mkdir()
    place = None if anchor is None else str(root / f"disk-{anchor}" / "anchor")
    with machine(root / "state"), opened(made_vault(root, anchor=place, budget__epsilon=0.9), object()) as vault:
        assert vault.ledger.book.account.affordable(0.2, 2.0) == AFFORDABLE
    return World(files=read_files(root), unit=place)


@pytest.mark.parametrize("depth", [5, pytest.param(7, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("rules", "anchor"),
    [
        (Rules(names_anchor=False, on_restore="keep"), None),
        (Rules(names_anchor=False, on_restore="lose"), None),
        (Rules(names_anchor=True, on_restore="restore"), None),
        (Rules(names_anchor=False, on_restore="restore"), "a"),
    ],
    ids=["state kept", "state lost", "state restored, --anchor in the unit", "state restored, anchor since init"],
)
def test_every_order_of_events(memory, rules, anchor, depth):
    """The owner starts the service in the ordinary way and repeats commands at will. A policy may lose its lines."""
    counts = explore(Stage(memory, rules, AFFORDABLE), first_world(memory, anchor), EVENTS, depth)
    happens = set(EVENTS) - {"delete"} - ({"add a"} if anchor else set())  # no policy has such a line to delete
    assert {event for event, count in counts.items() if count} == happens
    assert counts["round"] > 50  # otherwise a vault that refuses everything would pass
