"""Enrolment: a data set gets a folder, a policy, a ledger that belongs to it for ever, and a public size."""

import hashlib
import os
import secrets
import shutil
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from alidpfl._version import __version__
from alidpfl.errors import ConfigError, DataError
from alidpfl.store.files import disk_errors, sync_directory
from alidpfl.vault.accounts import filter_order, make_account
from alidpfl.vault.chain import Chain, staged
from alidpfl.vault.ledger import ENROLLED
from alidpfl.vault.messages import Shapes, num_values
from alidpfl.vault.policy import Policy
from alidpfl.vault.source import Source, content_hash

_PRIVATE_FOLDER, _PRIVATE_FILE = 0o700, 0o600


class Enrolment(BaseModel):
    """What was fixed when the ledger began. Size and shapes are public, the hash and the source are not."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["alidpfl-vault-enrolment-1"] = "alidpfl-vault-enrolment-1"
    vault: str
    """A random name, so that heads and ledgers of two vaults are not mixed up."""
    alidpfl: str
    source: Source
    data_sha256: str
    num_records: int
    num_classes: int
    input_shape: list[int]
    parameters: list[tuple[str, list[int]]]
    """Names and shapes of the trained parameters, in the model's order."""
    filter_order: int | None
    pinned: dict[str, Any]
    """The policy's terms."""

    @property
    def shapes(self) -> Shapes:
        """Of the trained parameters by name."""
        return {name: tuple(shape) for name, shape in self.parameters}

    @property
    def num_params(self) -> int:
        """D."""
        return sum(num_values(shape) for shape in self.shapes.values())

    def check_policy(self, policy: Policy, source: Path) -> None:
        """Refuse terms that the ledger was not begun on."""
        now = policy.pinned()
        changed = [
            f"{section}.{key} was {self.pinned.get(section, {}).get(key)} and is {value}"
            for section, values in now.items()
            for key, value in values.items()
            if self.pinned.get(section, {}).get(key) != value
        ]
        if changed:
            raise ConfigError(
                f"{source}: {', '.join(changed)}; the ledger was begun on the old terms, and what it holds means "
                "nothing on others: put them back"
            )


def parse_enrolment(content: bytes | None, expected_hash: str, source: Path) -> Enrolment:
    """The record in a file, which must be the one that the ledger began with."""
    if content is None or hashlib.sha256(content).hexdigest() != expected_hash:
        raise DataError(f"{source} is missing or not what the ledger began with; put it back from a copy")
    try:
        return Enrolment.model_validate_json(content)
    except ValidationError:
        raise DataError(f"{source} was written by another version of alidpfl; use that version") from None


def enrol(folder: Path, source: Source, policy: Policy) -> Enrolment:
    """Make the vault's folder, whole or not at all. Reads the data, and touches nothing of them."""
    if policy.anchor_file is not None:
        policy = policy.model_copy(update={"anchor": str(policy.anchor_file)})
    _refuse_if_taken(folder, policy)
    order = filter_order(policy)
    make_account(policy, order)  # refuses terms that do not pay for one step
    enrolment = _described(source, policy, order)
    building = folder.with_name(f".{folder.name}.{os.getpid()}.new")
    with ExitStack() as undo, disk_errors("create", folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        building.mkdir(mode=_PRIVATE_FOLDER)
        undo.callback(shutil.rmtree, building, ignore_errors=True)
        if policy.anchor_file is not None:
            _claim(policy.anchor_file)
            undo.callback(policy.anchor_file.unlink, missing_ok=True)  # ours from here on, and only ours to delete
            undo.callback(staged(policy.anchor_file).unlink, missing_ok=True)
        _fill(building, enrolment, policy)
        os.rename(building, folder)  # over an empty folder, or as a new one: never over a ledger
        undo.pop_all()
        sync_directory(folder.parent)
    return enrolment


def _refuse_if_taken(folder: Path, policy: Policy) -> None:
    if folder.is_dir() and any(folder.iterdir()):
        raise ConfigError(
            f"{folder} is not empty: a data set is enrolled once, and its ledger lasts as long as its records; give "
            "another --dir for another data set, or `alidpfl vault serve` this one"
        )
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; give a folder")
    anchor = policy.anchor_file
    if anchor is None:
        return
    if anchor.exists():
        raise _anchor_is_taken(anchor)
    if folder.resolve() in anchor.parents:
        raise ConfigError(
            f"{anchor} is in the vault's own folder, and would be restored with it; give another --anchor"
        )
    if not anchor.parent.is_dir():
        raise ConfigError(f"{anchor.parent}, where the anchor is to lie, is not a folder; mount its disk or create it")


def _claim(anchor: Path) -> None:
    """Make the anchor's file, empty: of two enrolments at the same time, one gets it."""
    with disk_errors("create", anchor):
        try:
            os.close(os.open(anchor, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE_FILE))
        except FileExistsError:
            raise _anchor_is_taken(anchor) from None


def _anchor_is_taken(anchor: Path) -> ConfigError:
    return ConfigError(
        f"{anchor} exists: it follows the ledger of a data set that is enrolled already; if it is this one, restore "
        "its folder instead of enrolling it again, else give another --anchor"
    )


def _described(source: Source, policy: Policy, order: int | None) -> Enrolment:
    from alidpfl.federation.params import trained
    from alidpfl.models import make_model

    records, num_classes = source.load()
    input_shape = tuple(records.inputs.shape[1:])
    try:
        model = make_model(policy.model.name, input_shape, num_classes, hidden=policy.model.hidden, seed=0)
    except ConfigError as error:
        raise ConfigError(f"{error} (--model linear takes inputs of any shape)") from None
    return Enrolment(
        vault=secrets.token_hex(8),
        alidpfl=__version__,
        source=source,
        data_sha256=content_hash(records),
        num_records=len(records),
        num_classes=num_classes,
        input_shape=list(input_shape),
        parameters=[(name, list(values.shape)) for name, values in trained(model).items()],
        filter_order=order,
        pinned=policy.pinned(),
    )


def _fill(folder: Path, enrolment: Enrolment, policy: Policy) -> None:
    from alidpfl.vault.folder import ANSWERS, ENROLMENT, HEAD, LEDGER, POLICY

    record = (enrolment.model_dump_json(indent=2) + "\n").encode()
    with disk_errors("create", folder):
        (folder / ANSWERS).mkdir(mode=_PRIVATE_FOLDER)
        for name, content in ((POLICY, policy.to_toml().encode()), (ENROLMENT, record)):
            descriptor = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE_FILE)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
    anchors = () if policy.anchor_file is None else (policy.anchor_file,)
    genesis = {
        "kind": ENROLLED,
        "time": int(time.time()),
        "vault": enrolment.vault,
        "enrolment": hashlib.sha256(record).hexdigest(),
    }
    Chain.create(folder / LEDGER, (folder / HEAD, *anchors), genesis).close()
