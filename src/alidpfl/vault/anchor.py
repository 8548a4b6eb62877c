"""Add an anchor to a vault, or move it. Each is a line of the ledger: from there on the ledger requires that anchor.

The order of the writes keeps every older copy of the folder from being served, also after a kill between two of them:

1. The new anchor gets the current head. Until step 3, the ledger does not require it.
2. The old anchor gets a note that it moved. From here on no ledger that requires the old anchor is served.
3. ANCHORED is added to the ledger, and all heads follow it. The new anchor is ahead of every older copy.

After a kill before step 2 the vault is served as before. Between 2 and 3 it is refused. Repeating the command completes
the move in both cases. There is no command that removes an anchor: it would let older copies back in.
"""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

from alidpfl.errors import ConfigError
from alidpfl.vault.chain import Chain
from alidpfl.vault.folder import VaultFolder
from alidpfl.vault.heads import Head, check_anchor, lock_head
from alidpfl.vault.ledger import ANCHORED


def add_anchor(folder: VaultFolder, path: Path) -> Path:
    """Let a file on another disk follow the ledger from now on. Return the file.

    Raises:
        ConfigError: the vault is being served, has another anchor, or the file cannot be an anchor.
        DataError: the ledger is damaged or an older copy.
    """
    new = path.resolve()
    check_anchor(new, folder.path)
    with folder.lock():
        old = folder.anchor()
        if old is not None and old != new:
            raise ConfigError(f"this vault has the anchor {old}; `alidpfl vault anchor move` moves it")
        with closing(folder.chain(old)) as chain:
            if old is None:
                with _followed(chain, new):
                    _require(chain, new)
    return new


def move_anchor(folder: VaultFolder, path: Path) -> Path:
    """Let another file follow the ledger instead of the anchor. Return the file.

    Raises:
        ConfigError: the vault is being served, has no anchor, or the file cannot be an anchor.
        DataError: the old anchor is missing, or the ledger is damaged or an older copy.
    """
    new = path.resolve()
    check_anchor(new, folder.path)
    with folder.lock():
        if (old := folder.anchor()) is None:
            raise ConfigError("this vault has no anchor yet; `alidpfl vault anchor add` adds one")
        left = Head.read(old)
        if left.moved_to is not None and old != new:
            _complete(folder, old, new, left)
            return new
        with closing(folder.chain(old)) as chain:
            if old != new:
                with _followed(chain, new):
                    chain.retire_head(old, new)
                    _require(chain, new)
    return new


def _complete(folder: VaultFolder, old: Path, new: Path, left: Head) -> None:
    """Complete a move that was interrupted after the old anchor got its note."""
    if left.moved_to != str(new):
        raise ConfigError(
            f"{old} was being moved to {left.moved_to}: first complete this move with `anchor move {left.moved_to}`"
        )
    with lock_head(new), closing(folder.chain(new)) as chain:  # it has the head that the old anchor had
        _require(chain, new)


@contextmanager
def _followed(chain: Chain, new: Path) -> Iterator[None]:
    """Lock the new anchor and give it the current head. It may be left over from an interrupted command."""
    with lock_head(new):
        if new.exists():
            chain.check(replace(Head.read(new), moved_to=None), str(new))
        chain.add_head(new)
        yield


def _require(chain: Chain, anchor: Path) -> None:
    chain.append({"kind": ANCHORED, "time": int(time.time()), "anchor": str(anchor)})
