"""Rules for per-sample gradients: one for each type of layer, and torch.func.vmap for all other modules."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from alidpfl.dpsgd.conv import convolution_gradients
from alidpfl.dpsgd.gradient_forms import (
    Bilinear,
    Deferred,
    SampleGradients,
    Storage,
    added_by_person,
    gram_norms,
    in_pieces,
    stored,
)
from alidpfl.dpsgd.linear import linear_gradients
from alidpfl.dpsgd.norms import norm_gradients
from alidpfl.errors import UnsupportedModelError


class LayerRule(Protocol):
    """Computes a layer's per-sample gradients, by parameter name.

    It takes the layer, the names of its trained parameters, the layer's input (B k, ...), the gradient of the loss with
    respect to its output (B k, ...), what to do with gradients that must be written out, and k: 1, or the number of
    records of each of B persons. A person's records follow one another, and their gradients are added.
    """

    def __call__(
        self,
        module: nn.Module,
        names: Sequence[str],
        inputs: Tensor,
        grad_output: Tensor,
        storage: Storage,
        *,
        records: int = 1,
    ) -> dict[str, SampleGradients | Deferred]:
        """Return the gradients by parameter name."""


def embedding_gradients(
    module: nn.Module,
    names: Sequence[str],
    inputs: Tensor,
    grad_output: Tensor,
    storage: Storage,
    *,
    records: int = 1,
) -> dict[str, SampleGradients | Deferred]:
    """Apply the rule for Embedding, see `LayerRule`. A mask of equal tokens adds up the gradients of repeated ones."""
    del names, storage
    assert isinstance(module, nn.Embedding)  # noqa: S101
    tokens = inputs.reshape(len(inputs) // records, -1)  # (B, T), or (B, k T)
    grads = grad_output.reshape(*tokens.shape, -1)  # (B, T, d)
    if module.padding_idx is not None:
        grads = grads * (tokens != module.padding_idx).unsqueeze(-1)
    size = module.weight.shape

    def squared_norms_of(tokens: Tensor, grads: Tensor) -> Tensor:
        equal = (tokens.unsqueeze(1) == tokens.unsqueeze(2)).double()  # (B, T, T) products of one-hot rows
        return gram_norms(equal, torch.ones_like(tokens, dtype=torch.float64), grads, 0)

    def add_rows(tokens: Tensor, grads: Tensor) -> Tensor:
        rows = grads.flatten(0, 1).double()
        return rows.new_zeros(size).index_add_(0, tokens.flatten(), rows).to(grads.dtype)

    squared = in_pieces(squared_norms_of, records, tokens, grads)
    return {"weight": Bilinear(inputs=tokens, grad_output=grads, squared_norms=squared, form=add_rows)}


RULES: dict[type[nn.Module], LayerRule] = {
    nn.Linear: linear_gradients,
    nn.Conv1d: convolution_gradients,
    nn.Conv2d: convolution_gradients,
    nn.Conv3d: convolution_gradients,
    nn.ConvTranspose1d: convolution_gradients,
    nn.ConvTranspose2d: convolution_gradients,
    nn.ConvTranspose3d: convolution_gradients,
    nn.Embedding: embedding_gradients,
    nn.GroupNorm: norm_gradients,
    nn.InstanceNorm1d: norm_gradients,
    nn.InstanceNorm2d: norm_gradients,
    nn.InstanceNorm3d: norm_gradients,
    nn.LayerNorm: norm_gradients,
    nn.RMSNorm: norm_gradients,
}


def has_rule(module: nn.Module) -> bool:
    """Return True if a rule serves this module. Subclasses do not count: they may compute something else."""
    return type(module) in RULES and getattr(module, "padding_mode", "zeros") == "zeros"


Arguments = tuple[tuple[Any, ...], dict[str, Any]]
"""Arguments of a call, by position and by name."""
Call = Callable[[tuple[Tensor, ...]], Arguments]
"""Maps the tensors among the arguments of a call to all its arguments."""


def vmap_gradients(
    module: nn.Module,
    names: Sequence[str],
    inputs: tuple[Tensor, ...],
    grad_outputs: tuple[Tensor, ...],
    *,
    call: Call = lambda tensors: (tensors, {}),
    records: int = 1,
) -> dict[str, SampleGradients]:
    """Return per-sample gradients of any module, by parameter name. Refuse a module that vmap cannot run.

    Args:
        module: The module, with all modules below it.
        names: Its trained parameters.
        inputs: Its inputs, each (B k, ...).
        grad_outputs: Gradients of the loss with respect to its outputs, each (B k, ...).
        call: Adds the arguments that are no tensors.
        records: k, the number of records of a person. Their gradients are added.
    """
    values = {name: module.get_parameter(name).detach() for name in names}

    def weighted_output(parameters: dict[str, Tensor], record: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Tensor:
        output = functional_call(module, parameters, *call(tuple(t.unsqueeze(0) for t in record)))
        outputs = (output,) if isinstance(output, Tensor) else tuple(t for t in output if t is not None)
        return torch.stack([(o[0] * g).sum() for o, g in zip(outputs, grads, strict=True)]).sum()

    try:
        found = vmap(grad(weighted_output), in_dims=(None, 0, 0))(values, inputs, grad_outputs)
    except RuntimeError as error:  # an operation without vmap support, or randomness inside the module
        raise UnsupportedModelError(
            f"{type(module).__name__} has no rule for per-sample gradients, and torch.func.vmap cannot run it "
            f"({str(error).splitlines()[0]}); build it from layers that have a rule and from layers without "
            "parameters, keep dropout outside of it, or freeze it"
        ) from error
    # Popped, so that only one is in memory twice.
    return {name: stored(added_by_person(found.pop(name), records)) for name in names}
