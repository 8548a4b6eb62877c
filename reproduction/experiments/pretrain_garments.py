"""Learn filters from drawn garments: `python -m reproduction.experiments.pretrain_garments [STEPS] [OUT]`.

The network learns to classify the ten kinds when they are turned, bent, lit differently and partly covered. It takes
half an hour on one core. The result is reproduction/filters/garments.safetensors: convolutions in half precision, with
the batch statistics folded in. No data set is read.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from reproduction.experiments import filters, garments

OUT = filters.FOLDER / "garments.safetensors"
PICTURES, AT_A_TIME = 200_000, 200
_LARGEST_BOX = 6


def main(steps: int, out: Path) -> None:
    """Draw pictures, learn, and write the folded filters."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random = Generator().manual_seed(0)
    batches = PICTURES // (AT_A_TIME * garments.KINDS)
    drawn, kinds = map(torch.cat, zip(*(garments.pictures(AT_A_TIME, random) for _ in range(batches)), strict=True))
    body = filters.make_body()
    head = nn.Sequential(
        *(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Dropout(0.3)),
        *(nn.Linear(4 * filters.OUTPUTS, 128), nn.ReLU(), nn.Linear(128, garments.KINDS)),
    )

    def loss_of_a_batch() -> Tensor:
        rows = torch.randint(len(drawn), (filters.BATCH,), generator=random)
        return F.cross_entropy(head(body(_view(drawn[rows], random))), kinds[rows], label_smoothing=0.1)

    filters.learn([*body.parameters(), *head.parameters()], loss_of_a_batch, steps=steps, weight_decay=1e-3)
    save_file(filters.folded(body, _view(drawn[torch.randperm(len(drawn), generator=random)[:2000]], random)), out)


@torch.no_grad()
def _view(pictures: Tensor, random: Generator) -> Tensor:
    """Return a turned, bent, relit and partly covered view: (n, 1, 28, 28) uint8 -> (n, 3, 28, 28) around 0."""
    count, side = len(pictures), pictures.shape[-1]

    def between(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, 1, 1, 1, generator=random)

    wide, high, turn, slant = (
        between(*ends).flatten() for ends in ((0.85, 1.15), (0.88, 1.1), (-0.12, 0.12), (-0.1, 0.1))
    )
    frame = torch.zeros(count, 2, 3)
    frame[:, 0, 0], frame[:, 0, 1] = wide * turn.cos(), slant - turn.sin()
    frame[:, 1, 0], frame[:, 1, 1] = turn.sin(), high * turn.cos()
    frame[:, :, 2] = 0.06 * torch.randn(count, 2, generator=random)
    grid = F.affine_grid(frame, [count, 1, side, side], align_corners=False)
    seen = F.grid_sample(pictures.float() / 255, grid, align_corners=False)
    seen = seen.clamp(min=0) ** between(-0.6, 0.6).exp() * between(0.6, 1.1)
    seen = torch.where(_boxes(count, side, random), between(0, 1), seen)
    clouds = F.interpolate(torch.randn(count, 1, 7, 7, generator=random), (side, side), mode="bilinear")
    seen = seen * (1 + 0.15 * clouds) + between(0, 0.06) * torch.randn(seen.shape, generator=random)
    return (seen.clamp(0, 1) - 0.5).expand(-1, 3, -1, -1).contiguous(memory_format=torch.channels_last)


def _boxes(count: int, side: int, random: Generator) -> Tensor:
    """Return one square in each picture, perhaps of size zero: (n, 1, side, side)."""
    x, y = torch.randint(side, (2, count, 1, 1, 1), generator=random)
    half = torch.randint(_LARGEST_BOX, (count, 1, 1, 1), generator=random)
    line = torch.arange(side)
    return ((line[None, None, None, :] - x).abs() < half) & ((line[None, None, :, None] - y).abs() < half)


if __name__ == "__main__":
    steps, out = [*sys.argv[1:], *("3000", str(OUT))[len(sys.argv) - 1 :]]
    main(int(steps), Path(out))
