"""A vault, two anchors' disks and a state folder as values, so that a test can try every order of events."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from alidpfl.errors import AliDpflError
from alidpfl.types import ClientUpdate
from alidpfl.vault.anchor import add_anchor, move_anchor
from alidpfl.vault.folder import POLICY, REFUSALS, VaultFolder
from alidpfl.vault.refusals import VaultRefusedError

from .parts import body, machine, opened

STEPS = 2
Files = dict[str, bytes]


def read_files(root: Path) -> Files:
    """Return all files on which a budget depends: no locks and no log of refusals, which name processes and times."""
    found = (path for path in root.rglob("*") if path.is_file() and not path.name.endswith(("lock", REFUSALS)))
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


def write_files(root: Path, files: Files) -> None:
    """Make the folder hold exactly these files."""
    for path in root.rglob("*"):
        if path.is_file() and str(path.relative_to(root)) not in files:
            path.unlink()
    for name, content in files.items():
        path = root / name
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            path.write_bytes(content)


@dataclass(frozen=True, kw_only=True)
class Rules:
    """How the owner works."""

    names_anchor: bool
    """The unit of the service has --anchor, with the last anchor that a command set."""
    on_restore: str
    """What a restore of the folder does to the state folder: "keep", "lose" or "restore" it as well."""


@dataclass(frozen=True, kw_only=True)
class World:
    """All files below one root, the copies of the folder, the unit's anchor, and what the server received."""

    files: Files
    copies: tuple[Files, ...] = ()
    unit: str | None = None
    answers: dict[int, bytes] = field(default_factory=dict)
    steps: int = 0
    """Steps that were trained, in all trainings."""

    def key(self) -> bytes:
        """Return equal bytes for worlds that behave alike."""
        values = [self.files, self.copies, self.unit, self.answers, self.steps]
        parts = [sorted(value.items()) if isinstance(value, dict) else value for value in values]
        parts[1] = sorted(sorted(copy.items()) for copy in self.copies)
        return hashlib.sha256(repr(parts).encode()).digest()


class _Trainer:
    """No two trainings of a world give the same result."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def job(self, asked):
        return self._train

    def _train(self, start, plan):
        self.steps += plan.steps
        return ClientUpdate(client=plan.client, params=start + np.float32(self.steps))


class Stage:
    """Plays events in a real folder. `root` has vault/, state/, disk-a/ and disk-b/."""

    def __init__(self, root: Path, rules: Rules, affordable: int) -> None:
        self.root, self.rules, self.affordable = root, rules, affordable
        self.anchors = {name: root / f"disk-{name}" / "anchor" for name in "ab"}

    def after(self, event: str, world: World) -> World | None:
        """Return the world after an event; None if the event cannot happen."""
        name, _, which = event.partition(" ")
        write_files(self.root, world.files)
        with machine(self.root / "state"):
            changed = getattr(self, f"_{name}")(world, which)
        return changed and replace(changed, files=read_files(self.root))

    def _round(self, world: World, _which: str) -> World:
        """Start the service, and ask for every round so far and the next one."""
        answers, trainer = dict(world.answers), _Trainer(world.steps)
        anchor = Path(world.unit) if self.rules.names_anchor and world.unit else None
        try:
            with opened(VaultFolder(path=self.root / "vault"), trainer, anchor=anchor) as vault:
                vault.clock = lambda: 0
                for number in range(len(answers) + 1):
                    self._ask(vault, number, answers)
        except AliDpflError:
            pass
        assert trainer.steps <= self.affordable, "more steps than the budget pays for"
        return replace(world, answers=answers, steps=trainer.steps)

    def _ask(self, vault, number: int, answers: dict[int, bytes]) -> None:
        try:
            answer = vault.answer(body(round=number, steps=STEPS))
        except VaultRefusedError:
            return
        assert answers.setdefault(number, answer) == answer, f"round {number} has two answers"

    def _copy(self, world: World, _which: str) -> World | None:
        kept = ("vault/", "state/") if self.rules.on_restore == "restore" else ("vault/",)
        new = {name: content for name, content in world.files.items() if name.startswith(kept)}
        return (
            replace(world, copies=(*world.copies, new)) if len(world.copies) < 2 and new not in world.copies else None
        )

    def _restore(self, world: World, which: str) -> World | None:
        if int(which) >= len(world.copies):
            return None
        if self.rules.on_restore == "restore" and world.unit is None:
            return None  # without an anchor, nothing outside the restored disk knows of any round
        gone = ("vault/",) if self.rules.on_restore == "keep" else ("vault/", "state/")
        files = {name: content for name, content in world.files.items() if not name.startswith(gone)}
        write_files(self.root, files | world.copies[int(which)])
        return world

    def _add(self, world: World, which: str) -> World | None:
        return self._command(add_anchor, world, which)

    def _move(self, world: World, which: str) -> World | None:
        return self._command(move_anchor, world, which)

    def _command(self, change: Callable[[VaultFolder, Path], Path], world: World, which: str) -> World | None:
        try:
            change(VaultFolder(path=self.root / "vault"), self.anchors[which])
        except AliDpflError:
            return world
        return replace(world, unit=str(self.anchors[which]))

    def _delete(self, world: World, _which: str) -> World | None:
        """Delete every line of the policy that names an anchor."""
        policy = self.root / "vault" / POLICY
        lines = policy.read_text().splitlines(keepends=True)
        left = "".join(line for line in lines if not line.startswith("anchor"))
        if left == "".join(lines):
            return None
        policy.write_text(left)
        return world


def explore(stage: Stage, first: World, events: tuple[str, ...], depth: int) -> dict[str, int]:
    """Play every sequence of up to `depth` events, each world once. Return how often each event led to a new world."""
    seen, worlds, counts = {first.key()}, [(first, ())], dict.fromkeys(events, 0)
    for _ in range(depth):
        ahead = []
        for world, history in worlds:
            for event in events:
                try:
                    new = stage.after(event, world)
                except AssertionError as error:
                    raise AssertionError(f"{' -> '.join((*history, event))}: {error}") from None
                if new is None or (key := new.key()) in seen:
                    continue
                seen.add(key)
                counts[event] += 1
                ahead.append((new, (*history, event)))
        worlds = ahead
    return counts
