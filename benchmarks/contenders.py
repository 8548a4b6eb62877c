"""Build one full training step of each contender: forward, gradients, clipping and noise if it has them, update.

Every builder takes a fresh model and a batch, and returns a function that makes one step. Other libraries are set up as
their documentation says, with the channels-last layout, which is faster for them too.
"""

import warnings
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alidpfl.dpsgd import PerSampleClipper, RandomStream, StepSettings, dp_sgd_step, native
from alidpfl.dpsgd.relu_pool import join_relu_and_pool

Step = Callable[[], None]
CLIP_NORM, NOISE_MULTIPLIER, LEARNING_RATE = 1.0, 1.1, 0.01


def _channels_last(model: nn.Module, x: Tensor) -> tuple[nn.Module, Tensor]:
    if x.dim() == 4:
        return model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    return model, x


def sgd(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Build plain SGD with the contiguous layout."""
    parameters = list(model.parameters())

    def step() -> None:
        gradients = torch.autograd.grad(F.cross_entropy(model(x), y), parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(gradient, alpha=LEARNING_RATE)

    return step


def sgd_channels_last(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Build plain SGD with the channels-last layout: the yardstick."""
    return sgd(*_channels_last(model, x), y)


def sgd_joined(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Build plain SGD with our joined ReLU and pooling, to show how much of our speed comes from it."""
    model, x = _channels_last(model, x)
    return sgd(join_relu_and_pool(model), x, y)


def ours(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Build the step of this package, with native kernels and secure noise."""
    clipper, random = PerSampleClipper(model), RandomStream.secure()
    settings = StepSettings(
        clip_norm=CLIP_NORM,
        noise_multiplier=NOISE_MULTIPLIER,
        learning_rate=LEARNING_RATE,
        expected_batch_size=len(x),
    )

    def step() -> None:
        dp_sgd_step(clipper, x, y, settings, random)

    return step


def ours_torch(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Build the step of this package in pure PyTorch."""
    native_step = ours(model, x, y)

    def step() -> None:
        with native.disabled():
            native_step()

    return step


def opacus_hooks(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Build a step of Opacus, with per-sample gradients by hooks."""
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    model, x = _channels_last(model, x)
    module = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(module.parameters(), lr=LEARNING_RATE),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=len(x),
    )

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimizer.step()

    return step


def opacus_ghost(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Build a step of Opacus with ghost clipping: norms first, then a second backward pass."""
    from opacus.grad_sample.grad_sample_module_fast_gradient_clipping import GradSampleModuleFastGradientClipping
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    model, x = _channels_last(model, x)
    module = GradSampleModuleFastGradientClipping(model, max_grad_norm=CLIP_NORM, use_ghost_clipping=True)
    optimizer = DPOptimizerFastGradientClipping(
        torch.optim.SGD(module.parameters(), lr=LEARNING_RATE),
        noise_multiplier=NOISE_MULTIPLIER,
        max_grad_norm=CLIP_NORM,
        expected_batch_size=len(x),
    )
    criterion = DPLossFastGradientClipping(module, optimizer, nn.CrossEntropyLoss())

    def step() -> None:
        optimizer.zero_grad()
        criterion(module(x), y).backward()
        optimizer.step()

    return step


def torch_func(model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Build a step of torch.func: vmap over grad, with clipping and noise by hand."""
    from torch.func import functional_call, grad, vmap

    model, x = _channels_last(model, x)
    parameters = dict(model.named_parameters())

    def loss(values: dict[str, Tensor], sample: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, values, (sample.unsqueeze(0),)), label.unsqueeze(0))

    per_sample = vmap(grad(loss), in_dims=(None, 0, 0))

    def step() -> None:
        with torch.no_grad():
            gradients = per_sample({name: p.detach() for name, p in parameters.items()}, x, y)
            norms = torch.stack([g.flatten(1).norm(dim=1) for g in gradients.values()]).norm(dim=0)
            factors = (CLIP_NORM / norms).clamp_max(1)
            for name, parameter in parameters.items():
                total = torch.tensordot(factors, gradients[name], dims=1)
                total.add_(torch.randn_like(total), alpha=NOISE_MULTIPLIER * CLIP_NORM)
                parameter.sub_(total, alpha=LEARNING_RATE / len(x))

    return step


CONTENDERS: dict[str, Callable[[nn.Module, Tensor, Tensor], Step]] = {
    "sgd contiguous": sgd,
    "sgd channels_last": sgd_channels_last,
    "sgd channels_last, joined relu+pool": sgd_joined,
    "ours": ours,
    "ours, pure torch": ours_torch,
    "opacus hooks": opacus_hooks,
    "opacus ghost": opacus_ghost,
    "torch.func": torch_func,
}
YARDSTICK = "sgd channels_last"


def build(name: str, model: nn.Module, x: Tensor, y: Tensor) -> Step:
    """Return the step of one contender, without the warnings of other libraries about hooks.

    Args:
        name: a key of `CONTENDERS`.
        model: a fresh model.
        x: the inputs of a batch.
        y: its labels.
    """
    warnings.filterwarnings("ignore", module="opacus")
    warnings.filterwarnings("ignore", message="Full backward hook is firing")
    return CONTENDERS[name](model, x, y)
