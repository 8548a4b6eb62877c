"""Per-sample gradients of Conv2d.

Writing them out takes the same multiplications as the batch's weight gradient, so exact norms come at its price. What
costs is the copy of the input patches (conv_torch.py); the native kernel copies nothing at all.
"""

from collections.abc import Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alidpfl.dpsgd import native
from alidpfl.dpsgd.conv_torch import Geometry, KernelRows, gradients_by_patches
from alidpfl.dpsgd.gradients import Deferred, Rewritten, SampleGradients, Storage, Stored, rewritten, stored


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
