"""How much memory a release takes, whatever its length. The pieces that it is added up in change no value."""

import tracemalloc

import numpy as np
import pytest
import torch

from alidpfl.data import table_sums
from alidpfl.data.table_sums import noised_sum_of_rows
from alidpfl.dpsgd import RandomStream, release
from alidpfl.releases import compute
from alidpfl.releases.evaluation import contributions
from alidpfl.releases.queries import EvaluationQuery
from alidpfl.tables.encode import Encoder
from alidpfl.tables.statistics import Layout
from tests.tables.parts import schema, table

MOST_VALUES = 1 << 22


def evaluation():
    classes = 2000
    asked, random = EvaluationQuery(task="class", outputs=classes), np.random.default_rng(0)
    inputs = torch.from_numpy(random.normal(size=(60, 3)).astype(np.float32))
    model, targets = torch.nn.Linear(3, classes), torch.from_numpy(random.integers(classes, size=60))
    return compute.evaluated(
        asked, model, inputs, targets, torch.arange(60), noise_multiplier=2.0, random=RandomStream.seeded(1)
    )


def statistics():
    rows, layout = Encoder(schema()).encode(table(3000), needs_target=True), Layout(schema(), bins=1000)
    return noised_sum_of_rows(
        rows.inputs, rows.targets, layout, noise_multiplier=2.0, random=RandomStream.seeded(1)
    ).numpy()


@pytest.mark.parametrize(("module", "told"), [(compute, evaluation), (table_sums, statistics)])
def test_long_answers_are_added_up_in_small_pieces(monkeypatch, module, told):
    sizes, whole = [], module.noised_total

    def watched(pieces, *arguments, **options):
        return whole((sizes.append(piece.numel()) or piece for piece in pieces), *arguments, **options)

    monkeypatch.setattr(module, "noised_total", watched)
    torch.manual_seed(0)
    found = told()
    assert len(sizes) > 1
    assert max(sizes) <= MOST_VALUES
    monkeypatch.setattr(release, "_VALUES_AT_A_TIME", 1 << 40)
    torch.manual_seed(0)
    assert np.array_equal(told(), found)
    assert len(sizes) > 2


def test_a_record_of_many_classes_takes_little_memory():
    asked = EvaluationQuery(task="class", outputs=5000)
    tracemalloc.start()
    try:
        found = contributions(asked, np.zeros((1, 5000), np.float32), np.array([7]))
        assert tracemalloc.get_traced_memory()[1] < 64e6
    finally:
        tracemalloc.stop()
    tallies = asked.layout.split(found[0])["tallies"]
    assert [int(row.argmax()) for row in tallies[:2]] == [7, 0]
