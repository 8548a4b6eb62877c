"""Softmax regression in closed form: the same as the general clipper, by both of its paths, whatever a server sends."""

import contextlib
import math

import pytest
import torch
from torch import nn

from alidpfl.dpsgd import PerSampleClipper, SoftmaxClipper, is_softmax_regression, native
from alidpfl.errors import ConfigError, DataError
from alidpfl.federation.tensors import steady_arithmetic

from . import oracle

MARGIN = 1 - 4.9e-4  # by which it clips lower, for the rounding of its sums
PATHS = {"torch": native.disabled, "native": contextlib.nullcontext}


@pytest.fixture(params=PATHS)
def path(request):
    if request.param == "native" and not native.is_available():
        pytest.skip("the native kernels are not built here")
    with PATHS[request.param]():
        yield request.param


def problem(samples=50, features=37, classes=10, seed=0):
    random = torch.Generator().manual_seed(seed)
    model = nn.Linear(features, classes, bias=False)
    nn.init.normal_(model.weight, generator=random)
    inputs = torch.randn(samples, features, generator=random)
    return model, inputs, torch.randint(classes, (samples,), generator=random)


@pytest.mark.parametrize("clip_norm", [0.1, 3.0, math.inf])
@pytest.mark.parametrize(
    ("samples", "features", "classes"),
    [(50, 37, 10), (1, 1, 2), (9, 5, 3), (200, 300, 17), (64, 256, 10), (7, 16, 40), (20, 2100, 10)],
)
def test_equals_the_general_clipper(path, samples, features, classes, clip_norm):
    model, inputs, targets = problem(samples, features, classes)
    ours = SoftmaxClipper(model).clipped_sum(inputs, targets, clip_norm=clip_norm, seed=0)
    theirs = PerSampleClipper(model).clipped_sum(inputs, targets, clip_norm=clip_norm * MARGIN / oracle.MARGIN, seed=0)
    close = {"rtol": 2e-5, "atol": 2e-5, "check_dtype": False}
    torch.testing.assert_close(ours.gradients["weight"], theirs.gradients["weight"], **close)
    torch.testing.assert_close(ours.statistics.norms, theirs.statistics.norms, **close)
    torch.testing.assert_close(ours.statistics.losses, theirs.statistics.losses, **close)


def test_some_rows_of_a_data_set_are_a_batch(path):
    model, inputs, targets = problem()
    rows = torch.tensor([0, 3, 4, 17, 18, 19, 20, 21, 22, 40, 49])
    clipper = SoftmaxClipper(model)
    some = clipper.clipped_sum(inputs, targets, clip_norm=0.5, seed=0, rows=rows)
    alone = clipper.clipped_sum(inputs[rows], targets[rows], clip_norm=0.5, seed=0)
    assert torch.equal(some.gradients["weight"], alone.gradients["weight"])
    assert torch.equal(some.statistics.norms, alone.statistics.norms)
    unread = torch.ones(50, dtype=torch.bool)
    unread[rows] = False
    inputs[unread], targets[unread] = math.nan, 99
    again = clipper.clipped_sum(inputs, targets, clip_norm=0.5, seed=0, rows=rows)
    assert torch.equal(again.gradients["weight"], some.gradients["weight"])


def test_data_that_do_not_lie_side_by_side(path):
    model, inputs, targets = problem()
    clipper = SoftmaxClipper(model)
    expected = clipper.clipped_sum(inputs, targets, clip_norm=0.5, seed=0).gradients["weight"]
    scattered = torch.empty(50, 74)[:, ::2].copy_(inputs)
    assert not scattered.is_contiguous()
    found = clipper.clipped_sum(scattered, targets, clip_norm=0.5, seed=0).gradients["weight"]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6, 1e15])
def test_a_sample_moves_the_sum_by_at_most_the_clip_norm(path, scale):
    model, inputs, targets = problem(samples=130, features=400)
    clipper = SoftmaxClipper(model)
    inputs *= scale
    for sample in range(0, 130, 13):
        rows = torch.tensor([sample])
        one = clipper.clipped_sum(inputs, targets, clip_norm=0.05, seed=0, rows=rows).gradients["weight"]
        assert float(one.norm()) <= 0.05
    assert scale > 1 or float(one.norm()) > 0


