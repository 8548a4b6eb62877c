"""A person's gradient depends on her records only, and one person more changes one family of sums."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from alidpfl.dpsgd import (
    OneByOneClipper,
    PerSampleClipper,
    RandomStream,
    SoftmaxClipper,
    dp_sgd_step,
    native,
)
from alidpfl.dpsgd.gradient_forms import Deferred
from alidpfl.dpsgd.places import GROUPS_IN_A_FAMILY, rounding
from alidpfl.dpsgd.recording import Recording

from .oracle import distance, norm
from .persons import margin
from .test_padding import CANCELLING, HUGE, NETWORKS, clipper_for, made, shape_of
from .test_places import _compact_cnn, _entering, _inputs, _linear, _mlp
from .test_same_work import MODELS, RECORDS, SETTINGS, operations, same_work, with_outlier
from .zoo import CASES


@pytest.fixture(autouse=True)
def as_a_client_trains():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def in_order(count, records):
    return torch.arange(count * records).view(count, records), torch.full((count, records), 1 / records)


def own_facts(clipper, inputs, targets, some, records):
    """Norm and loss of each person of the batch: they change if any bit of her gradient does."""
    rows, weights = in_order(len(inputs) // records, records)
    found = clipper.clipped_sum(
        inputs, targets, clip_norm=1.0, seed=0, rows=rows[some], weights=weights[some], places=some
    ).statistics
    return torch.stack([found.norms, found.losses.double()], dim=1)


@pytest.mark.parametrize("name", ["softmax", "linear", "mlp", "compact_cnn", "cnn"])
@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("records", [3, 9])
def test_a_person_does_not_feel_the_others(name, is_native, records, monkeypatch):
    """Batches of every size, each without its first person too: all the others move up."""
    if is_native and not native.is_available():
        pytest.skip("no native kernels here")
    clipper = clipper_for(name, is_native, monkeypatch)
    shape, count = (784,) if name == "softmax" else (1, 28, 28), 140 // records
    inputs, targets = made(count * records, *shape), torch.arange(count * records) % 10
    whole = own_facts(clipper, inputs, targets, torch.arange(count), records)
    for size in sorted({*range(1, 8), 11, 16, count // 2, count - 1}):
        if size >= count:
            continue
        for first in (0, 1):
            some = torch.arange(first, first + size)
            assert torch.equal(own_facts(clipper, inputs, targets, some, records), whole[some]), (size, first)


@pytest.fixture
def bits(monkeypatch):
    """What the rules make of each layer's gradients, bit by bit: norms and the numbers that are summed."""
    seen = {}
    record = Recording._record

    def watching(self, unit, inputs, grads, *rest):
        record(self, unit, inputs, grads, *rest)
        for name, found in self.found.items() if self._records > 1 else ():  # trials are by record
            if isinstance(found, Deferred):
                continue
            seen[f"{name} norms"] = found.squared_norms
            for part in ("directions", "values", "inputs", "grad_output"):
                if hasattr(found, part):
                    of_persons = getattr(found, part)
                    is_slab = type(found).__name__ == "Stored"
                    seen[f"{name} {part}"] = (of_persons.transpose(0, 1) if is_slab else of_persons).clone()

    monkeypatch.setattr(Recording, "_record", watching)

    def of(clipper, inputs, targets, some, records):
        seen.clear()
        own_facts(clipper, inputs, targets, some, records)
        return {name: tensor[: len(some)] for name, tensor in seen.items()}

    return of


