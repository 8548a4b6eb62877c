"""Releases with persons as the unit: a person adds a mean vector, and only persons are counted."""

import numpy as np
import pytest
import torch
from torch import nn

from alidpfl.data.table_sums import noised_sum_of_rows
from alidpfl.dpsgd import Groups, RandomStream
from alidpfl.releases.compute import evaluated
from alidpfl.releases.evaluation import contributions
from alidpfl.tables.statistics import Layout
from tests.releases.parts import query
from tests.tables.parts import schema

MOST = 3
PERSONS = torch.tensor([0, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3])
TINY = 1e-6  # so little noise that it hides nothing


def records():
    random = np.random.default_rng(0)
    inputs = torch.from_numpy(random.normal(size=(len(PERSONS), 13)).astype(np.float32))
    return inputs, torch.from_numpy(random.integers(2, size=len(PERSONS)))


def release(groups, *, sigma=TINY, inputs=None, targets=None, max_records=MOST, seed=1):
    asked, model = query("two classes"), nn.Linear(13, 2)
    nn.init.ones_(model.weight)
    nn.init.zeros_(model.bias)
    x, y = records()
    inputs, targets = x if inputs is None else inputs, y if targets is None else targets
    values = evaluated(
        asked,
        model,
        inputs,
        targets,
        groups.rows,
        noise_multiplier=sigma,
        random=RandomStream.seeded(seed),
        groups=groups,
        max_records=max_records,
    )
    vectors = contributions(asked, model(inputs).detach().numpy(), targets.numpy())
    return values, vectors


def test_a_person_adds_the_mean_of_her_records():
    values, vectors = release(Groups.of(PERSONS), max_records=5)
    expected = sum(vectors[PERSONS.numpy() == person].mean(0) for person in range(4))
    assert np.abs(values - expected).max() < 1e-4


def test_of_many_records_k_are_drawn_anew_by_every_release():
    values = [release(Groups.of(PERSONS), seed=seed)[0] for seed in range(12)]
    assert len({value.round(4).tobytes() for value in values}) > 3
    alone = Groups.of(PERSONS[PERSONS == 2], torch.nonzero(PERSONS == 2).flatten())
    drawn = [release(alone, seed=seed) for seed in range(400)]
    mean = np.mean([values for values, _ in drawn], axis=0)
    assert np.abs(mean - drawn[0][1][3:8].mean(0)).max() < 0.05


@pytest.mark.parametrize("person", range(4))
def test_a_person_moves_the_sums_by_at_most_one(person):
    """Whatever her records are, and however many. The draws of the others are frozen: each has few enough."""
    random = np.random.default_rng(3)
    inputs, _ = records()
    for scale in (1.0, 1e3, 1e30, np.nan):
        changed = inputs.clone()
        rows = person == PERSONS
        changed[rows] = torch.from_numpy(random.normal(size=(int(rows.sum()), 13)).astype(np.float32)) * scale
        others = Groups.of(PERSONS[~rows], torch.nonzero(~rows).flatten())
        with_her, _ = release(Groups.of(PERSONS), inputs=changed, max_records=5)
        without, _ = release(others, inputs=changed, max_records=5)
        assert np.linalg.norm(with_her.astype(np.float64) - without) <= 1 + 1e-4


def test_a_release_is_noised_as_it_is_charged():
    values = np.stack([release(Groups.of(PERSONS), sigma=50.0, seed=seed)[0] for seed in range(100)])
    assert values.std() == pytest.approx(50.0, rel=0.05)


class TestTables:
    def test_statistics_are_of_persons(self):
        layout = Layout(schema(), bins=4)
        random = np.random.default_rng(1)
        inputs = random.uniform(-1, 1, (len(PERSONS), schema().width)).astype(np.float32)
        targets = random.integers(2, size=len(PERSONS))
        rows = layout.vectors(inputs, targets)
        found = noised_sum_of_rows(
            inputs,
            targets,
            layout,
            noise_multiplier=TINY,
            random=RandomStream.seeded(1),
            groups=Groups.of(PERSONS),
            max_records=5,
        ).numpy()
        expected = sum(rows[PERSONS.numpy() == person].mean(0) for person in range(4))
        assert np.abs(found - expected).max() < 1e-4

    @pytest.mark.parametrize("most", [1, 2, 5])
    def test_a_person_moves_the_sum_by_at_most_c(self, most):
        layout = Layout(schema(), bins=4)
        inputs = np.ones((len(PERSONS), schema().width), np.float32)
        targets = np.ones(len(PERSONS), np.int64)

        def total(groups):
            return noised_sum_of_rows(
                inputs,
                targets,
                layout,
                noise_multiplier=TINY,
                random=RandomStream.seeded(1),
                groups=groups,
                max_records=most,
            ).double()

        whole = total(Groups.of(PERSONS))
        for person in range(4):
            rows = person != PERSONS
            others = total(Groups.of(PERSONS[rows], torch.nonzero(rows).flatten()))
            moved = float((whole - others).norm())
            assert 0.5 * layout.sensitivity < moved <= layout.sensitivity * (1 + 1e-5)
