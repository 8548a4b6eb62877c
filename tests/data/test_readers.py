"""IDX files and binary CIFAR-10 files: small ones, damaged ones, and the real ones."""

import gzip
import struct

import numpy as np
import pytest
import torch

from alidpfl.data import load
from alidpfl.data.readers import read_cifar, read_idx, read_idx_pair
from alidpfl.errors import DataError

REMEDY = "get it again"
GOOD = bytes.fromhex("00000803 00000002 00000002 00000003") + bytes(range(12))
HISTOGRAM = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
PIXELS = (np.arange(2 * 3072) % 251).astype(np.uint8).reshape(2, 3072)
LABELS = [3, 9]


def write(folder, content, name="a-ubyte"):
    path = folder / name
    path.write_bytes(content)
    return path


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.astype(np.uint8).tobytes()


def write_set(root, num_train=5, num_test=3, labels=None):
    """Write a small MNIST in torchvision's layout, with the training part gzipped."""
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for part, count, pack in (("train", num_train, True), ("t10k", num_test, False)):
        images = np.arange(count * 16).reshape(count, 4, 4) % 256
        classes = np.arange(count) if labels is None else labels
        for name, array in ((f"{part}-images-idx3-ubyte", images), (f"{part}-labels-idx1-ubyte", classes)):
            content = idx(array)
            (folder / (name + ".gz" * pack)).write_bytes(gzip.compress(content) if pack else content)
    return folder


def cifar(labels=LABELS):
    return b"".join(bytes([label]) + row.tobytes() for label, row in zip(labels, PIXELS, strict=True))


class TestIdx:
    def test_a_golden_file_plain_and_packed(self, tmp_path):
        expected = np.arange(12).reshape(2, 2, 3)
        assert np.array_equal(read_idx(write(tmp_path, GOOD), 3, REMEDY), expected)
        assert np.array_equal(read_idx(write(tmp_path, gzip.compress(GOOD), "a.gz"), 3, REMEDY), expected)

    @pytest.mark.parametrize(
        ("content", "value"),
        [
            (b"", "nothing"),
            (b"\x00\x00\x08\x01" + GOOD[4:], "00000801"),
            (b"\x00\x00\x0d\x03" + GOOD[4:], "00000d03"),
            (GOOD[:9], "header"),
            (GOOD[:-1], "11 .* 12"),
            (GOOD + b"x", "12"),
            (GOOD[:4] + b"\xff" * 12, "4294967295 x 4294967295 x 4294967295"),
            (GOOD[:4] + bytes(12), "0 x 0 x 0"),
            (b"<html>not found</html>", "3c68746d"),
        ],
    )
    def test_a_damaged_file_is_named_with_the_remedy(self, tmp_path, content, value):
        for name, stored in (("a", content), ("b.gz", gzip.compress(content))):
            with pytest.raises(DataError, match=value) as error:
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
    def test_a_damaged_gzip_file(self, tmp_path, spoil):
        with pytest.raises(DataError, match=rf"b\.gz .*; {REMEDY}"):
            read_idx(write(tmp_path, spoil(gzip.compress(GOOD)), "b.gz"), 3, REMEDY)

    def test_images_and_labels_must_fit(self, tmp_path):
        images = write(tmp_path, GOOD, "images")
        with pytest.raises(DataError, match=r"images has 2 .*labels 3"):
            read_idx_pair(images, write(tmp_path, idx(np.zeros(3)), "labels"), REMEDY)
        with pytest.raises(DataError, match="beyond 9"):
            read_idx_pair(images, write(tmp_path, idx(np.array([0, 10])), "labels"), REMEDY)

    def test_loading_a_folder(self, tmp_path, monkeypatch):
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

    def test_the_error_names_the_command_that_replaces_the_file(self, tmp_path):
        folder = write_set(tmp_path)
        (folder / "train-labels-idx1-ubyte.gz").write_bytes(b"junk")
        with pytest.raises(DataError, match=r"train-labels-idx1-ubyte\.gz .*`alidpfl data get mnist --data-dir "):
            load("mnist", data_dir=tmp_path)

    @pytest.mark.real_data
    def test_real_mnist(self, data_dir):
        data = load("mnist", data_dir=data_dir)
        assert (len(data.train), len(data.test), data.input_shape) == (60_000, 10_000, (1, 28, 28))
        assert torch.bincount(data.train.targets).tolist() == HISTOGRAM
        assert data.train.targets[:8].tolist() == [5, 0, 4, 1, 9, 2, 1, 3]
        pixels = (data.train.inputs + 1) / 2
        assert (float(pixels.min()), float(pixels.max())) == (0, 1)
        assert float(pixels.mean(dtype=torch.float64)) == pytest.approx(0.1307, abs=5e-5)

    @pytest.mark.real_data
    def test_real_fashion_mnist(self, data_dir):
        data = load("fashion_mnist", data_dir=data_dir)
        assert (len(data.train), len(data.test), data.input_shape) == (60_000, 10_000, (1, 28, 28))
        assert torch.bincount(data.train.targets).tolist() == [6000] * 10
        assert float((data.train.inputs.mean(dtype=torch.float64) + 1) / 2) == pytest.approx(0.2860, abs=5e-5)


class TestCifar:
    def test_one_file(self, tmp_path):
        images, labels = read_cifar(write(tmp_path, cifar(), "data_batch_1.bin"), REMEDY)
        assert images.shape == (2, 3, 32, 32)
        assert np.array_equal(images.reshape(2, 3072), PIXELS)
        assert labels.tolist() == LABELS

    @pytest.mark.parametrize(
        ("content", "value"), [(b"", "0 bytes"), (cifar()[:-1], "6145 bytes.* 3073"), (cifar([3, 10]), "beyond 9")]
    )
    def test_a_damaged_file(self, tmp_path, content, value):
        with pytest.raises(DataError, match=rf"x\.bin .*{value}.*; {REMEDY}"):
            read_cifar(write(tmp_path, content, "x.bin"), REMEDY)

    def test_a_missing_file(self, tmp_path):
        with pytest.raises(DataError, match=rf"absent\.bin .*; {REMEDY}"):
            read_cifar(tmp_path / "absent.bin", REMEDY)

    def test_loading_a_folder(self, tmp_path):
        folder = tmp_path / "cifar-10-batches-bin"
        folder.mkdir()
        for name in (*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"):
            write(folder, cifar(), name)
        data = load("cifar10", data_dir=tmp_path)
        assert (len(data.train), len(data.test), data.input_shape, data.num_classes) == (10, 2, (3, 32, 32), 10)
        assert data.train.targets.tolist() == LABELS * 5
        assert torch.allclose(data.test.inputs.reshape(2, -1), torch.from_numpy(PIXELS) / 127.5 - 1, atol=1e-6)

    @pytest.mark.real_data
    def test_real_cifar10(self, data_dir):
        data = load("cifar10", data_dir=data_dir, pixel_range=(0.0, 1.0))
        assert (len(data.train), len(data.test), data.input_shape) == (50_000, 10_000, (3, 32, 32))
        assert torch.bincount(data.train.targets).tolist() == [5000] * 10
        assert torch.bincount(data.test.targets).tolist() == [1000] * 10
        means = [float(data.train.inputs[:, channel].mean()) for channel in range(3)]
        assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)
