"""CIFAR-10 in both layouts, and pickles that want more than to be read."""

import os
import pickle
import struct

import numpy as np
import pytest
import torch

from alidpfl.data import load
from alidpfl.data.readers import read_batch
from alidpfl.errors import DataError

REMEDY = "get it again"
PIXELS = (np.arange(2 * 3072) % 251).astype(np.uint8).reshape(2, 3072)
LABELS = [3, 9]


def record_bytes(labels=LABELS):
    return b"".join(bytes([label]) + row.tobytes() for label, row in zip(labels, PIXELS, strict=True))


def python2_pickle(module=b"numpy.core.multiarray", labels=LABELS):
    """Byte for byte in the form that Python 2 wrote the published files in: protocol 2, strings without encoding."""

    def text(value):
        return b"U" + bytes([len(value)]) + value

    kind = (
        b"cnumpy\ndtype\n"
        + text(b"u1")
        + b"K\x00K\x01\x87R(K\x03"
        + text(b"|")
        + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    )
    raw = PIXELS.tobytes()
    array = (
        b"c" + module + b"\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
        b"(K\x01K\x02M\x00\x0c\x86" + kind + b"\x89T" + struct.pack("<I", len(raw)) + raw + b"tb"
    )
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return (
        b"\x80\x02}q\x01("
        + text(b"data") + array
        + text(b"labels") + numbers
        + text(b"batch_label") + text(b"training batch 1 of 5")
        + text(b"filenames") + b"](" + text(b"a.png") + text(b"b\xe9.png") + b"e"
        + b"u."
    )  # fmt: skip


def write(folder, content, name="data_batch_1"):
    path = folder / name
    path.write_bytes(content)
    return path


def assert_is_the_batch(images, labels):
    assert images.shape == (2, 3, 32, 32)
    assert np.array_equal(images.reshape(2, 3072), PIXELS)
    assert labels.tolist() == LABELS


def test_binary_records(tmp_path):
    assert_is_the_batch(*read_batch(write(tmp_path, record_bytes(), "data_batch_1.bin"), REMEDY))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "has 0 bytes"),
        (record_bytes()[:-1], "has 6145 bytes, not a whole number of records of 3073"),
        (record_bytes([3, 10]), "has labels outside 0..9"),
    ],
)
def test_broken_binary_records(tmp_path, content, words):
    with pytest.raises(DataError, match=rf"x\.bin {words}.*; get it again"):
        read_batch(write(tmp_path, content, "x.bin"), REMEDY)
    with pytest.raises(DataError, match="cannot be read"):
        read_batch(tmp_path / "absent.bin", REMEDY)


def test_a_pickle_of_python_2(tmp_path):
    assert pickle.loads(python2_pickle(), encoding="latin1")["labels"] == LABELS  # noqa: S301 - the test's own bytes
    assert_is_the_batch(*read_batch(write(tmp_path, python2_pickle()), REMEDY))


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_a_pickle_of_python_3(tmp_path, protocol):
    content = pickle.dumps({b"data": PIXELS, b"labels": LABELS, b"filenames": ["a", "b"]}, protocol=protocol)
    assert_is_the_batch(*read_batch(write(tmp_path, content), REMEDY))


class Bomb:
    def __reduce__(self):
        return os.system, ("touch exploded",)


class Evaluated:
    def __reduce__(self):
        return eval, ("open('exploded', 'w')",)


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("bomb", [Bomb(), Evaluated(), np.float64(3), {"data": np.array([Bomb()], object)}])
def test_a_pickle_that_names_anything_else_is_refused_and_not_run(tmp_path, monkeypatch, bomb, protocol):
    monkeypatch.chdir(tmp_path)
    content = pickle.dumps({"data": PIXELS, "labels": LABELS, "bomb": bomb}, protocol=protocol)
    with pytest.raises(DataError, match=r"data_batch_1 is not a batch of CIFAR-10: .*; get it again"):
        read_batch(write(tmp_path, content), REMEDY)
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", ""),
        (b"\x80\x02}q\x01", ""),
        (python2_pickle()[:-40], ""),
        (python2_pickle(module=b"numpy.core.evil"), "numpy.core.evil._reconstruct, which no data file needs"),
        (python2_pickle().replace(b"u1", b"i1"), "not of unsigned bytes"),
        (python2_pickle(labels=[1]), "for 1 labels"),
        (b"\x80\x02]q\x01.", "no dictionary"),
        (b"\x80\x02}q\x01.", "no array `data`"),
        (b"\x80\x02}r\xff\xff\xff\xff.", "too much memory"),  # remember in place 2^32 - 1
        (b"\x80\x05\x96" + struct.pack("<Q", 1 << 35) + b".", ""),  # a bytearray of 32 GB
        (b"\x80\x02cnumpy\ndtype\n)\x81.", "instruction NEWOBJ"),
        (pickle.dumps({"data": PIXELS.astype(np.float32), "labels": LABELS}, protocol=2), "not of unsigned bytes"),
        (pickle.dumps({"data": PIXELS[:, :9], "labels": LABELS}, protocol=2), "rows of 3072"),
        (pickle.dumps({"data": PIXELS, "labels": ["a", "b"]}, protocol=2), "no list `labels`"),
        (pickle.dumps({"data": PIXELS, "labels": [1, -1]}, protocol=2), "outside 0..9"),
    ],
)
def test_a_broken_pickle(tmp_path, content, words):
    with pytest.raises(DataError, match=rf"data_batch_1 (is not a batch|has labels).*{words}.*; get it again"):
        read_batch(write(tmp_path, content), REMEDY)


@pytest.mark.parametrize("layout", ["cifar-10-batches-bin", "cifar-10-batches-py"])
def test_loading_a_folder(tmp_path, layout):
    folder = tmp_path / layout
    folder.mkdir()
    is_binary = layout.endswith("bin")
    for name in (*(f"data_batch_{n}" for n in range(1, 6)), "test_batch"):
        write(folder, record_bytes() if is_binary else python2_pickle(), name + ".bin" * is_binary)
    data = load("cifar10", data_dir=tmp_path)
    assert (len(data.train), len(data.test), data.input_shape, data.num_classes) == (10, 2, (3, 32, 32), 10)
    assert data.train.targets.tolist() == LABELS * 5
    assert torch.allclose(data.test.inputs.reshape(2, -1), torch.from_numpy(PIXELS) / 127.5 - 1, atol=1e-6)


@pytest.mark.real_data
def test_real_cifar10(data_dir):
    data = load("cifar10", data_dir=data_dir, pixel_range=(0.0, 1.0))
    assert (len(data.train), len(data.test), data.input_shape) == (50_000, 10_000, (3, 32, 32))
    assert torch.bincount(data.train.targets).tolist() == [5000] * 10
    assert torch.bincount(data.test.targets).tolist() == [1000] * 10
    means = [float(data.train.inputs[:, channel].mean()) for channel in range(3)]
    assert means == pytest.approx([0.4914, 0.4822, 0.4465], abs=5e-5)
