"""What a data set must be, how names are looked up, and where files are searched."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from alidpfl.data import Dataset, LabelledData, directories, held_out_rows, load, scaled_images
from alidpfl.data.directories import user_cache
from alidpfl.data.sources import CIFAR10, FASHION_MNIST, MNIST
from alidpfl.errors import AliDpflError, ConfigError, DataError


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
    ("inputs", "targets", "words"),
    [
        (np.zeros((2, 3)), torch.zeros(2, dtype=torch.int64), "inputs must be a torch.Tensor, not ndarray"),
        (torch.zeros(2, 3), [0, 1], "targets must be a torch.Tensor"),
        (
            torch.zeros(2, 3).double(),
            torch.zeros(2, dtype=torch.int64),
            "inputs have type torch.float64, need torch.float32",
        ),
        (torch.zeros(2, 3), torch.zeros(2), "targets have type torch.float32"),
        (torch.zeros(2, 3), torch.zeros(3, dtype=torch.int64), r"shape \(2, 3\) and targets \(3,\)"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.int64), "need"),
        (torch.tensor([[float("nan")]]), torch.zeros(1, dtype=torch.int64), "NaN or infinite"),
        (torch.zeros(1, 3), torch.tensor([-1]), "negative"),
    ],
)
def test_labelled_data_are_checked(inputs, targets, words):
    with pytest.raises(DataError, match=words):
        LabelledData(inputs=inputs, targets=targets)


def test_labelled_data_do_not_print_what_they_hold():
    assert repr(labelled()) == "LabelledData(4 samples of shape (2,))"
    assert "tensor" not in repr(dataset(natural_clients=(torch.arange(4),)))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_classes": 1}, "at least 2"),
        ({"test": labelled(0)}, "the test part is empty"),
        ({"train": labelled(classes=3)}, "train part reach beyond num_classes=2"),
        ({"test": labelled(shape=(3,))}, r"\(2,\) in train and \(3,\) in test"),
        ({"natural_clients": (torch.tensor([0, 1]), torch.tensor([1]))}, "client 1 has samples that another"),
        ({"natural_clients": (torch.tensor([0, 0]),)}, "client 0"),
        ({"natural_clients": (torch.tensor([4]),)}, r"outside 0\.\.3"),
        ({"natural_clients": (torch.tensor([-1]),)}, r"outside 0\.\.3"),
        ({"natural_clients": (torch.tensor([0.5]),)}, "torch.int64"),
    ],
)
def test_data_sets_are_checked(changes, words):
    with pytest.raises(DataError, match=words):
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
def test_a_wrong_name_is_told_the_nearest(wrong, right):
    with pytest.raises(ConfigError, match=f"{wrong!r} is not known; did you mean {right!r}"):
        load(wrong)


def test_a_name_like_no_other_is_told_all():
    with pytest.raises(ConfigError, match=r"'zzz' is not known.*there are: strokes, mnist"):
        load("zzz")


def test_options_that_a_data_set_does_not_have():
    with pytest.raises(ConfigError, match="mnist has no option clients; it takes none"):
        load("mnist", clients=3)
    with pytest.raises(ConfigError, match="synthetic has no option gamma; it takes clients, alpha, beta"):
        load("synthetic", gamma=3)


def fill(folder: Path, names):
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_bytes(b"x")
    return folder


NAMES = [file.name for file in MNIST.files]


@pytest.fixture
def places(tmp_path, monkeypatch):
    """An explicit directory, one by the environment, one of the user's cache; all empty."""
    made = [tmp_path / name for name in ("explicit", "environment", "cache")]
    for place in made:
        place.mkdir()
    monkeypatch.setenv("ALIDPFL_DATA_DIR", str(made[1]))
    monkeypatch.setenv("XDG_CACHE_HOME", str(made[2]))
    return made


def test_directories_are_searched_in_order(places):
    _, environment, cache = places
    for place in (cache / "alidpfl", environment):
        folder = fill(place / "MNIST" / "raw", NAMES)
        found = directories.find(MNIST)
        assert (found.folder, found.layout.name, found.num_bytes) == (folder, "torchvision", 4)


def test_a_folder_that_is_named_is_the_only_one_searched(places):
    explicit, environment, _ = places
    fill(environment / "MNIST" / "raw", NAMES)
    with pytest.raises(DataError, match=f"mnist is not in {explicit};"):
        directories.find(MNIST, explicit)
    folder = fill(explicit / "MNIST" / "raw", NAMES)
    assert directories.find(MNIST, explicit).folder == folder


def test_a_complete_copy_goes_before_a_partial_one(places):
    _, environment, cache = places
    fill(environment / "MNIST" / "raw", NAMES[:3])
    with pytest.raises(DataError, match=f"raw lacks {NAMES[3]}.*alidpfl data get mnist"):
        directories.find(MNIST)
    folder = fill(cache / "alidpfl" / "MNIST" / "raw", [f"{name}.gz" for name in NAMES])
    assert directories.find(MNIST).folder == folder


def test_missing_data_say_where_they_were_looked_for(places):
    explicit, environment, cache = places
    with pytest.raises(DataError) as error:
        load("cifar10")
    assert f"cifar10 is not in {environment}, {cache / 'alidpfl'};" in str(error.value)
    assert "run `alidpfl data get cifar10` (about 170 MB), or set ALIDPFL_DATA_DIR to a folder" in str(error.value)
    with pytest.raises(DataError) as error:
        load("cifar10", data_dir=explicit)
    assert f"cifar10 is not in {explicit}; run `alidpfl data get cifar10 --data-dir {explicit}`" in str(error.value)
    assert "or give a folder that has cifar-10-batches-bin/" in str(error.value)
    with pytest.raises(ConfigError, match="is not a folder"):
        load("cifar10", data_dir=explicit / "nowhere")


def test_where_downloads_go_and_relative_caches_are_ignored(places, monkeypatch):
    explicit, environment, cache = places
    assert directories.download_directory(explicit) == explicit
    assert directories.download_directory() == environment
    monkeypatch.delenv("ALIDPFL_DATA_DIR")
    assert directories.download_directory() == cache / "alidpfl"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_cache() == Path.home() / ".cache" / "alidpfl"


def test_layouts():
    assert [layout.folder for layout in directories.layouts(CIFAR10)] == ["cifar-10-batches-bin", "cifar-10-batches-py"]
    assert directories.layouts(FASHION_MNIST)[1].folder == "/usr/share/datasets/fashion-mnist"


def test_validation_is_held_out_of_training():
    kept, held = held_out_rows(100, 0.25, seed=0)
    assert (len(kept), len(held)) == (75, 25)
    assert torch.equal(torch.cat([kept, held]).sort().values, torch.arange(100))
    assert torch.equal(held_out_rows(100, 0.25, seed=0)[1], held)
    assert not torch.equal(held_out_rows(100, 0.25, seed=1)[1], held)
    assert int(held.max()) > 80  # not the first ones
    assert [len(part) for part in held_out_rows(100, 0, seed=0)] == [100, 0]
    for fraction in (1, -0.1, 0.001, 0.999, float("nan"), "0.1"):
        with pytest.raises(AliDpflError, match="fraction"):
            held_out_rows(100, fraction, seed=0)
