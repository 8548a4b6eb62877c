"""Enrolment: a data set gets a folder with a policy, a public size, and a ledger that stays with it for ever."""

import hashlib
import math
import os
import secrets
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, model_validator

from alidpfl._version import __version__
from alidpfl.errors import ConfigError
from alidpfl.store.files import disk_errors, sync_directory
from alidpfl.types import TaskKind, loss_for
from alidpfl.vault.accounts import filter_order, make_account
from alidpfl.vault.chain import Chain
from alidpfl.vault.heads import check_anchor, make_state_folder, staged, state_head
from alidpfl.vault.ledger import ENROLLED
from alidpfl.vault.messages import Shapes
from alidpfl.vault.policy import PINNED, Policy
from alidpfl.vault.sources import OwnData, OwnRecords, Source

_PRIVATE_FOLDER, _PRIVATE_FILE = 0o700, 0o600
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_ROW_LEVEL = (
    "the data say which records are a person's, and epsilon is for one record, not for all records of a person. To "
    "protect persons, enrol with --unit person and --max-records instead; see docs/how-to/persons.md"
)
_TAKEN = (
    "exists: it follows the ledger of a data set that is enrolled already. If it is this data set, restore its folder "
    "and do not enrol it again; otherwise give another --anchor"
)


def ignore_warning(text: str) -> None:
    """Do nothing with a warning."""


class Enrolment(BaseModel):
    """What was fixed when the ledger began. Size, shapes and terms are public; the hash and the source are not."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["alidpfl-vault-enrolment-1"] = "alidpfl-vault-enrolment-1"
    vault: str
    """A random name, so that heads and ledgers of two vaults are not mixed up."""
    alidpfl: str
    source: Source
    data_sha256: str
    held_out_sha256: str | None = None
    """Hash of the held-out records, if the policy opens them to evaluations."""
    num_records: int
    """Number of records, or of persons if they are the unit of privacy."""
    num_classes: int
    """Number of classes; 0 for other targets."""
    kind: TaskKind = "class"
    """The kind of the targets."""
    num_outputs: int
    """Number of outputs of the model."""
    input_shape: list[int]
    parameters: list[tuple[str, list[int]]]
    filter_order: int | None
    pinned: dict[str, Any]

    @model_validator(mode="before")
    @classmethod
    def _older(cls, values: Any) -> Any:
        """Complete an enrolment from before there were other targets than classes."""
        return {"num_outputs": values["num_classes"], **values} if "num_classes" in values else values

    def loss(self, policy: Policy) -> str:
        """Return the name of the loss: that of the terms, or the usual one for these targets."""
        return loss_for(self.kind, policy.model.loss)

    @cached_property
    def schema_sha256(self) -> str | None:
        """Hash of the schema by which rows become vectors; None for records that are no table. It is public."""
        return None if (schema := self.source.table) is None else schema.sha256

    @property
    def shapes(self) -> Shapes:
        """Shapes of the trained parameters by name, in the model's order."""
        return {name: tuple(shape) for name, shape in self.parameters}

    @property
    def num_params(self) -> int:
        """Number of trained parameters."""
        return sum(map(math.prod, self.shapes.values()))

    def check_policy(self, policy: Policy, source: Path) -> None:
        """Raise ConfigError if the policy's terms are not those on which the ledger began."""
        before, now = _terms(self.pinned), _terms(policy.pinned())
        changed = [
            f"{key} was {before.get(key)} and is {now.get(key)}"
            for key in [*now, *(key for key in before if key not in now)]
            if before.get(key) != now.get(key)
        ]
        if changed:
            raise ConfigError(
                f"{source}: {', '.join(changed)}; the ledger began on the old terms and is valid only on them: put "
                "them back"
            )


def _terms(pinned: Mapping[str, Any]) -> dict[str, Any]:
    """Return the terms by key. A section that a policy may leave out, and that older vaults do not have, is None."""
    # Older vaults do not have [data] either. Their unit is a record, the default.
    sections = {name: pinned.get(name, {} if name == "data" else None) for name in PINNED}
    values = {
        f"{name}.{key}": value
        for name, keys in sections.items()
        if keys is not None
        for key, value in {**Policy.defaults(name), **keys}.items()
    }
    return values | {name: None if keys is None else "set" for name, keys in sections.items()}


