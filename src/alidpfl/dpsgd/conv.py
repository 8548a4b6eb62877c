"""Per-sample gradients of Conv2d.

Writing them out takes the same multiplications as the batch's weight gradient, so exact norms come at its price. What
costs is the copy of the input patches (conv_torch.py); the native kernel copies nothing at all.
"""

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alidpfl.dpsgd import native
from alidpfl.dpsgd.gradient_forms import (
    SCRATCH_BYTES,
    Deferred,
    Rewritten,
    SampleGradients,
    Storage,
    Stored,
    rewritten,
    squared_norms,
    stored,
)
from alidpfl.dpsgd.padding import even_products_of

_SHORT_RUN = 16  # below so many floats side by side, copying by kernel rows is slower than by patches


class Geometry(NamedTuple):
    """The numbers of a Conv2d that the gradient needs, for inputs that are already padded."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    groups: int
    channels_in: int  # of one group
    channels_out: int

    @property
    def rows(self) -> int:
        """Weights of one output channel."""
        return self.channels_in * self.kernel[0] * self.kernel[1]

    def weight_shape(self) -> tuple[int, int, int, int]:
        """(channels out, channels in of a group, kernel height, kernel width)."""
        return (self.channels_out, self.channels_in, *self.kernel)


class KernelRows:
    """The fast layout, for the usual convolution with many channels.

    For every input row, copy the windows that the kernel's columns see; kernel row ky then is a slice of the copy. So
    the copy is kw times the input rather than kh * kw times.
    """

    @staticmethod
    def serves(geometry: Geometry) -> bool:
        """Whether this layout is possible and pays."""
        run = geometry.kernel[1] * geometry.channels_in
        return geometry.groups == 1 and geometry.stride[0] == 1 and geometry.dilation[1] == 1 and run >= _SHORT_RUN

    def __init__(self, geometry: Geometry, padded: Tensor, grad_nhwc: Tensor) -> None:
        inputs = padded.permute(0, 2, 3, 1).contiguous()  # (B, H, W, ci)
        by_sample, by_row, by_column, _ = inputs.stride()
        self._geometry = geometry
        self._run = geometry.kernel[1] * geometry.channels_in
        self._grads = grad_nhwc.flatten(1, 2)  # (B, L, co)
        self._row_step = geometry.dilation[0] * grad_nhwc.shape[2]
        self._windows = inputs.as_strided(  # (B, H, ow, run)
            (*inputs.shape[:2], grad_nhwc.shape[2], self._run), (by_sample, by_row, geometry.stride[1] * by_column, 1)
        )

    def stored(self) -> Stored:
        """All gradients, written out."""
        batch, _, channels_out = self._grads.shape
        values = self._grads.new_empty(self._geometry.kernel[0], batch, channels_out, self._run)
        squared = self._grads.new_empty(batch, dtype=torch.float64)
        for part in _chunks(batch, self._windows[0].nbytes, 3 * SCRATCH_BYTES):
            squared[part] = self._write(part, values[:, part])
        return Stored(values=values.flatten(2), squared_norms=squared, to_parameter=self._to_parameter)

    def _write(self, part: slice, out: Tensor) -> Tensor:
        """Gradients of some samples into out (kh, b, co, run), and at once, from cache, their squared norms (b,)."""
        windows = self._windows[part].flatten(1, 2)  # (b, H ow, run): flatten copies
        grads = self._grads[part].mT.contiguous()  # (b, co, L): the product is half as fast on the other layout
        for ky, gradients in enumerate(out):
            first = ky * self._row_step
            gradients.copy_(even_products_of(grads, windows[:, first : first + grads.shape[2]]))
        return squared_norms(out.flatten(2)).sum(0)

    def _to_parameter(self, total: Tensor) -> Tensor:
        height, width = self._geometry.kernel
        return total.view(height, -1, width, self._geometry.channels_in).permute(1, 3, 0, 2)


def gradients_by_patches(geometry: Geometry, padded: Tensor, grad_nhwc: Tensor) -> Stored:
    """The general case: copy all patches, one product a sample and group."""
    inputs = padded.contiguous()  # (B, C, H, W)
    batch, groups, channels_in = inputs.shape[0], geometry.groups, geometry.channels_in
    _, out_height, out_width, channels_out = grad_nhwc.shape
    by_sample, by_channel, by_row, by_column = inputs.stride()
    patches = inputs.as_strided(
        (batch, groups, channels_in, *geometry.kernel, out_height, out_width),
        (
            by_sample,
            channels_in * by_channel,
            by_channel,
            geometry.dilation[0] * by_row,
            geometry.dilation[1] * by_column,
            geometry.stride[0] * by_row,
            geometry.stride[1] * by_column,
        ),
    )
    grads = grad_nhwc.view(batch, out_height * out_width, groups, channels_out // groups).transpose(1, 2)
    values = grads.new_empty(batch, groups, geometry.rows, channels_out // groups)
    for part in _chunks(batch, patches[0].numel() * patches.element_size(), SCRATCH_BYTES):
        copied = patches[part].reshape(-1, geometry.rows, out_height * out_width)  # (b G, rows, L)
        values[part].flatten(0, 1).copy_(even_products_of(copied, grads[part].flatten(0, 1)))

    def to_parameter(total: Tensor) -> Tensor:
        return total.view(groups, geometry.rows, -1).mT.reshape(geometry.weight_shape())

    slabs = values.flatten(1).unsqueeze(0)  # (1, B, co rows)
    return Stored(values=slabs, squared_norms=squared_norms(slabs).sum(0), to_parameter=to_parameter)


def _chunks(batch: int, bytes_per_sample: int, limit: int) -> list[slice]:
    size = max(1, limit // max(1, bytes_per_sample))
    return [slice(first, min(first + size, batch)) for first in range(0, batch, size)]


def conv2d_gradients(
    module: nn.Module, names: Sequence[str], inputs: Tensor, grad_output: Tensor, storage: Storage
) -> dict[str, SampleGradients | Deferred]:
    """Conv2d with any stride, dilation, groups and zero padding."""
    assert isinstance(module, nn.Conv2d)  # noqa: S101
    found: dict[str, SampleGradients | Deferred] = {}
    grad_nhwc = grad_output.permute(0, 2, 3, 1).contiguous()  # (B, oh, ow, co)
    if "bias" in names:
        found["bias"] = stored(grad_nhwc.flatten(1, 2).sum(1))
    if "weight" in names:
        geometry = _geometry(module)
        padded = _pad(module, inputs)
        if storage is Storage.DEFER:
            found["weight"] = _deferred(geometry, padded, grad_nhwc)
        else:
            form = _written_out if storage is Storage.KEEP else _rewritten
            found["weight"] = form(geometry, padded, grad_nhwc)
    return found


def _geometry(module: nn.Conv2d) -> Geometry:
    channels_out, channels_in, kernel_height, kernel_width = module.weight.shape
    (stride_y, stride_x), (dilation_y, dilation_x) = module.stride, module.dilation
    return Geometry(
        kernel=(kernel_height, kernel_width),
        stride=(stride_y, stride_x),
        dilation=(dilation_y, dilation_x),
        groups=module.groups,
        channels_in=channels_in,
        channels_out=channels_out,
    )


def _pad(module: nn.Conv2d, inputs: Tensor) -> Tensor:
    if module.padding in ("valid", (0, 0)):
        return inputs
    if module.padding == "same":
        (dilation_y, dilation_x), (kernel_y, kernel_x) = module.dilation, module.kernel_size
        total_y, total_x = dilation_y * (kernel_y - 1), dilation_x * (kernel_x - 1)
        return F.pad(inputs, (total_x // 2, total_x - total_x // 2, total_y // 2, total_y - total_y // 2))
    pad_y, pad_x = int(module.padding[0]), int(module.padding[1])
    return F.pad(inputs, (pad_x, pad_x, pad_y, pad_y))


def can_defer(module: nn.Module) -> bool:
    """Whether this layer's norms and clipped sum can be had in one pass, which only the native kernel makes quickly."""
    return (
        isinstance(module, nn.Conv2d) and module.weight.requires_grad and _uses_native(_geometry(module), module.weight)
    )


