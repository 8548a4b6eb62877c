"""Heads: small files that name the ledger's last line, so that a ledger that lost lines is noticed.

One lies beside the ledger. It notices a ledger that was cut, but not a folder that was restored as a whole. The others
lie outside the folder:

- The *state head*, in the state folder of the user who serves. Every vault has one.
- The *anchor*, on another disk, if the owner chose one. The ledger says where it is.

All follow every line. A folder whose ledger lacks a line that a head names is an older copy, and is refused.
"""

import json
import re
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path

import platformdirs

from alidpfl.errors import ConfigError, DataError
from alidpfl.store.access import refuse_if_shared
from alidpfl.store.files import parse_json, read_bytes
from alidpfl.store.lock import exclusive_lock

ONE_VAULT = "ask it instead: two vaults on one ledger would spend twice"
_PRIVATE_FOLDER = 0o700


@dataclass(frozen=True, kw_only=True)
class Head:
    """Number and hash of a chain's last line, kept in another file. `vault` is the name from enrolment."""

    vault: str
    counter: int
    hash: str
    moved_to: str | None = None
    """Where the anchor lies now, in the file that was the anchor before."""

    def to_bytes(self) -> bytes:
        """Return the head as one line of JSON."""
        values = {key: value for key, value in asdict(self).items() if value is not None}
        return (json.dumps(values) + "\n").encode()

    @classmethod
    def read(cls, path: Path) -> "Head":
        """Read a head file. Raise DataError if it is missing or damaged."""
        content = read_bytes(path)
        if content is None:
            raise DataError(
                f"{path} is missing. It is the ledger's head: without it, a ledger that was cut looks whole. Put it "
                "back from a copy; if it is an anchor on another disk, mount the anchor's disk"
            )
        try:
            values = parse_json(content)
            counter, moved_to = values["counter"], values.get("moved_to")
            if type(counter) is not int or counter < 0 or not isinstance(moved_to, str | None):
                raise ValueError(counter)
            return cls(vault=str(values["vault"]), counter=counter, hash=str(values["hash"]), moved_to=moved_to)
        except (ValueError, TypeError, KeyError, AttributeError):
            raise DataError(f"{path} is damaged: it is not a ledger's head; put it back from a copy") from None

    def __str__(self) -> str:
        return f"{self.counter}:{self.hash}"


def parse_head(text: str, vault: str) -> Head:
    """Return the head that the owner noted: counter:hash, as `alidpfl vault status` prints it."""
    counter, _, found = text.partition(":")
    if not (counter.isdecimal() and len(found) == 64):  # noqa: PLR2004
        raise DataError(f"head {text!r} must be counter:hash, as `alidpfl vault status` prints it")
    return Head(vault=vault, counter=int(counter), hash=found)


def staged(path: Path) -> Path:
    """Return where the next head is kept until its line is written."""
    return path.with_name(f".{path.name}.next")


def lock_head(path: Path) -> AbstractContextManager[None]:
    """Lock a head outside the folder, against copies of the folder."""
    return exclusive_lock(path.with_name(f".{path.name}.lock"), owner_of=path, remedy=ONE_VAULT)


def state_head(vault: str) -> Path:
    """Return the state head of a vault, on Linux in $XDG_STATE_HOME or ~/.local/state. It may not exist yet."""
    if not re.fullmatch(r"[0-9a-f]{16}", vault):  # it becomes the name of a file
        raise DataError(f"the head names the vault {vault!r}, which is no vault's name; put it back from a copy")
    return platformdirs.user_state_path("alidpfl") / "vaults" / f"{vault}.head"


def make_state_folder(head: Path) -> None:
    """Make the folder of a state head. Refuse one that other users can write."""
    remedy = "set XDG_STATE_HOME to a folder that you can write and that lasts"
    try:
        head.parent.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot create {head.parent}: {error.strerror}; {remedy}") from error
    refuse_if_shared(head.parent)


def check_anchor(anchor: Path, folder: Path) -> None:
    """Raise ConfigError if a file cannot be the anchor of the vault in `folder`: it shares its fate or its writers."""
    if folder.resolve() in anchor.parents:
        raise ConfigError(
            f"{anchor} is in the vault's own folder and would be restored together with it; give another anchor"
        )
    if not anchor.parent.is_dir():
        raise ConfigError(f"{anchor.parent}, the place of the anchor, is not a folder; mount its disk or create it")
    refuse_if_shared(anchor.parent, sticky=True)
    refuse_if_shared(anchor)
