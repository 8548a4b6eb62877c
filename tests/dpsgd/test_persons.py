"""Clipping by person: exact, strict, and independent of the other persons."""

import math

import pytest
import torch

from alidpfl.dpsgd import PerSampleClipper

from . import persons
from .oracle import distance, norm
from .zoo import CASES


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("keep", ["stored", "recomputed"])
@pytest.mark.parametrize("records", [1, 2, 3, 7])
def test_equals_the_oracle(name, keep, records, path):
    """Norms, losses and the clipped sum, with a clip norm that clips about half of the persons."""
    count, rows, weights = persons.drawn(7, records)
    model, (x, y) = CASES[name].model(), CASES[name].batch(count)
    truth = persons.gradients(model, x, y, rows, weights)
    norms = torch.tensor([norm(g) for g in truth], dtype=torch.float64)
    clip_norm = float(norms.median())

    clipper = PerSampleClipper(model, max_gradient_bytes=32 << 20 if keep == "stored" else 0)
    ours = clipper.clipped_sum(x, y, clip_norm=clip_norm, seed=0, rows=rows, weights=weights)

    torch.testing.assert_close(ours.statistics.norms, norms, rtol=2e-5, atol=1e-7)
    assert (norms > clip_norm).any()
    assert (norms < clip_norm).any()
    expected = persons.clipped_sum(truth, clip_norm * persons.margin(records))
    assert distance(ours.gradients, expected) <= 1e-4 * clip_norm
