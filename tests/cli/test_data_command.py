"""`alidpfl data`: list, get, show."""

import builtins
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from alidpfl import data
from alidpfl.cli.data import data_app
from alidpfl.data import download, sources
from alidpfl.errors import ConfigError, DataError
from tests.data.server import Site, serving
from tests.data.test_readers import idx, write_set


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Hide the data sets of this machine and the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("ALIDPFL_DATA_DIR", raising=False)
    monkeypatch.setattr(download, "_PAUSE", 0.0)
    monkeypatch.setitem(data.SOURCES, "fashion_mnist", replace(sources.FASHION_MNIST, system_folder=""))


def run(*arguments):
    return CliRunner().invoke(data_app, [str(argument) for argument in arguments])


def output(*arguments):
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def npz_folder(tmp_path, sizes=(20, 500)):
    folder = tmp_path / "mine"
    folder.mkdir()
    for number, size in enumerate(sizes):
        np.savez(folder / f"{number}.npz", x=np.zeros((size, 2)), y=np.arange(size) % 2)
    np.savez(folder / "test.npz", x=np.zeros((4, 2)), y=np.array([0, 1, 0, 1]))
    return folder


def test_list_says_what_is_missing_and_how_to_get_it():
    text = output("list")
    assert "strokes" in text
    assert text.count("synthetic") >= 3
    assert text.count("missing") == 3
    assert "alidpfl data get mnist" in text
    entries = {entry["name"]: entry for entry in json.loads(output("list", "--json"))}
    assert list(entries) == ["strokes", "synthetic", "mnist", "fashion_mnist", "cifar10", "npz", "table"]
    assert entries["strokes"]["kind"] == entries["synthetic"]["kind"] == "synthetic"
    assert entries["cifar10"]["state"] == "missing"


def test_list_tells_intact_files_from_corrupt_ones(tmp_path):
    write_set(tmp_path)  # valid files, but not the published contents
    entries = {entry["name"]: entry for entry in json.loads(output("list", "--json", "--data-dir", tmp_path))}
    assert (entries["mnist"]["state"], entries["mnist"]["layout"]) == ("corrupt", "torchvision")
    assert "train-images-idx3-ubyte" in entries["mnist"]["note"]
    assert entries["mnist"]["num_bytes"] == sum(path.stat().st_size for path in tmp_path.rglob("*ubyte*"))
    assert "corrupt" in output("list", "--data-dir", tmp_path)


@pytest.mark.real_data
def test_list_of_the_real_data(data_dir):
    entries = {entry["name"]: entry for entry in json.loads(output("list", "--json", "--data-dir", data_dir))}
    for name in data.SOURCES:
        assert entries[name]["state"] == "ok"
        assert entries[name]["folder"].startswith(str(data_dir))


def test_get_puts_the_files_where_load_finds_them(tmp_path, monkeypatch):
    import gzip
    import hashlib

    contents = {
        file.name: idx(np.zeros((4, 20, 20)) if "images" in file.name else np.arange(4)) for file in sources.MNIST.files
    }
    with serving(Site(files={f"{name}.gz": gzip.compress(content) for name, content in contents.items()})) as site:
        files = tuple(
            sources.KnownFile(name=name, sha256=hashlib.sha256(content).hexdigest())
            for name, content in contents.items()
        )
        tiny = sources.Source(name="mnist", folder="MNIST/raw", base_url=site.url, files=files, megabytes=1)
        monkeypatch.setitem(data.SOURCES, "mnist", tiny)
        text = output("get", "mnist")
    assert text == f"mnist is in {tmp_path / 'cache' / 'alidpfl' / 'MNIST' / 'raw'}\n"
    assert len(data.load("mnist").train) == 4
    assert json.loads(output("list", "--json"))[2]["state"] == "ok"


def test_get_of_what_there_is_not(tmp_path):
    result = run("get", "minst")
    assert isinstance(result.exception, ConfigError)
    assert "'mnist'" in str(result.exception)
    assert isinstance(run("get", "strokes").exception, ConfigError)


def test_show_counts_every_sample(tmp_path):
    folder = npz_folder(tmp_path)
    text = output("show", "npz", "--data-dir", folder)
    rows = [line.replace("│", " ").split() for line in text.splitlines()]
    assert ["0", "10", "░", "250", "█"] in rows
    assert ["all", "20", "500"] in rows
    assert "2 clients" in text
    names = [path.stem for path in sorted(folder.glob("*.npz")) if path.stem != "test"]
    assert f"clients: 0 = {names[0]}, 1 = {names[1]}" in text


