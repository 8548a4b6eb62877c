"""Learn filters from drawn leaves: `python -m reproduction.experiments.pretrain [STEPS] [OUT]`, an hour on one core.

Two views of a picture (crop, flip, light, colour) must be found among the views of 255 others (SimCLR, Chen et al.
2020). The result is reproduction/filters/leaves.safetensors: convolutions in half precision, with the batch statistics
folded in. No data set is read.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from reproduction.experiments import filters, leaves

OUT = filters.FOLDER / "leaves.safetensors"
PICTURES, AT_A_TIME = 24_000, 250
BATCH, TEMPERATURE = filters.BATCH, 0.2
VIEW = 32


def main(steps: int, out: Path) -> None:
    """Draw pictures, learn, and write the folded filters."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random = Generator().manual_seed(0)
    drawn = torch.cat([leaves.pictures(AT_A_TIME, random) for _ in range(PICTURES // AT_A_TIME)])
    body = filters.make_body()
    head = nn.Sequential(nn.Linear(filters.OUTPUTS, 256), nn.ReLU(), nn.Linear(256, 128))
    partner = torch.cat([torch.arange(BATCH, 2 * BATCH), torch.arange(BATCH)])

    def loss_of_a_batch() -> Tensor:
        chosen = drawn[torch.randint(len(drawn), (BATCH,), generator=random)].float() / 255
        seen = torch.cat([_view(chosen, random), _view(chosen, random)]).contiguous(memory_format=torch.channels_last)
        codes = F.normalize(head(body(seen).mean((2, 3))), dim=1)
        return F.cross_entropy((codes @ codes.t() / TEMPERATURE).fill_diagonal_(-1e9), partner)

    filters.learn([*body.parameters(), *head.parameters()], loss_of_a_batch, steps=steps, weight_decay=1e-4)
    save_file(filters.folded(body, _view(drawn[:2000].float() / 255, random)), out)


@torch.no_grad()
def _view(pictures: Tensor, random: Generator) -> Tensor:
    """Return a crop, perhaps mirrored, in another light: (n, 3, 32, 32) around 0."""
    count = len(pictures)

    def about(value: float, spread: float) -> Tensor:
        return value + spread * (2 * torch.rand(count, 1, 1, 1, generator=random) - 1)

    def sometimes(probability: float) -> Tensor:
        return torch.rand(count, 1, 1, 1, generator=random) < probability

    size, shape = about(0.575, 0.275), about(0, 0.25).exp()
    sides = torch.stack([(size * shape).clamp(max=1), (size / shape).clamp(max=1)], 1).flatten(1)  # (n, 2): x, y
    corners = (2 * torch.rand(count, 2, generator=random) - 1) * (1 - sides)
    mirrored = torch.where(sometimes(0.5).flatten(), -1.0, 1.0)
    frame = torch.zeros(count, 2, 3)
    frame[:, 0, 0], frame[:, 1, 1], frame[:, :, 2] = sides[:, 0] * mirrored, sides[:, 1], corners
    grid = F.affine_grid(frame, [count, 3, VIEW, VIEW], align_corners=False)
    plain = F.grid_sample(pictures, grid, align_corners=False, padding_mode="reflection")
    light = plain * about(1, 0.4)
    mean = light.mean((1, 2, 3), keepdim=True)
    light = mean + (light - mean) * about(1, 0.4)
    grey = light.mean(1, keepdim=True)
    light = grey + (light - grey) * about(1, 0.6)
    mix = torch.eye(3) + 0.08 * torch.randn(count, 3, 3, generator=random)
    light = torch.einsum("nij,njhw->nihw", mix, light)
    seen = torch.where(sometimes(0.8), light, plain)
    seen = torch.where(sometimes(0.15), seen.mean(1, keepdim=True), seen)
    return seen.clamp(0, 1) - 0.5


if __name__ == "__main__":
    steps, out = [*sys.argv[1:], *("3000", str(OUT))[len(sys.argv) - 1 :]]
    main(int(steps), Path(out))
