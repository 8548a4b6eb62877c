"""Per-sample gradients of any other module: torch.func.vmap over that module alone."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from alidpfl.dpsgd.gradients import SampleGradients, stored
from alidpfl.errors import UnsupportedModelError


def vmap_gradients(
    module: nn.Module,
    names: Sequence[str],
    inputs: tuple[Tensor, ...],
    grad_outputs: tuple[Tensor, ...],
) -> dict[str, SampleGradients]:
    """Gradients of <output, grad_output> sample by sample, vectorised; every input and output is (B, ...)."""
    values = {name: module.get_parameter(name).detach() for name in names}

    def weighted_output(parameters: dict[str, Tensor], sample: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Tensor:
        output = functional_call(module, parameters, tuple(t.unsqueeze(0) for t in sample))
        outputs = (output,) if isinstance(output, Tensor) else tuple(t for t in output if t is not None)
        return torch.stack([(o[0] * g).sum() for o, g in zip(outputs, grads, strict=True)]).sum()

    try:
        found = vmap(grad(weighted_output), in_dims=(None, 0, 0))(values, inputs, grad_outputs)
    except RuntimeError as error:  # an operation that vmap cannot follow, or randomness inside the module
        raise UnsupportedModelError(
            f"{type(module).__name__} has no rule for per-sample gradients, and torch.func.vmap cannot run it "
            f"({str(error).splitlines()[0]}); build it from Linear, Conv2d, Embedding, GroupNorm, LayerNorm and layers "
            "without parameters, keep dropout outside of it, or freeze it"
        ) from error
    return {name: stored(gradient) for name, gradient in found.items()}
