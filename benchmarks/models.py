"""The models of the step benchmark, and a batch for each."""

import torch
from torch import Tensor, nn

from alidpfl.models.cnn import paper_cnn


class _Residual(nn.Module):
    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False),
            nn.GroupNorm(8, channels_out),
            nn.ReLU(),
            nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False),
            nn.GroupNorm(8, channels_out),
        )
        plain = channels_in == channels_out and stride == 1
        self.short = nn.Identity() if plain else nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.activation(self.body(x) + self.short(x))


def resnet() -> nn.Sequential:
    """Build ResNet-8 with GroupNorm for 3x32x32: 77,850 parameters."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.GroupNorm(8, 16),
        nn.ReLU(),
        _Residual(16, 16, 1),
        _Residual(16, 32, 2),
        _Residual(32, 64, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def mlp() -> nn.Sequential:
    """Build a perceptron of widths 784-512-256-10."""
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 10))


# name: (builder, shape of a sample, batch size)
MODELS = {
    "paper CNN, 1x28x28": (lambda: paper_cnn((1, 28, 28)), (1, 28, 28), 90),
    "paper CNN, 3x32x32": (lambda: paper_cnn((3, 32, 32)), (3, 32, 32), 75),
    "ResNet-8 with GroupNorm": (resnet, (3, 32, 32), 75),
    "MLP 784-512-256-10": (mlp, (784,), 90),
}


def fresh(name: str, batch_size: int | None = None) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a model with the same weights every time, and a batch."""
    builder, shape, size = MODELS[name]
    torch.manual_seed(0)
    model = builder()
    size = batch_size or size
    return model, torch.randn(size, *shape), torch.randint(10, (size,))
