"""The image itself, in colour x cosine basis, cut to low frequencies: what is where, without fine detail."""

import torch
from torch import Tensor

from alidpfl.features.bases import dct_basis, low_frequencies, on_both_axes
from alidpfl.features.block import Block

_GREY = 0.5  # images are in [0, 1]: without it, their norm would mostly be their brightness


def raw_block(channels: int, side: int, highest_frequency: int, *, flip_even: bool) -> Block:
    """Low frequencies of the image; with `flip_even` only those that a left-right flip leaves as they are."""
    kept = low_frequencies(side, highest_frequency)
    if flip_even:
        kept &= torch.arange(side) % 2 == 0
    places = kept.expand(channels, side, side).flatten().nonzero()[:, 0]
    rows = min(side, highest_frequency + 1)
    space, colours, cut = dct_basis(side)[:rows], dct_basis(channels), kept[:rows, :rows]

    def compute(images: Tensor) -> Tensor:
        values = on_both_axes(space, images - _GREY).flatten(2)[:, :, cut.flatten()]
        return (colours @ values).flatten(1) / side

    return Block(
        name="raw",
        grid=(channels, side**2),
        places=places,
        low=torch.ones(len(places), dtype=torch.bool),
        compute=compute,
    )
