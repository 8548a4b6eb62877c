"""The client's side of a release: from records to noised sums. A simulation and a vault run this code.

Records go through the model one at a time, from one place in memory, and so do their vectors. Otherwise a record could
change how the outputs of *others* round. A hostile server could choose weights by which that decides their bins.
"""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from alidpfl.dpsgd import Groups, RandomStream, noised_total
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
    groups: Groups | None = None,
    max_records: int = 1,
) -> NDArray[np.float32]:
    """Return the noised sums (size,) of an evaluation. Charge one release of σ to the records before you call this.

    With `groups` each person adds one vector: the mean over at most k of her rows, drawn afresh. The bound on its norm
    is that of a record's vector.

    Args:
        query: what is asked. It must fit the model and the targets.
        model: the model, in evaluation mode.
        inputs: (n, ...) records that are shared.
        targets: (n,) or (n, k) their targets.
        rows: the rows to evaluate on. There may be none: then only noise is released.
        noise_multiplier: σ of every coordinate; the sums have sensitivity 1.
        random: source of the noise.
        noise: "gaussian", or "grid" for exact noise.
        groups: the rows of each person, if the unit of privacy is a person. None means that it is a record.
        max_records: k, the most rows of a person.
    """
    weights = None
    if groups is not None:
        rows, weights = groups.draw(torch.arange(len(groups)), max_records, random)
    shares = torch.ones(len(rows), 1) if weights is None else weights
    total = noised_total(
        _vectors(query, model, (inputs, targets), rows.view(shares.shape), shares),
        query.layout.size,
        clip_norm=1.0,
        noise_multiplier=noise_multiplier,
        random=random,
        noise=noise,
    )
    return total.numpy()


def _vectors(
    query: EvaluationQuery, model: nn.Module, records: tuple[Tensor, Tensor], rows: Tensor, shares: Tensor
) -> Iterator[Tensor]:
    """Yield what each unit adds, in pieces (b, size): the sum of its rows' vectors, weighted by their shares (n, k)."""
    inputs, targets = records
    one = torch.empty((1, *inputs.shape[1:]), dtype=inputs.dtype)
    device = next(model.parameters()).device
    at_a_time = rows_at_a_time(query.layout.size, _MOST_ROWS_AT_A_TIME)
    for some, its_shares in zip(rows.split(at_a_time), shares.split(at_a_time), strict=True):
        piece = np.empty((len(some), query.layout.size), np.float32)
        for place, (own, own_shares) in enumerate(zip(some.tolist(), its_shares.tolist(), strict=True)):
            vector = np.zeros(query.layout.size)
            for row, share in zip(own, own_shares, strict=True):
                one[0] = inputs[row]
                outputs = model(one.to(device)).cpu().numpy().reshape(1, -1)
                vector += share * contributions(query, outputs, targets[row : row + 1].numpy())[0]
            piece[place] = vector
        yield torch.from_numpy(piece)