def _deferred(geometry: Geometry, padded: Tensor, grad_nhwc: Tensor) -> Deferred:
    inputs = padded.permute(0, 2, 3, 1).contiguous()  # (B, H, W, ci)
    shape = _native_shape(geometry, inputs, grad_nhwc)

    def clipped_sum(other_squared_norms: Tensor, limit: float) -> tuple[Tensor, Tensor]:
        norms, total = native.conv_clipped_sum(shape, inputs, grad_nhwc, other_squared_norms, limit)
        return norms, _from_native(geometry, total)

    return Deferred(clipped_sum)


def _rewritten(geometry: Geometry, padded: Tensor, grad_nhwc: Tensor) -> Rewritten:
    size = geometry.rows * geometry.channels_out * padded.element_size()
    return rewritten(padded, grad_nhwc, partial(_written_out, geometry), size)


def _uses_native(geometry: Geometry, padded: Tensor) -> bool:
    return (
        geometry.groups == 1
        and padded.dtype == torch.float32
        and padded.device.type == "cpu"
        and native.serves_convolution(geometry.channels_out)
    )


def _written_out(geometry: Geometry, padded: Tensor, grad_nhwc: Tensor) -> Stored:
    if _uses_native(geometry, padded):
        return _native_gradients(geometry, padded, grad_nhwc)
    if KernelRows.serves(geometry):
        return KernelRows(geometry, padded, grad_nhwc).stored()
    return gradients_by_patches(geometry, padded, grad_nhwc)


def _native_gradients(geometry: Geometry, padded: Tensor, grad_nhwc: Tensor) -> Stored:
    inputs = padded.permute(0, 2, 3, 1).contiguous()  # (B, H, W, ci)
    shape = _native_shape(geometry, inputs, grad_nhwc)
    values, squared = native.conv_gradients(shape, inputs, grad_nhwc)  # (B, kh kw ci, co)
    return Stored(
        values=values.flatten(1).unsqueeze(0),
        squared_norms=squared,
        to_parameter=lambda total: _from_native(geometry, total),
    )


def _from_native(geometry: Geometry, total: Tensor) -> Tensor:
    return total.view(*geometry.kernel, geometry.channels_in, -1).permute(3, 2, 0, 1)


def _native_shape(geometry: Geometry, inputs: Tensor, grad_nhwc: Tensor) -> native.ConvShape:
    batch, height, width, channels_in = inputs.shape
    (kernel_height, kernel_width), (dilation_y, dilation_x) = geometry.kernel, geometry.dilation
    dense = dilation_x == 1  # a kernel row then reads kw * ci inputs side by side
    return native.ConvShape(
        batch=batch,
        sample_size=height * width * channels_in,
        out_height=grad_nhwc.shape[1],
        out_width=grad_nhwc.shape[2],
        channels_out=geometry.channels_out,
        runs_y=kernel_height,
        runs_x=1 if dense else kernel_width,
        run_length=kernel_width * channels_in if dense else channels_in,
        run_step_y=dilation_y * width * channels_in,
        run_step_x=dilation_x * channels_in,
        step_y=geometry.stride[0] * width * channels_in,
        step_x=geometry.stride[1] * channels_in,
    )
