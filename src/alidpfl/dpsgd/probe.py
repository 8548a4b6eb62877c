"""A trial on made-up samples: are this model's per-sample gradients what autograd gives for one sample at a time?

Structure alone does not tell whether a layer mixes samples, a parameter is used behind its module's back, or a buffer
is rewritten. Two samples that are no one's data do, and an error about them reveals nothing.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from alidpfl.errors import DataError, UnsupportedModelError

_TOLERANCE = 1e-3
_NUM_SAMPLES = 2


def made_up(like: Tensor, num_tokens: int | None = None) -> Tensor:
    """Two samples with the shape and type of `like` and none of its values; integers are below `num_tokens`."""
    shape = (_NUM_SAMPLES, *like.shape[1:])
    generator = torch.Generator().manual_seed(0)
    if like.is_floating_point():
        return torch.rand(shape, generator=generator, dtype=like.dtype)
    if num_tokens is None or like.dtype == torch.bool:
        return torch.zeros(shape, dtype=like.dtype)
    return torch.randint(num_tokens, shape, generator=generator, dtype=like.dtype)


@contextmanager
def trial(model: nn.Module, inputs: Tensor, targets: Tensor) -> Iterator[None]:
    """Run a trial without dropout, turn torch's complaints into ours, and refuse a model that changes its buffers."""
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    dropouts = [m for m in model.modules() if isinstance(m, nn.modules.dropout._DropoutNd) and m.training]
    try:
        for dropout in dropouts:
            dropout.eval()
        yield
    except (RuntimeError, IndexError) as error:
        raise DataError(
            f"the model cannot take inputs of shape {tuple(inputs.shape[1:])} and type {inputs.dtype} with targets of "
            f"shape {tuple(targets.shape[1:])} and type {targets.dtype}: {str(error).splitlines()[0]}"
        ) from error
    finally:
        for dropout in dropouts:
            dropout.train()
    for name, buffer in model.named_buffers():
        if not torch.equal(buffer, before[name]):
            raise UnsupportedModelError(
                f"{name} is a buffer that the forward pass rewrites: it would carry data from batch to batch without "
                "noise; use a layer that keeps no state, or put this one into eval() mode"
            )


def one_by_one(
    losses: Callable[[Tensor, Tensor], Tensor], parameters: dict[str, nn.Parameter], inputs: Tensor, targets: Tensor
) -> list[dict[str, Tensor]]:
    """Each sample's gradients by plain autograd on a batch of one."""
    found = []
    for x, y in zip(inputs.split(1), targets.split(1), strict=True):
        with torch.enable_grad():
            loss = losses(x, y).sum()
            grads = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True, materialize_grads=True)
        found.append(dict(zip(parameters, grads, strict=True)))
    return found


def check_agreement(norms: Tensor, sums: dict[str, Tensor], single: list[dict[str, Tensor]]) -> None:
    """Compare norms (B,) and sums of per-sample gradients with those of one sample at a time."""
    true_norms = torch.stack([torch.cat([g.flatten() for g in grads.values()]).norm() for grads in single])
    off_norms = float((norms - true_norms).abs().max())
    off_sums = max(float((sums[name] - sum(grads[name] for grads in single)).norm()) for name in sums)
    if not max(off_norms, off_sums) <= _TOLERANCE * float(true_norms.max()) + torch.finfo(torch.float32).tiny:
        raise UnsupportedModelError(
            "the per-sample gradients of this model do not agree with autograd on one sample at a time: a layer mixes "
            "the samples of a batch, or a parameter is used other than by calling its module (as by F.linear), "
            "or randomness is drawn other than by nn.Dropout; let each use of a parameter be a call of its own module, "
            "with the batch as the first dimension"
        )
