"""Per-sample weight gradients of Conv2d in PyTorch: copy input patches, then one matrix product a sample.

`F.unfold` is ten times slower than the two layouts used here.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from alidpfl.dpsgd.filling import even_products_of
from alidpfl.dpsgd.gradients import SCRATCH_BYTES, Stored, squared_norms

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
