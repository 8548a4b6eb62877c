"""Data sets are checked, loaded by name, and import neither a terminal nor plots."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from alidpfl.data import Dataset, LabelledData, load, scaled_images
from alidpfl.errors import ConfigError, DataError
from alidpfl.registry import DATASETS
from alidpfl.types import TaskKind


def labelled(count=4, shape=(2,), classes=2):
    return LabelledData(inputs=torch.zeros(count, *shape), targets=torch.arange(count) % classes)


def dataset(**changes):
    values = {"name": "d", "train": labelled(), "test": labelled(), "num_classes": 2, "is_synthetic": True}
    return Dataset(**{**values, **changes})


def test_the_package_brings_no_terminal_and_no_plots():
    code = (
        "import sys, alidpfl.data; "
        "print([m for m in ('typer', 'rich', 'pydantic', 'matplotlib', 'flwr') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("inputs", "targets", "value"),
    [
        (np.zeros((2, 3)), torch.zeros(2, dtype=torch.int64), "inputs .*ndarray"),
        (torch.zeros(2, 3), [0, 1], "targets .*list"),
        (torch.zeros(2, 3).double(), torch.zeros(2, dtype=torch.int64), "inputs .*torch.float64.*torch.float32"),
        (torch.zeros(2, 3), torch.zeros(2).half(), "targets .*torch.float16"),
        (torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64), r"\(2, 3\).*\(3,\)"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int64), r"\(2,\)"),
        (torch.tensor([[float("nan")]]), torch.zeros(1, dtype=torch.int64), "inputs .*NaN"),
        (torch.zeros(1, 3), torch.tensor([-1]), "targets"),
    ],
)
def test_labelled_data_are_checked(inputs, targets, value):
    with pytest.raises(DataError, match=value):
        LabelledData(inputs=inputs, targets=targets)


def test_labelled_data_do_not_print_what_they_hold():
    assert repr(labelled()) == "LabelledData(4 records of shape (2,))"
    assert "tensor" not in repr(dataset(natural_clients=(torch.arange(4),)))


@pytest.mark.parametrize(
    ("changes", "value"),
    [
        ({"num_classes": 1}, "num_classes=1"),
        ({"test": labelled(0)}, "test part"),
        ({"train": labelled(classes=3)}, "train part .*num_classes=2"),
        ({"test": labelled(shape=(3,))}, r"\(2,\).*\(3,\)"),
        ({"natural_clients": (torch.tensor([0, 1]), torch.tensor([1]))}, "client 1"),
        ({"natural_clients": (torch.tensor([0, 0]),)}, "client 0"),
        ({"natural_clients": (torch.tensor([4]),)}, r"client 0 .*0\.\.3"),
        ({"natural_clients": (torch.tensor([-1]),)}, r"client 0 .*0\.\.3"),
        ({"natural_clients": (torch.tensor([0.5]),)}, "client 0 .*torch.int64"),
    ],
)
def test_data_sets_are_checked(changes, value):
    with pytest.raises(DataError, match=value):
        dataset(**changes)


def test_pixels_are_scaled_from_end_to_end():
    pixels = np.arange(256, dtype=np.uint8).reshape(1, 256)
    for low, high in ((-1.0, 1.0), (0.0, 1.0), (0.0, 255.0)):
        scaled = scaled_images(pixels, (low, high))
        assert (scaled.dtype, float(scaled[0, 0]), float(scaled[0, 255])) == (torch.float32, low, high)
        assert torch.allclose(scaled[0].diff(), torch.tensor((high - low) / 255), atol=1e-6)
    for bad in ((1, 0), (0, 0), (0, float("inf")), (float("nan"), 1)):
        with pytest.raises(ConfigError, match="pixel_range"):
            scaled_images(pixels, bad)
        with pytest.raises(ConfigError, match="pixel_range"):
            load("synthetic", pixel_range=bad)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("minst", "mnist"), ("Fashion-MNIST", "fashion_mnist"), ("FashionMNIST", "fashion_mnist"), ("cifar", "cifar10")],
)
def test_a_wrong_name_suggests_the_nearest(wrong, right):
    with pytest.raises(ConfigError, match=f"{wrong!r}.*{right!r}"):
        load(wrong)


def test_a_name_that_is_near_no_other_lists_all():
    with pytest.raises(ConfigError, match=f"'zzz'.*{', '.join(DATASETS)}"):
        load("zzz")


def test_options_that_a_data_set_does_not_have():
    with pytest.raises(ConfigError, match=r"mnist .*clients"):
        load("mnist", clients=3)
    with pytest.raises(ConfigError, match=r"synthetic .*gamma.*clients, alpha, beta"):
        load("synthetic", gamma=3)


class TestLoaders:
    """A loader of another package, as an entry point of `alidpfl.datasets` offers it."""

    @pytest.fixture
    def offer(self, monkeypatch):
        return lambda loader: monkeypatch.setitem(DATASETS._loaded, "mine", loader)

    def test_it_gets_the_parameters_that_it_takes(self, offer, tmp_path):
        given = {}

        def loader(*, data_dir, seed, pixel_range, size=1):
            given.update(data_dir=data_dir, seed=seed, pixel_range=pixel_range, size=size)
            return dataset(name="mine")

        offer(loader)
        assert load("mine", data_dir=tmp_path, seed=7, size=3).name == "mine"
        assert given == {"data_dir": tmp_path, "seed": 7, "pixel_range": (-1.0, 1.0), "size": 3}
        with pytest.raises(ConfigError, match=r"mine .*colour.*size"):
            load("mine", colour=1)

    def test_it_may_take_anything(self, offer):
        given = {}

        def loader(**options):
            given.update(options)
            return dataset(name="mine")

        offer(loader)
        load("mine", colour=1)
        assert given.keys() == {"data_dir", "seed", "cache_dir", "pixel_range", "on_progress", "colour"}

    def test_it_must_return_a_data_set(self, offer):
        offer(lambda seed: [seed])
        with pytest.raises(ConfigError, match=r"'mine'.*list"):
            load("mine")


@pytest.mark.parametrize(
    ("targets", "kind", "outputs"),
    [
        (torch.tensor([0, 1, 1]), "class", 2),
        (torch.tensor([0.5, -7.0, 1e9]), "number", 1),
        (torch.tensor([[0.0, 1.0, 1.0, 0.0]] * 3), "labels", 4),
    ],
)
def test_targets_are_of_three_kinds(targets: torch.Tensor, kind: TaskKind, outputs: int) -> None:
    part = LabelledData(inputs=torch.zeros(3, 2), targets=targets)
    assert part.kind == kind
    classes = 2 if kind == "class" else 0
    found = Dataset(name="mine", train=part, test=part, num_classes=classes, kind=kind, is_synthetic=True)
    assert found.num_outputs == outputs
    other: TaskKind = "number" if kind == "class" else "class"
    with pytest.raises(DataError, match=kind):
        Dataset(name="mine", train=part, test=part, num_classes=2, kind=other, is_synthetic=True)


@pytest.mark.parametrize(
    "targets",
    [
        torch.tensor([0.0, float("nan")]),
        torch.tensor([0.0, float("inf")]),
        torch.tensor([[0.0], [0.5]]),
        torch.tensor([[0.0], [2.0]]),
        torch.tensor([[0], [1]]),
        torch.zeros(2, 1, 1),
        torch.zeros(2, dtype=torch.float64),
    ],
)
def test_targets_that_no_loss_takes_are_refused(targets: torch.Tensor) -> None:
    with pytest.raises(DataError):
        LabelledData(inputs=torch.zeros(2, 2), targets=targets)