def test_clipping_is_not_just_small(path):
    """A sample above the clip norm contributes all of it."""
    model, inputs, targets = problem(samples=3, features=400)
    one = SoftmaxClipper(model).clipped_sum(inputs[:1], targets[:1], clip_norm=0.05, seed=0).gradients["weight"]
    assert 0.05 * (1 - 6e-4) < float(one.norm()) <= 0.05


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30])
@pytest.mark.parametrize("place", [0, 8, 49])
def test_a_sample_that_is_not_finite_is_dropped_and_leaves_the_others_alone(path, bad, place):
    model, inputs, targets = problem()
    others = torch.tensor([i for i in range(50) if i != place])
    clipper = SoftmaxClipper(model)
    without = clipper.clipped_sum(inputs, targets, clip_norm=0.5, seed=0, rows=others).gradients["weight"]
    inputs[place, 3] = bad
    found = clipper.clipped_sum(inputs, targets, clip_norm=0.5, seed=0)
    torch.testing.assert_close(found.gradients["weight"], without, rtol=1e-5, atol=1e-6)
    assert found.statistics.num_non_finite == 1


@pytest.mark.parametrize("value", [math.nan, math.inf, 3e38, -3e38])
def test_weights_from_a_hostile_server_give_a_bounded_sum(path, value):
    model, inputs, targets = problem()
    with torch.no_grad():
        model.weight[2, 5] = value
    found = SoftmaxClipper(model).clipped_sum(inputs, targets, clip_norm=0.5, seed=0).gradients["weight"]
    assert bool(torch.isfinite(found).all())
    assert float(found.norm()) <= 0.5 * 50


def test_no_sample_gives_zero(path):
    model, inputs, targets = problem()
    found = SoftmaxClipper(model).clipped_sum(
        inputs, targets, clip_norm=0.5, seed=0, rows=torch.zeros(0, dtype=torch.int64)
    )
    assert torch.equal(found.gradients["weight"], torch.zeros(10, 37, dtype=torch.float64))
    assert len(found.statistics.norms) == len(found.statistics.losses) == 0


def test_whoever_comes_or_goes_changes_one_groups_rounding(path):
    """Where groups were cut by position, one record more moved the sum by 1.02 C, and by more the more records.

    After 31 halves a float32 still takes the small ones, rounded up; after 32 it loses them.
    """
    model = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(model.weight)  # so that residuals are a half
    pattern = torch.tensor([1.0] * 31 + [0.99 * 2**-19] * 32 + [1.0])  # one group
    inputs = torch.cat([torch.ones(1), pattern.repeat(200)])[:, None]
    targets, everybody = torch.zeros(len(inputs), dtype=torch.int64), torch.arange(len(inputs))
    clipper, clip_norm = SoftmaxClipper(model), 0.7075  # so that none is clipped: the largest have a norm of 0.7071
    with_first, without = (
        clipper.clipped_sum(inputs, targets, clip_norm=clip_norm, seed=0, rows=some, places=some).gradients["weight"]
        for some in (everybody, everybody[1:])
    )
    assert 0.707 < float((with_first - without).norm()) <= clip_norm


def test_groups_are_added_in_double(path):
    """In float32 three thousand small gradients would be lost beside a large one."""
    model = nn.Linear(1, 2, bias=False)
    nn.init.zeros_(model.weight)
    inputs, targets = torch.full((3000, 1), 2e-8), torch.zeros(3000, dtype=torch.int64)
    inputs[0] = 1.0
    found = SoftmaxClipper(model).clipped_sum(inputs, targets, clip_norm=10.0, seed=0).gradients["weight"]
    assert float(found[1, 0]) == pytest.approx(0.5 + 2999 * 1e-8, abs=64 * 1e-8)


def test_one_record_more_moves_a_large_batch_by_at_most_the_clip_norm(path):
    model, inputs, targets = problem(samples=300, features=1100)
    clipper, everybody = SoftmaxClipper(model), torch.arange(300)
    whole = clipper.clipped_sum(inputs, targets, clip_norm=0.05, seed=0).gradients["weight"]
    for gone in (0, 7, 128, 299):
        rest = everybody[everybody != gone]
        without = clipper.clipped_sum(inputs, targets, clip_norm=0.05, seed=0, rows=rest).gradients["weight"]
        moved = float((whole - without).norm())
        assert 0.049 < moved <= 0.05


