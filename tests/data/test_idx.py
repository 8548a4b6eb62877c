"""IDX files: hand-sized ones, broken ones, and the real ones."""

import gzip
import struct

import numpy as np
import pytest
import torch

from alidpfl.data import load
from alidpfl.data.readers import read_idx, read_images_and_labels
from alidpfl.errors import DataError

REMEDY = "get it again"
GOOD = bytes.fromhex("00000803 00000002 00000002 00000003") + bytes(range(12))
HISTOGRAM = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def write(folder, content, name="a-ubyte"):
    path = folder / name
    path.write_bytes(content)
    return path


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_set(root, num_train=5, num_test=3, labels=None):
    """A hand-sized MNIST in torchvision's layout, the training part gzipped."""
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part, count, pack in (("train", num_train, True), ("t10k", num_test, False)):
        images = np.arange(count * 16).reshape(count, 4, 4) % 256
        classes = np.arange(count) if labels is None else labels
        for name, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", classes)):
            content = idx(array)
            (folder / (name + ".gz" * pack)).write_bytes(gzip.compress(content) if pack else content)
    return folder


def test_a_golden_file_plain_and_packed(tmp_path):
    expected = np.arange(12).reshape(2, 2, 3)
    assert np.array_equal(read_idx(write(tmp_path, GOOD), 3, REMEDY), expected)
    assert np.array_equal(read_idx(write(tmp_path, gzip.compress(GOOD), "a.gz"), 3, REMEDY), expected)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "begins with nothing"),
        (b"\x00\x00\x08\x01" + GOOD[4:], "begins with 00000801, not 00000803"),
        (b"\x00\x00\x0d\x03" + GOOD[4:], "begins with 00000d03"),
        (GOOD[:9], "within the header"),
        (GOOD[:-1], "holds 11 entries of the 12"),
        (GOOD + b"x", "bytes follow after the 12"),
        (GOOD[:4] + b"\xff" * 12, "claims to hold 4294967295 x"),
        (GOOD[:4] + bytes(12), "claims to hold 0 x 0 x 0"),
        (b"<html>not found</html>", "begins with 3c68746d"),
    ],
)
def test_a_broken_file_says_what_is_wrong_and_what_to_do(tmp_path, content, words):
    for name, stored in (("a", content), ("b.gz", gzip.compress(content))):
        with pytest.raises(DataError, match=words) as error:
            read_idx(write(tmp_path, stored, name), 3, REMEDY)
        assert str(tmp_path / name) in str(error.value)
        assert str(error.value).endswith(REMEDY)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda b: b[:-9],
        lambda b: b[:15],
        lambda b: b"junk" + b,
        lambda b: b[:-6] + bytes(6),
        lambda b: b[:12] + b"\xff" * 8,
    ],
)
def test_a_broken_gzip_file(tmp_path, spoil):
    with pytest.raises(DataError, match=r"b\.gz (cannot be read|is not a valid).*; get it again"):
        read_idx(write(tmp_path, spoil(gzip.compress(GOOD * 1)), "b.gz"), 3, REMEDY)


def test_images_and_labels_must_fit(tmp_path):
    images = write(tmp_path, GOOD, "images")
    with pytest.raises(DataError, match=r"images has 2 images but .*labels 3 labels"):
        read_images_and_labels(images, write(tmp_path, idx(np.zeros(3)), "labels"), 10, REMEDY)
    with pytest.raises(DataError, match="labels beyond 9"):
        read_images_and_labels(images, write(tmp_path, idx(np.array([0, 10])), "labels"), 10, REMEDY)


def test_loading_a_folder(tmp_path, monkeypatch):
    write_set(tmp_path)
    data = load("mnist", data_dir=tmp_path)
    assert (data.name, data.num_classes, data.is_synthetic, data.natural_clients) == ("mnist", 10, False, None)
    assert (len(data.train), len(data.test), data.input_shape) == (5, 3, (1, 4, 4))
    assert data.train.targets.tolist() == [0, 1, 2, 3, 4]
    assert torch.allclose(data.train.inputs.flatten(), torch.arange(80) / 127.5 - 1, atol=1e-6)
    unit = load("mnist", data_dir=tmp_path, pixel_range=(0, 1))
    assert torch.allclose(unit.train.inputs.flatten(), torch.arange(80) / 255, atol=1e-6)
    monkeypatch.setenv("ALIDPFL_DATA_DIR", str(tmp_path))
    assert torch.equal(load("mnist").train.inputs, data.train.inputs)


def test_a_corrupt_file_of_a_set_names_the_command_that_mends_it(tmp_path):
    folder = write_set(tmp_path)
    (folder / "train-labels-idx1-ubyte.gz").write_bytes(b"junk")
    with pytest.raises(
        DataError, match=r"train-labels-idx1-ubyte\.gz cannot.*delete it and run `alidpfl data get mnist --data-dir "
    ):
        load("mnist", data_dir=tmp_path)


@pytest.mark.real_data
def test_real_mnist(data_dir):
    data = load("mnist", data_dir=data_dir)
    assert (len(data.train), len(data.test), data.input_shape) == (60_000, 10_000, (1, 28, 28))
    assert torch.bincount(data.train.targets).tolist() == HISTOGRAM
    assert data.train.targets[:8].tolist() == [5, 0, 4, 1, 9, 2, 1, 3]
    pixels = (data.train.inputs + 1) / 2
    assert (float(pixels.min()), float(pixels.max())) == (0, 1)
    assert float(pixels.mean(dtype=torch.float64)) == pytest.approx(0.1307, abs=5e-5)


@pytest.mark.real_data
def test_real_fashion_mnist(data_dir):
    data = load("fashion_mnist", data_dir=data_dir)
    assert (len(data.train), len(data.test), data.input_shape) == (60_000, 10_000, (1, 28, 28))
    assert torch.bincount(data.train.targets).tolist() == [6000] * 10
    assert float((data.train.inputs.mean(dtype=torch.float64) + 1) / 2) == pytest.approx(0.2860, abs=5e-5)
