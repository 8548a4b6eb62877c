"""Clipping by person: equal to a slow truth, and never more than C, however her records cancel."""

import functools
import itertools
import math

import pytest
import torch
from torch import nn

from alidpfl.dpsgd import (
    Grid,
    OneByOneClipper,
    PerSampleClipper,
    RandomStream,
    SoftmaxClipper,
    StepSettings,
    dp_sgd_step,
    native,
    noised_sum,
    softmax,
)
from alidpfl.dpsgd.gradient_forms import Orthogonal, _orthogonal, clip_factors, orthogonal
from alidpfl.dpsgd.places import rounding
from alidpfl.errors import ConfigError, DataError, UnsupportedModelError

from . import persons
from .oracle import distance, norm
from .zoo import CASES

SETTINGS = StepSettings(clip_norm=0.5, noise_multiplier=1.0, learning_rate=0.1, expected_batch_size=10.0)


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


def _as_persons(count, records):
    """All records of a data set in order, so many for each person, and equal weights."""
    return torch.arange(count * records).view(count, records), torch.full((count, records), 1 / records)


@pytest.mark.parametrize("name", ["paper-cnn-mnist", "resnet", "embedding", "fallback", "mlp", "sequence-gram"])
@pytest.mark.parametrize(("size", "records"), [(1, 3), (7, 3), (64, 3), (7, 10)])
def test_physical_batch_sizes_agree_with_a_plain_loop(name, size, records, path):
    """A person is never split, not even if she alone has more records than a micro-batch."""
    count, rows, weights = persons.drawn(9, records)
    model, (x, y) = CASES[name].model(), CASES[name].batch(count)
    truth = persons.clipped_sum(persons.gradients(model, x, y, rows, weights), 0.7 * persons.margin(records))
    ours = PerSampleClipper(model, microbatch_size=size).clipped_sum(
        x, y, clip_norm=0.7, seed=0, rows=rows, weights=weights
    )
    assert ours.statistics.norms.shape == ours.statistics.losses.shape == (9,)
    assert distance(ours.gradients, truth) <= 1e-4


@pytest.mark.parametrize("name", [*CASES, "softmax"])
def test_persons_of_one_record_are_records(name, path):
    """To the last bit."""
    if name == "softmax":
        model, x, y = _softmax_case(70, 300, 10)
        clipper = SoftmaxClipper(model)
    else:
        model, (x, y) = CASES[name].model(), CASES[name].batch(70)
        clipper = PerSampleClipper(model)
    rows = torch.arange(70)
    by_record = clipper.clipped_sum(x, y, clip_norm=0.3, seed=0)
    by_person = clipper.clipped_sum(
        x, y, clip_norm=0.3, seed=0, rows=rows[:, None], weights=torch.ones(70, 1), places=rows
    )
    assert torch.equal(by_record.statistics.norms, by_person.statistics.norms)
    assert torch.equal(by_record.statistics.losses, by_person.statistics.losses)
    for parameter, gradient in by_record.gradients.items():
        assert torch.equal(gradient, by_person.gradients[parameter])


def test_losses_are_means_over_a_persons_records():
    count, rows, weights = persons.drawn(6, 3)
    model, (x, y) = CASES["mlp"].model(), CASES["mlp"].batch(count)
    losses = nn.functional.cross_entropy(model(x), y, reduction="none").detach()
    expected = (losses[rows] * weights).sum(1)
    for clipper in (PerSampleClipper(model), PerSampleClipper(model, microbatch_size=4)):
        found = clipper.clipped_sum(x, y, clip_norm=1.0, seed=0, rows=rows, weights=weights)
        torch.testing.assert_close(found.statistics.losses, expected)


# ---- never more than C


