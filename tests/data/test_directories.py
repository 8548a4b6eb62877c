"""Where data sets are searched and written, and what `alidpfl data list` says about them."""

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from alidpfl.data import directories, load
from alidpfl.data.directories import user_cache
from alidpfl.data.sources import FASHION_MNIST, MNIST, KnownFile
from alidpfl.errors import ConfigError, DataError

NAMES = [file.name for file in MNIST.files]


def fill(folder: Path, names):
    folder.mkdir(parents=True)
    for name in names:
        (folder / name).write_bytes(b"x")
    return folder


@pytest.fixture
def places(tmp_path, monkeypatch):
    """Empty folders: one to name, $ALIDPFL_DATA_DIR, and the user's cache."""
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
        assert (found.folder, found.layout, found.num_bytes) == (folder, "torchvision", 4)


def test_a_folder_that_is_named_is_the_only_one_searched(places):
    explicit, environment, _ = places
    fill(environment / "MNIST" / "raw", NAMES)
    with pytest.raises(DataError, match=str(explicit)):
        directories.find(MNIST, explicit)
    folder = fill(explicit / "MNIST" / "raw", NAMES)
    assert directories.find(MNIST, explicit).folder == folder


def test_a_complete_copy_goes_before_a_partial_one(places):
    _, environment, cache = places
    fill(environment / "MNIST" / "raw", NAMES[:3])
    with pytest.raises(DataError, match=f"raw .*{NAMES[3]}.*alidpfl data get mnist"):
        directories.find(MNIST)
    folder = fill(cache / "alidpfl" / "MNIST" / "raw", [f"{name}.gz" for name in NAMES])
    assert directories.find(MNIST).folder == folder


def test_missing_data_name_the_folders_and_the_command(places):
    explicit, environment, cache = places
    with pytest.raises(DataError) as error:
        load("cifar10")
    assert f"{environment}, {cache / 'alidpfl'};" in str(error.value)
    assert "`alidpfl data get cifar10` (about 170 MB)" in str(error.value)
    assert "ALIDPFL_DATA_DIR" in str(error.value)
    with pytest.raises(DataError) as error:
        load("cifar10", data_dir=explicit)
    assert f"`alidpfl data get cifar10 --data-dir {explicit}`" in str(error.value)
    assert "cifar-10-batches-bin/" in str(error.value)
    with pytest.raises(ConfigError, match=r"data_dir=.*nowhere"):
        load("cifar10", data_dir=explicit / "nowhere")


def test_where_downloads_go_and_relative_caches_are_ignored(places, monkeypatch):
    explicit, environment, cache = places
    assert directories.download_directory(explicit) == explicit
    assert directories.download_directory() == environment
    monkeypatch.delenv("ALIDPFL_DATA_DIR")
    assert directories.download_directory() == cache / "alidpfl"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert user_cache() == Path.home() / ".cache" / "alidpfl"


def test_the_folder_of_the_debian_package_comes_last(places, tmp_path):
    names = [file.name for file in FASHION_MNIST.files]
    source = replace(FASHION_MNIST, system_folder=str(fill(tmp_path / "debian", names)))
    assert directories.find(source).layout == "debian"
    folder = fill(places[2] / "alidpfl" / "FashionMNIST" / "raw", names)
    assert directories.find(source).folder == folder


class TestInventory:
    def test_contents_are_compared_with_the_checksum(self, places, monkeypatch):
        files = tuple(KnownFile(name=name, sha256=hashlib.sha256(b"x").hexdigest()) for name in NAMES)
        source = replace(MNIST, files=files)
        monkeypatch.setattr(directories, "SOURCES", {"mnist": source})
        folder = fill(places[0] / "MNIST" / "raw", NAMES)
        assert self._state(places[0]) == ("ok", "torchvision", str(folder), 4)
        (folder / NAMES[1]).write_bytes(b"y")
        os.utime(folder / NAMES[1], (1, 1))
        assert self._state(places[0])[0] == "corrupt"
        (folder / NAMES[1]).unlink()
        assert self._state(places[0])[0] == "missing"

    def test_an_intact_file_is_read_once(self, places, monkeypatch):
        known = KnownFile(name="a", sha256=hashlib.sha256(b"x").hexdigest())
        monkeypatch.setattr(directories, "SOURCES", {"mnist": replace(MNIST, files=(known,))})
        fill(places[0] / "MNIST" / "raw", ["a"])
        assert self._state(places[0])[0] == "ok"
        monkeypatch.setattr(directories, "digest", lambda *_, **__: pytest.fail("read"))
        assert self._state(places[0])[0] == "ok"

    def test_data_sets_of_other_packages_are_listed(self, places, monkeypatch):
        monkeypatch.setitem(directories.DATASETS._loaded, "mine", None)
        entries = {entry.name: entry.kind for entry in directories.inventory()}
        assert list(entries) == ["strokes", "synthetic", "mnist", "fashion_mnist", "cifar10", "npz", "table", "mine"]
        assert entries["mine"] == "plug-in"

    @staticmethod
    def _state(data_dir):
        (found,) = (entry for entry in directories.inventory(data_dir) if entry.kind == "real")
        return found.state, found.layout, found.folder, found.num_bytes


@pytest.mark.parametrize("argument", ["['data', 'list']", "['data', 'list', '--json']"])
def test_listing_imports_neither_torch_nor_numpy(argument):
    code = (
        f"import sys; sys.argv[1:] = {argument}\nfrom alidpfl.cli import main\ntry:\n    main()\nexcept SystemExit:\n"
    )
    code += "    print([m for m in ('torch', 'numpy', 'pydantic') if m in sys.modules], file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"
