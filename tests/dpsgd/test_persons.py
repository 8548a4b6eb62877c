"""Clipping by person: exact, strict, and independent of the other persons."""

import math

import pytest
import torch

from alidpfl.dpsgd import PerSampleClipper, SoftmaxClipper, softmax

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


def _softmax_case(count, features, classes, seed=0):
    generator = torch.Generator().manual_seed(seed)
    model = torch.nn.Linear(features, classes, bias=False)
    torch.nn.init.normal_(model.weight, std=0.1, generator=generator)
    return model, torch.randn(count, features, generator=generator), torch.arange(count) % classes


@pytest.mark.parametrize("records", [1, 2, 3, 4, 5, 6, 7, 8, 9, 20, 70])
@pytest.mark.parametrize(("features", "classes"), [(37, 10), (300, 3), (2100, 4), (5, 17)])
def test_softmax_regression_equals_the_oracle(features, classes, records, path):
    count, rows, weights = persons.drawn(70 if records < 9 else 9, records)
    model, x, y = _softmax_case(count, features, classes)
    truth = persons.gradients(model, x, y, rows, weights)
    norms = torch.tensor([norm(g) for g in truth], dtype=torch.float64)
    clip_norm = float(norms.median())
    ours = SoftmaxClipper(model).clipped_sum(x, y, clip_norm=clip_norm, seed=0, rows=rows, weights=weights)
    torch.testing.assert_close(ours.statistics.norms, norms, rtol=2e-5, atol=1e-7)
    expected = persons.clipped_sum(truth, clip_norm * softmax._margin(records))
    assert distance(ours.gradients, expected) <= 1e-4 * clip_norm