def _of(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _given(outputs, targets):
    """A loss with any output gradients that one likes: the targets."""
    return (outputs * targets).flatten(1).sum(1)


LAYERS = {
    "linear, few outputs": (nn.Linear(30, 7), (30,), (7,)),
    "linear, few inputs": (nn.Linear(7, 40, bias=False), (7,), (40,)),
    "linear, written out": (nn.Linear(30, 2), (30,), (2,)),
    "sequence": (nn.Linear(24, 17), (2, 24), (2, 17)),
    "convolution": (nn.Conv2d(4, 16, 3), (4, 6, 5), (16, 4, 3)),
    "convolution by patches": (nn.Conv2d(4, 6, 3, groups=2), (4, 6, 5), (6, 4, 3)),
    "convolution by rows": (nn.Conv2d(6, 5, 3), (6, 6, 5), (5, 4, 3)),
    "convolution of sequences": (nn.Conv1d(3, 5, 2), (3, 6), (5, 5)),
    "convolution of volumes": (nn.Conv3d(2, 3, 2), (2, 3, 3, 4), (3, 2, 2, 3)),
    "transposed convolution": (nn.ConvTranspose2d(3, 4, 2, stride=2), (3, 2, 3), (4, 4, 6)),
    "depthwise convolution": (nn.Conv2d(4, 8, 3, groups=4), (4, 6, 5), (8, 4, 3)),
    "group norm": (nn.GroupNorm(2, 4), (4, 5), (4, 5)),
    "instance norm": (nn.InstanceNorm1d(4, affine=True), (4, 5), (4, 5)),
    "layer norm": (nn.LayerNorm(12), (12,), (12,)),
    "root mean square norm": (nn.RMSNorm(12), (12,), (12,)),
    "fallback": (nn.Conv1d(3, 5, 2, padding=1, padding_mode="reflect"), (3, 6), (5, 7)),
}


@functools.cache
def _clipper_of(name, limit=1 << 25):
    """Made once, because its trials take longest."""
    return PerSampleClipper(LAYERS[name][0], loss=_given, max_gradient_bytes=limit)


def _cancelling(kind, count, records, inputs, targets, *, seed=0, scale=1.0):
    """Records (count k, ...) of persons, each with rows that cancel, in one of several ways."""
    x, g = _of(seed, count, records, *inputs), _of(seed + 1, count, records, *targets)
    if kind == "the same input":
        x[:] = x[:, :1]
        g[:, -1] = -g[:, :-1].double().sum(1).float()
    elif kind == "the same target":
        g[:] = g[:, :1]
        x[:, -1] = -x[:, :-1].double().sum(1).float()
    elif kind == "nearly the same":
        x[:] = x[:, :1] * (1 + 1e-6 * x)
        g[:, -1] = -g[:, :-1].double().sum(1).float()
    elif kind == "huge and small":
        g[:, 0] *= 1e12
        x[:, 0] *= 1e-12
    elif kind == "one direction":  # every addition rounds the same way
        x[:], g[:] = 1.99749, 0.1
    return scale * x.flatten(0, 1), g.flatten(0, 1)


KINDS = ["the same input", "the same target", "nearly the same", "huge and small", "one direction", "any"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("records", [2, 3, 7])
def test_no_person_moves_the_sum_by_more_than_c(name, kind, records, path):
    _, inputs, targets = LAYERS[name]
    rows, weights = _as_persons(1, records)
    for limit in (0, 1 << 25):
        clipper = _clipper_of(name, limit)
        for seed, scale, clip_norm in itertools.product(range(3), (1e-9, 1.0, 1e9, 1e17), (1e-5, 1.0)):
            x, g = _cancelling(kind, 1, records, inputs, targets, seed=seed, scale=scale)
            found = clipper.clipped_sum(x, g, clip_norm=clip_norm, seed=0, rows=rows, weights=weights)
            assert norm(found.gradients) <= clip_norm * (1 + 1e-6), (seed, scale, clip_norm, limit)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("records", [2, 3, 7])
def test_one_person_more_moves_a_sum_of_cancelling_persons_by_at_most_c(name, kind, records, path):
    """The rounding of the others' terms must not count: their rows are a million times longer than their sum."""
    _, inputs, targets = LAYERS[name]
    count = 100 // records
    rows, weights = _as_persons(count, records)
    x, g = _cancelling(kind, count, records, inputs, targets)
    clipper = _clipper_of(name)
    for clip_norm in (1e-5, 1e-2):
        for without in (slice(1, None), slice(0, count - 1), torch.arange(count) != count // 2):
            whole, part = (
                clipper.clipped_sum(
                    x, g, clip_norm=clip_norm, seed=0, rows=rows[some], weights=weights[some],
                    places=torch.arange(count)[some],
                ).gradients
                for some in (slice(None), without)
            )  # fmt: skip
            assert distance(whole, part) <= clip_norm


@pytest.mark.parametrize("records", [2, 3, 7, 9])
@pytest.mark.parametrize("features", [24, 300])
def test_softmax_regression_with_cancelling_persons(features, records, path):
    """One input with all labels: residuals of a person nearly add up to zero, where the weights say so."""
    model = nn.Linear(features, records, bias=False)
    count = 40
    rows, weights = _as_persons(count, records)
    y = torch.arange(records).repeat(count)
    for scale, seed in itertools.product((1e-6, 1.0, 1e6, 1e15), range(3)):
        x = scale * _of(seed, count, 1, features).expand(count, records, features).flatten(0, 1).contiguous()
        nn.init.zeros_(model.weight)
        clipper = SoftmaxClipper(model)
        for clip_norm in (1e-6, 1e-3):
            sums = [
                clipper.clipped_sum(
                    x, y, clip_norm=clip_norm, seed=0, rows=rows[some], weights=weights[some],
                    places=torch.arange(count)[some],
                ).gradients
                for some in (slice(None), slice(1, None), slice(0, 1))
            ]  # fmt: skip
            assert distance(sums[0], sums[1]) <= clip_norm
            assert norm(sums[2]) <= clip_norm * (1 + 1e-6)


@pytest.mark.parametrize("records", [2, 3])
@pytest.mark.parametrize("distance_of_records", [1e-2, 1e-3, 1e-4, 1e-5])
def test_softmax_regression_with_persons_of_nearly_equal_records(distance_of_records, records, path):
    """Their products are rounded differently, and hardly anything is left of their sum."""
    features, count = 24, 40
    model = nn.Linear(features, records, bias=False)
    nn.init.zeros_(model.weight)
    rows, weights = _as_persons(count, records)
    y = torch.arange(records).repeat(count)
    for seed in range(5):
        one = _of(seed, count, 1, features)
        x = (one * (1 + distance_of_records * _of(seed + 50, count, records, features))).flatten(0, 1).contiguous()
        clipper = SoftmaxClipper(model)
        for person in range(count):
            found = clipper.clipped_sum(
                x, y, clip_norm=1e-6, seed=0, rows=rows[person : person + 1], weights=weights[person : person + 1]
            )
            assert norm(found.gradients) <= 1e-6 * (1 + 1e-6)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 3e38, 1e31, 1e20])
@pytest.mark.parametrize("name", ["mlp", "paper-cnn-mnist", "sequence-gram", "sequence-stored", "fallback", "softmax"])
def test_a_record_that_is_not_finite_drops_its_person_and_nobody_else(name, value, path):
    """Also if the record counts with weight 0 only: it is a copy of one of hers."""
    records, count = 3, 8
    rows, weights = _as_persons(count, records)
    if name == "softmax":
        model, x, y = _softmax_case(count * records, 20, 5)
        clipper = SoftmaxClipper(model)
    else:
        model, (x, y) = CASES[name].model(), CASES[name].batch(count * records)
        clipper = PerSampleClipper(model)
    bad = 4
    rows[bad, 2], weights[bad] = rows[bad, 0], torch.tensor([0.5, 0.5, 0.0])
    others = torch.arange(count) != bad
    clean = clipper.clipped_sum(
        x, y, clip_norm=0.5, seed=0, rows=rows[others], weights=weights[others], places=torch.arange(count)[others]
    )
    x[rows[bad, 0]].flatten()[:] = value
    x[rows[bad, 0]] = value
    found = clipper.clipped_sum(x, y, clip_norm=0.5, seed=0, rows=rows, weights=weights)
    assert torch.equal(found.statistics.norms[others], clean.statistics.norms)
    assert all(bool(g.isfinite().all()) for g in found.gradients.values())
    if not math.isfinite(value):
        assert found.statistics.num_non_finite == 1
        assert distance(found.gradients, clean.gradients) <= 1e-6
    assert distance(found.gradients, clean.gradients) <= 0.5 * (1 + 1e-6)


def test_the_margin_of_persons_covers_what_the_proof_counts():
    """m rows of m / k persons, whose terms add up to √k L each; every term is rounded at most m + 2 times."""
    for records in (2, 3, 10, 128, 300):
        group = max(128, records)
        terms = group / records * math.sqrt(records)
        before_and_after = 2 * 4 * terms * (group + 2) + 2 * math.sqrt(records) * (records + 2)
        assert rounding(128, 4, records) >= before_and_after * 2.0**-24 + 2e-6
    assert rounding(128, 4, 1) == rounding(128, 4)


# ---- orthogonal terms


def _product(directions, values):
    return torch.einsum("bkn,bkm->bnm", directions.double(), values.double())


DEGENERATE = {
    "any": lambda x: x,
    "equal rows": lambda x: x[:, :1].expand_as(x).contiguous(),
    "nearly equal rows": lambda x: x[:, :1] * (1 + 1e-7 * x),
    "a row of zeros": lambda x: torch.cat([torch.zeros_like(x[:, :1]), x[:, 1:]], 1),
    "huge": lambda x: 1e18 * x,
    "denormal": lambda x: 1e-41 * x,
    "of all sizes": lambda x: x * torch.logspace(-15, 15, x.shape[1])[:, None],
}


@pytest.mark.parametrize("records", [1, 2, 5, 9])
@pytest.mark.parametrize("form", DEGENERATE)
def test_orthogonal_terms_are_the_same_gradient_without_terms_that_cancel(form, records, path):
    x, y = DEGENERATE[form](_of(0, 6, records, 8)), _of(1, 6, records, 21)
    y[3] *= 1e10
    found = orthogonal(x, y, is_transposed=False)
    truth, ours = _product(x, y), _product(found.directions, found.values)
    size = (x.double().norm(dim=2) * y.double().norm(dim=2)).sum(1)
    flushed = 1e-36 * y.double().norm(dim=2).sum(1)
    assert bool(((truth - ours).flatten(1).norm(dim=1) <= 4e-7 * size + flushed).all())
    norms = found.squared_norms.sqrt()
    assert bool((ours.flatten(1).norm(dim=1) <= norms * (1 + 3e-7)).all()), "the norm is a bound of what is summed"
    terms = (found.directions.double().norm(dim=2) * found.values.double().norm(dim=2)).sum(1)
    assert bool((terms <= math.sqrt(records) * norms * (1 + 3e-7)).all()), "no terms cancel"
    close = ours.flatten(1).norm(dim=1) > 1e-3 * size + flushed
    assert bool((norms[close] <= ours.flatten(1).norm(dim=1)[close] * (1 + 1e-5)).all()), "and not much more"


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38])
def test_orthogonal_terms_of_values_that_are_not_finite(value, path):
    for where in (0, 1):
        x, y = _of(0, 6, 3, 8), _of(1, 6, 3, 21)
        clean = orthogonal(x, y, is_transposed=False)
        (x, y)[where][2, 1, 3] = value
        found = orthogonal(x, y, is_transposed=False)
        factors = clip_factors(found.squared_norms.sqrt(), 1.0)
        others = torch.arange(6) != 2
        assert bool(found.directions.isfinite().all() and found.values.isfinite().all())
        assert torch.equal(found.squared_norms[others], clean.squared_norms[others])
        assert math.isfinite(value) or factors[2] == 0


