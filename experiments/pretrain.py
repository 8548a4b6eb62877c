"""Learn filters from made-up pictures: `python experiments/pretrain.py [STEPS] [OUT]`; about an hour of one core.

Two views of a picture (crop, flip, light, colour) must be found among the views of 255 others (SimCLR, Chen et al.
2020). What comes out is src/alidpfl/features/leaves.safetensors: plain convolutions, batch statistics folded in, in
half precision. No data set is read: neither by this program nor by what it makes.
"""

import math
import sys
import time
from pathlib import Path

import leaves
import torch
from safetensors.torch import save_file
from torch import Generator, Tensor, nn
from torch.nn import functional as F

OUT = Path(__file__).parent.parent / "src/alidpfl/features/leaves.safetensors"
LAYERS = ((3, 48, 4, 2), (48, 96, 3, 2), (96, 128, 3, 1), (128, 192, 3, 2))  # in, out, width, stride
PICTURES, AT_A_TIME = 24_000, 250
BATCH, TEMPERATURE, RATE, WARM_UP = 256, 0.2, 2e-3, 50
VIEW = 32
_POWER = 0.25  # features are scaled half of the way to equal variances


def main(steps: int, out: Path) -> None:
    """Draw, learn, fold, write."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    random = Generator().manual_seed(0)
    drawn = torch.cat([leaves.pictures(AT_A_TIME, random) for _ in range(PICTURES // AT_A_TIME)])
    body = nn.Sequential(*(_layer(*shape) for shape in LAYERS)).to(memory_format=torch.channels_last)
    head = nn.Sequential(nn.Linear(LAYERS[-1][1], 256), nn.ReLU(), nn.Linear(256, 128))
    _learn(body, head, drawn, steps, random)
    save_file(_folded(body, drawn, random), out)


def _layer(inputs: int, outputs: int, width: int, stride: int) -> nn.Module:
    convolution = nn.Conv2d(inputs, outputs, width, stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def _learn(body: nn.Module, head: nn.Module, drawn: Tensor, steps: int, random: Generator) -> None:
    optimiser = torch.optim.AdamW([*body.parameters(), *head.parameters()], weight_decay=1e-4)
    partner = torch.cat([torch.arange(BATCH, 2 * BATCH), torch.arange(BATCH)])
    started = time.monotonic()
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / WARM_UP) * (0.5 + 0.5 * math.cos(math.pi * step / steps) + 0.01)
        chosen = drawn[torch.randint(len(drawn), (BATCH,), generator=random)].float() / 255
        seen = torch.cat([_view(chosen, random), _view(chosen, random)]).contiguous(memory_format=torch.channels_last)
        codes = F.normalize(head(body(seen).mean((2, 3))), dim=1)
        likeness = (codes @ codes.t() / TEMPERATURE).fill_diagonal_(-1e9)
        loss = F.cross_entropy(likeness, partner)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 50 == 0:
            found = (likeness.argmax(1) == partner).float().mean()
            told = f"step {step} of {steps}: loss {loss:.3f}, found {found:.1%}, {time.monotonic() - started:.0f} s"
            sys.stderr.write(f"{told}\n")


@torch.no_grad()
def _view(pictures: Tensor, random: Generator) -> Tensor:
    """A crop, perhaps mirrored, in another light: (n, 3, 32, 32) around 0."""
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


@torch.no_grad()
def _folded(body: nn.Sequential, drawn: Tensor, random: Generator) -> dict[str, Tensor]:
    """Convolutions with bias; the last two layers' outputs scaled by public variances: ReLU lets a factor through."""
    body.eval()
    maps = [_view(drawn[:2000].float() / 255, random)]
    folded: dict[str, Tensor] = {}
    before = torch.ones(3)
    for number, layer in enumerate(body):
        convolution, norm, _ = layer
        maps.append(layer(maps[-1]))
        factor = norm.weight / (norm.running_var + norm.eps).sqrt()
        scale = torch.ones(len(factor))
        if number >= len(LAYERS) - 2:
            variance = F.adaptive_avg_pool2d(maps[-1], 2).var((0, 2, 3))
            scale = (variance + 0.1 * variance.mean()).pow(-_POWER)
        weight = convolution.weight * (factor * scale)[:, None, None, None] / before[None, :, None, None]
        folded[f"{number}.weight"] = weight.half().contiguous()
        folded[f"{number}.bias"] = ((norm.bias - norm.running_mean * factor) * scale).half()
        before = scale
    return folded


if __name__ == "__main__":
    steps, out = [*sys.argv[1:], *("3000", str(OUT))[len(sys.argv) - 1 :]]
    main(int(steps), Path(out))