@pytest.mark.parametrize("name", list(NETWORKS))
def test_a_person_does_not_feel_her_place_in_a_layer_of_any_width(name, path, bits):
    records = 3
    model = nn.Sequential(*NETWORKS[name])
    clipper = PerSampleClipper(model)
    count = 126 // records
    inputs, targets = made(count * records, *shape_of(name)), torch.arange(count * records) % 2
    clipper.clipped_sum(inputs[:0], targets[:0], clip_norm=1.0, seed=0)  # the trial, at its own weights
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(HUGE)
    whole = bits(clipper, inputs, targets, torch.arange(count), records)
    for first, last in [(1, 2), (1, 9), (2, 7), (3, count), (count // 2, count - 1)]:
        some = torch.arange(first, last)
        found = bits(clipper, inputs, targets, some, records)
        assert found.keys() == whole.keys()
        for what, of_all in whole.items():
            assert torch.equal(found[what], of_all[first:last]), what
    with torch.no_grad():  # the networks are shared by the tests
        for parameter, old in zip(model.parameters(), before, strict=True):
            parameter.copy_(old)


@pytest.mark.parametrize("name", list(CANCELLING))
@pytest.mark.parametrize("records", [2, 5])
def test_a_person_whose_terms_cancel_does_not_feel_her_place(name, records, path):
    layers, inputs, outputs = CANCELLING[name]
    model, targets = nn.Sequential(*layers), torch.arange(100) % outputs
    clipper = PerSampleClipper(model)
    clipper.clipped_sum(inputs[:0], targets[:0], clip_norm=1.0, seed=0)  # the trial, at weights that are not zero
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    everybody = torch.arange(100 // records)
    whole, without = (own_facts(clipper, inputs, targets, some, records) for some in (everybody, everybody[1:]))
    assert torch.equal(whole[1:], without)


# ---- sums


def groups(places: list[int], size: int, records: int) -> list[tuple[int, ...]]:
    """The persons that are added together in float32, by a clipper that only watches."""
    clipper, seen = PerSampleClipper(nn.Linear(1, 2), microbatch_size=size), []
    microbatch = clipper._microbatch
    clipper._trials.before_step = lambda *_, **__: None

    def watching(x, y, clip_norm, weights):
        seen.append(tuple(x[: len(weights) * records : records].flatten().int().tolist()))
        return microbatch(x, y, clip_norm, weights)

    clipper._microbatch = watching
    persons = torch.tensor(places)
    x, y = torch.arange(500)[:, None].float(), torch.zeros(500, dtype=torch.int64)
    rows, weights = persons[:, None].expand(-1, records), torch.full((len(places), records), 1 / records)
    found = clipper.clipped_sum(x, y, clip_norm=1.0, seed=0, rows=rows, weights=weights, places=persons)
    assert len(found.statistics.norms) == len(places)
    return seen


@settings(max_examples=60, deadline=None)
@given(
    places=st.sets(st.integers(0, 400), min_size=1, max_size=100),
    more=st.integers(0, 400),
    size=st.integers(1, 9),
    records=st.integers(1, 5),
)
def test_one_person_more_changes_the_groups_of_one_family(places, more, size, records):
    before, after = (groups(sorted(some), size, records) for some in (places - {more}, places | {more}))
    at_once = max(1, size // records)
    for some, drawn in ((before, places - {more}), (after, places | {more})):
        assert [place for group in some for place in group] == sorted(drawn)
        assert max(len(group) for group in some) <= at_once
    changed = set(before) ^ set(after)
    for some, most in ((before, GROUPS_IN_A_FAMILY * at_once), (after, GROUPS_IN_A_FAMILY * at_once + 1)):
        assert sum(len(group) for group in some if group in changed) <= most


@pytest.mark.parametrize(("build", "count"), [(_linear, 8064), (_mlp, 8064), (_compact_cnn, 4032)])
def test_one_person_moves_a_large_batch_by_at_most_the_clip_norm(build, count):
    """Persons chosen so that sums round as badly as they can, as in test_places.py; none alike is clipped."""
    torch.manual_seed(0)
    model, records, group = build(), 2, 63
    large, one = _entering(model, torch.ones(1)), torch.full((1,), 1e-5)
    small = 0.99 * 2.0**-18 * float(large[0, 0] / (_entering(model, one)[0, 0] / one))
    pattern = torch.tensor([1.0] * 31 + [small] * 31 + [1.0])
    assert len(pattern) == group
    scales = torch.cat([torch.ones(1), pattern.repeat(count // group)]).repeat_interleave(records)
    inputs, everybody = _inputs(model, scales), torch.arange(count + 1)
    targets, (rows, weights) = torch.zeros(len(inputs), dtype=torch.int64), in_order(count + 1, records)
    clipper = PerSampleClipper(model)
    clip_norm = 1.0001 * float(large.norm()) * 0.5**0.5 / margin(records)
    whole, without, alone = (
        clipper.clipped_sum(
            inputs, targets, clip_norm=clip_norm, seed=0, rows=rows[some], weights=weights[some], places=some
        ).gradients
        for some in (everybody, everybody[1:], everybody[:1])
    )
    assert norm(alone) > 0.999 * margin(records) * clip_norm
    assert distance(whole, without) <= clip_norm
    rounded = distance({name: whole[name] - without[name] for name in whole}, alone)
    assert rounded <= rounding(128, GROUPS_IN_A_FAMILY, records) * clip_norm


# ---- the same work


def of_persons(count, records):
    rows, weights = in_order(count, records)
    weights[1] = torch.tensor([1.0] + [0.0] * (records - 1))  # one record, again and again
    rows[1] = rows[1, 0]
    return rows, weights


@pytest.mark.parametrize("limit", [0, 2**25], ids=["rewritten", "kept"])
@pytest.mark.parametrize("name", [name for name in MODELS if name not in ("paper-cnn-mnist", "resnet", "conv1d")])
def test_every_person_takes_the_same_operations(name, limit, path, monkeypatch):
    rows, weights = of_persons(RECORDS // 4, 4)

    def step(value):
        model, x, y = with_outlier(MODELS[name], value)
        clipper = PerSampleClipper(model, max_gradient_bytes=limit)
        clipper.clipped_sum(*MODELS[name].batch(0), clip_norm=1.0, seed=0)
        return lambda: dp_sgd_step(clipper, x, y, SETTINGS, RandomStream.seeded(0), rows=rows, weights=weights)

    same_work(monkeypatch, step)


@pytest.mark.parametrize("kind", ["softmax", "grid"])
@pytest.mark.parametrize("records", [2, 10])
def test_softmax_regression_and_the_grid_take_the_same_operations(kind, records, path, monkeypatch):
    rows, weights = of_persons(RECORDS // records, records)

    def step(value):
        torch.manual_seed(0)
        model = nn.Linear(20, 5, bias=False) if kind == "softmax" else CASES["mlp"].model()
        x, y = CASES["linear"].batch(RECORDS)
        x[7] = value
        clipper = SoftmaxClipper(model) if kind == "softmax" else OneByOneClipper(model)
        if kind == "grid":
            clipper.rehearse(x[:0], y[:0])
        return lambda: dp_sgd_step(clipper, x, y, SETTINGS, RandomStream.seeded(0), rows=rows, weights=weights)

    same_work(monkeypatch, step)


def test_how_many_records_a_person_has_changes_no_operation(path, monkeypatch):
    """Rows and weights differ, shapes do not: 1 record of each person, or 2, or k."""
    x, y = CASES["mlp"].batch(RECORDS)
    seen = []
    for counted in (1, 2, 4):
        clipper = PerSampleClipper(CASES["mlp"].model())
        clipper.clipped_sum(x[:0], y[:0], clip_norm=1.0, seed=0)
        rows, weights = in_order(RECORDS // 4, 4)
        rows = rows[:, torch.arange(4) % counted]
        weights[:] = (torch.arange(4) < counted) / counted
        step = partial(dp_sgd_step, clipper, x, y, SETTINGS, RandomStream.seeded(0), rows=rows, weights=weights)
        seen.append(operations(monkeypatch, step))
    assert len(seen[0]) > 10
    assert seen[0] == seen[1] == seen[2]
