"""Oriented filters and raw frequencies: against direct, slower ways to compute them."""

import math

import torch
from torch.nn import functional as F

from alidpfl.features.blocks import dct_basis
from alidpfl.features.filters import FILTERS, filter_bank, oriented_block, pooling, raw_block


def photographs(count=3, channels=3, side=16):
    return torch.rand(count, channels, side, side, generator=torch.Generator().manual_seed(0))


def test_filters_see_no_brightness_and_weigh_one():
    for width, deviation in ((5, 1.0), (9, 2.0)):
        bank = filter_bank(width, deviation)
        assert bank.shape == (8, 1, width, width)
        assert bank.sum((2, 3)).abs().max() < 1e-6
        torch.testing.assert_close(bank.abs().sum((1, 2, 3)), torch.ones(8))
        edges, lines = bank[:4], bank[4:]
        torch.testing.assert_close(edges.flip((2, 3)), -edges)
        torch.testing.assert_close(lines.flip((2, 3)), lines)


def test_pooling_is_the_mean_of_what_is_inside():
    images = photographs(side=28)
    matrix = pooling(28)
    expected = F.avg_pool2d(images, 8, 4, padding=2, count_include_pad=False)
    torch.testing.assert_close(matrix @ images @ matrix.t(), expected)


def directly(images):
    """Sixteen filters, one after another, written out; what the block takes short cuts for."""
    channels, side = images.shape[1:3]
    cells = side // 4
    coloured = torch.einsum("ij,njhw->nihw", dct_basis(channels), images).reshape(-1, 1, side, side)
    scales = []
    for width, deviation in ((5, 1.0), (9, 2.0)):
        bank = filter_bank(width, deviation)
        edges = [sign * bank[i] for sign in (1, -1) for i in range(4)]
        lines = [sign * bank[4 + i] for i in range(4) for sign in (1, -1)]
        margin = [width // 2] * 4
        pooled = torch.stack(
            [
                F.avg_pool2d(
                    F.conv2d(F.pad(coloured, margin, mode="replicate"), one[None]).relu(),
                    8,
                    4,
                    padding=2,
                    count_include_pad=False,
                )
                for one in edges + lines
            ],
            1,
        ).view(-1, channels, FILTERS, cells, cells)
        scales.append(pooled)
    return scales


def test_the_block_is_what_it_says():
    for channels in (1, 3):
        images = photographs(channels=channels)
        flip_even = channels == 3
        block = oriented_block((channels, 16, 16), 2, flip_even=flip_even)
        pooled = directly(images)
        if flip_even:
            mirrored = directly(images.flip(-1))  # the mean over image and mirror image
            pooled = [(one + other) / 2 for one, other in zip(pooled, mirrored, strict=True)]
        values = torch.stack([(p / (p.flatten(1).norm(dim=1).view(-1, 1, 1, 1, 1) + 0.02)).sqrt() for p in pooled], 1)
        values = dct_basis(4) @ values @ dct_basis(4).t()
        assert block.grid == (2 * channels * FILTERS, 16)
        size = values[0].numel()
        expected = values.flatten(1)[:, block.places] * 2 / math.sqrt(size)
        torch.testing.assert_close(block.compute(images), expected, rtol=1e-4, atol=1e-6)


def test_black_has_no_features():
    block = oriented_block((1, 16, 16), 6, flip_even=False)
    assert block.compute(torch.zeros(1, 1, 16, 16)).abs().max() == 0


def test_raw_is_the_cosine_transform_cut_off():
    images = photographs(side=12)
    block = raw_block((3, 12, 12), 5, flip_even=False)
    space = dct_basis(12)
    whole = torch.einsum("ij,njhw->nihw", dct_basis(3), space @ (images - 0.5) @ space.t()) / 12
    torch.testing.assert_close(block.compute(images), whole.flatten(1)[:, block.places], rtol=1e-4, atol=1e-6)
    even = raw_block((3, 12, 12), 5, flip_even=True)
    assert (even.places % 2 == 0).all()
    torch.testing.assert_close(even.compute(images), whole.flatten(1)[:, even.places], rtol=1e-4, atol=1e-6)
