"""Where an owner's records are, and how they are read: which are trained on, and which are a person's."""

import hashlib
import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from alidpfl.errors import ConfigError
from alidpfl.store.access import refuse_if_shared
from alidpfl.tables.held_out import KEY_BYTES
from alidpfl.tables.schema import Schema
from alidpfl.vault.policy import DataSection

if TYPE_CHECKING:
    from torch import Tensor

    from alidpfl.data import LabelledData
    from alidpfl.dpsgd import Groups


class OwnRecords(NamedTuple):
    """One part of an owner's records, and the number of the person of each; None if the data do not say."""

    records: "LabelledData"
    persons: "Tensor | None" = None

    def groups(self, data: DataSection, remedy: str) -> "Groups | None":
        """Return the rows of each person; None if the unit of privacy is a record. A ConfigError has the remedy."""
        from alidpfl.dpsgd import Groups

        if data.unit == "record":
            return None
        if self.persons is None:
            raise ConfigError(f'unit="person": the data do not say which records are a person\'s; {remedy}')
        return Groups.of(self.persons)

    def content_hash(self, data: DataSection) -> str:
        """Return a hash of all records in their order, and of their persons if those are the unit of privacy.

        It stays private: guesses of the records can be tested on it.
        """
        digest = hashlib.sha256(
            json.dumps([list(self.records.inputs.shape), list(self.records.targets.shape)]).encode()
        )
        digest.update(self.records.inputs.contiguous().numpy().tobytes())
        digest.update(self.records.targets.contiguous().numpy().tobytes())
        if data.unit == "person" and self.persons is not None:
            digest.update(self.persons.numpy().tobytes())
        return digest.hexdigest()


class OwnData(NamedTuple):
    """All that a source holds."""

    trained: OwnRecords
    num_outputs: int
    """Number of outputs that a model needs."""
    held_out: OwnRecords | None = None
    """The records that are never trained on; None if this source holds none out."""


class _Source(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @property
    def table(self) -> Schema | None:
        """The schema of the owner's table; None for records that are no table."""
        return None

    @property
    def person_remedy(self) -> str:
        """What an owner can do whose data do not say which records are a person's."""
        raise NotImplementedError


class FileSource(_Source):
    """The owner's own `.npz` file with the arrays x and y, and person if it names persons."""

    kind: Literal["file"] = "file"
    path: str
    num_classes: int | None = Field(None, ge=2, examples=[3])
    """Number of classes; None for other targets. Computed from the labels, it would reveal something about them."""
    pixel_range: tuple[float, float] = (-1.0, 1.0)

    @property
    def person_remedy(self) -> str:
        """What an owner can do whose data do not say which records are a person's."""
        return f"add an array `person` to {self.path}, one name for each record, or leave the unit out"

    def load(self, loss: str | None = None) -> OwnData:
        """Return the records."""
        from alidpfl.data.dataset import check_counts, num_outputs
        from alidpfl.data.own import load_client_file

        refuse_if_shared(Path(self.path), any_owner=True)  # the owner cannot change them unnoticed: they are hashed
        own = OwnRecords(*load_client_file(Path(self.path), self.pixel_range))
        records = own.records
        check_counts(self.path, records.targets, loss)
        if records.kind != "class":
            if self.num_classes is not None:
                raise ConfigError(
                    f"--num-classes {self.num_classes}: array y of {self.path} has targets of kind "
                    f'"{records.kind}", not classes; leave it out'
                )
            return OwnData(own, num_outputs(records.targets))
        if self.num_classes is None:
            raise ConfigError("give --num-classes: computed from the labels, it would reveal something about them")
        if int(records.targets.max()) >= self.num_classes:
            raise ConfigError(
                f"{self.path} has labels beyond num_classes={self.num_classes}: they must go from 0 to "
                f"{self.num_classes - 1}. If they count from 1, subtract 1; otherwise raise --num-classes"
            )
        return OwnData(own, self.num_classes)


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

    @property
    def person_remedy(self) -> str:
        """What an owner can do whose data do not say which records are a person's."""
        return 'name the column in the schema, such as person = "patient", or leave the unit out'

    def load(self, loss: str | None = None) -> OwnData:
        """Return the rows to train on, and those that are held out. There may be none: their number is private."""
        from alidpfl.data.table import load_own_rows

        refuse_if_shared(Path(self.path), any_owner=True)  # the owner cannot change them unnoticed: they are hashed
        schema = self.table
        rows = load_own_rows(Path(self.path), schema, bytes.fromhex(self.held_out_key), loss)
        trained, held_out = OwnRecords(rows.trained, rows.persons), OwnRecords(rows.held_out, rows.held_out_persons)
        return OwnData(trained, schema.num_outputs, held_out)


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

    @property
    def person_remedy(self) -> str:
        """What an owner can do whose data do not say which records are a person's."""
        return "enrol your own .npz file or table, or leave the unit out"

    def load(self, loss: str | None = None) -> OwnData:
        """Return the records."""
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
        records = LabelledData(inputs=train.inputs[held], targets=train.targets[held])
        return OwnData(OwnRecords(records), dataset.num_outputs)


Source = Annotated[FileSource | TableSource | SplitSource, Field(discriminator="kind")]
