"""A trial on made-up samples: are this model's per-sample gradients what autograd gives for one sample at a time?

Structure alone does not tell whether a layer mixes samples, a parameter is used behind its module's back, or a buffer
is rewritten. A few samples that are no one's data mostly do, and an error about them reveals nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from alidpfl.dpsgd.gradients import squared_norms
from alidpfl.errors import DataError, UnsupportedModelError

_TOLERANCE = 1e-4
_OF_LARGEST = 3e-5  # norms of terms that cancel are rounded up, by some 1e-7 of the terms
_LARGE = 1e15
_SIZES = (4, 7, 3)
NUM_PROBES = len(_SIZES)


def made_up(like: Tensor, number: int, num_values: int | None = None) -> Tensor:
    """Samples with the shape and type of `like` and none of its values; integers are below `num_values`.

    Probe 0 is of numbers in [0, 1), probe 1 of both signs, probe 2 has an outlier; each is of another size. Integers
    differ between samples, and repeat: what compares labels across a batch must show.
    """
    return _made_up(like, number, num_values).to(like.device)  # drawn on the CPU: the same numbers on every device


def _made_up(like: Tensor, number: int, num_values: int | None) -> Tensor:
    shape = (_SIZES[number], *like.shape[1:])
    generator = torch.Generator("cpu").manual_seed(number)
    if like.is_floating_point():
        if number == 0:
            return torch.rand(shape, generator=generator, dtype=like.dtype, device="cpu")
        values = torch.randn(shape, generator=generator, dtype=like.dtype, device="cpu")
        if number == NUM_PROBES - 1:
            values[-1] *= 100
        return values
    if like.dtype == torch.bool or num_values is None:
        return torch.zeros(shape, dtype=like.dtype, device="cpu")
    values = torch.randint(num_values, shape, generator=generator, device="cpu")
    values[:2] = torch.tensor([0, num_values - 1], device="cpu").view(2, *[1] * (len(shape) - 1))
    return values.to(like.dtype)


@contextmanager
def no_buffer_changes(model: nn.Module) -> Iterator[None]:
    """Refuse a model whose forward pass rewrites a buffer: it would carry data from batch to batch, un-noised."""
    before = {name: (buffer, buffer._version) for name, buffer in model.named_buffers()}
    yield
    for name, buffer in model.named_buffers():
        if name not in before or before[name][0] is not buffer or before[name][1] != buffer._version:
            raise UnsupportedModelError(
                f"{name} is a buffer that the forward pass rewrites: it would carry data from batch to batch without "
                "noise; use a layer that keeps no state, or put this one into eval() mode"
            )


@contextmanager
def other_weights(model: nn.Module, number: int) -> Iterator[None]:
    """In the second probe, weights a little off: what begins at zero hides whatever comes after it, until trained."""
    if number != 1:
        yield
        return
    kept = [(p, p.detach().clone()) for p in model.parameters() if p.is_floating_point()]
    generator = torch.Generator("cpu").manual_seed(number)
    try:
        with torch.no_grad():
            for parameter, values in kept:
                size = float(values.square().mean().sqrt()) if values.numel() else 0.0
                noise = torch.randn(values.shape, generator=generator, dtype=values.dtype, device="cpu")
                parameter.add_(noise.to(values.device), alpha=0.1 * (size or 1.0))
        yield
    finally:
        with torch.no_grad():
            for parameter, values in kept:
                parameter.copy_(values)


@contextmanager
def trial(model: nn.Module, inputs: Tensor, targets: Tensor) -> Iterator[None]:
    """Run a trial without dropout, turn torch's complaints into ours, and refuse a model that changes its buffers."""
    dropouts = [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.training]
    try:
        for dropout in dropouts:
            dropout.eval()
        with no_buffer_changes(model):
            yield
    except (RuntimeError, IndexError) as error:
        raise DataError(
            f"the model cannot take inputs of shape {tuple(inputs.shape[1:])} and type {inputs.dtype} with targets of "
            f"shape {tuple(targets.shape[1:])} and type {targets.dtype}: {str(error).splitlines()[0]}"
        ) from error
    finally:
        for dropout in dropouts:
            dropout.train()


def one_by_one(
    losses: Callable[[Tensor, Tensor], Tensor], parameters: dict[str, Tensor], inputs: Tensor, targets: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """By plain autograd on batches of one: each sample's gradient norm (B,) and the sum of gradients, in double."""
    norms = []
    sums = {name: torch.zeros_like(p, dtype=torch.float64, requires_grad=False) for name, p in parameters.items()}
    for x, y in zip(inputs.split(1), targets.split(1), strict=True):
        with torch.enable_grad():
            loss = losses(x, y).sum()
            grads = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
        norms.append(torch.stack([squared_norms(grad.flatten()) for grad in grads]).sum().sqrt())
        for total, grad in zip(sums.values(), grads, strict=True):
            total.add_(grad)
    return torch.stack(norms), sums


def check_agreement(norms: Tensor, sums: dict[str, Tensor], true_norms: Tensor, true_sums: dict[str, Tensor]) -> None:
    """Compare norms (B,) and sums of per-sample gradients with those of one sample at a time."""
    finite = true_norms < _LARGE  # an outlier may overflow float32, and then says nothing
    largest = float(true_norms[finite].max()) if bool(finite.any()) else 0.0
    allowed = _TOLERANCE * true_norms + _OF_LARGEST * largest + torch.finfo(torch.float32).tiny
    agree = bool(((norms - true_norms).abs() <= allowed)[finite].all())
    if bool(finite.all()):
        off = max(float((sums[name] - true_sums[name]).norm()) for name in sums)
        agree = agree and off <= float(allowed.sum())
    if not agree:
        raise UnsupportedModelError(
            "the per-sample gradients of this model do not agree with autograd on one sample at a time: a layer or the "
            "loss mixes the samples of a batch, or a parameter is used other than by calling its module, or randomness "
            "is drawn other than by nn.Dropout; let each use of a parameter be a call of its own module, with the "
            "batch as the first dimension"
        )


def check_moved(total: float) -> None:
    """Refuse to vouch for a model whose gradients were all zero: such a trial shows nothing."""
    if not total > 0:
        raise UnsupportedModelError(
            "all gradients of this model vanish on made-up samples, so that nothing can be said about its per-sample "
            "gradients; does the loss depend on the trained parameters?"
        )
