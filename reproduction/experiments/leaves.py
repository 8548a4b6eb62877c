"""Draw leaves that cover one another, with textures, shading and light. No photograph is used.

Such drawings share edges at all sizes and directions with natural images. Features learned on them cost no privacy
(Baradad et al. 2021; Tang, Panda & Mittal 2023 for private training).
"""

import math

import torch
from torch import Generator, Tensor
from torch.nn import functional as F

SIDE = 48
_MOST, _FEWEST = 48, 3  # leaves of a picture
_DISC, _POLYGON, _STAR, _BOX, _BAR = range(5)
_BLUR = 0.7


def pictures(count: int, random: Generator) -> Tensor:
    """Draw pictures: (count, 3, 48, 48) uint8."""
    textures = _clouds(max(64, count // 2), random)
    made = _colours(count, random)[:, :, None, None] + _chosen(textures, count, random) * _uniform(count, random) / 4
    spread = torch.rand(count, generator=random) * math.log(_MOST / _FEWEST)
    leaves = (_FEWEST * spread.exp()).long()
    for number in range(_MOST):
        still = (leaves > number).nonzero()[:, 0]
        if len(still):
            shape, fill = _leaves(len(still), 1 - 0.6 * number / _MOST, textures, random)
            made[still] = made[still] * (1 - shape) + fill * shape
    return (_lit(made, random).clamp(0, 1) * 255).round().to(torch.uint8)


def _leaves(count: int, size: float, textures: Tensor, random: Generator) -> tuple[Tensor, Tensor]:
    """Draw one leaf for each picture; return its mask in [0, 1] and its colours."""
    radius = (SIDE * size / 2 * (0.06 + 0.94 * torch.rand(count, 1, 1, generator=random) ** 2.5)).clamp(min=1.5)
    turn = 2 * math.pi * torch.rand(count, 1, 1, generator=random)
    stretch = (0.45 * torch.randn(count, 1, 1, generator=random)).exp()
    place = torch.arange(SIDE, dtype=torch.float32)
    down = place[:, None] - SIDE * (1.2 * torch.rand(count, 1, 1, generator=random) - 0.1)
    right = place[None] - SIDE * (1.2 * torch.rand(count, 1, 1, generator=random) - 0.1)
    along = (right * turn.cos() + down * turn.sin()) * stretch / radius
    across = (down * turn.cos() - right * turn.sin()) / stretch / radius
    distance = _outline(along, across, random)
    edge = 0.8 * (0.7 * torch.randn(count, 1, 1, generator=random)).exp() / radius
    shape = ((1 - distance) / edge + 0.5).clamp(0, 1)
    hole = ((1 - 1.4 * distance) / edge + 0.5).clamp(0, 1)
    is_ring = torch.rand(count, 1, 1, generator=random) < 0.15
    shape = torch.where(is_ring, shape - torch.minimum(hole, shape), shape)
    return shape[:, None], _surface(along, across, textures, random)


def _outline(along: Tensor, across: Tensor, random: Generator) -> Tensor:
    """Return 1 on the outline of a disc, polygon, star, box or bar, and less inside."""
    count = len(along)
    radius, angle = (along**2 + across**2).sqrt(), torch.atan2(across, along)
    corners = torch.randint(3, 8, (count, 1, 1), generator=random).float()
    start = 2 * math.pi * torch.rand(count, 1, 1, generator=random)
    sector = torch.remainder(angle + start, 2 * math.pi / corners) - math.pi / corners
    polygon = 0.9 * radius * sector.cos() / (math.pi / corners).cos()
    star = radius * (1 + 0.45 * torch.rand(count, 1, 1, generator=random) * (corners * angle + start).cos())
    box = torch.maximum(along.abs(), across.abs())
    bar = torch.maximum(0.6 * along.abs(), 2 * across.abs())
    kind = torch.randint(5, (count, 1, 1), generator=random)
    outline = radius
    for which, distance in ((_POLYGON, polygon), (_STAR, star), (_BOX, box), (_BAR, bar)):
        outline = torch.where(kind == which, distance, outline)
    return outline


def _surface(along: Tensor, across: Tensor, textures: Tensor, random: Generator) -> Tensor:
    """Return a colour with clouds, stripes or nothing, a slope of light, and sometimes the shading of a ball."""
    count = len(along)
    fill = _colours(count, random)[:, :, None, None].expand(count, 3, SIDE, SIDE)
    strength = 0.35 * _uniform(count, random)
    kind = _uniform(count, random)
    clouds, stripes = _chosen(textures, count, random), _stripes(count, random)
    fill = fill + strength * torch.where(kind < 0.45, clouds, torch.where(kind < 0.7, stripes, 0.0))
    slope = 0.25 * torch.randn(2, count, 1, 1, generator=random)
    fill = fill + (along * slope[0] + across * slope[1])[:, None]
    is_ball = _uniform(count, random) < 0.3
    return fill + is_ball * (0.5 - (along**2 + across**2).clamp(max=1))[:, None] / 2


def _stripes(count: int, random: Generator) -> Tensor:
    place = torch.arange(SIDE, dtype=torch.float32)
    turn = math.pi * _uniform(count, random)
    frequency = (2 * _uniform(count, random)).exp() / 4
    start = 2 * math.pi * _uniform(count, random)
    waves = (frequency * (place[None] * turn.cos() + place[:, None] * turn.sin()) + start).sin()
    waves = torch.where(_uniform(count, random) < 0.5, waves.sign(), waves)
    return waves * (2 * _colours(count, random) - 1)[:, :, None, None]


def _clouds(count: int, random: Generator) -> Tensor:
    """Return coloured noise with less power at high frequencies: (count, 3, 48, 48)."""
    power = 0.5 + 2 * _uniform(count, random)
    turn, stretch = math.pi * _uniform(count, random), (0.5 * torch.randn(count, 1, 1, 1, generator=random)).exp()
    rows, columns = torch.fft.fftfreq(SIDE)[:, None], torch.fft.rfftfreq(SIDE)[None]
    along, across = rows * turn.cos() + columns * turn.sin(), columns * turn.cos() - rows * turn.sin()
    frequency = ((along * stretch) ** 2 + (across / stretch) ** 2).sqrt().clamp(min=1 / SIDE)
    white = torch.fft.rfft2(torch.randn(count, 3, SIDE, SIDE, generator=random))
    clouds = torch.fft.irfft2(white * frequency.pow(-power), s=(SIDE, SIDE))
    clouds = clouds / clouds.std((2, 3), keepdim=True)
    sign = torch.randn(count, 1, 1, generator=random).sign()
    mix = sign + 0.4 * torch.randn(count, 3, 3, generator=random)  # mostly grey
    clouds = torch.einsum("nij,njhw->nihw", mix, clouds)
    return clouds / clouds.std((1, 2, 3), keepdim=True)


def _lit(made: Tensor, random: Generator) -> Tensor:
    """Add a slope of light to every picture, and blur half of them a little."""
    place = torch.arange(SIDE, dtype=torch.float32) / SIDE - 0.5
    slope = 0.15 * torch.randn(2, len(made), 1, 1, 1, generator=random)
    made = made + place[None] * slope[0] + place[:, None] * slope[1]
    soft = F.avg_pool2d(F.pad(made, (1, 1, 1, 1), mode="reflect"), 3, 1)
    return torch.where(_uniform(len(made), random) < 0.5, _BLUR * soft + (1 - _BLUR) * made, made)


def _colours(count: int, random: Generator) -> Tensor:
    full = torch.rand(count, 3, generator=random)
    grey = full.mean(1, keepdim=True)
    return grey + 1.3 * (full - grey) * torch.rand(count, 1, generator=random)


def _chosen(textures: Tensor, count: int, random: Generator) -> Tensor:
    return textures[torch.randint(len(textures), (count,), generator=random)]


def _uniform(count: int, random: Generator) -> Tensor:
    return torch.rand(count, 1, 1, 1, generator=random)
