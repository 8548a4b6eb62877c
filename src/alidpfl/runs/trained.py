"""Load the trained model of a finished run."""

import json
import warnings
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from alidpfl.config.load import parse_config
from alidpfl.config.schema import Config
from alidpfl.data.dataset import PixelRange, image_bytes
from alidpfl.errors import DataError
from alidpfl.features import Standardiser
from alidpfl.runs.execute import CODE
from alidpfl.runs.features import map_for
from alidpfl.runs.prepare import build_model, model_code
from alidpfl.store import RunDirectory
from alidpfl.tables.encode import Encoder
from alidpfl.tables.read import Rows
from alidpfl.tables.schema import Schema
from alidpfl.tables.standardise import RowStandardiser
from alidpfl.types import TaskKind

_RELEASED = "features."


def load_model(directory: str | Path) -> nn.Module:
    """Load the trained model of a finished run, in evaluation mode.

    Inputs (n, *input_shape) are those of the data set, as `load_dataset` gives them: images scaled to the run's
    `pixel_range`. Outputs are scores, (n, classes) or (n, labels), or numbers (n, 1). The model of `scatter_linear`
    computes features itself. That of a table is a `TableModel`, which also takes raw rows. For a run with
    `model.factory`, the function that the run names is imported and called: load only runs that you trust.

    Raises:
        ConfigError: the run's `model.factory` cannot be imported here, or builds no model.
        DataError: the run has not ended, or its files do not fit together.
    """
    run = RunDirectory.open(directory)
    found = run.read_model()
    if found is None:
        raise DataError(f"{run.path} holds no model: the run has not ended; go on with alidpfl run --resume {run.path}")
    tensors, metadata = found
    config = parse_config(run.config())
    try:
        input_shape, num_classes = _shape(metadata["input_shape"]), int(metadata["num_classes"])
    except (KeyError, TypeError, ValueError):
        raise DataError(
            f"{run.model_path} does not say what its inputs are: it was written by an older alidpfl, or is not of a run"
        ) from None
    released = {name.removeprefix(_RELEASED): tensors.pop(name) for name in list(tensors) if name.startswith(_RELEASED)}
    if (code := model_code(config)) is not None and code.sha256 != metadata.get(CODE):
        warnings.warn(
            f"{run.model_path} was trained with other files of the package {code.package} than those that are "
            "installed now; its outputs may differ",
            stacklevel=2,
        )
    features = _Features(config, input_shape, released) if config.has_features else None
    model = build_model(config, (features.size,) if features else input_shape, num_classes)
    try:
        model.load_state_dict(tensors)
    except RuntimeError:
        raise DataError(f"{run.model_path} does not fit {run.path / 'config.toml'}: one was changed") from None
    if "schema" in metadata:
        schema = Schema.from_canonical(metadata["schema"], f"{run.model_path}: its schema")
        standardiser = None
        if config.has_statistics:
            standardiser = RowStandardiser.from_arrays(schema, released, str(run.model_path))
        return TableModel(model, Encoder(schema), config.model.loss, standardiser).eval()
    return (nn.Sequential(features, model) if features else model).eval()


def _shape(text: str) -> tuple[int, ...]:
    """Return a shape from JSON. Anything else is refused: it goes to a function that the run's configuration names."""
    found = json.loads(text)
    if not isinstance(found, list) or not all(type(size) is int for size in found):
        raise ValueError("no shape")
    return tuple(found)


class TableModel(nn.Module):
    """The trained model of a table, with the encoder that its rows went through."""

    def __init__(
        self,
        model: nn.Module,
        encoder: Encoder,
        loss: str | None = None,
        standardiser: RowStandardiser | None = None,
    ) -> None:
        """Predict with a model.

        Args:
            model: it takes standardised rows, if there is a standardiser.
            encoder: encodes raw rows.
            loss: the model's loss; "poisson" predicts logarithms.
            standardiser: standardises encoded rows.
        """
        super().__init__()
        self.model, self.encoder, self._loss, self.standardiser = model, encoder, loss, standardiser

    @property
    def kind(self) -> TaskKind:
        """The kind of the target."""
        return self.encoder.schema.target.kind

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, in the order of the outputs; empty for other targets."""
        return self.encoder.classes

    @property
    def labels(self) -> tuple[str, ...]:
        """The columns of the labels, in the order of the outputs; empty for other targets."""
        return self.encoder.schema.target_columns if self.kind == "labels" else ()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs for encoded rows: (n, width) -> (n, outputs)."""
        if self.standardiser is not None:
            inputs = torch.from_numpy(self.standardiser.rows(inputs.numpy()))
        outputs: Tensor = self.model(inputs)
        return outputs

    @torch.no_grad()
    def predict(self, rows: Rows) -> NDArray[np.float32]:
        """Return the predictions for each row, in order.

        Args:
            rows: a pandas or polars frame, a mapping of columns, a list of mappings, one mapping, or a file's path. The
                columns of target and person are ignored: they may be left out or empty.

        Returns:
            For a class target (n, classes): the probability of each class. Each row has the sum 1, and `classes` has
            the names. For a number target (n,): numbers in the table's own unit, within the target's bounds. For labels
            (n, labels): the probability of each label, and `labels` has the names.

        Raises:
            DataError: a value does not fit the schema.
        """
        outputs = self(torch.from_numpy(self.encoder.encode_inputs(rows))).double()
        if self.kind == "number":  # poisson learns the logarithm of a mean in [0, 2]
            scaled = outputs[:, 0].exp() - 1 if self._loss == "poisson" else outputs[:, 0]
            return self.encoder.decode_numbers(scaled.numpy()).astype(np.float32)
        found: NDArray[np.float32] = (outputs.softmax(1) if self.kind == "class" else outputs.sigmoid()).float().numpy()
        return found


class _Features(nn.Module):
    """Turns images into the vectors that `scatter_linear` learns from."""

    def __init__(self, config: Config, input_shape: tuple[int, ...], released: dict[str, Tensor]) -> None:
        super().__init__()
        self._map = map_for(config, input_shape)
        self._standardiser = Standardiser(feature_map=self._map, mean=released["mean"], scale=released["scale"])
        self._pixel_range: PixelRange = config.data.pixel_range
        self.size = self._standardiser.size

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """(n, channels, side, side) -> (n, size)."""
        return self._standardiser.vectors(self._map.compute(image_bytes(images, self._pixel_range)))
