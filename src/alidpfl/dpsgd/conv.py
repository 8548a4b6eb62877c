"""Per-sample gradients of convolutions, with any stride, dilation, groups and zero padding.

Writing them out takes the same multiplications as the batch's weight gradient. So exact norms cost no more than that.
Every convolution is treated as one of images (`conv_images`):

- A sequence is an image with one row.
- A volume is a pile of slices. At each depth of the kernel, one convolution of the slices that it meets there. The
  gradients of a record's slices are added, like those of a person's records.
- A transposed convolution is a convolution with its input and its output gradient exchanged.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from alidpfl.dpsgd.conv_images import ImageConvolution, added_in_order, deferred, written_out
from alidpfl.dpsgd.gradient_forms import Deferred, Rewritten, SampleGradients, Storage, Stored, stored

Convolution = nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.ConvTranspose1d | nn.ConvTranspose2d | nn.ConvTranspose3d
_SEQUENCE, _VOLUME = 1, 3  # dimensions of a kernel


def convolution_gradients(
    module: nn.Module,
    names: Sequence[str],
    inputs: Tensor,
    grad_output: Tensor,
    storage: Storage,
    *,
    records: int = 1,
) -> dict[str, SampleGradients | Deferred]:
    """Apply the rule for all convolutions. See `layers.LayerRule`."""
    assert isinstance(module, Convolution)  # noqa: S101
    found: dict[str, SampleGradients | Deferred] = {}
    outputs = _channels_last(grad_output)  # (B k, positions ..., co)
    if "bias" in names:
        found["bias"] = stored(outputs.view(len(outputs) // records, -1, outputs.shape[-1]).sum(1))
    if "weight" in names:
        seen, meets = (grad_output, _channels_last(inputs)) if module.transposed else (inputs, outputs)
        margins = module._reversed_padding_repeated_twice  # left, right, top, bottom, also for "same" and "valid"
        padded = F.pad(seen, margins) if any(margins) else seen
        if storage is Storage.DEFER:
            found["weight"] = _deferred(module, padded, meets, records)
        elif storage is Storage.KEEP:
            found["weight"] = _written_out(module, padded, meets, records)
        else:
            size = module.weight.numel() * padded.element_size()
            found["weight"] = Rewritten(padded, meets, partial(_written_out, module, records=records), size, records)
    return found


def can_defer(module: nn.Module) -> bool:
    """Return True if one pass gives norms and clipped sum of this layer. Only the native kernel does that fast."""
    if not isinstance(module, Convolution) or len(module.kernel_size) >= _VOLUME:
        return False
    return module.weight.requires_grad and _of_images(module).uses_native(module.weight)


def _channels_last(tensor: Tensor) -> Tensor:
    """Map (B, channels, ...) to (B, ..., channels)."""
    return tensor.movedim(1, -1).contiguous()


def _of_images(module: Convolution) -> ImageConvolution:
    """Return the convolution of images as which `module` is treated."""
    channels_in, channels_out = module.in_channels, module.out_channels
    return ImageConvolution(
        in_channels=channels_out if module.transposed else channels_in,
        out_channels=channels_in if module.transposed else channels_out,
        kernel_size=_flat(module.kernel_size),
        stride=_flat(module.stride),
        dilation=_flat(module.dilation),
        groups=module.groups,
    )


def _flat(sizes: tuple[int, ...]) -> tuple[int, int]:
    """Return the sizes for rows and columns."""
    return (1, sizes[0]) if len(sizes) == _SEQUENCE else (sizes[-2], sizes[-1])


def _with_rows(padded: Tensor, meets: Tensor) -> tuple[Tensor, Tensor]:
    """Map sequences (B, ci, T) and (B, T', co) to images of one row. Leave images as they are."""
    return (padded.unsqueeze(2), meets.unsqueeze(1)) if padded.dim() == _SEQUENCE + 2 else (padded, meets)


def _deferred(module: Convolution, padded: Tensor, meets: Tensor, records: int) -> Deferred:
    found = deferred(_of_images(module), *_with_rows(padded, meets), records)

    def clipped_sum(other_squared_norms: Tensor, limit: float) -> tuple[Tensor, Tensor]:
        norms, total = found.clipped_sum(other_squared_norms, limit)
        return norms, total.reshape(module.weight.shape)

    return Deferred(clipped_sum)


def _written_out(module: Convolution, padded: Tensor, meets: Tensor, records: int = 1) -> Stored:
    conv = _of_images(module)
    if len(module.kernel_size) == _VOLUME:
        images = records * meets.shape[1]  # slices of a record, or of all records of a person
        return _joined([written_out(conv, *slices, images) for slices in _slices(module, padded, meets)])
    found = written_out(conv, *_with_rows(padded, meets), records)
    return replace(found, to_parameter=lambda total: found.to_parameter(total).reshape(module.weight.shape))


def _slices(module: Convolution, padded: Tensor, meets: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return, for each depth of the kernel, the slices that it meets (B D, ci, H, W), and (B D, H', W', co)."""
    (stride, *_), (dilation, *_), depth = module.stride, module.dilation, meets.shape[1]
    firsts = (number * dilation for number in range(module.kernel_size[0]))
    met = (padded[:, :, first : first + (depth - 1) * stride + 1 : stride] for first in firsts)
    return [(slices.transpose(1, 2).flatten(0, 1), meets.flatten(0, 1)) for slices in met]


def _joined(parts: list[Stored]) -> Stored:
    """Return the gradients of a kernel from those at each of its depths."""
    slabs = len(parts[0].values)

    def to_parameter(total: Tensor) -> Tensor:
        each = total.view(len(parts), slabs, -1)
        planes = [part.to_parameter(own[0] if slabs == 1 else own) for part, own in zip(parts, each, strict=True)]
        return torch.stack(planes, 2)

    return Stored(
        values=torch.cat([part.values for part in parts]),
        squared_norms=added_in_order(torch.stack([part.squared_norms for part in parts])),
        to_parameter=to_parameter,
    )
