"""The model that a run left is the one that was evaluated."""

import pytest
import torch

import alidpfl
from alidpfl.errors import DataError
from alidpfl.runs import execute, load_config, load_model
from alidpfl.runs.data import load_data
from alidpfl.store import RunDirectory

SMALL = ("data.clients=3", "federation.max_rounds=4", "run.processes=1")


@pytest.mark.parametrize(
    "settings",
    [
        ("data.name=synthetic", "model.name=linear"),
        ("data.name=synthetic", "model.name=mlp", "model.hidden=8"),
        ("data.name=strokes", "model.name=compact_cnn", "privacy.sample_rate=0.002"),
    ],
)
def test_it_scores_as_it_did_in_the_run(tmp_path, settings):
    config = load_config(overrides=[*SMALL, *settings])
    outcome = execute(config, tmp_path / "run")
    model = alidpfl.load_model(tmp_path / "run")
    assert not model.training
    dataset = load_data(config)
    with torch.no_grad():
        scores = model(dataset.test.inputs)
    found = 100 * float((scores.argmax(1) == dataset.test.targets).float().mean())
    assert found == pytest.approx(outcome.accuracy, abs=1e-4)


def test_a_run_that_has_not_ended_has_none(tmp_path):
    execute(load_config(overrides=[*SMALL, "data.name=synthetic", "model.name=linear"]), tmp_path / "run")
    run = RunDirectory.open(tmp_path / "run")
    tensors, metadata = run.read_model()
    run.write_model(tensors, {key: value for key, value in metadata.items() if key != "input_shape"})
    with pytest.raises(DataError, match=r"model\.safetensors"):
        load_model(tmp_path / "run")
    run.write_model({"weight": torch.zeros(2, 2)}, metadata)
    with pytest.raises(DataError, match=r"config\.toml"):
        load_model(tmp_path / "run")
    run.model_path.unlink()
    with pytest.raises(DataError, match="--resume"):
        load_model(tmp_path / "run")
