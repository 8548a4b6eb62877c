"""A sample's gradient is its own: neither how many others there are nor who they are changes a bit of it."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from alidpfl.dpsgd import PerSampleClipper, SoftmaxClipper, native
from alidpfl.dpsgd.filling import filled, filled_size
from alidpfl.models import make_model

HUGE = 1e3  # weights under which rounding decides the class


def made(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def as_a_client_trains():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def clipper_for(name, is_native, monkeypatch):
    if not is_native:
        monkeypatch.setattr(native, "is_available", lambda: False)
    if name == "softmax":
        model = nn.Linear(784, 10, bias=False)
        clipper = SoftmaxClipper(model)
    else:
        model = make_model(name, (1, 28, 28), 10, hidden=128, seed=0)
        clipper = PerSampleClipper(model)
        nothing = torch.zeros(0, dtype=torch.int64)
        clipper.clipped_sum(torch.zeros(0, 1, 28, 28), nothing, clip_norm=1.0, seed=0)  # the trial, at its own weights
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(HUGE)
    return clipper


def own_facts(clipper, inputs, targets, rows):
    """Norm and loss of each sample of the batch, in the order of `rows`: they change if any bit of a gradient does."""
    found = clipper.clipped_sum(inputs, targets, clip_norm=1.0, seed=0, rows=rows).statistics
    return torch.stack([found.norms, found.losses.double()], dim=1)


@pytest.mark.parametrize("name", ["softmax", "linear", "mlp", "compact_cnn"])
@pytest.mark.parametrize("is_native", [True, False])
def test_a_sample_does_not_feel_the_others(name, is_native, monkeypatch):
    """Batches of every size up to 20 and some beyond, each without its first sample too: all the others move up."""
    if is_native and not native.is_available():
        pytest.skip("no native kernels here")
    clipper = clipper_for(name, is_native, monkeypatch)
    shape = (784,) if name == "softmax" else (1, 28, 28)
    inputs, targets = made(150, *shape), torch.arange(150) % 10
    whole = own_facts(clipper, inputs, targets, torch.arange(150))
    for size in [*range(1, 20), 31, 33, 64, 90, 129]:
        assert torch.equal(own_facts(clipper, inputs, targets, torch.arange(size)), whole[:size])
        assert torch.equal(own_facts(clipper, inputs, targets, torch.arange(1, size + 1)), whole[1 : size + 1])


@pytest.mark.parametrize("kind", ["softmax", "network"])
def test_rounding_that_decides_the_class_decides_it_alike_for_every_batch(kind, monkeypatch):
    """Two classes whose scores are sums of the same numbers in another order: equal, but for their rounding.

    Whoever comes must not turn the others' classes over: the sum moves by the newcomer's part alone.
    """
    monkeypatch.setattr(native, "is_available", lambda: False)
    for seed in range(6):
        row = 1e8 * made(300, seed=seed)
        model = nn.Linear(300, 2, bias=False)
        with torch.no_grad():
            model.weight.copy_(torch.stack([row, row[torch.randperm(300, generator=torch.Generator().manual_seed(1))]]))
        clipper = SoftmaxClipper(model) if kind == "softmax" else PerSampleClipper(model)
        x, y = torch.full((12, 300), 0.5) * torch.arange(1, 13)[:, None], torch.zeros(12, dtype=torch.int64)
        sums = [
            clipper.clipped_sum(x[:n], y[:n], clip_norm=1.0, seed=0).gradients["weight"].double() for n in range(1, 13)
        ]
        for before, after in pairwise(sums):
            assert float((after - before).norm()) <= 1 + 1e-5


def test_what_fills_a_batch_adds_nothing(monkeypatch):
    """Also where its own gradient is not finite: biases of 3e38 overflow on zeros."""
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    clipper = PerSampleClipper(model)
    x, y = made(3, 4), torch.tensor([0, 1, 2])
    clipper.clipped_sum(x, y, clip_norm=1.0, seed=0)  # the trial, at its own weights
    with torch.no_grad():
        model[0].bias.fill_(3e38)
        model[2].bias.fill_(3e38)
    found = clipper.clipped_sum(x, y, clip_norm=1.0, seed=0)
    assert found.statistics.num_non_finite == 3
    assert all(bool((g == 0).all()) for g in found.gradients.values())


def test_sizes():
    assert [filled_size(size) for size in (1, 15, 16, 17, 24, 25, 128)] == [16, 16, 16, 24, 24, 32, 128]
    whole = filled(torch.ones(2, 3), 4, 7.0)
    assert whole.tolist() == [[1.0] * 3] * 2 + [[7.0] * 3] * 2
    kept = torch.ones(4)
    assert filled(kept, 4) is kept