def test_residuals_that_float32_cannot_square_count(path):
    """As clients train, denormals are flushed: squares of 1e-20 were zero, and inputs of 1e20 made up for it, 84 C."""
    for scale in (1e19, 5e19, 9e19):
        for features in (2, 300, 3220):
            model = nn.Linear(features, 2, bias=False)
            nn.init.zeros_(model.weight)
            with torch.no_grad():
                model.weight[0, 0] = 45 / scale
            inputs = torch.zeros(1, features)
            inputs[0, 0] = scale
            with steady_arithmetic():
                found = SoftmaxClipper(model).clipped_sum(inputs, torch.tensor([0]), clip_norm=0.05, seed=0)
            assert float(found.gradients["weight"].norm()) <= 0.05


def test_norms_are_precise(path):
    """A float32 sum of thousands of equal squares drifts."""
    model = nn.Linear(5000, 3, bias=False)
    nn.init.zeros_(model.weight)
    inputs = torch.full((9, 5000), 0.1) * torch.arange(1, 10)[:, None]
    found = SoftmaxClipper(model).clipped_sum(inputs, torch.zeros(9, dtype=torch.int64), clip_norm=1.0, seed=0)
    residual = math.sqrt((2 / 3) ** 2 + 2 / 9)
    torch.testing.assert_close(found.statistics.norms, inputs.double().norm(dim=1) * residual, rtol=3e-7, atol=0)


def test_rows_outside_the_data_are_refused(path):
    model, inputs, targets = problem()
    for rows, error in (([50], IndexError), ([-1], ConfigError)):
        with pytest.raises(error):
            SoftmaxClipper(model).clipped_sum(inputs, targets, clip_norm=0.5, seed=0, rows=torch.tensor(rows))


@pytest.mark.parametrize(
    ("model", "is_one"),
    [
        (nn.Linear(3, 2, bias=False), True),
        (nn.Linear(3, 2), False),
        (nn.Sequential(nn.Linear(3, 2, bias=False)), False),
        (nn.Linear(3, 2, bias=False).double(), False),
        (nn.Linear(3, 2, bias=False).requires_grad_(False), False),
    ],
)
def test_what_has_a_closed_form(model, is_one):
    assert is_softmax_regression(model) == is_one
    if not is_one:
        with pytest.raises(ConfigError, match="without a bias"):
            SoftmaxClipper(model)


def test_a_model_with_hooks_is_not_taken_for_its_matrix():
    hooked = nn.Linear(3, 2, bias=False)
    hooked.register_forward_hook(lambda _module, _inputs, outputs: outputs * 5)
    assert not is_softmax_regression(hooked)
    normalised = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2, bias=False))
    assert not is_softmax_regression(normalised)


def test_rows_of_other_kinds(path):
    model, inputs, targets = problem()
    clipper, rows = SoftmaxClipper(model), torch.arange(0, 20)
    expected = clipper.clipped_sum(inputs, targets, clip_norm=0.5, seed=0, rows=rows[::2]).gradients["weight"]
    found = clipper.clipped_sum(inputs, targets, clip_norm=0.5, seed=0, rows=rows[::2].int()).gradients["weight"]
    assert torch.equal(found, expected)


def test_errors_say_what_is_wrong_and_quote_no_record():
    model, inputs, targets = problem()
    clipper = SoftmaxClipper(model)
    targets[7] = 77
    with pytest.raises(DataError, match="10 outputs") as error:
        clipper.clipped_sum(inputs, targets, clip_norm=0.5, seed=0)
    assert "77" not in str(error.value)
    with pytest.raises(DataError, match="float32"):
        clipper.clipped_sum(inputs.double(), targets, clip_norm=0.5, seed=0)
    with pytest.raises(DataError, match=r"\(n, 37\)"):
        clipper.clipped_sum(inputs[:, 1:], targets, clip_norm=0.5, seed=0)
    with pytest.raises(DataError, match="int64"):
        clipper.clipped_sum(inputs, targets[1:], clip_norm=0.5, seed=0)
    with pytest.raises(DataError, match="inputs"):
        clipper.clipped_sum([1.0], targets, clip_norm=0.5, seed=0)
    with pytest.raises(ConfigError, match="clip_norm=0"):
        clipper.clipped_sum(inputs, targets, clip_norm=0, seed=0)