@pytest.mark.skipif(not native.is_available(), reason="the native kernels are not built on this machine")
@pytest.mark.parametrize("form", DEGENERATE)
def test_native_and_torch_paths_of_orthogonal_terms_agree(form):
    x, y = DEGENERATE[form](_of(0, 6, 4, 19)), _of(1, 6, 4, 37)
    for one, other in zip(native.orthogonal(x, y), _orthogonal(x, y), strict=True):
        largest = float(other.abs().max())
        if form not in ("equal rows", "nearly equal rows", "denormal"):  # there a direction is what rounding leaves
            torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-6 * largest)
    with native.disabled():
        slow = orthogonal(x, y, is_transposed=True)
    fast = orthogonal(x, y, is_transposed=True)
    weights = torch.rand(6)
    size = float((x.double().norm(dim=2) * y.double().norm(dim=2)).sum()) + 1e-30
    assert float((fast.weighted_sum(weights) - slow.weighted_sum(weights)).norm()) <= 1e-6 * size
    assert isinstance(fast, Orthogonal)


# ---- steps


@pytest.mark.parametrize("name", ["mlp", "softmax"])
def test_a_step_passes_the_weights_on(name):
    """Without noise a step is the clipped sum by person; both kinds of noise, both ways to give the persons."""
    count, rows, weights = persons.drawn(6, 3)
    case = CASES["linear" if name == "softmax" else name]
    model, (x, y) = nn.Linear(20, 5, bias=False) if name == "softmax" else case.model(), case.batch(count)
    clipper = SoftmaxClipper(model) if name == "softmax" else PerSampleClipper(model)
    plain = StepSettings(
        clip_norm=0.5, noise_multiplier=0.0, learning_rate=1.0, expected_batch_size=4.0, unsafe=frozenset({"no-noise"})
    )
    truth = persons.gradients(model, x, y, rows, weights)
    margin = softmax._margin(3) if name == "softmax" else persons.margin(3)
    expected = persons.clipped_sum(truth, 0.5 * margin)
    before = {parameter: p.detach().clone() for parameter, p in clipper.parameters.items()}
    found = noised_sum(clipper, x, y, plain, RandomStream.seeded(0), rows=rows, weights=weights)
    assert distance(found.noised_sum, expected) <= 5e-4
    dp_sgd_step(clipper, x, y, plain, RandomStream.seeded(0), rows=rows, weights=weights)
    for parameter, p in clipper.parameters.items():
        torch.testing.assert_close(before[parameter] - p, (expected[parameter] / 4).float(), rtol=0, atol=2e-4)


