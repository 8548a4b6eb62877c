"""What one record adds: a vector of norm at most 1 whatever the model answers, and counts that are what they say."""

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from scipy import stats
from torch import nn

from alidpfl.dpsgd import Groups, RandomStream
from alidpfl.releases.compute import evaluated
from alidpfl.releases.estimates import NoisedSums
from alidpfl.releases.evaluation import contributions
from alidpfl.releases.queries import EvaluationQuery

from .parts import OUTPUTS, population, query

HOSTILE = (0.0, 1e-30, 1.0, -1.0, 50.0, -1e3, 1e30, -1e38, math.inf, -math.inf, math.nan)


@pytest.mark.parametrize("task", OUTPUTS)
def test_the_norm_of_a_record_is_at_most_one_whatever_the_model_answers(task):
    random, asked = np.random.default_rng(0), query(task)
    outputs, targets = population(task, random, 2000)
    outputs[:1500] = random.choice(HOSTILE, size=outputs[:1500].shape)
    if task == "number":
        targets[:200] = random.choice(HOSTILE[:8], size=200)
    found = contributions(asked, outputs, targets)
    assert found.shape == (2000, asked.layout.size)
    assert np.isfinite(found).all()
    norms = np.linalg.norm(found, axis=1)
    assert norms.max() <= 1 + 1e-12
    assert norms.max() > 0.5  # noise is not wasted


@pytest.mark.parametrize("task", OUTPUTS)
def test_every_block_keeps_its_bound_and_their_shares_are_one(task):
    layout = query(task).layout
    assert sum(block.most * layout.scales[block.name] ** 2 for block in layout.blocks) == pytest.approx(1)
    outputs, targets = population(task, np.random.default_rng(0), 500)
    found = contributions(query(task), outputs, targets)
    for block in layout.blocks:
        entries = np.array([layout.split(row)[block.name] for row in found]).reshape(500, -1)
        assert (entries**2).sum(1).max() <= block.most * (1 + 1e-12)


def test_counts_are_those_of_the_records():
    outputs, targets = population("two classes", np.random.default_rng(0), 3000)
    asked = query("two classes")
    sums = asked.layout.split(contributions(asked, outputs, targets).sum(0))
    guesses = outputs.argmax(1)
    assert sums["counts"] == pytest.approx([3000, (guesses == targets).sum()])
    expected = [np.bincount(targets), np.bincount(guesses), np.bincount(targets[guesses == targets])]
    assert sums["tallies"] == pytest.approx(np.array(expected))
    assert sums["scores"].sum(axis=(0, 1)) == pytest.approx(np.bincount(targets))
    p = 1 / (1 + np.exp(-outputs[:, 1]))
    for place, (low, high) in enumerate(zip((0, *asked.edges), (*asked.edges, 1), strict=True)):
        inside = (p >= low) & (p < high)
        assert sums["scores"][0, place] == pytest.approx(np.bincount(targets[inside], minlength=2))


def test_a_record_changes_nothing_of_the_others():
    """A vector is a function of its own record: the same bits alone and among others."""
    for task in OUTPUTS:
        outputs, targets = population(task, np.random.default_rng(0), 40)
        together = contributions(query(task), outputs, targets)
        for place in (0, 17, 39):
            alone = contributions(query(task), outputs[place : place + 1], targets[place : place + 1])
            assert np.allclose(alone[0], together[place], rtol=1e-12)


