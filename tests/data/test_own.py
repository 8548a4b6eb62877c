"""Users' own data: folders of .npz files, and arrays or torch data sets in memory."""

import io
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from alidpfl.data import from_clients, load
from alidpfl.data.own import load_client
from alidpfl.errors import ConfigError, DataError


def save(path, **arrays):
    np.savez(path, **arrays)
    return path


def folder_of(root, sizes=(10, 30), **changes):
    for number, size in enumerate(sizes):
        arrays = {"x": np.full((size, 3), number, np.float32), "y": np.arange(size) % 3, **changes}
        save(root / f"client{number}.npz", **arrays)
    return root


class TestNpz:
    def test_clients_in_order_and_a_tenth_held_out(self, tmp_path):
        data = load("npz", data_dir=folder_of(tmp_path), seed=1)
        assert [len(client) for client in data.natural_clients] == [9, 27]
        assert (len(data.test), data.num_classes, data.input_shape, data.is_synthetic) == (4, 3, (3,), False)
        for number, client in enumerate(data.natural_clients):
            assert (data.train.inputs[client] == number).all()
        assert torch.bincount(data.test.inputs[:, 0].long()).tolist() == [1, 3]

    def test_what_is_held_out_depends_on_the_seed_only(self, tmp_path):
        for number in range(3):
            values = np.arange(100.0)[:, None] + [0.0, 1000.0 * number]
            save(tmp_path / f"{number}.npz", x=values, y=np.zeros(100, int) + number % 2)
        one, again, other = (load("npz", data_dir=tmp_path, seed=seed).test.inputs for seed in (0, 0, 1))
        assert torch.equal(one, again)
        assert not torch.equal(one, other)
        everything = load("npz", data_dir=tmp_path)
        together = torch.cat([everything.train.inputs, everything.test.inputs])
        assert len(together.unique(dim=0)) == 300

    def test_a_test_file(self, tmp_path):
        save(tmp_path / "test.npz", x=np.ones((5, 3)), y=np.array([0, 1, 2, 3, 4]))
        data = load("npz", data_dir=folder_of(tmp_path))
        assert (len(data.train), len(data.test), data.num_classes, len(data.natural_clients)) == (40, 5, 5, 2)

    def test_bytes_are_pixels(self, tmp_path):
        x = np.full((10, 1, 2, 2), 255, np.uint8)
        data = load("npz", data_dir=folder_of(tmp_path, sizes=(10,), x=x), pixel_range=(0, 1))
        assert (data.train.inputs == 1).all()

    @pytest.mark.parametrize(
        ("changes", "value"),
        [
            ({"x": np.zeros((10, 3), complex)}, r"client1\.npz: array x has type complex128"),
            ({"x": np.array([["a"]] * 10)}, r"client1\.npz: array x has type <U1"),
            ({"y": np.zeros(10)}, r"client1\.npz: array y has numbers.*client0\.npz has classes"),
            ({"y": np.zeros((10, 2), int)}, r"client1\.npz: array y has 2 labels.*client0\.npz has classes"),
            ({"y": np.array(["no"] * 10)}, r"client1\.npz: array y has type <U2.*number classes"),
            ({"y": np.zeros(10, complex)}, r"client1\.npz: array y has type complex128"),
            ({"y": np.zeros(9, int)}, r"client1\.npz: .*\(10, 3\).*\(9,\)"),
            ({"x": np.zeros(10)}, r"client1\.npz: .*\(10,\)"),
            ({"x": np.zeros((0, 3)), "y": np.zeros(0, int)}, r"client1\.npz: .*\(0, 3\)"),
            ({"y": np.full(10, -1)}, r"client1\.npz: array y"),
            ({"x": np.full((10, 3), np.nan)}, r"client1\.npz: inputs .*NaN"),
            ({"x": np.zeros((10, 4))}, r"client1\.npz: array x .*\(4,\).*client0\.npz .*\(3,\)"),
            ({"x": np.zeros((10, 3), np.uint8)}, r"client1\.npz: array x .*type uint8"),
            ({"x": np.array([[{}] * 3] * 10, object)}, r"client1\.npz: array x .*astype"),
            ({"x": np.zeros((1, 3)), "y": np.zeros(1, int)}, r"client1\.npz: one record"),
        ],
    )
    def test_bad_arrays_are_named(self, tmp_path, changes, value):
        folder_of(tmp_path)
        save(tmp_path / "client1.npz", **{"x": np.zeros((10, 3)), "y": np.zeros(10, int), **changes})
        with pytest.raises(DataError, match=value):
            load("npz", data_dir=tmp_path)

    @pytest.mark.parametrize("name", ["client1", "test"])
    def test_classes_beyond_the_number_given(self, tmp_path, name):
        folder_of(tmp_path)
        save(tmp_path / "test.npz", x=np.zeros((5, 3)), y=np.arange(5) % 3)
        save(tmp_path / f"{name}.npz", x=np.zeros((5, 3)), y=np.arange(5))
        with pytest.raises(DataError, match=rf"{name}\.npz: array y .*num_classes=3"):
            load("npz", data_dir=tmp_path, num_classes=3)

    def test_bad_files_and_folders(self, tmp_path):
        with pytest.raises(DataError, match=str(tmp_path)):
            load("npz", data_dir=tmp_path)
        save(tmp_path / "test.npz", x=np.ones((5, 3)), y=np.zeros(5, int))
        with pytest.raises(DataError, match=r"test\.npz"):
            load("npz", data_dir=tmp_path)
        (tmp_path / "test.npz").unlink()
        with pytest.raises(DataError, match="nowhere"):
            load("npz", data_dir=tmp_path / "nowhere")
        with pytest.raises(ConfigError, match="data_dir"):
            load("npz")
        save(tmp_path / "a.npz", inputs=np.zeros((3, 2)), y=np.zeros(3, int))
        with pytest.raises(DataError, match=r"a\.npz .*array x.*\['inputs', 'y'\]"):
            load("npz", data_dir=tmp_path)
        whole = io.BytesIO()
        np.savez(whole, x=np.zeros((50, 2)), y=np.zeros(50, int))
        single = io.BytesIO()
        np.save(single, np.zeros(3))
        others = (b"", b"junk", single.getvalue(), pickle.dumps({"x": 1}))
        spoiled = bytearray(whole.getvalue())
        spoiled[300] ^= 0xFF
        broken = (whole.getvalue()[:-30], bytes(spoiled))
        for content in (*others, *broken):
            (tmp_path / "a.npz").write_bytes(content)
            with pytest.raises(DataError, match=r"a\.npz"):
                load("npz", data_dir=tmp_path)
        with pytest.raises(DataError, match=r"b\.npz"):
            load_client(tmp_path / "b.npz")
        with pytest.raises(DataError, match=str(tmp_path)):
            load_client(tmp_path)


