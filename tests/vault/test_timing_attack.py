"""The attack on answering times: its weights make one record overflow, and its statistic tells times apart."""

import numpy as np
import pytest
import torch

from alidpfl.federation.tensors import trained
from alidpfl.models import make_model
from benchmarks.timing import (
    NUM_CLASSES,
    OUTLIER,
    SHAPES,
    WITH,
    WITHOUT,
    Case,
    Outcome,
    auc,
    hostile_weights,
    made_records,
)


@pytest.mark.parametrize("model", SHAPES)
def test_the_outlier_overflows_and_no_other_record(model):
    network = make_model(model, SHAPES[model], NUM_CLASSES, hidden=128, seed=0)
    parameters = trained(network)
    shapes = {name: tuple(values.shape) for name, values in parameters.items()}
    for name, values in hostile_weights(model, shapes, np.random.default_rng(0)).items():
        parameters[name].data = torch.from_numpy(values)
    for has_it in (True, False):
        inputs, targets = map(torch.from_numpy, made_records(model, has_it=has_it))
        overflowed = [k for k in range(20) if not _is_finite(network, parameters, inputs[k], targets[k])]
        assert overflowed == ([OUTLIER] if has_it else [])


def _is_finite(network, parameters, record, target) -> bool:
    loss = torch.nn.functional.cross_entropy(network(record[None]), target[None])
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    return all(bool((g.double().square().sum() < 1e38).item()) for g in gradients)  # false for NaN


def test_times_that_differ_are_told_apart_and_equal_ones_are_not():
    random = np.random.default_rng(0)
    same, alike, longer = (random.normal(mean, 1.0, size=400).tolist() for mean in (0.0, 0.0, 3.0))
    told = Outcome(Case("linear", 1.0), {WITH: longer, WITHOUT: same}, 0)
    assert told.auc > 0.95
    assert told.interval[0] > 0.9
    assert told.grouped(np.median) == 1.0
    again = Outcome(Case("linear", 1.0), {WITH: alike, WITHOUT: same}, 0)
    assert abs(again.auc - 0.5) < 0.05
    assert again.interval[0] < 0.5 < again.interval[1]
    assert auc(np.array([2.0, 3.0]), np.array([1.0, 2.0])) == 0.875
