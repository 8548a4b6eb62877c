"""Write rounds as TensorBoard events. Needs the extra `tensorboard`."""

import warnings
from pathlib import Path
from typing import Any

from alidpfl.errors import ConfigError
from alidpfl.store.files import disk_errors
from alidpfl.types import RoundRecord

_SCALARS = ("accuracy", "loss", "local_steps", "epsilon", "learning_rate")


class TensorBoardWriter:
    """Writes one event file into `directory`; close it, or use it as a context.

    A resumed run begins at `first_round`. Later rounds that a killed process left are hidden.
    """

    def __init__(self, directory: str | Path, *, first_round: int = 0) -> None:
        self._directory = Path(directory)
        with disk_errors("write TensorBoard events into", self._directory):
            self._writer = _summary_writer()(str(self._directory), purge_step=first_round + 1 if first_round else None)

    def add(self, record: RoundRecord) -> None:
        """Write one point for each quantity that was measured in the round."""
        with disk_errors("write TensorBoard events into", self._directory):
            for name in _SCALARS:
                if (value := getattr(record, name)) is not None:
                    self._writer.add_scalar(name, value, record.number)
            self._writer.flush()

    def close(self) -> None:
        """Write what is left and close the file."""
        with disk_errors("write TensorBoard events into", self._directory):
            self._writer.close()

    def __enter__(self) -> "TensorBoardWriter":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _summary_writer() -> Any:
    try:
        with warnings.catch_warnings():
            # tensorboard imports deprecated parts of setuptools, numpy and protobuf. Users cannot fix that.
            warnings.simplefilter("ignore")
            from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise ConfigError(
            "TensorBoard is missing: in a clone of alidpfl run `pip install -c constraints.txt '.[tensorboard]'`, "
            "or leave the option out"
        ) from None
    return SummaryWriter