class TestOwn:
    def test_arrays_tensors_and_torch_data_sets(self):
        x, y = torch.arange(8.0).reshape(4, 2), torch.tensor([0, 1, 2, 1])
        clients = [(x, y), (x.double().numpy(), y.int().numpy()), (x.tolist(), y.tolist()), TensorDataset(x, y)]
        data = from_clients(clients, test=TensorDataset(x, y), name="mine")
        assert (data.name, data.num_classes, data.is_synthetic, len(data.natural_clients)) == ("mine", 3, False, 4)
        for client in data.natural_clients:
            assert torch.equal(data.train.inputs[client], x)
            assert torch.equal(data.train.targets[client], y)
        assert torch.equal(data.test.inputs, x)

    @pytest.mark.parametrize(
        ("bad", "value"),
        [
            ((torch.zeros(3, 2), torch.zeros(2, dtype=torch.int64)), r"mine: client 1: .*\(3, 2\)"),
            ((torch.zeros(3, 2), torch.zeros(3)), "mine: client 1 has numbers.*client 0 has classes"),
            ((torch.zeros(3, 2), torch.zeros(3, 2)), "mine: client 1 has 2 labels.*client 0 has classes"),
            ((torch.zeros(3, 2), torch.zeros(3, dtype=torch.complex64)), "mine: client 1: .*complex64"),
            ((torch.zeros(3, 2), ["no", "yes", "no"]), "mine: client 1: .*number them from 0"),
            ((torch.zeros(3, 2, dtype=torch.bool), torch.zeros(3, dtype=torch.int64)), "client 1: .*torch.bool"),
            ((torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64)), r"\(2,\), \(5,\)"),
            (7, "client 1: .*int"),
            (TensorDataset(torch.zeros(0, 2), torch.zeros(0)), "client 1: .*empty"),
            (TensorDataset(torch.zeros(3, 2)), "client 1: items"),
            (TensorDataset(torch.zeros(3, 2), torch.zeros(3).long(), torch.arange(3)), "client 1: items.*more"),
            ([(torch.zeros(2), 0, "p1")] * 3, "client 1: items.*more"),
            ([("a", 1), ("b", 2), ("c", 3)], "client 1: items"),
            ((torch.tensor([[float("inf"), 0]]), [0]), "client 1: inputs"),
        ],
    )
    def test_bad_clients_are_named(self, bad, value):
        good = (torch.zeros(3, 2), torch.tensor([0, 1, 1]))
        with pytest.raises(DataError, match=value):
            from_clients([good, bad], test=good, name="mine")

    def test_no_clients(self):
        with pytest.raises(DataError, match="mine"):
            from_clients([], test=(torch.zeros(3, 2), [0, 1, 1]), name="mine")