@pytest.mark.parametrize("name", ["mlp", "compact", "softmax"])
def test_on_the_grid_a_persons_gradient_is_the_mean_of_her_records(name):
    count, rows, weights = persons.drawn(6, 3)
    case = CASES["linear" if name == "softmax" else "mlp" if name == "mlp" else "resnet"]
    model, (x, y) = nn.Linear(20, 5, bias=False) if name == "softmax" else case.model(), case.batch(count)
    clipper = OneByOneClipper(model)
    truth = persons.gradients(model, x, y, rows, weights)
    found = list(clipper.gradients(x, y, seed=0, rows=rows, weights=weights))
    assert len(found) == 6
    for ours, expected in zip(found, truth, strict=True):
        vector = torch.cat([expected[parameter].flatten() for parameter in clipper.parameters])
        torch.testing.assert_close(ours.vector.double(), vector, rtol=1e-4, atol=1e-6)
    settings = StepSettings(clip_norm=0.2, noise_multiplier=0.01, learning_rate=0.1, expected_batch_size=4.0)
    result = noised_sum(clipper, x, y, settings, RandomStream.seeded(0), rows=rows, weights=weights)
    clipped = persons.clipped_sum(truth, 0.2)
    assert distance(result.noised_sum, clipped) <= 3 * 0.01 * 0.2 * clipper.num_params**0.5
    assert result.private.norms.shape == (6,)


