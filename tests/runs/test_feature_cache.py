"""The cache of features: the same values, one file for each set of images, and no errors of its own."""

import os
import resource
import stat

import pytest
import torch

from alidpfl.errors import DataError
from alidpfl.features import FeatureMap, maps
from alidpfl.runs import features as feature_cache
from alidpfl.runs.features import load_or_compute

MAP = FeatureMap(image_shape=(1, 8, 8), scattering_frequencies=1)


@pytest.fixture
def images():
    return torch.randint(0, 256, (5, 1, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)


@pytest.fixture
def computed(monkeypatch):
    """Count how many times features are computed."""
    calls = []
    compute = FeatureMap.compute
    monkeypatch.setattr(FeatureMap, "compute", lambda *args: calls.append(1) or compute(*args))
    return calls


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_computed_once(tmp_path, images, computed):
    shares = []
    first = load_or_compute(MAP, images, tmp_path / "new" / "folder", on_progress=shares.append)
    again = load_or_compute(MAP, images.clone(), tmp_path / "new" / "folder", on_progress=shares.append)
    assert same(first, again)
    assert same(first, MAP.compute(images))
    assert len(computed) == 2  # the second is the line above
    assert shares == [1.0]
    assert all(values.dtype == torch.float32 for values in again.values())
    again["raw"] += 1  # what comes from the disk may be changed


def test_other_images_maps_or_versions_have_other_files(tmp_path, images, computed, monkeypatch):
    load_or_compute(MAP, images, tmp_path)
    changed = images.clone()
    changed[4, 0, 7, 7] ^= 1
    load_or_compute(MAP, changed, tmp_path)
    load_or_compute(MAP, images[:4], tmp_path)
    load_or_compute(MAP, images.flip(0), tmp_path)
    load_or_compute(FeatureMap(image_shape=(1, 8, 8), scattering_frequencies=1, raw_frequencies=3), images, tmp_path)
    load_or_compute(
        FeatureMap(image_shape=(1, 8, 8), scattering_frequencies=1, oriented_frequencies=1), images, tmp_path
    )
    load_or_compute(FeatureMap(image_shape=(5, 8, 8), scattering_frequencies=1), images.view(1, 5, 8, 8), tmp_path)
    monkeypatch.setattr(maps, "VERSION", maps.VERSION + 1)
    load_or_compute(MAP, images, tmp_path)
    assert len(computed) == len(list(tmp_path.iterdir())) == 8


def test_which_coordinates_are_low_changes_no_value(tmp_path, images, computed):
    load_or_compute(MAP, images, tmp_path)
    load_or_compute(FeatureMap(image_shape=(1, 8, 8), scattering_frequencies=2), images, tmp_path)
    assert len(computed) == 1


def test_layout_in_memory_does_not_matter(tmp_path, images, computed):
    load_or_compute(MAP, images, tmp_path)
    load_or_compute(MAP, images.transpose(2, 3).contiguous().transpose(2, 3), tmp_path)
    assert len(computed) == 1


@pytest.mark.parametrize("harm", ["cut", "empty", "changed", "no zip", "other arrays"])
def test_a_damaged_file_is_computed_anew(tmp_path, images, computed, harm):
    expected = load_or_compute(MAP, images, tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    middle = len(whole) // 3
    if harm == "other arrays":
        load_or_compute(MAP, images[:2], tmp_path / "other")
        (other,) = (tmp_path / "other").iterdir()
        other.replace(path)
        (tmp_path / "other").rmdir()
    else:
        path.write_bytes(
            {
                "cut": whole[:middle],
                "empty": b"",
                "changed": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
                "no zip": b"features",
            }[harm]
        )
    before = len(computed)
    assert same(load_or_compute(MAP, images, tmp_path), expected)
    assert len(computed) == before + 1
    assert path.read_bytes() == whole  # and put right
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("room", [0, 100, 4000])
def test_a_full_disk_costs_only_time(tmp_path, images, room):
    """A limit on the size of files fails in the middle of a write, like a full disk."""
    expected = MAP.compute(images)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, limits[1]))
    try:
        features = load_or_compute(MAP, images, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert same(features, expected)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_costs_only_time(tmp_path, images):
    (tmp_path / "file").touch()
    assert same(load_or_compute(MAP, images, tmp_path / "file"), MAP.compute(images))


@pytest.mark.skipif(os.name != "posix", reason="file modes")
def test_only_the_owner_may_read(tmp_path, images):
    load_or_compute(MAP, images, tmp_path)
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_wrong_images_are_refused_before_anything_is_read(tmp_path, images, monkeypatch):
    monkeypatch.setattr(feature_cache.files, "cached_arrays", lambda *_: pytest.fail("read"))
    with pytest.raises(DataError, match=r"torch\.float32"):
        load_or_compute(MAP, images.float(), tmp_path)