class TestTasks:
    @pytest.mark.parametrize(
        ("y", "kind", "outputs"),
        [
            (np.arange(10) % 3, "class", 3),
            (np.arange(10) % 2 == 0, "class", 2),
            ((np.arange(10) % 3).astype(np.uint8), "class", 3),
            (np.arange(10.0), "number", 1),
            (np.arange(10, dtype=np.float16), "number", 1),
            ((np.arange(20) % 2).reshape(10, 2), "labels", 2),
            ((np.arange(20) % 2 == 0).reshape(10, 2), "labels", 2),
            ((np.arange(10.0) % 2).reshape(10, 1), "labels", 1),
        ],
    )
    def test_type_and_shape_decide(self, tmp_path, y, kind, outputs):
        """In files, arrays and tensors alike."""
        x = np.zeros((10, 3), np.float32)
        for name in ("a", "b", "test"):
            save(tmp_path / f"{name}.npz", x=x, y=y)
        found = [
            load("npz", data_dir=tmp_path),
            from_clients([(x, y)], test=(x, y)),
            from_clients([(torch.as_tensor(x), torch.as_tensor(y))], test=(x, y)),
            from_clients([(x, y.tolist())], test=(x, y)),
            from_clients([TensorDataset(torch.as_tensor(x), torch.as_tensor(y))], test=(x, y)),
        ]
        for data in found:
            assert (data.kind, data.num_outputs) == (kind, outputs)
            np.testing.assert_array_equal(data.test.targets.numpy(), y)
        assert found[0].num_classes == (outputs if kind == "class" else 0)
        assert bool(found[0].shown) == (kind == "class")  # numbers and labels are counted in no record

    @pytest.mark.parametrize("module", ["pandas", "polars"])
    def test_frames(self, module):
        frames = pytest.importorskip(module)
        x = frames.DataFrame({"a": [0.0, 1.0, 2.0], "b": [1, 2, 3]})
        for y, kind in (
            (frames.Series([1, 0, 1]), "class"),
            (frames.Series([True, False, True]), "class"),
            (frames.Series([0.5, 1.5, 2.0]), "number"),
            (frames.DataFrame({"sepsis": [0, 1, 0], "stroke": [1, 1, 0]}), "labels"),
            (frames.DataFrame({"sepsis": [True, False, True], "stroke": [1.0, 1.0, 0.0]}), "labels"),
        ):
            assert from_clients([(x, y)], test=(x, y)).kind == kind

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
    def test_numbers_beyond_float32_are_refused(self, tmp_path, value):
        y = np.arange(10.0)
        y[3] = value
        save(tmp_path / "a.npz", x=np.zeros((10, 3)), y=y)
        with pytest.raises(DataError, match=r"a\.npz: targets .*NaN or infinite"):
            load("npz", data_dir=tmp_path)
        with pytest.raises(DataError, match=r"client 0: targets .*NaN or infinite"):
            from_clients([(np.zeros((10, 3)), y)], test=(np.zeros((10, 3)), y))

    def test_labels_are_0_or_1(self):
        with pytest.raises(DataError, match="client 0: labels"):
            from_clients([(np.zeros((2, 3)), [[0.0, 0.5], [1, 1]])], test=(np.zeros((2, 3)), [[0.0, 1], [1, 1]]))

    def test_a_number_of_classes_is_for_classes(self, tmp_path):
        save(tmp_path / "a.npz", x=np.zeros((10, 3)), y=np.arange(10.0))
        with pytest.raises(DataError, match=r"a\.npz: array y has numbers.*num_classes=3"):
            load("npz", data_dir=tmp_path, num_classes=3)
