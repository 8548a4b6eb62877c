"""Enrolment: a data set gets a folder with a policy, a public size, and a ledger that stays with it for ever."""

import hashlib
import json
import math
import os
import secrets
import shutil
import time
from collections.abc import Mapping
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from alidpfl._version import __version__
from alidpfl.errors import ConfigError
from alidpfl.store.access import refuse_if_shared
from alidpfl.store.files import disk_errors, sync_directory
from alidpfl.tables.held_out import KEY_BYTES
from alidpfl.tables.schema import Schema
from alidpfl.types import TaskKind, loss_for
from alidpfl.vault.accounts import filter_order, make_account
from alidpfl.vault.chain import Chain
from alidpfl.vault.heads import check_anchor, make_state_folder, staged, state_head
from alidpfl.vault.ledger import ENROLLED
from alidpfl.vault.messages import Shapes
from alidpfl.vault.policy import PINNED, Policy

if TYPE_CHECKING:
    from alidpfl.data import LabelledData

_PRIVATE_FOLDER, _PRIVATE_FILE = 0o700, 0o600
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
_TAKEN = (
    "exists: it follows the ledger of a data set that is enrolled already. If it is this data set, restore its folder "
    "and do not enrol it again; otherwise give another --anchor"
)


class _Source(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @property
    def table(self) -> Schema | None:
        """The schema of the owner's table; None for records that are no table."""
        return None

    def held_out(self, loss: str | None) -> "LabelledData | None":
        """Return the records that are never trained on, for a loss; None if this source holds none out."""
        return None


class FileSource(_Source):
    """The owner's own `.npz` file with the arrays x and y."""

    kind: Literal["file"] = "file"
    path: str
    num_classes: int | None = Field(None, ge=2, examples=[3])
    """Number of classes; None for other targets. Computed from the labels, it would reveal something about them."""
    pixel_range: tuple[float, float] = (-1.0, 1.0)

    def load(self, loss: str | None = None) -> tuple["LabelledData", int]:
        """Return the records and the number of outputs that a model needs."""
        from alidpfl.data.dataset import check_counts, num_outputs
        from alidpfl.data.own import load_client

        refuse_if_shared(Path(self.path), any_owner=True)  # the owner cannot change them unnoticed: they are hashed
        records = load_client(Path(self.path), self.pixel_range)
        check_counts(self.path, records.targets, loss)
        if records.kind != "class":
            if self.num_classes is not None:
                raise ConfigError(
                    f"--num-classes {self.num_classes}: array y of {self.path} has targets of kind "
                    f'"{records.kind}", not classes; leave it out'
                )
            return records, num_outputs(records.targets)
        if self.num_classes is None:
            raise ConfigError("give --num-classes: computed from the labels, it would reveal something about them")
        if int(records.targets.max()) >= self.num_classes:
            raise ConfigError(
                f"{self.path} has labels beyond num_classes={self.num_classes}: they must go from 0 to "
                f"{self.num_classes - 1}. If they count from 1, subtract 1; otherwise raise --num-classes"
            )
        return records, self.num_classes


class TableSource(_Source):
    """The owner's own CSV or Parquet file. The rows that its key holds out are never trained on.

    Schema and key are stored in the enrolment, which only the owner can read and the ledger pins. So a schema file that
    changes later changes nothing, and no row moves between the two parts.
    """

    kind: Literal["table"] = "table"
    path: str
    canonical_schema: str
    """The whole schema, as `Schema.canonical` writes it."""
    held_out_key: str = Field(
        default_factory=lambda: secrets.token_hex(KEY_BYTES), pattern=rf"^[0-9a-f]{{{2 * KEY_BYTES}}}$", repr=False
    )
    """Key of the hash that holds rows out. Anyone who knows it can tell whether a given row would be trained on."""

    @property
    def table(self) -> Schema:
        """The schema of the owner's table."""
        return Schema.from_canonical(self.canonical_schema, "the enrolled schema")

    def load(self, loss: str | None = None) -> tuple["LabelledData", int]:
        """Return the rows to train on and the number of outputs that a model needs."""
        from alidpfl.data.table import load_own_table

        refuse_if_shared(Path(self.path), any_owner=True)  # the owner cannot change them unnoticed: they are hashed
        schema = self.table
        records = load_own_table(Path(self.path), schema, bytes.fromhex(self.held_out_key), loss)
        return records, schema.num_outputs

    def held_out(self, loss: str | None) -> "LabelledData":
        """Return the rows that are never trained on. There may be none: their number is private."""
        from alidpfl.data.table import load_own_table

        return load_own_table(Path(self.path), self.table, bytes.fromhex(self.held_out_key), loss, held_out=True)


class SplitSource(_Source):
    """One client's share of a known data set, for trials. It has the same rows as in a simulated run."""

    kind: Literal["split"] = "split"
    name: Literal["strokes", "mnist", "fashion_mnist", "cifar10", "synthetic"]
    client: int = Field(ge=0, examples=[0])
    clients: int = Field(10, ge=1)
    partition: Literal["iid", "dirichlet", "natural"] = "dirichlet"
    dirichlet_beta: float = Field(0.5, gt=0)
    min_samples: int = Field(10, ge=1)
    validation: float = Field(0.0, ge=0, lt=1)
    seed: int = Field(0, ge=0)
    data_dir: str | None = None

    def load(self, loss: str | None = None) -> tuple["LabelledData", int]:
        """Return the records and the number of outputs that a model needs."""
        from alidpfl.data import LabelledData, held_out_rows, load
        from alidpfl.data.partition import client_rows

        if self.client >= self.clients:
            raise ConfigError(f"client={self.client} must be below clients={self.clients}; clients count from 0")
        options: dict[str, Any] = {"clients": self.clients, "seed": self.seed} if self.name == "synthetic" else {}
        dataset = load(self.name, data_dir=Path(self.data_dir) if self.data_dir else None, **options)
        private, _ = held_out_rows(len(dataset.train), self.validation, self.seed)
        split = self.model_dump(include={"clients", "dirichlet_beta", "seed", "min_samples"})
        rows = client_rows(dataset, self.partition, among=private, **split)
        held, train = rows[self.client], dataset.train
        return LabelledData(inputs=train.inputs[held], targets=train.targets[held]), dataset.num_outputs


Source = Annotated[FileSource | TableSource | SplitSource, Field(discriminator="kind")]


def content_hash(records: "LabelledData") -> str:
    """Return a hash of all records in their order. It stays private: guesses of the records can be tested on it."""
    digest = hashlib.sha256(json.dumps([list(records.inputs.shape), list(records.targets.shape)]).encode())
    digest.update(records.inputs.contiguous().numpy().tobytes())
    digest.update(records.targets.contiguous().numpy().tobytes())
    return digest.hexdigest()


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
    sections = {name: pinned.get(name) for name in PINNED}
    values = {
        f"{name}.{key}": value
        for name, keys in sections.items()
        if keys is not None
        for key, value in {**Policy.defaults(name), **keys}.items()
    }
    return values | {name: None if keys is None else "set" for name, keys in sections.items()}


def enrol(folder: Path, source: Source, policy: Policy, *, anchor: Path | None = None) -> Enrolment:
    """Create the vault's folder, whole or not at all. The records are read and not changed.

    Args:
        folder: the vault's folder, which must be empty or not exist.
        source: where the records are.
        policy: the owner's policy.
        anchor: a file on another disk that follows the ledger's head, or None.

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
    enrolment = _described(source, policy, order)
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


def _described(source: Source, policy: Policy, order: int | None) -> Enrolment:
    from alidpfl.federation.tensors import trained
    from alidpfl.models import make_model

    records, outputs = source.load(policy.model.loss)
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
        data_sha256=content_hash(records),
        held_out_sha256=None if (held_out := held_out_records(source, policy)) is None else content_hash(held_out),
        num_records=len(records),
        num_classes=outputs if records.kind == "class" else 0,
        kind=records.kind,
        num_outputs=outputs,
        input_shape=list(input_shape),
        parameters=[(name, list(values.shape)) for name, values in trained(model).items()],
        filter_order=order,
        pinned=policy.pinned(),
    )


def held_out_records(source: Source, policy: Policy) -> "LabelledData | None":
    """Return the records to evaluate on; None if the policy opens none. Refuse a source that holds none out."""
    if policy.evaluation is None:
        return None
    if (found := source.held_out(policy.model.loss)) is None or (
        source.table is not None and source.table.held_out == 0
    ):
        raise ConfigError(
            "[evaluation] needs held-out rows: enrol a table with a held_out share in its schema, or leave it out"
        )
    return found


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
