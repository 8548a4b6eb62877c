"""Where an enrolled data set lies, and how to tell that it is still the same."""

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from alidpfl.errors import ConfigError

if TYPE_CHECKING:
    from alidpfl.data import LabelledData


class _Source(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class FileSource(_Source):
    """The owner's own `.npz` file, with the arrays x and y."""

    kind: Literal["file"] = "file"
    path: str
    num_classes: int = Field(ge=2, examples=[3])
    """Given by the owner: taken from the labels it would show something of them."""
    pixel_range: tuple[float, float] = (-1.0, 1.0)

    def load(self) -> tuple["LabelledData", int]:
        """The records, and the number of classes."""
        from alidpfl.data.npz import load_client

        records = load_client(Path(self.path), self.pixel_range)
        if int(records.targets.max()) >= self.num_classes:
            raise ConfigError(
                f"{self.path} has labels beyond num_classes={self.num_classes}: they must go from 0 to "
                f"{self.num_classes - 1}; counting from 1 is the usual cause: subtract 1, or else raise --num-classes"
            )
        return records, self.num_classes


class SplitSource(_Source):
    """One client's share of a known data set, for trying a deployment out: the same rows as in a simulated run."""

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

    def load(self) -> tuple["LabelledData", int]:
        """The records, and the number of classes."""
        from alidpfl.data import LabelledData, held_out_rows, load
        from alidpfl.data.split import client_rows

        if self.client >= self.clients:
            raise ConfigError(f"client={self.client} must be below clients={self.clients}: they count from 0")
        is_made = self.name == "synthetic"
        options: dict[str, Any] = {"clients": self.clients, "seed": self.seed} if is_made else {}
        dataset = load(self.name, data_dir=Path(self.data_dir) if self.data_dir else None, **options)
        private, _ = held_out_rows(len(dataset.train), self.validation, self.seed)
        rows = client_rows(
            dataset,
            self.partition,
            clients=self.clients,
            dirichlet_beta=self.dirichlet_beta,
            seed=self.seed,
            min_samples=self.min_samples,
            among=private,
        )
        held, train = rows[self.client], dataset.train
        return LabelledData(inputs=train.inputs[held], targets=train.targets[held]), dataset.num_classes


Source = Annotated[FileSource | SplitSource, Field(discriminator="kind")]


def content_hash(records: "LabelledData") -> str:
    """Hash of all records in their order. It stays with the owner: guesses of the records can be tried on it."""
    digest = hashlib.sha256(json.dumps([list(records.inputs.shape), list(records.targets.shape)]).encode())
    digest.update(records.inputs.contiguous().numpy().tobytes())
    digest.update(records.targets.contiguous().numpy().tobytes())
    return digest.hexdigest()
