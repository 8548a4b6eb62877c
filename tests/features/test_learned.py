"""Filters learnt from made-up pictures: constants of the program, read by each image alone."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from alidpfl.errors import ConfigError
from alidpfl.features import FeatureMap, Standardiser, learned
from alidpfl.features.learned import LEARNED, learned_blocks


def learned_block(channels, *, flip_even, name="leaves"):
    (block,) = learned_blocks([name], channels, flip_even=flip_even)
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
    for names in (["leaves"], ["garments"], ["garments", "leaves"]):
        blocks = learned_blocks(names, 3, flip_even=True)
        lengths = torch.cat([block.compute(images) for block in blocks], dim=1).norm(dim=1)
        torch.testing.assert_close(lengths, torch.full((5,), 0.5), rtol=1e-5, atol=0)


@pytest.mark.parametrize("name", LEARNED)
def test_the_values_are_those_of_four_plain_convolutions(name):
    """The first layer by hand at one place, then the rest by modules."""
    image = photographs(1)
    weights = learned._layers(name)
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
    torch.testing.assert_close(learned._pooled(name, image), torch.cat(quarters, 1), rtol=1e-4, atol=1e-5)


def test_grey_is_three_equal_colours():
    grey = torch.rand(2, 1, 28, 28, generator=torch.Generator().manual_seed(1))
    one = learned_block(1, flip_even=False).compute(grey)
    three = learned_block(3, flip_even=False).compute(grey.expand(-1, 3, -1, -1))
    torch.testing.assert_close(one, three)


def test_a_map_with_them_is_another_map(monkeypatch):
    plain = FeatureMap(image_shape=(3, 32, 32), scattering_frequencies=5)
    more = replace(plain, learned=("leaves",))
    assert [block.name for block in more.blocks] == ["scattering", "raw", "oriented", "leaves"]
    others = [replace(plain, learned=("garments",)), replace(plain, learned=("leaves", "garments"))]
    assert len({made.value_key for made in (plain, more, *others)}) == 4
    before = more.value_key
    monkeypatch.setattr(learned, "_content", lambda name: b"other filters")
    assert more.value_key != before  # what is on disk belongs to one set of filters


@pytest.mark.parametrize(("wrong", "says"), [(("oaks",), "oaks"), (("leaves", "leaves"), "twice")])
def test_filters_that_are_unknown_or_named_twice(wrong, says):
    with pytest.raises(ConfigError, match=says):
        FeatureMap(image_shape=(3, 32, 32), scattering_frequencies=5, learned=wrong)


@pytest.mark.parametrize(("names", "share"), [(("leaves",), 0.25), (("leaves", "garments"), 0.22)])
def test_vectors_have_length_one_with_them_too(names, share):
    made = FeatureMap(image_shape=(3, 32, 32), scattering_frequencies=5, learned=names)
    size = sum(block.size for block in made.blocks)
    same = Standardiser.from_statistics(made, mean=torch.zeros(size), variance=torch.ones(made.blocks[0].size))
    images = (photographs(3) * 255).to(torch.uint8)
    vectors = same.vectors(made.compute(images))
    assert vectors.shape[1] == same.size
    torch.testing.assert_close(vectors[:, :-1].norm(dim=1), torch.ones(3), rtol=1e-5, atol=0)
    assert float(vectors[:, -641:-1].square().sum(1).mean()) == pytest.approx(share, rel=1e-4)
