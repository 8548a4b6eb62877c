"""Rules for per-sample gradients: one for each type of layer, and torch.func.vmap for all other modules."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from alidpfl.dpsgd.conv import conv2d_gradients
from alidpfl.dpsgd.gradient_forms import (
    Bilinear,
    Deferred,
    Rewritten,
    SampleGradients,
    Storage,
    Stored,
    added_by_person,
    gram_norms,
    orthogonal,
    precise,
    squared_norms,
    stored,
)
from alidpfl.dpsgd.padding import padded_bmm, padded_gram
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


def linear_gradients(
    module: nn.Module,
    names: Sequence[str],
    inputs: Tensor,
    grad_output: Tensor,
    storage: Storage,
    *,
    records: int = 1,
) -> dict[str, SampleGradients | Deferred]:
    """Apply the rule for Linear on (B k, d) or (B k, ..., d). Positions in between are summed over. See `LayerRule`."""
    del module
    found: dict[str, SampleGradients | Deferred] = {}
    if inputs.dim() == 2 and records == 1:  # noqa: PLR2004
        # In double: a tiny factor must not underflow before a huge one multiplies it.
        squared = squared_norms(grad_output.double())
        if "bias" in names:
            found["bias"] = stored(grad_output, squared)
        if "weight" in names:
            # |g a^T|^2 = |g|^2 |a|^2, so that no gradient is written out (Goodfellow 2015).
            squared_inputs = squared_norms(inputs.double())
            found["weight"] = Bilinear(
                inputs=inputs,
                grad_output=grad_output,
                squared_norms=precise(squared * squared_inputs, squared_inputs),
                form=_outer,
            )
        return found
    weight_rule = _sequence_weight if inputs.dim() > 2 else _person_weight  # noqa: PLR2004
    # The records of a person are as many positions more: (B, k T, d), (B, k T, p).
    inputs, grad_output = (t.reshape(len(t) // records, -1, t.shape[-1]) for t in (inputs, grad_output))
    if "bias" in names:
        found["bias"] = stored(grad_output.sum(1))
    if "weight" in names:
        found["weight"] = weight_rule(inputs, grad_output, storage, records)
    return found


def _outer(inputs: Tensor, grad_output: Tensor) -> Tensor:
    return grad_output.mT @ inputs  # (p, B) @ (B, d)


def _outer_in_double(inputs: Tensor, grad_output: Tensor) -> Tensor:
    return _outer(*(t.flatten(0, 1).double() for t in (inputs, grad_output))).to(inputs.dtype)  # (p, B T) @ (B T, d)


def _person_weight(inputs: Tensor, grad_output: Tensor, storage: Storage, records: int) -> SampleGradients:
    """Return the gradients of persons with k records each: inputs (B, k, d) and output gradients (B, k, p)."""
    width_in, width_out = inputs.shape[2], grad_output.shape[2]
    if records > min(width_in, width_out):  # then it is no more than the records, and often less
        return _write_out(inputs, grad_output, storage)
    if width_in < width_out:
        return orthogonal(inputs, grad_output, is_transposed=True)
    return orthogonal(grad_output, inputs, is_transposed=False)


def _sequence_weight(inputs: Tensor, grad_output: Tensor, storage: Storage, records: int) -> SampleGradients:
    _, positions, width_in = inputs.shape
    width_out = grad_output.shape[2]
    if not _is_cheaper_in_factors(positions, width_in, width_out):
        return _write_out(inputs, grad_output, storage)

    def squared_norms_of(inputs: Tensor, grad_output: Tensor) -> Tensor:
        wide = inputs.double()
        squared_lengths = squared_norms(wide)
        squared = gram_norms(padded_gram(wide), squared_lengths.sqrt(), grad_output, width_in)
        return precise(squared, squared_lengths.sum(1))

    squared = _in_pieces(squared_norms_of, records, inputs, grad_output)
    return Bilinear(inputs=inputs, grad_output=grad_output, squared_norms=squared, form=_outer_in_double)


def _is_cheaper_in_factors(positions: int, width_in: int, width_out: int) -> bool:
    """Return whether inputs and output gradients at all positions are fewer numbers than the gradient itself."""
    return positions * (width_in + width_out) < width_in * width_out


def _in_pieces(norms: Callable[[Tensor, Tensor], Tensor], pieces: int, one: Tensor, other: Tensor) -> Tensor:
    """Compute norms for a k-th of the persons at a time. Their products take k² times the memory of a record's."""
    size = max(1, len(one) // pieces)
    return torch.cat([norms(x, g) for x, g in zip(one.split(size), other.split(size), strict=True)])


def _write_out(inputs: Tensor, grad_output: Tensor, storage: Storage) -> SampleGradients:
    if storage is Storage.KEEP:
        return _write_sequence_weight(inputs, grad_output)
    size = inputs.shape[2] * grad_output.shape[2] * inputs.element_size()
    return Rewritten(inputs, grad_output, _write_sequence_weight, size)


def _write_sequence_weight(inputs: Tensor, grad_output: Tensor) -> Stored:
    return stored(padded_bmm(grad_output.mT, inputs))  # (B, p, d)


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

    squared = _in_pieces(squared_norms_of, records, tokens, grads)
    return {"weight": Bilinear(inputs=tokens, grad_output=grads, squared_norms=squared, form=add_rows)}


def norm_gradients(
    module: nn.Module,
    names: Sequence[str],
    inputs: Tensor,
    grad_output: Tensor,
    storage: Storage,
    *,
    records: int = 1,
) -> dict[str, SampleGradients | Deferred]:
    """Apply the rule for GroupNorm and LayerNorm: one small vector for each record. See `LayerRule`."""
    del storage
    if isinstance(module, nn.GroupNorm):
        normalised = F.group_norm(inputs, module.num_groups, eps=module.eps)
        summed = tuple(range(2, inputs.dim()))
    else:
        assert isinstance(module, nn.LayerNorm)  # noqa: S101
        normalised = F.layer_norm(inputs, module.normalized_shape, eps=module.eps)
        summed = tuple(range(1, inputs.dim() - len(module.normalized_shape)))
    per_sample = {"weight": grad_output * normalised, "bias": grad_output}
    each = ((name, per_sample[name].sum(summed) if summed else per_sample[name]) for name in names)
    return {name: stored(added_by_person(gradients, records)) for name, gradients in each}


RULES: dict[type[nn.Module], LayerRule] = {
    nn.Linear: linear_gradients,
    nn.Conv2d: conv2d_gradients,
    nn.Embedding: embedding_gradients,
    nn.GroupNorm: norm_gradients,
    nn.LayerNorm: norm_gradients,
}


def has_rule(module: nn.Module) -> bool:
    """Return True if a rule serves this module. Subclasses do not count: they may compute something else."""
    return type(module) in RULES and getattr(module, "padding_mode", "zeros") == "zeros"


def vmap_gradients(
    module: nn.Module,
    names: Sequence[str],
    inputs: tuple[Tensor, ...],
    grad_outputs: tuple[Tensor, ...],
    *,
    records: int = 1,
) -> dict[str, SampleGradients]:
    """Return per-sample gradients of any module, by parameter name. Refuse a module that vmap cannot run.

    Args:
        module: The module, with all modules below it.
        names: Its trained parameters.
        inputs: Its inputs, each (B k, ...).
        grad_outputs: Gradients of the loss with respect to its outputs, each (B k, ...).
        records: k, the number of records of a person. Their gradients are added.
    """
    values = {name: module.get_parameter(name).detach() for name in names}

    def weighted_output(parameters: dict[str, Tensor], record: tuple[Tensor, ...], grads: tuple[Tensor, ...]) -> Tensor:
        output = functional_call(module, parameters, tuple(t.unsqueeze(0) for t in record))
        outputs = (output,) if isinstance(output, Tensor) else tuple(t for t in output if t is not None)
        return torch.stack([(o[0] * g).sum() for o, g in zip(outputs, grads, strict=True)]).sum()

    try:
        found = vmap(grad(weighted_output), in_dims=(None, 0, 0))(values, inputs, grad_outputs)
    except RuntimeError as error:  # an operation without vmap support, or randomness inside the module
        raise UnsupportedModelError(
            f"{type(module).__name__} has no rule for per-sample gradients, and torch.func.vmap cannot run it "
            f"({str(error).splitlines()[0]}); build it from Linear, Conv2d, Embedding, GroupNorm, LayerNorm and layers "
            "without parameters, keep dropout outside of it, or freeze it"
        ) from error
    # Popped, so that only one is in memory twice.
    return {name: stored(added_by_person(found.pop(name), records)) for name in names}