def enrol(
    folder: Path,
    source: Source,
    policy: Policy,
    *,
    anchor: Path | None = None,
    warn: Callable[[str], None] = ignore_warning,
) -> Enrolment:
    """Create the vault's folder, whole or not at all. The records are read and not changed.

    Args:
        folder: the vault's folder, which must be empty or not exist.
        source: where the records are.
        policy: the owner's policy.
        anchor: a file on another disk that follows the ledger's head, or None.
        warn: told what the owner should know before the vault serves.

    Returns:
        What is fixed from now on.

    Raises:
        ConfigError: the folder or the anchor is taken, or the settings do not fit together.
        DataError: the records or the disk cannot be used.
    """
    anchor = None if anchor is None else anchor.resolve()
    _refuse_if_taken(folder, anchor)
    order = filter_order(policy)
    make_account(policy, order)  # refuses terms that do not pay for one step
    enrolment = _described(source, policy, order, warn)
    building = folder.with_name(f".{folder.name}.{os.getpid()}.new")
    with ExitStack() as undo, disk_errors("create", folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        building.mkdir(mode=_PRIVATE_FOLDER)
        undo.callback(shutil.rmtree, building, ignore_errors=True)
        state = state_head(enrolment.vault)
        make_state_folder(state)
        for head in (state,) if anchor is None else (state, anchor):
            _claim(head)
            undo.callback(head.unlink, missing_ok=True)  # from here on it is ours to delete
            undo.callback(staged(head).unlink, missing_ok=True)
        _fill(building, enrolment, policy, anchor)
        os.rename(building, folder)  # replaces an empty folder or makes a new one, never replaces a ledger
        undo.pop_all()
        sync_directory(folder.parent)
    return enrolment


def _refuse_if_taken(folder: Path, anchor: Path | None) -> None:
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(
            f"{folder} is not empty: a data set is enrolled once, and its ledger lasts as long as its records. Give "
            "another --dir for another data set, or run `alidpfl vault serve` on this one"
        )
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; give a folder")
    if anchor is not None:
        if anchor.exists():
            raise ConfigError(f"{anchor} {_TAKEN}")
        check_anchor(anchor, folder)


def _claim(anchor: Path) -> None:
    """Create the anchor's file, empty. If two enrolments run at the same time, only one gets it."""
    with disk_errors("create", anchor):
        try:
            os.close(os.open(anchor, _NEW_FILE, _PRIVATE_FILE))
        except FileExistsError:
            raise ConfigError(f"{anchor} {_TAKEN}") from None


def _described(source: Source, policy: Policy, order: int | None, warn: Callable[[str], None]) -> Enrolment:
    from alidpfl.federation.tensors import trained
    from alidpfl.models import make_model

    own = source.load(policy.model.loss)
    records, outputs = own.trained.records, own.num_outputs
    groups = own.trained.groups(policy.data, source.person_remedy)
    if groups is None and own.trained.persons is not None:
        warn(_ROW_LEVEL)
    held_out = held_out_records(source, own, policy)
    loss_for(records.kind, policy.model.loss)  # refuses one that takes other targets
    input_shape = tuple(records.inputs.shape[1:])
    try:
        model = make_model(policy.model.name, input_shape, outputs, hidden=policy.model.hidden, seed=0)
    except ConfigError as error:
        raise ConfigError(f"{error} (--model linear takes inputs of any shape)") from None
    return Enrolment(
        vault=secrets.token_hex(8),
        alidpfl=__version__,
        source=source,
        data_sha256=own.trained.content_hash(policy.data),
        held_out_sha256=None if held_out is None else held_out.content_hash(policy.data),
        num_records=len(records if groups is None else groups),
        num_classes=outputs if records.kind == "class" else 0,
        kind=records.kind,
        num_outputs=outputs,
        input_shape=list(input_shape),
        parameters=[(name, list(values.shape)) for name, values in trained(model).items()],
        filter_order=order,
        pinned=policy.pinned(),
    )


def held_out_records(source: Source, own: OwnData, policy: Policy) -> OwnRecords | None:
    """Return the records to evaluate on; None if the policy opens none. Refuse a source that holds none out."""
    if policy.evaluation is None:
        return None
    if own.held_out is None or (source.table is not None and source.table.held_out == 0):
        raise ConfigError(
            "[evaluation] needs held-out rows: enrol a table with a held_out share in its schema, or leave it out"
        )
    return own.held_out


def _fill(folder: Path, enrolment: Enrolment, policy: Policy, anchor: Path | None) -> None:
    from alidpfl.vault.folder import ANSWERS, ENROLMENT, HEAD, LEDGER, POLICY

    record = (enrolment.model_dump_json(indent=2) + "\n").encode()
    with disk_errors("create", folder):
        (folder / ANSWERS).mkdir(mode=_PRIVATE_FOLDER)
        for name, content in ((POLICY, policy.to_toml().encode()), (ENROLMENT, record)):
            with open(os.open(folder / name, _NEW_FILE, _PRIVATE_FILE), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
    genesis: dict[str, Any] = {"kind": ENROLLED, "time": int(time.time()), "vault": enrolment.vault}
    genesis["enrolment"] = hashlib.sha256(record).hexdigest()
    heads: tuple[Path, ...] = (folder / HEAD, state_head(enrolment.vault))
    if anchor is not None:  # from the first line on: every copy of the folder names it
        genesis["anchor"], heads = str(anchor), (*heads, anchor)
    Chain.create(folder / LEDGER, heads, genesis).close()