class RoundingModel(nn.Module):
    """Its weights make scores that lie on the edge of a bin: one bit of rounding moves a record."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(13, 2)
        nn.init.normal_(self.layer.weight, std=3e3)

    def forward(self, x):
        out = self.layer(x)
        return out - out.detach().round() + 0.5 * torch.sign(out - out.round())


@pytest.mark.parametrize("model", [nn.Linear(13, 2), RoundingModel()])
def test_removing_a_record_moves_the_sums_by_its_own_vector(model):
    """Frozen noise: the difference of two releases is one vector of norm at most 1, to the grid of the noise."""
    random = np.random.default_rng(0)
    inputs = torch.from_numpy(random.normal(size=(60, 13)).astype(np.float32))
    targets, asked = torch.from_numpy(random.integers(2, size=60)), query("two classes")

    def released(rows):
        return evaluated(
            asked, model, inputs, targets, torch.tensor(rows), noise_multiplier=1.0, random=RandomStream.seeded(3)
        ).astype(np.float64)

    whole = released(list(range(60)))
    for gone in (0, 1, 30, 59):
        moved = whole - released([row for row in range(60) if row != gone])
        outputs = model(inputs[gone : gone + 1]).detach().numpy()
        own = contributions(asked, outputs, targets[gone : gone + 1].numpy())[0]
        assert np.abs(moved - own).max() <= 2 / 256  # a step of the grid
        assert np.linalg.norm(moved) <= 1 + math.sqrt(asked.layout.size) / 256


@pytest.mark.parametrize("noise", ["gaussian", "grid"])
def test_the_noise_is_that_of_the_charge_in_every_coordinate(noise):
    """Standard deviation within 5 of its own, and Kolmogorov-Smirnov with one false alarm in a million."""
    asked, sigma, values = query("two classes"), 3.0, []
    model, nothing = nn.Linear(4, 2), torch.zeros((1, 4))
    for number in range(300):
        random = RandomStream.seeded(7, number)
        rows = torch.arange(0)
        values.append(
            evaluated(
                asked, model, nothing, torch.zeros(1, dtype=torch.int64), rows,
                noise_multiplier=sigma, random=random, noise=noise,
            )
        )  # fmt: skip
    drawn = np.stack(values) / sigma
    assert drawn.std() == pytest.approx(1, abs=5 / math.sqrt(2 * drawn.size))
    assert stats.kstest(drawn.ravel(), "norm").pvalue > 1e-6
    for wrong in (2 / 3, 1.5):
        assert stats.kstest(drawn.ravel() / wrong, "norm").pvalue < 1e-6
    correlations = np.corrcoef(drawn.T) - np.eye(asked.layout.size)
    assert np.abs(correlations).max() < 6 / math.sqrt(300)
    scales = asked.layout.scales
    assert NoisedSums.of(asked, [drawn[0]], [sigma]).noise == {name: sigma / scale for name, scale in scales.items()}


@pytest.mark.parametrize("groups", [None, Groups.of(torch.tensor([0, 0, 1, 1, 1]))])
def test_records_go_through_the_model_one_at_a_time(groups):
    """In one product, a record could change how the outputs of others round, and so their bins."""
    seen, model = [], nn.Linear(4, 2)
    model.register_forward_hook(lambda _, inputs, __: seen.append(len(inputs[0])))
    evaluated(
        query("two classes"), model, torch.randn(5, 4), torch.tensor([0, 1, 0, 1, 1]), torch.arange(5),
        noise_multiplier=2.0, random=RandomStream.seeded(1), groups=groups, max_records=2,
    )  # fmt: skip
    assert seen == [1] * (5 if groups is None else 4)


def test_no_records_release_noise_alone():
    asked = query("number")
    found = evaluated(
        asked, nn.Linear(4, 1), torch.zeros((1, 4)), torch.zeros(1), torch.arange(0),
        noise_multiplier=2.0, random=RandomStream.seeded(1),
    )  # fmt: skip
    assert found.shape == (asked.layout.size,)
    assert (found != 0).all()


@pytest.mark.parametrize(
    "values",
    [
        {"outputs": 1},
        {"outputs": 0},
        {"outputs": 10_000, "edges": tuple(np.linspace(0.01, 0.99, 99).tolist())},  # too large an answer
        {"task": "number"},
        {"edges": (0.5, 0.5)},
        {"edges": (0.0, 0.5)},
        {"edges": (0.5, 1.0)},
        {"edges": (0.5, math.nan)},
        {"edges": tuple(np.linspace(0.001, 0.999, 201).tolist())},
        {"largest_loss": 0.0},
        {"largest_loss": math.inf},
        {"kind": "other"},
        {"more": 1},
    ],
)
def test_queries_out_of_bounds_are_refused(values):
    with pytest.raises(ValidationError):
        EvaluationQuery.model_validate({"task": "class", "outputs": 2, **values})
