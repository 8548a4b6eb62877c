"""Data that come with their clients: FedProx's synthetic ones, folders of .npz files, and tensors in memory."""

import io
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

from alidpfl.data import from_clients, load
from alidpfl.data.own import load_client
from alidpfl.errors import ConfigError, DataError


class TestSynthetic:
    def test_shapes_and_clients(self):
        data = load("synthetic", clients=12, seed=0)
        assert (data.input_shape, data.num_classes, data.is_synthetic) == ((60,), 10, True)
        assert len(data.natural_clients) == 12
        together = torch.cat(data.natural_clients)
        assert torch.equal(together, torch.arange(len(data.train)))
        assert len(data.test) / (len(data.train) + len(data.test)) == pytest.approx(0.2, abs=0.01)
        sizes = [len(client) for client in data.natural_clients]
        assert min(sizes) >= 40
        assert max(sizes) <= 1600

    def test_repeatable_by_seed(self):
        one, again, other = (load("synthetic", clients=3, seed=seed) for seed in (0, 0, 1))
        assert torch.equal(one.train.inputs, again.train.inputs)
        assert torch.equal(one.test.targets, again.test.targets)
        assert one.train.inputs.shape != other.train.inputs.shape or not torch.equal(
            one.train.inputs, other.train.inputs
        )

    def test_spread_of_the_inputs(self):
        """Σ_jj = j^-1.2 within a client."""
        data = load("synthetic", clients=40, seed=0, max_samples=5000)
        client = max(data.natural_clients, key=len)
        spread = data.train.inputs[client].var(dim=0)
        expected = torch.arange(1, 61) ** -1.2
        assert len(client) > 1000
        assert torch.allclose(spread / expected, torch.ones(60), atol=0.3)

    def test_beta_moves_the_clients_apart(self):
        def distance(beta):
            data = load("synthetic", clients=60, alpha=0, beta=beta, seed=0)
            return torch.stack([data.train.inputs[c].mean() for c in data.natural_clients]).std().item()

        near, far = distance(0.0), distance(3.0)
        assert near < 0.3  # the mean of 60 numbers ~ N(0, 1)
        assert far == pytest.approx(3.0, rel=0.35)

    def test_iid_clients_share_one_model_and_others_do_not(self):
        def distance(**options):
            """Total variation between the class shares of the two largest clients."""
            data = load("synthetic", clients=30, seed=2, **options)
            first, second = sorted(data.natural_clients, key=len)[-2:]
            shares = [torch.bincount(data.train.targets[c], minlength=10) / len(c) for c in (first, second)]
            return float((shares[0] - shares[1]).abs().sum() / 2)

        assert distance(is_iid=True) < 0.1
        assert distance(alpha=1.0, beta=1.0) > 0.4

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"clients": 0}, "clients=0 must be at least 1"),
            ({"alpha": -1.0}, "alpha=-1.0"),
            ({"beta": float("nan")}, "beta=nan"),
            ({"max_samples": 10}, "max_samples=10 must be at least 50"),
            ({"seed": -1}, "seed=-1"),
        ],
    )
    def test_settings_are_checked(self, options, words):
        with pytest.raises(ConfigError, match=words):
            load("synthetic", **options)


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
        ("changes", "words"),
        [
            ({"x": np.zeros((10, 3), complex)}, r"client1\.npz: array x has type complex128"),
            ({"x": np.array([["a"]] * 10)}, r"client1\.npz: array x has type <U1"),
            ({"y": np.zeros(10)}, r"client1\.npz: array y has type float64"),
            ({"y": np.zeros(9, int)}, r"client1\.npz: array x has shape \(10, 3\) and array y \(9,\)"),
            ({"x": np.zeros(10)}, r"client1\.npz: array x has shape \(10,\)"),
            ({"x": np.zeros((0, 3)), "y": np.zeros(0, int)}, r"client1\.npz: .*at least one sample"),
            ({"y": np.full(10, -1)}, r"client1\.npz: array y has numbers that are no classes"),
            ({"x": np.full((10, 3), np.nan)}, r"client1\.npz: array x has values that are NaN"),
            ({"x": np.zeros((10, 4))}, r"client1\.npz: array x has samples of shape \(4,\)"),
            ({"x": np.zeros((10, 3), np.uint8)}, r"client1\.npz: array x .*type uint8"),
            (
                {"x": np.array([[{}] * 3] * 10, object)},
                r"client1\.npz: array x holds Python objects.*astype",
            ),
            ({"x": np.zeros((1, 3)), "y": np.zeros(1, int)}, r"client1\.npz: one sample cannot be shared"),
        ],
    )
    def test_bad_arrays_are_named(self, tmp_path, changes, words):
        folder_of(tmp_path)
        save(tmp_path / "client1.npz", **{"x": np.zeros((10, 3)), "y": np.zeros(10, int), **changes})
        with pytest.raises(DataError, match=words):
            load("npz", data_dir=tmp_path)

    @pytest.mark.parametrize("name", ["client1", "test"])
    def test_classes_beyond_the_number_given(self, tmp_path, name):
        folder_of(tmp_path)
        save(tmp_path / "test.npz", x=np.zeros((5, 3)), y=np.arange(5) % 3)
        save(tmp_path / f"{name}.npz", x=np.zeros((5, 3)), y=np.arange(5))
        with pytest.raises(DataError, match=rf"{name}\.npz: array y .* from 0 to 2, or raise data\.num_classes"):
            load("npz", data_dir=tmp_path, num_classes=3)

    def test_bad_files_and_folders(self, tmp_path):
        with pytest.raises(DataError, match=r"has no \.npz files"):
            load("npz", data_dir=tmp_path)
        save(tmp_path / "test.npz", x=np.ones((5, 3)), y=np.zeros(5, int))
        with pytest.raises(DataError, match=r"has only test\.npz, and no client's"):
            load("npz", data_dir=tmp_path)
        (tmp_path / "test.npz").unlink()
        with pytest.raises(DataError, match="is not a folder"):
            load("npz", data_dir=tmp_path / "nowhere")
        with pytest.raises(ConfigError, match="npz needs data_dir"):
            load("npz")
        save(tmp_path / "a.npz", inputs=np.zeros((3, 2)), y=np.zeros(3, int))
        with pytest.raises(DataError, match=r"a\.npz has no array x, only \['inputs', 'y'\]"):
            load("npz", data_dir=tmp_path)
        whole = io.BytesIO()
        np.savez(whole, x=np.zeros((50, 2)), y=np.zeros(50, int))
        single = io.BytesIO()
        np.save(single, np.zeros(3))
        others = (b"", b"junk", single.getvalue(), pickle.dumps({"x": 1}))
        spoiled = bytearray(whole.getvalue())
        spoiled[300] ^= 0xFF
        broken = (whole.getvalue()[:-30], bytes(spoiled))
        for contents, words in ((others, r"a\.npz is not a \.npz file"), (broken, r"a\.npz cannot be read")):
            for content in contents:
                (tmp_path / "a.npz").write_bytes(content)
                with pytest.raises(DataError, match=words):
                    load("npz", data_dir=tmp_path)
        with pytest.raises(DataError, match=r"b\.npz does not exist"):
            load_client(tmp_path / "b.npz")
        with pytest.raises(DataError, match="Is a directory"):
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
        ("bad", "words"),
        [
            ((torch.zeros(3, 2), torch.zeros(2, dtype=torch.int64)), r"mine: client 1: inputs have shape \(3, 2\)"),
            ((torch.zeros(3, 2), torch.zeros(3)), "mine: client 1: classes have type torch.float32"),
            ((torch.zeros(3, 2, dtype=torch.bool), torch.zeros(3, dtype=torch.int64)), "inputs have type torch.bool"),
            ((torch.zeros(3, 5), torch.zeros(3, dtype=torch.int64)), r"shapes \[\(2,\), \(5,\)\]"),
            (7, "client 1 is a int"),
            (TensorDataset(torch.zeros(0, 2), torch.zeros(0)), "client 1 is empty"),
            (TensorDataset(torch.zeros(3, 2)), "client 1: items must be pairs"),
            ([("a", 1), ("b", 2), ("c", 3)], "client 1: items must be pairs"),
            ((torch.tensor([[float("inf"), 0]]), [0]), "client 1: inputs have values"),
        ],
    )
    def test_bad_clients_are_named(self, bad, words):
        good = (torch.zeros(3, 2), torch.tensor([0, 1, 1]))
        with pytest.raises(DataError, match=words):
            from_clients([good, bad], test=good, name="mine")
        with pytest.raises(DataError, match="no clients"):
            from_clients([], test=good)
