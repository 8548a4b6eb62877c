"""Per-sample gradients of Conv2d.

Writing them out takes the same multiplications as the batch's weight gradient. So exact norms cost no more than that.
The native kernel reads the inputs in place. Without it, PyTorch multiplies copies of the input patches, in one of two
layouts. `F.unfold` is ten times slower than either.
"""

from collections.abc import Iterator, Sequence
from functools import partial

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
    added_by_person,
    finite,
    squared_norms,
    stored,
)
from alidpfl.dpsgd.padding import padded_bmm

_SHORT_RUN = 16  # with fewer floats side by side, copying by kernel rows is slower than by patches


def conv2d_gradients(
    module: nn.Module,
    names: Sequence[str],
    inputs: Tensor,
    grad_output: Tensor,
    storage: Storage,
    *,
    records: int = 1,
) -> dict[str, SampleGradients | Deferred]:
    """Apply the rule for Conv2d with any stride, dilation, groups and zero padding. See `layers.LayerRule`."""
    assert isinstance(module, nn.Conv2d)  # noqa: S101
    found: dict[str, SampleGradients | Deferred] = {}
    grad_nhwc = grad_output.permute(0, 2, 3, 1).contiguous()  # (B k, oh, ow, co)
    if "bias" in names:
        found["bias"] = stored(grad_nhwc.view(len(grad_nhwc) // records, -1, grad_nhwc.shape[3]).sum(1))
    if "weight" in names:
        margins = module._reversed_padding_repeated_twice  # left, right, top, bottom, also for "same" and "valid"
        padded = F.pad(inputs, margins) if any(margins) else inputs
        if storage is Storage.DEFER:
            found["weight"] = _deferred(module, padded, grad_nhwc, records)
        elif storage is Storage.KEEP:
            found["weight"] = _written_out(module, padded, grad_nhwc, records)
        else:
            size = module.weight.numel() * padded.element_size()
            found["weight"] = Rewritten(
                padded, grad_nhwc, partial(_written_out, module, records=records), size, records
            )
    return found


def can_defer(module: nn.Module) -> bool:
    """Return True if one pass gives norms and clipped sum of this layer. Only the native kernel does that fast."""
    return isinstance(module, nn.Conv2d) and module.weight.requires_grad and _uses_native(module, module.weight)


def _uses_native(module: nn.Conv2d, tensor: Tensor) -> bool:
    is_plain = module.groups == 1 and tensor.dtype == torch.float32 and tensor.device.type == "cpu"
    return is_plain and native.serves_convolution(module.out_channels)


def _deferred(module: nn.Conv2d, padded: Tensor, grad_nhwc: Tensor, records: int = 1) -> Deferred:
    inputs = padded.permute(0, 2, 3, 1).contiguous()  # (B k, H, W, ci)
    shape = _native_shape(module, inputs, grad_nhwc, records)

    def clipped_sum(other_squared_norms: Tensor, limit: float) -> tuple[Tensor, Tensor]:
        norms, total = native.conv_clipped_sum(shape, inputs, grad_nhwc, other_squared_norms, limit)
        return norms, _from_native(module, total)

    return Deferred(clipped_sum)


def _written_out(module: nn.Conv2d, padded: Tensor, grad_nhwc: Tensor, records: int = 1) -> Stored:
    if _uses_native(module, padded):
        return _by_native_kernel(module, padded, grad_nhwc, records)
    run = module.kernel_size[1] * module.in_channels
    if module.groups == 1 and module.stride[0] == 1 and module.dilation[1] == 1 and run >= _SHORT_RUN:
        return _by_kernel_rows(module, padded, grad_nhwc, records)
    return _by_patches(module, padded, grad_nhwc, records)


def _by_native_kernel(module: nn.Conv2d, padded: Tensor, grad_nhwc: Tensor, records: int = 1) -> Stored:
    inputs = padded.permute(0, 2, 3, 1).contiguous()  # (B k, H, W, ci)
    shape = _native_shape(module, inputs, grad_nhwc, records)
    values, squared = native.conv_gradients(shape, inputs, grad_nhwc)  # (B, kh kw ci, co)
    values = values.flatten(1).unsqueeze(0)
    return Stored(values=values, squared_norms=squared, to_parameter=partial(_from_native, module))


def _from_native(module: nn.Conv2d, total: Tensor) -> Tensor:
    return total.view(*module.kernel_size, module.in_channels, -1).permute(3, 2, 0, 1)


def _native_shape(module: nn.Conv2d, inputs: Tensor, grad_nhwc: Tensor, records: int) -> native.ConvShape:
    rows, height, width, channels_in = inputs.shape
    (kernel_height, kernel_width), (dilation_y, dilation_x) = module.kernel_size, module.dilation
    dense = dilation_x == 1  # then a kernel row reads kw * ci inputs side by side
    return native.ConvShape(
        batch=rows // records,
        records=records,
        sample_size=height * width * channels_in,
        out_height=grad_nhwc.shape[1],
        out_width=grad_nhwc.shape[2],
        channels_out=module.out_channels,
        runs_y=kernel_height,
        runs_x=1 if dense else kernel_width,
        run_length=kernel_width * channels_in if dense else channels_in,
        run_step_y=dilation_y * width * channels_in,
        run_step_x=dilation_x * channels_in,
        step_y=module.stride[0] * width * channels_in,
        step_x=module.stride[1] * channels_in,
    )


def _by_kernel_rows(module: nn.Conv2d, padded: Tensor, grad_nhwc: Tensor, records: int = 1) -> Stored:
    """Use the fast layout, for convolutions with many channels.

    For every input row, copy the windows that the kernel's columns see. Kernel row ky is then a slice of the copy. So
    the copy is kw times the input, and not kh * kw times.
    """
    (height, width), channels_in = module.kernel_size, module.in_channels
    inputs = padded.permute(0, 2, 3, 1).contiguous()  # (B, H, W, ci)
    by_record, by_row, by_column, _ = inputs.stride()
    rows, _, out_width, channels_out = grad_nhwc.shape
    batch = rows // records
    all_grads = grad_nhwc.flatten(1, 2)  # (B k, L, co)
    all_windows = inputs.as_strided(  # (B k, H, ow, kw ci)
        (*inputs.shape[:2], out_width, width * channels_in), (by_record, by_row, module.stride[1] * by_column, 1)
    )
    values = grad_nhwc.new_empty(height, batch, channels_out, width * channels_in)
    squared = grad_nhwc.new_empty(batch, dtype=torch.float64)
    for part in _chunks(batch, records * all_windows[0].nbytes, 3 * SCRATCH_BYTES):
        those = slice(part.start * records, part.stop * records)
        windows = all_windows[those].flatten(1, 2)  # (b k, H ow, kw ci): flatten copies
        grads = all_grads[those].mT.contiguous()  # (b k, co, L): the product is half as fast on the other layout
        for ky, gradients in enumerate(values[:, part]):
            first = ky * module.dilation[0] * out_width
            products = padded_bmm(grads, windows[:, first : first + grads.shape[2]])
            gradients.copy_(added_by_person(products, records))
        squared[part] = _added(squared_norms(values[:, part].flatten(2)))  # while they are in the cache
        values[:, part].copy_(finite(values[:, part]))

    def to_parameter(total: Tensor) -> Tensor:
        return total.view(height, -1, width, channels_in).permute(1, 3, 0, 2)

    return Stored(values=values.flatten(2), squared_norms=squared, to_parameter=to_parameter)


def _added(rows: Tensor) -> Tensor:
    """Add (n, B) over n, one row after the other. `sum(0)` adds in another order where a record is one of the last."""
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total


def _by_patches(module: nn.Conv2d, padded: Tensor, grad_nhwc: Tensor, records: int = 1) -> Stored:
    """Use the general layout: copy all patches, then compute one product for each record (or person) and group."""
    inputs = padded.contiguous()  # (B k, C, H, W)
    batch, groups = len(inputs) // records, module.groups
    channels_in, size = module.weight.shape[1], module.weight[0].numel()
    _, out_height, out_width, channels_out = grad_nhwc.shape
    by_record, by_channel, by_row, by_column = inputs.stride()
    patches = inputs.as_strided(
        (batch, groups, channels_in, *module.kernel_size, records, out_height, out_width),
        (
            *(records * by_record, channels_in * by_channel, by_channel),
            *(module.dilation[0] * by_row, module.dilation[1] * by_column),
            *(by_record, module.stride[0] * by_row, module.stride[1] * by_column),
        ),
    )
    positions = records * out_height * out_width  # of a person, in all its records
    grads = grad_nhwc.view(batch, positions, groups, channels_out // groups).transpose(1, 2)
    values = grads.new_empty(batch, groups, size, channels_out // groups)
    for part in _chunks(batch, patches[0].numel() * patches.element_size(), SCRATCH_BYTES):
        copied = patches[part].reshape(-1, size, positions)  # (b G, size, k L)
        values[part].flatten(0, 1).copy_(padded_bmm(copied, grads[part].flatten(0, 1)))

    def to_parameter(total: Tensor) -> Tensor:
        return total.view(groups, size, -1).mT.reshape(module.weight.shape)

    slabs = values.flatten(1).unsqueeze(0)  # (1, B, co size)
    squared = squared_norms(slabs).sum(0)
    return Stored(values=finite(slabs), squared_norms=squared, to_parameter=to_parameter)


def _chunks(batch: int, bytes_per_record: int, limit: int) -> Iterator[slice]:
    size = max(1, limit // max(1, bytes_per_record))
    return (slice(first, min(first + size, batch)) for first in range(0, batch, size))
