"""Per-sample gradients of linear layers, on vectors and on sequences."""

from collections.abc import Sequence

from torch import Tensor, nn

from alidpfl.dpsgd.gradient_forms import (
    Bilinear,
    Deferred,
    Rewritten,
    SampleGradients,
    Storage,
    Stored,
    gram_norms,
    in_pieces,
    orthogonal,
    precise,
    squared_norms,
    stored,
)
from alidpfl.dpsgd.padding import padded_bmm, padded_gram


def linear_gradients(
    module: nn.Module,
    names: Sequence[str],
    inputs: Tensor,
    grad_output: Tensor,
    storage: Storage,
    *,
    records: int = 1,
) -> dict[str, SampleGradients | Deferred]:
    """Apply the rule for Linear on (B k, d), or on (B k, ..., d), summed over positions. See `layers.LayerRule`."""
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
    return {**sequence_gradients(names, inputs, grad_output, storage, records)}


def sequence_gradients(
    names: Sequence[str], inputs: Tensor, grad_output: Tensor, storage: Storage, records: int
) -> dict[str, SampleGradients]:
    """Return the gradients of a linear layer, summed over all dimensions between the first and the last.

    Args:
        names: "weight", "bias" or both.
        inputs: (B k, ..., d).
        grad_output: (B k, ..., p).
        storage: What to do with gradients that must be written out.
        records: k, the records of a person.
    """
    found: dict[str, SampleGradients] = {}
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

    squared = in_pieces(squared_norms_of, records, inputs, grad_output)
    return Bilinear(inputs=inputs, grad_output=grad_output, squared_norms=squared, form=_outer_in_double)


def _is_cheaper_in_factors(positions: int, width_in: int, width_out: int) -> bool:
    """Return whether inputs and output gradients at all positions are fewer numbers than the gradient itself."""
    return positions * (width_in + width_out) < width_in * width_out


def _write_out(inputs: Tensor, grad_output: Tensor, storage: Storage) -> SampleGradients:
    if storage is Storage.KEEP:
        return _write_sequence_weight(inputs, grad_output)
    size = inputs.shape[2] * grad_output.shape[2] * inputs.element_size()
    return Rewritten(inputs, grad_output, _write_sequence_weight, size)


def _write_sequence_weight(inputs: Tensor, grad_output: Tensor) -> Stored:
    return stored(padded_bmm(grad_output.mT, inputs))  # (B, p, d)
