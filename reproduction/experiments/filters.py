"""Learn four convolutions from drawings, and turn them into constants."""

import math
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

FOLDER = Path(__file__).parents[1] / "filters"
BATCH, RATE, WARM_UP, PRINT_EVERY = 256, 2e-3, 50, 50
LAYERS = ((3, 48, 4, 2), (48, 96, 3, 2), (96, 128, 3, 1), (128, 192, 3, 2))  # in, out, width, stride
OUTPUTS = LAYERS[-1][1]
_READ = 2  # the outputs of this many last layers are features
_POWER = 0.25  # scales features half of the way to equal variances


def make_body() -> nn.Sequential:
    """Make the convolutions: (n, 3, s, s) around 0 -> (n, 192, s/8, s/8)."""
    body = nn.Sequential(*(_layer(*shape) for shape in LAYERS))
    return body.to(memory_format=torch.channels_last)


def _layer(inputs: int, outputs: int, width: int, stride: int) -> nn.Module:
    convolution = nn.Conv2d(inputs, outputs, width, stride, padding=1, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())


def learn(parameters: list[Tensor], loss_of_a_batch: Callable[[], Tensor], *, steps: int, weight_decay: float) -> None:
    """Learn with AdamW at a rate that falls as a cosine, and print the progress."""
    optimiser = torch.optim.AdamW(parameters, weight_decay=weight_decay)
    started = time.monotonic()
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = RATE * min(1, (step + 1) / WARM_UP) * (0.5 + 0.5 * math.cos(math.pi * step / steps) + 0.01)
        loss = loss_of_a_batch()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % PRINT_EVERY == 0:
            sys.stderr.write(f"step {step} of {steps}: loss {loss:.3f}, {time.monotonic() - started:.0f} s\n")


@torch.no_grad()
def folded(body: nn.Sequential, views: Tensor) -> dict[str, Tensor]:
    """Return the convolutions with bias in half precision. Outputs that become features are scaled by their variance.

    A positive factor passes through ReLU, so that the next layer can undo it.
    """
    body.eval()
    maps = [views]
    kept: dict[str, Tensor] = {}
    before = torch.ones(LAYERS[0][0])
    for number, layer in enumerate(body):
        convolution, norm, _ = layer
        maps.append(layer(maps[-1]))
        factor = norm.weight / (norm.running_var + norm.eps).sqrt()
        scale = torch.ones(len(factor))
        if number >= len(LAYERS) - _READ:
            variance = F.adaptive_avg_pool2d(maps[-1], 2).var((0, 2, 3))
            scale = (variance + 0.1 * variance.mean()).pow(-_POWER)
        weight = convolution.weight * (factor * scale)[:, None, None, None] / before[None, :, None, None]
        kept[f"{number}.weight"] = weight.half().contiguous()
        kept[f"{number}.bias"] = ((norm.bias - norm.running_mean * factor) * scale).half()
        before = scale
    return kept
