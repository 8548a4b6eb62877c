"""ReLU and MaxPool2d in one layer: the same values and gradients, bit for bit, for a fraction of the work.

The order of ReLU and max-pooling does not matter. Both orders keep the largest entry of a window if it is positive, and
give zero otherwise. Both send the gradient to the first such entry or nowhere. Pooling first leaves the ReLU a quarter
of the entries. The native kernel does both in one pass and stores one byte for each window.
"""

import copy
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from alidpfl.dpsgd import native


def join_relu_and_pool(module: nn.Module) -> nn.Module:
    """Return the same network with neighbouring ReLU and MaxPool2d of an nn.Sequential joined.

    The original is not changed. Layers are shared with it; containers of joined layers are shallow copies.
    """
    children = {name: join_relu_and_pool(child) for name, child in module.named_children()}
    changed = any(child is not getattr(module, name) for name, child in children.items())
    if type(module) is nn.Sequential:
        for first, second in pairwise(list(children)):
            pool = _pool_of(children[first], children[second])  # looked up again: the pair before may have used one
            if pool is not None:
                children[first], children[second] = nn.Identity(), ReluMaxPool(pool)
                changed = True
    if not changed:
        return module
    twin = copy.copy(module)
    twin._modules = {**module._modules, **children}
    return twin


def _pool_of(one: nn.Module, other: nn.Module) -> nn.MaxPool2d | None:
    """Return the pooling layer if the pair may be joined, in either order."""
    for relu, pool in ((one, other), (other, one)):
        watched = any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in (relu, pool))
        if type(relu) is nn.ReLU and type(pool) is nn.MaxPool2d and not pool.return_indices and not watched:
            return pool
    return None


class ReluMaxPool(nn.Module):
    """Computes relu(pool(x)), by the native kernel if it serves."""

    def __init__(self, pool: nn.MaxPool2d) -> None:
        super().__init__()
        self.pool = pool

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, C, H, W) to (B, C, H // 2, W // 2) for the usual 2x2 pooling."""
        if self._kernel_serves(x):
            return _ReluPool.apply(x)  # type: ignore[no-any-return, no-untyped-call]
        return torch.relu_(self.pool(x))

    def _kernel_serves(self, x: Tensor) -> bool:
        pool = self.pool
        halves = all(_pair(value) == (2, 2) for value in (pool.kernel_size, pool.stride))
        plain = _pair(pool.padding) == (0, 0) and _pair(pool.dilation) == (1, 1) and not pool.ceil_mode
        in_memory = x.dim() == 4 and x.dtype == torch.float32 and x.device.type == "cpu"  # noqa: PLR2004
        return halves and plain and in_memory and native.is_available() and x.permute(0, 2, 3, 1).is_contiguous()


def _pair(value: int | tuple[int, ...]) -> tuple[int, ...]:
    return (value, value) if isinstance(value, int) else tuple(value)


class _ReluPool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        out, winner = native.relu_pool(x.permute(0, 2, 3, 1))
        ctx.save_for_backward(winner)
        ctx.shape = (x.shape[0], x.shape[2], x.shape[3], x.shape[1])
        return out.permute(0, 3, 1, 2)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (winner,) = ctx.saved_tensors
        grad = grads[0].permute(0, 2, 3, 1).contiguous()
        return native.relu_pool_backward(grad, winner, ctx.shape).permute(0, 3, 1, 2)
