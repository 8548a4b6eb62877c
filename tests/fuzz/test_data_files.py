"""Damaged data files: .npz, IDX and CIFAR-10. No error may quote a value of a private file."""

import gzip
import io
import struct
import zipfile

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from alidpfl.data.own import load_client, load_npz
from alidpfl.data.readers import read_cifar, read_idx

from .damage import damaged
from .harness import examples, fine_or_refused

MARK = "PATIENT731."
VALUES = np.frombuffer(MARK[:8].encode() * 10, np.float32).reshape(10, 2)
SHOWN = (MARK[:7], MARK[1:8], MARK[:4].encode().hex(), f"{VALUES[0, 0]:.5g}"[:6], f"{VALUES[0, 1]:.5g}"[:6])
"""A record in an error: as bytes, in hex, or as a number."""


def _npz(compress: bool = False, **arrays) -> bytes:
    file = io.BytesIO()
    (np.savez_compressed if compress else np.savez)(file, **{"x": VALUES, "y": np.arange(10) % 3, **arrays})
    return file.getvalue()


def _npy(header: str, data: bytes = b"", version: int = 1) -> bytes:
    text = header.encode("latin1")
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text + data


def _zipped(x: bytes, y: bytes | None = None, compression: int = zipfile.ZIP_STORED) -> bytes:
    file = io.BytesIO()
    labels = io.BytesIO()
    np.save(labels, np.arange(10) % 3)
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("x.npy", x)
        archive.writestr("y.npy", labels.getvalue() if y is None else y)
    return file.getvalue()


def _read(tmp_path, content: bytes) -> None:
    (tmp_path / "client.npz").write_bytes(content)
    fine_or_refused(lambda: load_client(tmp_path / "client.npz"), never=SHOWN)
    fine_or_refused(lambda: load_npz(data_dir=tmp_path, num_classes=3), never=SHOWN)


PERSONS = np.array([f"{MARK}{number % 4}" for number in range(10)])


@examples(40)
@given(data=st.data(), compress=st.booleans(), has_persons=st.booleans())
def test_a_damaged_npz_file(tmp_path, data, compress, has_persons):
    _read(tmp_path, data.draw(damaged(_npz(compress, **({"person": PERSONS} if has_persons else {})))))


@examples(40)
@given(
    shape=st.lists(st.integers(0, 12), max_size=3).map(tuple),
    kind=st.sampled_from((str, bytes, object, bool, "i1", "u8", "f4", "c16", "M8[D]", "m8[s]", [("a", "i4")])),
    name=st.sampled_from((MARK, "", "7", "nan", None)),
)
def test_persons_of_any_type_and_shape(tmp_path, shape, kind, name):
    """Only ten names, as texts or as whole numbers, are read. No error quotes one."""
    try:
        persons = np.full(shape, name, kind)
    except (TypeError, ValueError):  # this type cannot hold it
        persons = np.zeros(shape, kind)
    _read(tmp_path, _npz(person=persons))


@examples(30)
@given(
    length=st.integers(0, 2**16 - 1),
    version=st.sampled_from((1, 2, 3, 9)),
    header=st.one_of(
        st.text(st.characters(max_codepoint=255), max_size=80),
        st.sampled_from(("{'descr': '<f4', ", "(" * 500, "{'descr': '|O', 'fortran_order': False, 'shape': (1,)}")),
    ),
)
@example(length=200, version=1, header="{")
def test_a_header_that_reaches_into_the_records(tmp_path, length, version, header):
    """A parser that quotes what it cannot read would quote records."""
    content = _npy(header, VALUES.tobytes() * 9, 1 if version == 1 else 2)
    content = content[:6] + bytes([version]) + content[7:8] + struct.pack("<H", length) + content[10:]
    _read(tmp_path, _zipped(content))


_SHAPES = st.lists(st.sampled_from((-1, 0, 1, 2, 10, 2**20, 2**31, 2**40, 2**62, 2**63, 10**30)), max_size=4)
_TYPES = st.sampled_from(("<f4", "<f8", "|u1", "<i8", "<c16", "|O", "|S1000000000", "<U9", "<M8[s]", "|V8", "?", "<q9"))


@examples(30)
@given(shape=_SHAPES, kind=_TYPES, order=st.booleans(), for_labels=st.booleans(), deflated=st.booleans())
@example(shape=[2**40, 2], kind="<f4", order=False, for_labels=False, deflated=False)
@example(shape=[2**27, 2], kind="<f4", order=False, for_labels=False, deflated=True)
def test_a_shape_that_the_file_does_not_hold(tmp_path, *, shape, kind, order, for_labels, deflated):
    array = _npy(f"{{'descr': {kind!r}, 'fortran_order': {order}, 'shape': {tuple(shape)}, }}\n", VALUES.tobytes())
    x = io.BytesIO()
    np.save(x, VALUES)
    compression = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
    _read(tmp_path, _zipped(x.getvalue(), array, compression) if for_labels else _zipped(array, None, compression))


@pytest.mark.parametrize("kind", [object, "U5", "M8[s]", np.complex64, bool, np.float16, np.longdouble])
def test_arrays_of_other_types(tmp_path, kind):
    values = np.full((10, 2), None) if kind is object else np.zeros((10, 2)).astype(kind)
    file = io.BytesIO()
    np.savez(file, x=values, y=np.arange(10) % 3)
    _read(tmp_path, file.getvalue())


_IDX = bytes([0, 0, 8, 3]) + struct.pack(">3I", 4, 3, 2) + bytes(range(24))


@examples(30)
@given(data=st.data(), packed=st.booleans())
def test_a_damaged_idx_file(tmp_path, data, packed):
    content = data.draw(damaged(gzip.compress(_IDX, mtime=0) if packed else _IDX))
    path = tmp_path / ("file.gz" if packed else "file")
    path.write_bytes(content)
    fine_or_refused(lambda: read_idx(path, 3, "get it again"))


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("sizes", [(2**31 - 1, 1, 1), (2**10, 2**10, 2**11), (2**31, 2**31, 2**31)])
def test_idx_sizes_that_lie_take_no_memory(tmp_path, sizes, packed):
    content = bytes([0, 0, 8, 3]) + struct.pack(">3I", *sizes) + bytes(100)
    path = tmp_path / ("file.gz" if packed else "file")
    path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
    assert fine_or_refused(lambda: read_idx(path, 3, "get it again")) is None


@examples(30)
@given(data=st.data())
def test_a_damaged_file_of_cifar(tmp_path, data):
    path = tmp_path / "data_batch_1.bin"
    path.write_bytes(data.draw(damaged(bytes(2 * 3073))))
    fine_or_refused(lambda: read_cifar(path, "get it again"))
