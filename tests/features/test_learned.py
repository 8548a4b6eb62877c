"""Learned filters: files with a known hash, public constants, applied to each image alone."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from alidpfl.config.load import load_config
from alidpfl.errors import ConfigError, DataError
from alidpfl.features import FeatureMap, LearnedFilters, Standardiser, learned
from alidpfl.features.learned import learned_blocks

from . import filter_files

LEAVES, GARMENTS = map(LearnedFilters.parse, (filter_files.LEAVES, filter_files.GARMENTS))


def filters_of(path):
    return LearnedFilters.parse(filter_files.named_file(path))


def learned_block(channels, *, flip_even):
    (block,) = learned_blocks([LEAVES], channels, flip_even=flip_even)
    return block


def photographs(count, seed=0):
    return torch.rand(count, 3, 32, 32, generator=torch.Generator().manual_seed(seed))


def test_two_rows_of_cells_for_photographs_and_four_cells_for_digits():
    assert learned_block(3, flip_even=True).grid == (320, 2)
    assert learned_block(1, flip_even=False).grid == (320, 4)
    assert learned_block(1, flip_even=False).compute(torch.rand(2, 1, 28, 28)).shape == (2, 1280)


def test_a_photograph_and_its_mirror_image_are_the_same():
    block, images = learned_block(3, flip_even=True), photographs(4)
    torch.testing.assert_close(block.compute(images), block.compute(images.flip(-1)), rtol=0, atol=1e-6)
    upside_down = block.compute(images.flip(-2))
    assert float((block.compute(images) - upside_down).norm()) > 0.01


def test_digits_keep_left_and_right():
    block = learned_block(1, flip_even=False)
    image = torch.zeros(1, 1, 28, 28)
    image[..., 4:24, 3:8] = 1
    left, right = (block.compute(x).view(320, 2, 2) for x in (image, image.flip(-1)))
    assert float((left - right).norm()) > 0.01


@pytest.mark.parametrize("flip_even", [False, True])
def test_an_image_is_read_alone(flip_even):
    block, images = learned_block(3, flip_even=flip_even), photographs(6)
    changed = images.clone()
    changed[2] = 1 - changed[2]
    before, after = block.compute(images), block.compute(changed)
    others = [0, 1, 3, 4, 5]
    assert torch.equal(before[others], after[others])
    assert not torch.equal(before[2], after[2])


def test_every_image_has_the_same_length_which_bounds_what_is_released():
    images = torch.cat([photographs(3), torch.zeros(1, 3, 32, 32), torch.ones(1, 3, 32, 32)])
    for files in ([LEAVES], [GARMENTS], [GARMENTS, LEAVES]):
        blocks = learned_blocks(files, 3, flip_even=True)
        lengths = torch.cat([block.compute(images) for block in blocks], dim=1).norm(dim=1)
        torch.testing.assert_close(lengths, torch.full((5,), 0.5), rtol=1e-5, atol=0)


@pytest.mark.parametrize("filters", [LEAVES, GARMENTS])
def test_the_values_are_those_of_four_plain_convolutions(filters):
    """The first layer by hand at one place, then the rest by modules."""
    image = photographs(1)
    weights = filters.layers()
    patch = F.pad(image - 0.5, (1, 1, 1, 1))[0, :, 6:10, 10:14]
    by_hand = (weights[0][0] * patch).sum((1, 2, 3)) + weights[0][1]
    maps = []
    values = image - 0.5
    for number, stride in enumerate((2, 2, 1, 2)):
        layer = torch.nn.Conv2d(values.shape[1], len(weights[number][1]), weights[number][0].shape[-1], stride, 1)
        layer.weight.data, layer.bias.data = weights[number]
        values = layer(values).relu().detach()
        maps.append(values)
    torch.testing.assert_close(maps[0][0, :, 3, 5], by_hand.relu(), rtol=1e-4, atol=1e-5)
    quarters = [m.unflatten(2, (2, -1)).unflatten(4, (2, -1)).mean((3, 5)) for m in maps[2:]]
    torch.testing.assert_close(learned._pooled(weights, image), torch.cat(quarters, 1), rtol=1e-4, atol=1e-5)


def test_grey_is_three_equal_colours():
    grey = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    one = learned_block(1, flip_even=False).compute(grey)
    three = learned_block(3, flip_even=False).compute(grey.expand(-1, 3, -1, -1))
    torch.testing.assert_close(one, three)


def test_the_cache_key_follows_the_hash_and_not_the_path(tmp_path):
    plain = FeatureMap(image_shape=(3, 32, 32), scattering_frequencies=5)
    leaves = replace(plain, learned=(LEAVES,))
    assert [block.name for block in leaves.blocks] == ["scattering", "raw", "oriented", LEAVES.key]
    others = [replace(plain, learned=(GARMENTS,)), replace(plain, learned=(LEAVES, GARMENTS))]
    assert len({made.value_key for made in (plain, leaves, *others)}) == 4
    copied = tmp_path / "copied.safetensors"
    copied.write_bytes(Path(LEAVES.path).read_bytes())
    same = replace(plain, learned=(filters_of(copied),))
    assert same == leaves
    assert same.value_key == leaves.value_key


def test_a_changed_file_is_refused_with_both_hashes(tmp_path):
    changed = tmp_path / "changed.safetensors"
    weights = load_file(LEAVES.path)
    weights["0.bias"][0] += 1e-2
    save_file(weights, changed)
    found = filters_of(changed)
    expected = 64 * "1"
    with pytest.raises(DataError) as caught:
        FeatureMap(image_shape=(3, 32, 32), scattering_frequencies=5, learned=(LearnedFilters(str(changed), expected),))
    for named in (str(changed), expected, found.sha256):
        assert named in str(caught.value)
    assert found.layers()[0][1][0] > LEAVES.layers()[0][1][0]  # under its own hash it is a file of filters


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="absent"):
        LearnedFilters(str(tmp_path / "absent.safetensors"), 64 * "2").layers()


def without_a_layer(weights):
    del weights["3.weight"]


def without_colours(weights):
    weights["0.weight"] = weights["0.weight"][:, :1].contiguous()


def without_axes(weights):
    weights["1.bias"] = torch.tensor(1.0)


@pytest.mark.parametrize("damage", [without_a_layer, without_colours, without_axes])
def test_a_file_of_another_form_is_refused(tmp_path, damage):
    weights = load_file(LEAVES.path)
    damage(weights)
    save_file(weights, tmp_path / "other.safetensors")
    with pytest.raises(DataError, match="other"):
        filters_of(tmp_path / "other.safetensors").layers()


def test_a_file_that_is_not_safetensors_is_refused(tmp_path):
    (tmp_path / "text").write_text("not a weight file")
    with pytest.raises(DataError, match="text"):
        filters_of(tmp_path / "text").layers()


@pytest.mark.parametrize("text", ["leaves", "leaves#sha256=", "leaves#sha256=" + 64 * "G", "#sha256=" + 64 * "0"])
def test_a_name_without_path_or_hash_is_refused(text):
    with pytest.raises(ConfigError, match="sha256"):
        LearnedFilters.parse(text)


def test_filters_named_twice_or_too_often_are_refused(tmp_path):
    third = tmp_path / "third.safetensors"
    save_file({name: weight + 1 for name, weight in load_file(LEAVES.path).items()}, third)
    for wrong in ((LEAVES, LEAVES), (LEAVES, GARMENTS, filters_of(third))):
        with pytest.raises(ConfigError, match="leaves"):
            FeatureMap(image_shape=(3, 32, 32), scattering_frequencies=5, learned=wrong)


@pytest.mark.parametrize(("files", "share"), [((LEAVES,), 0.25), ((LEAVES, GARMENTS), 0.22)])
def test_vectors_have_length_one_with_them_too(files, share):
    made = FeatureMap(image_shape=(3, 32, 32), scattering_frequencies=5, learned=files)
    size = sum(block.size for block in made.blocks)
    same = Standardiser.from_statistics(made, mean=torch.zeros(size), variance=torch.ones(made.blocks[0].size))
    images = (photographs(3) * 255).to(torch.uint8)
    vectors = same.vectors(made.compute(images))
    assert vectors.shape[1] == same.size
    torch.testing.assert_close(vectors[:, :-1].norm(dim=1), torch.ones(3), rtol=1e-5, atol=0)
    assert float(vectors[:, -641:-1].square().sum(1).mean()) == pytest.approx(share, rel=1e-4)


def test_a_configuration_names_filters_from_its_own_folder(tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    config = tmp_path / "sub" / "config.toml"
    config.write_text(f'[model]\nlearned = ["../filters/a.safetensors#sha256={64 * "0"}"]\n')
    monkeypatch.chdir("/")
    assert load_config(config).model.learned == (f"{tmp_path}/filters/a.safetensors#sha256={64 * '0'}",)
    named = load_config(overrides=[f'model.learned=["b.safetensors#sha256={64 * "1"}"]']).model.learned
    assert named == (f"/b.safetensors#sha256={64 * '1'}",)  # from the current folder


@pytest.mark.parametrize("wrong", ['["leaves"]', "[1]", '"leaves"', f'["#sha256={64 * "0"}"]'])
def test_a_configuration_without_path_or_hash_is_refused(wrong):
    with pytest.raises(ConfigError, match=r"model\.learned"):
        load_config(overrides=[f"model.learned={wrong}"])
