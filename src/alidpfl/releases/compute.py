"""The client's side of a release: from records to noised sums. A simulation and a vault run this code.

Records go through the model one at a time, from one place in memory, and so do their vectors. Otherwise a record could
change how the outputs of *others* round. A hostile server could choose weights by which that decides their bins.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from alidpfl.dpsgd import RandomStream, noised_total
from alidpfl.dpsgd.release import rows_at_a_time
from alidpfl.releases.evaluation import contributions
from alidpfl.releases.queries import EvaluationQuery
from alidpfl.types import NoiseKind

_MOST_ROWS_AT_A_TIME = 256


@torch.no_grad()
def evaluated(
    query: EvaluationQuery,
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    rows: Tensor,
    *,
    noise_multiplier: float,
    random: RandomStream,
    noise: NoiseKind = "gaussian",
) -> NDArray[np.float32]:
    """Return the noised sums (size,) of an evaluation. Charge one release of σ to the records before you call this.

    Args:
        query: what is asked. It must fit the model and the targets.
        model: the model, in evaluation mode.
        inputs: (n, ...) records that are shared.
        targets: (n,) or (n, k) their targets.
        rows: the rows to evaluate on. There may be none: then only noise is released.
        noise_multiplier: σ of every coordinate; the sums have sensitivity 1.
        random: source of the noise.
        noise: "gaussian", or "grid" for exact noise.
    """
    total = noised_total(
        _vectors(query, model, inputs, targets, rows),
        query.layout.size,
        clip_norm=1.0,
        noise_multiplier=noise_multiplier,
        random=random,
        noise=noise,
    )
    return total.numpy()


def _vectors(
    query: EvaluationQuery, model: nn.Module, inputs: Tensor, targets: Tensor, rows: Tensor
) -> Iterator[Tensor]:
    one = torch.empty((1, *inputs.shape[1:]), dtype=inputs.dtype)
    device = next(model.parameters()).device
    for some in rows.split(rows_at_a_time(query.layout.size, _MOST_ROWS_AT_A_TIME)):
        piece = np.empty((len(some), query.layout.size), np.float32)
        for place, row in enumerate(some.tolist()):
            one[0] = inputs[row]
            outputs = model(one.to(device)).cpu().numpy().reshape(1, -1)
            piece[place] = contributions(query, outputs, targets[row : row + 1].numpy())[0]
        yield torch.from_numpy(piece)