def test_on_the_grid_a_person_is_clipped_as_a_whole():
    """And dropped as a whole. A record alone would be 3 times as long."""
    grid = Grid(clip_norm=1.0, noise_multiplier=1.0)
    clipper = OneByOneClipper(nn.Linear(4, 3, bias=False), loss=_given)
    rows, weights = _as_persons(2, 3)
    x, g = 100 * _of(0, 6, 4), _of(1, 6, 3)
    x[5, 0] = math.nan
    found = [sample.vector for sample in clipper.gradients(x, g, seed=0, rows=rows, weights=weights)]
    whole = [grid.rounded(vector) for vector in found]
    assert 0.99 * grid.largest_square <= float(whole[0].square().sum()) <= grid.largest_square
    assert not whole[1].any()


def test_on_the_grid_each_record_of_a_person_has_its_own_dropout():
    model = nn.Sequential(nn.Linear(4, 200), nn.Dropout(0.5), nn.Linear(200, 2))
    clipper = OneByOneClipper(model)
    x, y = torch.ones(1, 4), torch.zeros(1, dtype=torch.int64)
    rows, weights = torch.zeros(2, 2, dtype=torch.int64), torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    first, second = (
        s.vector for s in clipper.gradients(x, y, seed=0, rows=rows, weights=weights, places=torch.tensor([0, 5]))
    )
    again = next(clipper.gradients(x, y, seed=0, rows=rows[:1], weights=weights[1:])).vector
    assert not torch.equal(first, again), "the two records of one person"
    assert not torch.equal(again, second), "two persons"


