"""Small models that together use every rule, every convolution path, the fallback and the shapes in between."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alidpfl.models.cnn import paper_cnn


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.GroupNorm(4, channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding="same"),
            nn.GroupNorm(2, channels),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + self.body(x))


class Scale(nn.Module):
    """A parameter of its own and no rule: the fallback's case."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.linspace(0.5, 1.5, width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(0.1 * x * self.gain)


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attention(x, x, x)[0]


class MeanOverPositions(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


class TwoBranches(nn.Module):
    """One head is computed and thrown away: its gradient is zero."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused = nn.Linear(6, 3), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        self.unused(x)
        return self.used(x)


@dataclass(frozen=True)
class Case:
    build: Callable[[], nn.Module]
    shape: tuple[int, ...]
    classes: int
    tokens: int | None = None

    def model(self) -> nn.Module:
        torch.manual_seed(3)
        return self.build()

    def batch(self, size: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        targets = torch.randint(self.classes, (size,), generator=generator)
        if self.tokens:
            return torch.randint(self.tokens, (size, *self.shape), generator=generator), targets
        return torch.randn(size, *self.shape, generator=generator), targets


def _conv(channels_out: int = 8, **options) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(
        nn.Conv2d(4, channels_out, 3, **options), nn.Tanh(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.LazyLinear(3)
    )


def _materialised(build: Callable[[], nn.Module], shape: tuple[int, ...]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        model = build()
        model(torch.zeros(1, *shape))
        return model

    return make


def _flat(*layers: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(*(layer() for layer in layers), nn.Tanh(), nn.Flatten(), nn.LazyLinear(3))


def _case(shape: tuple[int, ...], *layers: Callable[[], nn.Module]) -> Case:
    return Case(_materialised(_flat(*layers), shape), shape, 3)


_OTHER_CONVOLUTIONS = {
    "conv1d": _case((3, 8), lambda: nn.Conv1d(3, 6, 3)),
    "conv1d-16-channels": _case((3, 17), lambda: nn.Conv1d(3, 16, 4, stride=2, dilation=2, padding=3)),
    "conv1d-depthwise": _case((4, 9), lambda: nn.Conv1d(4, 8, 3, groups=4, padding="same")),
    "conv3d": _case((2, 4, 5, 4), lambda: nn.Conv3d(2, 6, (2, 3, 2))),
    "conv3d-16-channels": _case(
        (3, 5, 4, 4), lambda: nn.Conv3d(3, 16, 2, stride=(2, 1, 1), dilation=(1, 2, 1), padding=1)
    ),
    "conv3d-groups": _case((4, 4, 4, 3), lambda: nn.Conv3d(4, 6, 2, groups=2, bias=False)),
    "conv-transpose-1d": _case((3, 6), lambda: nn.ConvTranspose1d(3, 5, 4, stride=2, padding=1)),
    "conv-transpose-2d": _case(
        (4, 4, 5), lambda: nn.ConvTranspose2d(4, 6, 3, stride=(2, 1), dilation=(1, 2), output_padding=(1, 1), groups=2)
    ),
    "conv-transpose-16-channels": _case((16, 4, 3), lambda: nn.ConvTranspose2d(16, 5, 3, stride=2, padding=1)),
    "conv-transpose-depthwise": _case((6, 4, 4), lambda: nn.ConvTranspose2d(6, 6, 2, stride=2, groups=6)),
    "conv-transpose-3d": _case((2, 3, 3, 2), lambda: nn.ConvTranspose3d(2, 3, 2, stride=2)),
}
_NORMS = {
    "instance-norm": _case((3, 6, 6), lambda: nn.Conv2d(3, 4, 3), lambda: nn.InstanceNorm2d(4, affine=True)),
    "instance-norm-1d": _case((3, 9), lambda: nn.InstanceNorm1d(3, affine=True)),
    "instance-norm-3d": _case((2, 2, 4, 3), lambda: nn.InstanceNorm3d(2, affine=True)),
    "rms-norm": _case((3, 7), lambda: nn.Linear(7, 10), lambda: nn.RMSNorm(10)),
}

_IMAGE = (4, 9, 11)
_CONVOLUTIONS = {
    "conv": _conv(),
    "conv-16-channels": _conv(16),
    "conv-48-channels": _conv(48),
    "conv-80-channels": _conv(80),
    "conv-odd-channels": _conv(6),
    "conv-stride": _conv(stride=2),
    "conv-stride-rectangular": _conv(stride=(1, 2), padding=(0, 1)),
    "conv-dilation": _conv(dilation=2),
    "conv-dilation-rectangular": _conv(dilation=(2, 1), padding=2),
    "conv-groups": _conv(groups=2),
    "conv-depthwise": _conv(groups=4),
    "conv-same": _conv(padding="same", dilation=2),
    "conv-no-bias": _conv(bias=False),
    "conv-reflect": _conv(padding=1, padding_mode="reflect"),
    "conv-1x1": lambda: nn.Sequential(nn.Conv2d(4, 16, 1), nn.Tanh(), nn.Flatten(), nn.LazyLinear(3)),
}

CASES = {
    "paper-cnn-mnist": Case(lambda: paper_cnn((1, 28, 28)), (1, 28, 28), 10),
    "paper-cnn-cifar": Case(lambda: paper_cnn((3, 32, 32)), (3, 32, 32), 10),
    "linear": Case(lambda: nn.Linear(20, 5), (20,), 5),
    "mlp": Case(lambda: nn.Sequential(nn.Linear(20, 16), nn.Tanh(), nn.Linear(16, 5, bias=False)), (20,), 5),
    "resnet": Case(
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            Residual(8),
            Residual(8),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, 4),
        ),
        (3, 14, 14),
        4,
    ),
    "sequence-gram": Case(
        lambda: nn.Sequential(nn.Linear(24, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 24), MeanOverPositions()),
        (3, 24),
        24,
    ),
    "sequence-stored": Case(
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), MeanOverPositions()), (9, 4), 3
    ),
    "sequence-two-axes": Case(
        lambda: nn.Sequential(nn.Linear(4, 5), nn.Flatten(1, 2), nn.LayerNorm((12, 5)), MeanOverPositions()),
        (3, 4, 4),
        5,
    ),
    "embedding": Case(
        lambda: nn.Sequential(nn.Embedding(7, 6, padding_idx=2), nn.LayerNorm(6), MeanOverPositions(), nn.Linear(6, 3)),
        (9,),
        3,
        tokens=7,
    ),
    "fallback": Case(lambda: nn.Sequential(nn.Linear(6, 8), Scale(8), nn.Linear(8, 3)), (6,), 3),
    "attention": Case(
        lambda: nn.Sequential(nn.Linear(5, 8), Attention(8), MeanOverPositions(), nn.Linear(8, 3)), (4, 5), 3
    ),
    "two-branches": Case(TwoBranches, (6,), 3),
    **{name: Case(_materialised(build, _IMAGE), _IMAGE, 3) for name, build in _CONVOLUTIONS.items()},
    **_OTHER_CONVOLUTIONS,
    **_NORMS,
}
