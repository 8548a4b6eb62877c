"""The map as a whole: sizes, one image at a time, flips, refusals."""

import pickle

import numpy as np
import pytest
import torch

from alidpfl.errors import ConfigError, DataError
from alidpfl.features import FeatureMap, maps


def pixels(count, channels=1, side=16, seed=0):
    """Blurred noise: smooth, as images are."""
    noise = torch.rand(count, channels, side + 4, side + 4, generator=torch.Generator().manual_seed(seed))
    blurred = torch.nn.functional.avg_pool2d(noise, 5, 1)
    low, high = blurred.amin(), blurred.amax()
    return ((blurred - low) / (high - low) * 255).to(torch.uint8)


def small_map(channels=1, side=16):
    return FeatureMap(image_shape=(channels, side, side), scattering_frequencies=3)


@pytest.mark.parametrize(
    ("shape", "frequencies", "sizes", "low"),
    [
        ((1, 28, 28), 6, (3969, 55, 896), 81 * 28),
        ((1, 28, 28), 8, (3969, 55, 896), 81 * 39),
        ((3, 32, 32), 5, (7776, 90, 2688), 3 * (45 * 12 + 36 * 9)),  # even paths with even columns, odd with odd
    ],
)
def test_sizes_are_those_of_the_prototype(shape, frequencies, sizes, low):
    feature_map = FeatureMap(image_shape=shape, scattering_frequencies=frequencies)
    features = feature_map.compute(torch.zeros(1, *shape, dtype=torch.uint8))
    assert tuple(features) == tuple(block.name for block in feature_map.blocks) == ("scattering", "raw", "oriented")
    assert tuple(block.size for block in feature_map.blocks) == sizes
    for block in feature_map.blocks:
        assert features[block.name].shape == (1, block.size)
        assert features[block.name].dtype == torch.float32
        assert block.low.shape == (block.size,)
        assert block.low.dtype == torch.bool
    assert [int(block.low.sum()) for block in feature_map.blocks] == [low, *sizes[1:]]
    assert feature_map.blocks[0].grid == (81 * shape[0], (shape[1] // 4) ** 2)


@pytest.mark.parametrize("positions", [2, 4])
def test_positions_are_averaged(positions):
    """The mean over images moved up and to the left by two pixels, mirrored where nothing is known."""
    images = pixels(3)
    wide = np.pad(images.numpy(), ((0, 0), (0, 0), (0, 2), (0, 2)), mode="reflect")
    plain = FeatureMap(image_shape=(1, 16, 16), scattering_frequencies=3)
    averaging = FeatureMap(image_shape=(1, 16, 16), scattering_frequencies=3, positions=positions)
    assert plain.value_key != averaging.value_key
    offsets = [(0, 0), (2, 2), (0, 2), (2, 0)][:positions]
    moved = [plain.compute(torch.from_numpy(wide[..., y : 16 + y, x : 16 + x].copy())) for y, x in offsets]
    for name, values in averaging.compute(images).items():
        torch.testing.assert_close(values, sum(part[name] for part in moved) / positions, rtol=1e-5, atol=1e-6)
        assert (values - moved[0][name]).norm() > 0.05 * values.norm()
    assert averaging.blocks[0].size == plain.blocks[0].size


def test_other_positions_are_refused():
    with pytest.raises(ConfigError, match="positions=3"):
        FeatureMap(image_shape=(1, 16, 16), scattering_frequencies=3, positions=3)


def test_low_coordinates_are_low():
    block = small_map().blocks[0]
    position = block.places % block.grid[1]
    assert torch.equal(block.low, position // 4 + position % 4 <= 3)


@pytest.mark.parametrize("channels", [1, 2, 3])
def test_a_row_depends_on_its_own_image_only(channels):
    images = pixels(6, channels)
    changed = images.clone()
    changed[3] = 255 - changed[3] // 2  # another brightness and another contrast
    feature_map = small_map(channels)
    before, after = feature_map.compute(images), feature_map.compute(changed)
    for name in before:
        assert not torch.equal(before[name][3], after[name][3])
        others = [0, 1, 2, 4, 5]
        assert torch.equal(before[name][others], after[name][others]), name


@pytest.mark.parametrize("channels", [1, 3])
def test_how_images_are_shared_out_changes_no_more_than_rounding(channels, monkeypatch):
    images = pixels(7, channels)
    feature_map = small_map(channels)
    whole = feature_map.compute(images)
    monkeypatch.setattr(maps, "_IMAGES_AT_A_TIME", 3)
    for name, values in feature_map.compute(images).items():
        torch.testing.assert_close(values, whole[name], rtol=1e-4, atol=2e-6)
    one = feature_map.compute(images[4:5])
    for name, values in whole.items():
        torch.testing.assert_close(one[name], values[4:5], rtol=1e-4, atol=2e-6)
    again = feature_map.compute(images[[6, 5, 4, 3, 2, 1, 0]])
    for name, values in whole.items():
        torch.testing.assert_close(again[name].flip(0), values, rtol=1e-4, atol=2e-6)


def test_a_map_is_a_plain_value():
    feature_map = small_map()
    assert feature_map.blocks is small_map().blocks  # filters are built once
    sent = pickle.loads(pickle.dumps(feature_map))  # noqa: S301
    assert sent == feature_map
    assert hash(sent) == hash(feature_map)
    assert feature_map != small_map(3)


def test_the_same_images_give_the_same_bytes():
    images = pixels(4, 3)
    one, again = small_map(3).compute(images), small_map(3).compute(images.clone())
    assert all(torch.equal(one[name], again[name]) for name in one)


def test_scattering_has_norm_one_or_less_where_there_is_little_to_see():
    """Variance 1 over every three paths of one image, and a change of basis keeps it: no image can be much louder."""
    noise = torch.randint(0, 256, (3, 1, 16, 16), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for images, least in ((noise, 0.5), (pixels(3), 0.3), (torch.zeros_like(noise), 0)):
        norms = small_map().compute(images)["scattering"].norm(dim=1)
        assert (norms <= 1 + 1e-5).all()
        assert (norms >= least).all()


def test_photographs_and_their_mirror_images():
    """Equal but for rounding; scattering, which is read off the middle of its cells, only for the most part."""
    images = pixels(4, 3, 32)
    feature_map = FeatureMap(image_shape=(3, 32, 32), scattering_frequencies=5)
    one, mirrored = feature_map.compute(images), feature_map.compute(images.flip(-1))
    for name in ("raw", "oriented"):
        torch.testing.assert_close(one[name], mirrored[name], rtol=1e-3, atol=1e-5)
    grey = FeatureMap(image_shape=(1, 32, 32), scattering_frequencies=5)
    one_grey, mirrored_grey = (grey.compute(x[:, :1])["scattering"] for x in (images, images.flip(-1)))
    low = grey.blocks[0].low
    is_even = torch.zeros(len(low), dtype=torch.bool)
    is_even[feature_map.blocks[0].places[: feature_map.blocks[0].size // 3]] = True  # of the first colour
    change = (one_grey - mirrored_grey).abs()
    assert change[:, low & is_even].norm() < 0.5 * change[:, low & ~is_even].norm()


def test_digits_keep_left_and_right():
    images = pixels(2)
    one, mirrored = small_map().compute(images), small_map().compute(images.flip(-1))
    for name in one:
        assert (one[name] - mirrored[name]).norm() > 0.1 * one[name].norm()


def test_grids_hold_what_they_are_given():
    block = small_map(3).blocks[0]
    values = torch.arange(1.0, block.size + 1)
    grid = block.to_grid(values)
    assert grid.shape == block.grid
    assert int((grid != 0).sum()) == block.size
    assert torch.equal(block.from_grid(grid), values)
    with pytest.raises(ConfigError, match="scattering"):
        block.to_grid(values[1:])
    with pytest.raises(ConfigError, match="scattering"):
        block.from_grid(values)


def test_progress_ascends_to_one(monkeypatch):
    monkeypatch.setattr(maps, "_IMAGES_AT_A_TIME", 2)
    shares = []
    small_map().compute(pixels(5), on_progress=shares.append)
    assert shares == [0.4, 0.8, 1.0]


def test_no_images_no_rows():
    assert small_map().compute(pixels(1)[:0])["raw"].shape == (0, small_map().blocks[1].size)


@pytest.mark.parametrize(
    ("images", "said"),
    [
        (torch.zeros(2, 1, 16, 16), r"torch\.float32"),
        (torch.zeros(2, 16, 16, dtype=torch.uint8), r"\(2, 16, 16\).*\(n, 1, 16, 16\)"),
        (torch.zeros(1, 16, 16, dtype=torch.uint8), r"\(n, 1, 16, 16\)"),
        (torch.zeros(2, 3, 16, 16, dtype=torch.uint8), r"\(2, 3, 16, 16\)"),
        (torch.zeros(2, 1, 20, 20, dtype=torch.uint8), r"\(2, 1, 20, 20\)"),
        (pixels(1).numpy(), "ndarray"),
    ],
)
def test_images_of_another_kind_are_refused(images, said):
    with pytest.raises(DataError, match=said):
        small_map().compute(images)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"image_shape": (1, 28, 32)}, r"image_shape=\(1, 28, 32\)"),
        ({"image_shape": (1, 30, 30)}, r"image_shape=\(1, 30, 30\)"),
        ({"image_shape": (28, 28)}, r"image_shape=\(28, 28\)"),
        ({"image_shape": (0, 28, 28)}, "image_shape=0"),
        ({"image_shape": (1, 28.0, 28.0)}, r"image_shape=28\.0"),
        ({"scattering_frequencies": -1}, "scattering_frequencies=-1"),
        ({"oriented_frequencies": 1.5}, r"oriented_frequencies=1\.5"),
    ],
)
def test_maps_that_cannot_be_are_refused(changes, said):
    with pytest.raises(ConfigError, match=said):
        FeatureMap(**{"image_shape": (1, 28, 28), "scattering_frequencies": 6, **changes})