# ---- what is refused


@pytest.mark.parametrize("make", [PerSampleClipper, SoftmaxClipper, OneByOneClipper])
def test_weights_that_do_not_fit_are_refused(make):
    clipper, x, y = make(nn.Linear(2, 3, bias=False)), torch.ones(6, 2), torch.zeros(6, dtype=torch.int64)
    rows, weights = _as_persons(3, 2)

    def run(**given_as):
        if make is OneByOneClipper:
            return list(clipper.gradients(x, y, seed=0, **given_as))
        return clipper.clipped_sum(x, y, clip_norm=1.0, seed=0, **given_as)

    run(rows=rows, weights=weights)
    for wrong in (
        {"weights": weights},
        {"rows": rows.flatten(), "weights": weights},
        {"rows": rows.flatten(), "weights": weights.flatten()},
        {"rows": rows, "weights": weights[:, :1]},
        {"rows": rows[:, :0], "weights": weights[:, :0]},
        {"rows": rows, "weights": 2 * weights},
        {"rows": rows, "weights": weights * torch.tensor([3.0, -1.0])},
        {"rows": rows, "weights": weights * math.nan},
        {"rows": rows, "weights": weights.double()},
        {"rows": rows, "weights": weights, "places": torch.tensor([2, 1, 0])},
        {"rows": rows, "weights": weights, "places": torch.tensor([0, 1])},
    ):
        with pytest.raises(ConfigError):
            run(**wrong)


def test_inputs_that_do_not_fit_are_refused_for_persons_too():
    clipper, x, y = PerSampleClipper(nn.Linear(2, 3)), torch.ones(6, 2), torch.zeros(6, dtype=torch.int64)
    rows, weights = _as_persons(3, 2)
    for inputs, targets in ((x.tolist(), y), (x, y[:5]), (x.double(), y), (x[0, 0], y), (x[:5], y[:5])):
        with pytest.raises(DataError):
            clipper.clipped_sum(inputs, targets, clip_norm=1.0, seed=0, rows=rows, weights=weights)


def test_a_model_that_mixes_records_is_refused_for_persons_too():
    """Also if it mixes the records of a person only."""

    class Mixing(nn.Module):
        def forward(self, x):
            pairs = x.view(-1, 2, x.shape[1]) if len(x) % 2 == 0 else x[:, None]
            return (pairs - pairs.mean(1, keepdim=True)).view_as(x) + x

    for mixer in (Mixing(), nn.BatchNorm1d(6, affine=False, track_running_stats=False)):
        model, (x, y) = nn.Sequential(mixer, nn.Linear(6, 3)), CASES["fallback"].batch(6)
        rows, weights = _as_persons(3, 2)
        with pytest.raises(UnsupportedModelError):
            PerSampleClipper(model).clipped_sum(x, y, clip_norm=1.0, seed=0, rows=rows, weights=weights)


def test_a_layer_that_does_not_reach_the_loss_has_no_gradient():
    model, (x, y) = CASES["two-branches"].model(), CASES["two-branches"].batch(6)
    rows, weights = _as_persons(3, 2)
    found = PerSampleClipper(model).clipped_sum(x, y, clip_norm=1.0, seed=0, rows=rows, weights=weights)
    assert not found.gradients["unused.weight"].any()
