"""TensorBoard events hold every measured quantity, and a resumed run replaces lost rounds."""

import sys
import warnings

import pytest

from alidpfl.errors import ConfigError, DataError
from alidpfl.store.tensorboard import TensorBoardWriter
from tests.store.samples import record


def test_every_measured_quantity_is_written(tmp_path):
    pytest.importorskip("tensorboard")
    with TensorBoardWriter(tmp_path / "events") as writer:
        for number in range(4):
            writer.add(record(number))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(tmp_path / "events"))
        events.Reload()
    assert set(events.Tags()["scalars"]) == {"accuracy", "loss", "local_steps", "epsilon", "learning_rate"}
    assert [(event.step, event.value) for event in events.Scalars("accuracy")] == [
        (1, 60.0),
        (3, 62.0),
    ]
    assert [event.value for event in events.Scalars("local_steps")] == [2, 3, 4, 2]


def test_a_resumed_run_replaces_the_rounds_that_were_lost(tmp_path):
    pytest.importorskip("tensorboard")
    with TensorBoardWriter(tmp_path) as writer:
        for number in range(4):
            writer.add(record(number, loss=1.0))
    first = next(tmp_path.iterdir())
    first.rename(tmp_path / "events.out.tfevents.0000000001.host")  # the second must sort after the first
    with TensorBoardWriter(tmp_path, first_round=2) as writer:
        writer.add(record(2, loss=2.0))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        events = EventAccumulator(str(tmp_path))
        events.Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 1.0), (2, 1.0), (3, 2.0)]


def test_without_the_package_the_remedy_is_said(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ConfigError, match=r"\.\[tensorboard\]"):
        TensorBoardWriter(tmp_path)


def test_a_folder_that_cannot_be_made_is_said(tmp_path):
    pytest.importorskip("tensorboard")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"file/events"):
        TensorBoardWriter(tmp_path / "file" / "events")
