"""Per-sample gradients of a convolution of images, written out. `conv` treats every convolution as one of these.

The native kernel reads the inputs in place. Without it, PyTorch multiplies copies of the input patches, in one of two
layouts. `F.unfold` is ten times slower than either. Depthwise convolutions are multiplied entry by entry.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
from torch import Tensor

from alidpfl.dpsgd import native
from alidpfl.dpsgd.gradient_forms import SCRATCH_BYTES, Deferred, Stored, added_by_person, finite, squared_norms
from alidpfl.dpsgd.padding import padded_bmm

_SHORT_RUN = 16  # with fewer floats side by side, copying by kernel rows is slower than by patches


@dataclass(frozen=True, kw_only=True)
class ImageConvolution:
    """Sizes of a convolution of images, as in nn.Conv2d. Its margins are in the images already."""

    in_channels: int
    out_channels: int
    kernel_size: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    groups: int

    def uses_native(self, tensor: Tensor) -> bool:
        """Return True if the native kernel takes this convolution of tensors like this one."""
        is_plain = self.groups == 1 and tensor.dtype == torch.float32 and tensor.device.type == "cpu"
        return is_plain and native.serves_convolution(self.out_channels)


def deferred(conv: ImageConvolution, padded: Tensor, grad_nhwc: Tensor, records: int = 1) -> Deferred:
    """Wait for the norms of the other layers. See `written_out` for the arguments."""
    inputs = padded.permute(0, 2, 3, 1).contiguous()  # (B k, H, W, ci)
    shape = _native_shape(conv, inputs, grad_nhwc, records)

    def clipped_sum(other_squared_norms: Tensor, limit: float) -> tuple[Tensor, Tensor]:
        norms, total = native.conv_clipped_sum(shape, inputs, grad_nhwc, other_squared_norms, limit)
        return norms, _from_native(conv, total)

    return Deferred(clipped_sum)


def written_out(conv: ImageConvolution, padded: Tensor, grad_nhwc: Tensor, records: int = 1) -> Stored:
    """Return the weight gradients of all records, in the layout that is fastest here.

    Args:
        conv: The convolution.
        padded: (B k, channels in, H, W) images with their margins.
        grad_nhwc: (B k, out height, out width, channels out) output gradients.
        records: k, the images of each record or person. Their gradients are added.
    """
    if conv.uses_native(padded):
        return _by_native_kernel(conv, padded, grad_nhwc, records)
    if conv.groups == conv.in_channels > 1:
        return _by_offsets(conv, padded, grad_nhwc, records)
    run = conv.kernel_size[1] * conv.in_channels
    if conv.groups == 1 and conv.stride[0] == 1 and conv.dilation[1] == 1 and run >= _SHORT_RUN:
        return _by_kernel_rows(conv, padded, grad_nhwc, records)
    return _by_patches(conv, padded, grad_nhwc, records)


def _by_native_kernel(conv: ImageConvolution, padded: Tensor, grad_nhwc: Tensor, records: int = 1) -> Stored:
    inputs = padded.permute(0, 2, 3, 1).contiguous()  # (B k, H, W, ci)
    shape = _native_shape(conv, inputs, grad_nhwc, records)
    values, squared = native.conv_gradients(shape, inputs, grad_nhwc)  # (B, kh kw ci, co)
    values = values.flatten(1).unsqueeze(0)
    return Stored(values=values, squared_norms=squared, to_parameter=partial(_from_native, conv))


def _from_native(conv: ImageConvolution, total: Tensor) -> Tensor:
    return total.view(*conv.kernel_size, conv.in_channels, -1).permute(3, 2, 0, 1)


def _native_shape(conv: ImageConvolution, inputs: Tensor, grad_nhwc: Tensor, records: int) -> native.ConvShape:
    rows, height, width, channels_in = inputs.shape
    (kernel_height, kernel_width), (dilation_y, dilation_x) = conv.kernel_size, conv.dilation
    dense = dilation_x == 1  # then a kernel row reads kw * ci inputs side by side
    return native.ConvShape(
        batch=rows // records,
        records=records,
        sample_size=height * width * channels_in,
        out_height=grad_nhwc.shape[1],
        out_width=grad_nhwc.shape[2],
        channels_out=conv.out_channels,
        runs_y=kernel_height,
        runs_x=1 if dense else kernel_width,
        run_length=kernel_width * channels_in if dense else channels_in,
        run_step_y=dilation_y * width * channels_in,
        run_step_x=dilation_x * channels_in,
        step_y=conv.stride[0] * width * channels_in,
        step_x=conv.stride[1] * channels_in,
    )


def _by_kernel_rows(conv: ImageConvolution, padded: Tensor, grad_nhwc: Tensor, records: int = 1) -> Stored:
    """Use the fast layout, for convolutions with many channels.

    For every input row, copy the windows that the kernel's columns see. Kernel row ky is then a slice of the copy. So
    the copy is kw times the input, and not kh * kw times.
    """
    (height, width), channels_in = conv.kernel_size, conv.in_channels
    inputs = padded.permute(0, 2, 3, 1).contiguous()  # (B, H, W, ci)
    by_record, by_row, by_column, _ = inputs.stride()
    rows, _, out_width, channels_out = grad_nhwc.shape
    batch = rows // records
    all_grads = grad_nhwc.flatten(1, 2)  # (B k, L, co)
    all_windows = inputs.as_strided(  # (B k, H, ow, kw ci)
        (*inputs.shape[:2], out_width, width * channels_in), (by_record, by_row, conv.stride[1] * by_column, 1)
    )
    values = grad_nhwc.new_empty(height, batch, channels_out, width * channels_in)
    squared = grad_nhwc.new_empty(batch, dtype=torch.float64)
    for part, those in _chunks(batch, records, all_windows[0].nbytes, 3 * SCRATCH_BYTES):
        windows = all_windows[those].flatten(1, 2)  # (b k, H ow, kw ci): flatten copies
        grads = all_grads[those].mT.contiguous()  # (b k, co, L): the product is half as fast on the other layout
        for ky, gradients in enumerate(values[:, part]):
            first = ky * conv.dilation[0] * out_width
            products = padded_bmm(grads, windows[:, first : first + grads.shape[2]])
            gradients.copy_(added_by_person(products, records))
        squared[part] = added_in_order(squared_norms(values[:, part].flatten(2)))  # while they are in the cache
        values[:, part].copy_(finite(values[:, part]))

    def to_parameter(total: Tensor) -> Tensor:
        return total.view(height, -1, width, channels_in).permute(1, 3, 0, 2)

    return Stored(values=values.flatten(2), squared_norms=squared, to_parameter=to_parameter)


def added_in_order(rows: Tensor) -> Tensor:
    """Add (n, B) over n, one row after the other. `sum(0)` adds in another order where a record is one of the last."""
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total


def _by_patches(conv: ImageConvolution, padded: Tensor, grad_nhwc: Tensor, records: int = 1) -> Stored:
    """Use the general layout: copy all patches, then compute one product for each record (or person) and group."""
    inputs = padded.contiguous()  # (B k, C, H, W)
    batch, groups = len(inputs) // records, conv.groups
    channels_in = conv.in_channels // groups
    size = channels_in * conv.kernel_size[0] * conv.kernel_size[1]
    _, out_height, out_width, channels_out = grad_nhwc.shape
    by_record, by_channel, by_row, by_column = inputs.stride()
    patches = inputs.as_strided(
        (batch, groups, channels_in, *conv.kernel_size, records, out_height, out_width),
        (
            *(records * by_record, channels_in * by_channel, by_channel),
            *(conv.dilation[0] * by_row, conv.dilation[1] * by_column),
            *(by_record, conv.stride[0] * by_row, conv.stride[1] * by_column),
        ),
    )
    positions = records * out_height * out_width  # of a person, in all its records
    grads = grad_nhwc.view(batch, positions, groups, channels_out // groups).transpose(1, 2)
    values = grads.new_empty(batch, groups, size, channels_out // groups)
    for part, _ in _chunks(batch, 1, patches[0].numel() * patches.element_size(), SCRATCH_BYTES):
        copied = patches[part].reshape(-1, size, positions)  # (b G, size, k L)
        values[part].flatten(0, 1).copy_(padded_bmm(copied, grads[part].flatten(0, 1)))

    def to_parameter(total: Tensor) -> Tensor:
        return total.view(groups, size, -1).mT.reshape(channels_out, channels_in, *conv.kernel_size)

    slabs = values.flatten(1).unsqueeze(0)  # (1, B, co size)
    squared = squared_norms(slabs).sum(0)
    return Stored(values=finite(slabs), squared_norms=squared, to_parameter=to_parameter)


def _by_offsets(conv: ImageConvolution, padded: Tensor, grad_nhwc: Tensor, records: int = 1) -> Stored:
    """Use the layout for depthwise convolutions: for each entry of the kernel, one product of all channels.

    An output channel sees one input channel. A matrix product would have a single column for each of them.
    """
    inputs = padded.permute(0, 2, 3, 1).contiguous()  # (B k, H, W, ci)
    rows, out_height, out_width, channels_out = grad_nhwc.shape
    batch, offsets = rows // records, list(product(*map(range, conv.kernel_size)))
    all_grads = grad_nhwc.unflatten(3, (conv.groups, -1))  # (B k, oh, ow, ci, co / ci)
    values = grad_nhwc.new_empty(batch, len(offsets), channels_out)
    for part, those in _chunks(batch, records, grad_nhwc[0].nbytes, SCRATCH_BYTES):
        images, grads = inputs[those], all_grads[those]
        for number, offset in enumerate(offsets):
            window = images[:, *_seen(conv, offset, (out_height, out_width))]
            products = window.unsqueeze(-1) * grads  # (b k, oh, ow, ci, co / ci)
            values[part, number] = products.reshape(len(products) // records, -1, channels_out).sum(1)

    def to_parameter(total: Tensor) -> Tensor:
        return total.view(len(offsets), channels_out).mT.reshape(channels_out, 1, *conv.kernel_size)

    slabs = values.flatten(1)
    return Stored(values=finite(slabs).unsqueeze(0), squared_norms=squared_norms(slabs), to_parameter=to_parameter)


def _seen(conv: ImageConvolution, offset: tuple[int, ...], outputs: tuple[int, int]) -> list[slice]:
    """Return the rows and the columns that one entry of the kernel sees, one for each output."""
    sizes = zip(offset, conv.dilation, conv.stride, outputs, strict=True)
    return [slice(at * dilation, at * dilation + (count - 1) * step + 1, step) for at, dilation, step, count in sizes]


def _chunks(batch: int, records: int, bytes_per_image: int, limit: int) -> Iterator[tuple[slice, slice]]:
    """Yield numbers of persons, and of their images, that fit a limit."""
    size = max(1, limit // max(1, records * bytes_per_image))
    for first in range(0, batch, size):
        last = min(first + size, batch)
        yield slice(first, last), slice(first * records, last * records)
