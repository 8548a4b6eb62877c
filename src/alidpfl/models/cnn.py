"""Convolutional networks for images: the one of the ALI-DPFL paper, and a smaller one for small budgets."""

from torch import nn

from alidpfl.errors import ConfigError

_IMAGE_DIMS = 3
_KERNEL = 5
_SMALLEST_SIDE = 16


def paper_cnn(input_shape: tuple[int, ...], num_classes: int = 10) -> nn.Sequential:
    """Build the CNN of the ALI-DPFL paper (arXiv 2308.10457), as its parameter counts determine it.

    Conv5x5(c, 32) - ReLU - MaxPool2 - Conv5x5(32, 64) - ReLU - MaxPool2 - Linear(., 512) - ReLU - Linear(512, classes),
    without padding. It has 582,026 parameters for (1, 28, 28) and 878,538 for (3, 32, 32) with ten classes. Weights are
    drawn from torch's global generator: seed it (`torch.manual_seed`) for a reproducible model.

    >>> sum(p.numel() for p in paper_cnn((1, 28, 28)).parameters())
    582026
    """
    channels, height, width = _image_shape("cnn", input_shape)
    rows, columns = (((side - _KERNEL + 1) // 2 - _KERNEL + 1) // 2 for side in (height, width))
    if channels < 1 or rows < 1 or columns < 1:
        raise ConfigError(
            f"input_shape={input_shape} is too small for two 5x5 convolutions with pooling; "
            "give (channels, height, width) with both sides at least 16"
        )
    if num_classes < 1:
        raise ConfigError(f"num_classes={num_classes} must be at least 1")
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, _KERNEL), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, _KERNEL), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(64 * rows * columns, 512), nn.ReLU(), nn.Linear(512, num_classes)),
    )


def compact_cnn(input_shape: tuple[int, ...], num_classes: int = 10) -> nn.Sequential:
    """Build a small CNN for small privacy budgets.

    Conv8x8(c, 16)/2 - tanh - MaxPool2/1 - Conv4x4(16, 32)/2 - tanh - MaxPool2/1 - Linear(., 32) - tanh - Linear. The
    noise grows with the square root of the number of parameters, and bounded activations keep gradients below the clip
    norm. So at the same ε, 26,000 parameters with tanh learn more than 582,000 with ReLU. The layers are those of
    Papernot et al. 2021, "Tempered sigmoid activations for deep learning with differential privacy", table 2.

    >>> sum(p.numel() for p in compact_cnn((1, 28, 28)).parameters())
    26010
    """
    channels, height, width = _image_shape("compact_cnn", input_shape)
    if min(height, width) < _SMALLEST_SIDE:
        raise ConfigError(f"input_shape={input_shape} is too small; both sides must be at least {_SMALLEST_SIDE}")
    rows, columns = (((side + 2 * 3 - 8) // 2 - 4) // 2 for side in (height, width))
    return nn.Sequential(
        *(nn.Conv2d(channels, 16, 8, stride=2, padding=3), nn.Tanh(), nn.MaxPool2d(2, stride=1)),
        *(nn.Conv2d(16, 32, 4, stride=2), nn.Tanh(), nn.MaxPool2d(2, stride=1)),
        *(nn.Flatten(), nn.Linear(32 * rows * columns, 32), nn.Tanh(), nn.Linear(32, num_classes)),
    )


def _image_shape(name: str, input_shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(input_shape) != _IMAGE_DIMS:
        raise ConfigError(
            f'model.name="{name}" needs images, and inputs have shape {input_shape}: use "linear" or "mlp"'
        )
    return input_shape[0], input_shape[1], input_shape[2]
