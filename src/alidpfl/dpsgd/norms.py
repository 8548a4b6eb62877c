"""Per-sample gradients of normalisations: one small vector for each record."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from alidpfl.dpsgd.gradient_forms import Deferred, SampleGradients, Storage, added_by_person, stored

InstanceNorm = nn.InstanceNorm1d | nn.InstanceNorm2d | nn.InstanceNorm3d


def norm_gradients(
    module: nn.Module,
    names: Sequence[str],
    inputs: Tensor,
    grad_output: Tensor,
    storage: Storage,
    *,
    records: int = 1,
) -> dict[str, SampleGradients | Deferred]:
    """Apply the rule for GroupNorm, InstanceNorm, LayerNorm and RMSNorm. See `layers.LayerRule`."""
    del storage
    summed = _positions(module, inputs.dim())
    per_sample = {"bias": grad_output}
    if "weight" in names:
        per_sample["weight"] = grad_output * _normalised(module, inputs)
    each = ((name, per_sample[name].sum(summed) if summed else per_sample[name]) for name in names)
    return {name: stored(added_by_person(gradients, records)) for name, gradients in each}


def _normalised(module: nn.Module, inputs: Tensor) -> Tensor:
    """Return the output without weight and bias."""
    if isinstance(module, nn.GroupNorm):
        return F.group_norm(inputs, module.num_groups, eps=module.eps)
    if isinstance(module, InstanceNorm):
        return F.instance_norm(inputs, eps=module.eps)
    if isinstance(module, nn.LayerNorm):
        return F.layer_norm(inputs, module.normalized_shape, eps=module.eps)
    assert isinstance(module, nn.RMSNorm)  # noqa: S101
    return F.rms_norm(inputs, list(module.normalized_shape), eps=module.eps)


def _positions(module: nn.Module, dims: int) -> tuple[int, ...]:
    """Return the dimensions over which weight and bias are shared, but for the batch."""
    if isinstance(module, nn.LayerNorm | nn.RMSNorm):
        return tuple(range(1, dims - len(module.normalized_shape)))
    return tuple(range(2, dims))