def test_show_fits_eighty_columns_and_says_what_is_what(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    text = output("show", "npz", "--data-dir", npz_folder(tmp_path, sizes=[100_000] * 23))
    assert max(map(len, text.splitlines())) <= 80
    heads = [line.replace("┃", " ").split() for line in text.splitlines() if "class" in line]
    assert [head[:4] for head in heads] == [["class", "↓", "client", "→"]] * len(heads)
    assert [int(client) for head in heads for client in head[4:]] == list(range(23))
    totals = [line.replace("│", " ").split()[1:] for line in text.splitlines() if line.startswith("│ all")]
    assert [total for block in totals for total in block] == ["100000"] * 23


def test_show_warns_of_clients_whose_batches_are_mostly_empty(tmp_path):
    result = run("show", "npz", "--data-dir", npz_folder(tmp_path))
    assert "1 of the clients (0)" in result.stderr
    assert "sample_rate=0.04" in result.stderr
    assert "warning" not in run("show", "npz", "--data-dir", tmp_path / "mine", "--sample-rate", "0.5").stderr


def test_what_is_held_out_is_told(tmp_path):
    folder = npz_folder(tmp_path, sizes=(100, 200))
    assert "test.npz" not in run("show", "npz", "--data-dir", folder).stderr
    (folder / "test.npz").unlink()
    assert "test.npz" in run("show", "npz", "--data-dir", folder).stderr


def test_show_as_json_for_each_partition(tmp_path):
    write_set(tmp_path, num_train=520, num_test=520, labels=np.arange(520) % 2)
    common = ("show", "mnist", "--data-dir", tmp_path, "--clients", "4", "--json")
    even = json.loads(output(*common, "--partition", "iid"))
    assert [sum(row) for row in even["counts"]] == [130] * 4
    skewed = json.loads(output(*common, "--partition", "dirichlet", "--beta", "0.3", "--seed", "3"))
    labels = data.load("mnist", data_dir=tmp_path).train.targets.numpy()
    assert skewed["counts"] == data.label_counts(labels, data.dirichlet(labels, 4, 0.3, 3), 10).tolist()
    assert (skewed["partition"], skewed["beta"], skewed["seed"], skewed["num_train"]) == ("dirichlet", 0.3, 3, 520)
    assert (even["beta"], even["is_synthetic"], even["num_test"]) == (None, False, 520)


@pytest.mark.parametrize("partition", ["iid", "dirichlet"])
def test_show_does_not_pool_the_clients_of_own_files(tmp_path, partition):
    result = run("show", "npz", "--data-dir", npz_folder(tmp_path), "--partition", partition)
    assert isinstance(result.exception, ConfigError)
    assert f"partition='{partition}': npz" in str(result.exception)


def test_show_of_many_clients_says_what_it_leaves_out():
    text = output("show", "synthetic", "--clients", "45")
    assert "5 more clients" in text


def test_show_natural_clients_where_there_are_none(tmp_path):
    write_set(tmp_path)
    result = run("show", "mnist", "--data-dir", tmp_path, "--partition", "natural")
    assert isinstance(result.exception, ConfigError)
    assert "mnist" in str(result.exception)
    assert isinstance(run("show", "cifar10").exception, DataError)


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_show_draws_a_picture(tmp_path, ending):
    pytest.importorskip("matplotlib")
    folder, target = npz_folder(tmp_path), tmp_path / f"split.{ending}"
    output("show", "npz", "--data-dir", folder, "--plot", target)
    first = target.read_bytes()
    assert b"<svg" in first if ending == "svg" else first.startswith(b"\x89PNG")
    output("show", "npz", "--data-dir", folder, "--plot", target)
    assert target.read_bytes() == first


def test_pictures_that_cannot_be(tmp_path, monkeypatch):
    folder = npz_folder(tmp_path)
    wrong = run("show", "npz", "--data-dir", folder, "--plot", tmp_path / "split.pdf")
    assert "split.pdf" in str(wrong.exception)
    nowhere = run("show", "npz", "--data-dir", folder, "--plot", tmp_path / "no" / "split.svg")
    assert str(tmp_path / "no") in str(nowhere.exception)
    own = builtins.__import__

    def without_matplotlib(name, *rest, **more):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return own(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    missing = run("show", "npz", "--data-dir", folder, "--plot", tmp_path / "split.svg")
    assert isinstance(missing.exception, ConfigError)
    assert "pip install -c constraints.txt '.[report]'" in str(missing.exception)


@pytest.mark.real_data
def test_show_of_the_papers_split_of_mnist(data_dir):
    document = json.loads(output("show", "mnist", "--data-dir", data_dir, "--json"))
    counts = torch.tensor(document["counts"])
    assert counts.shape == (10, 10)
    assert counts.sum(0).tolist() == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
