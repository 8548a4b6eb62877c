"""A client's steps with persons as the unit: who is drawn, what of her, and what the sum is divided by."""

import math
from dataclasses import replace

import pytest
import torch

from alidpfl.dpsgd import Groups, RandomStream, cross_entropy
from alidpfl.errors import ConfigError, DataError
from alidpfl.federation import client
from alidpfl.federation.client import ClientData, LocalTrainer
from alidpfl.federation.tensors import flatten, trained
from alidpfl.methods.method import Objective
from alidpfl.simulation import SimulationData
from alidpfl.types import ClientPlan

COUNTS = torch.tensor([1, 2, 3, 5, 8, 1, 4, 3])
PERSONS = torch.repeat_interleave(torch.arange(len(COUNTS)), COUNTS)
MOST, RATE = 3, 0.3


def data(**changes) -> ClientData:
    random = torch.Generator().manual_seed(1)
    inputs = torch.randn(len(PERSONS), 6, generator=random)
    targets = torch.randint(3, (len(PERSONS),), generator=random)
    rows = torch.arange(len(PERSONS))
    found = ClientData(inputs=inputs, targets=targets, rows=rows, groups=Groups.of(PERSONS, rows), max_records=MOST)
    return replace(found, **changes)


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))


def moved(own: ClientData, steps: int = 1, **changes) -> torch.Tensor:
    """The change of the weights by steps whose noise is a thousandth of C."""
    plan = ClientPlan(
        client=0, round=0, sample_rate=1.0, noise_multiplier=1e-3, clip_norm=0.5, learning_rates=(1.0,) * steps
    )
    start = flatten(trained(model()))
    trainer = LocalTrainer(Objective(model=model(), loss=cross_entropy))
    return trainer.train(start, own, replace(plan, **changes), RandomStream.seeded(1)).params - start


def drawn_batches(monkeypatch, steps):
    """The persons and rows of many steps."""
    batches = []

    def step(*given, rows, weights, places):
        batches.append((places, rows, weights))
        return real(*given, rows=rows, weights=weights, places=places)

    real = client.dp_sgd_step
    monkeypatch.setattr(client, "dp_sgd_step", step)
    moved(data(), steps, sample_rate=RATE, noise_multiplier=1.0)
    return batches


def test_persons_are_drawn_by_a_coin_each_and_k_of_their_records_anew(monkeypatch):
    """Within 5 standard deviations: persons at rate q, and each of m records in k/m of her batches."""
    steps, counts, of_records = 2000, torch.zeros(len(COUNTS)), torch.zeros(len(PERSONS))
    sizes = []
    for places, rows, weights in drawn_batches(monkeypatch, steps):
        assert rows.shape == weights.shape == (len(places), MOST)
        counts[places] += 1
        sizes.append(len(places))
        assert torch.equal(PERSONS[rows], places[:, None].expand_as(rows))  # her own records, padding included
        taken = COUNTS[places].clamp(max=MOST)
        assert torch.equal((weights > 0).sum(1), taken)
        assert torch.allclose(weights.sum(1), torch.ones(len(places)))
        for own, shares in zip(rows, weights, strict=True):
            chosen = own[shares > 0]
            assert len(chosen.unique()) == len(chosen)  # without replacement
            of_records[chosen] += 1
    deviation = math.sqrt(steps * RATE * (1 - RATE))
    assert (counts - steps * RATE).abs().max() < 5 * deviation
    share = RATE * (COUNTS.clamp(max=MOST) / COUNTS)[PERSONS]
    assert ((of_records - steps * share).abs() < 5 * (steps * share * (1 - share)).sqrt()).all()
    variance = torch.tensor(sizes).double().var()
    assert variance == pytest.approx(len(COUNTS) * RATE * (1 - RATE), rel=0.2)


def test_the_divisor_counts_persons():
    """All records of zero pull equally: the update is the clipped sum over persons, divided by q times persons."""
    few = data()
    inputs = few.inputs.clone()
    inputs[:] = 1.0
    targets = torch.zeros_like(few.targets)
    same = replace(few, inputs=inputs, targets=targets)
    one = moved(ClientData(inputs=inputs[:1], targets=targets[:1], rows=torch.arange(1)))
    assert torch.allclose(moved(same), one, atol=4e-3)  # n persons over n persons
    by_record = moved(replace(same, groups=None, max_records=1))
    assert torch.allclose(by_record, one, atol=4e-3)


def test_a_person_with_one_record_counts_as_a_record():
    own = data()
    alone = replace(own, groups=Groups.of(torch.arange(len(own.rows)), own.rows), max_records=1)
    assert torch.allclose(moved(alone), moved(replace(own, groups=None, max_records=1)), atol=4e-3)


def test_a_person_pulls_by_the_mean_of_her_records_clipped_once():
    own = data(max_records=8)
    start = flatten(trained(model()))
    expected = torch.zeros_like(start)
    for person in range(len(COUNTS)):
        network = model()
        rows = person == PERSONS
        loss = cross_entropy(network(own.inputs[rows]), own.targets[rows]).mean()
        gradient = torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(network.parameters()))])
        expected -= gradient * min(1.0, 0.5 / float(gradient.norm())) / len(COUNTS)
    assert torch.allclose(moved(own), expected, atol=4e-3)


def test_the_length_of_a_client_is_the_number_of_its_units():
    assert (len(data()), len(data(groups=None))) == (8, 27)


def test_groups_must_be_those_of_the_client():
    with pytest.raises(DataError, match="exactly once"):
        data(groups=Groups.of(PERSONS[1:], torch.arange(1, len(PERSONS))))
    own = data()
    with pytest.raises(ConfigError, match="groups are of 1 clients"):
        SimulationData(
            inputs=own.inputs, targets=own.targets, clients=own.rows.split(9), evaluation={}, groups=[own.groups]
        )
