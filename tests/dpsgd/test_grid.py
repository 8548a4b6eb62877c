"""Sums on a grid: whole numbers, strictly bounded, in any order, and every record's part is its own."""

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import nn

from alidpfl.dpsgd import Grid, OneByOneClipper, RandomStream, StepSettings, dp_sgd_step, noised_sum, noised_total
from alidpfl.dpsgd import grid_noise as module
from alidpfl.dpsgd.grid_noise import DEVIATION
from alidpfl.errors import AliDpflError, ConfigError, UnsupportedModelError

HOSTILE = [0.0, -0.0, 1e-45, -1e-38, 1e-7, 0.5, 1.0, -1.0, 3e4, 1e19, -1e30, 3e38, math.inf, -math.inf, math.nan]
SETTINGS = StepSettings(clip_norm=0.7, noise_multiplier=1.3, learning_rate=0.1, expected_batch_size=5.0)


def made(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def no_noise(monkeypatch):
    monkeypatch.setattr(module, "rounded_gaussian", lambda size, random: torch.zeros(size, dtype=torch.int64))


def in_steps(grid, total):
    """The whole numbers behind a float32 outcome: small enough here to be told."""
    return (total.double() / grid.step).round().long()


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(st.one_of(st.sampled_from(HOSTILE), st.floats(width=32)), min_size=1, max_size=60),
    sigma=st.floats(0.01, 900.0),
    clip_norm=st.sampled_from([1e-6, 0.05, 1.0, 1e6]),
)
def test_whatever_a_record_holds_its_part_is_whole_and_strictly_bounded(values, sigma, clip_norm):
    """In exact arithmetic: the squared norm, times σ², is at most s²."""
    found = Grid(clip_norm=clip_norm, noise_multiplier=sigma).rounded(torch.tensor(values))
    whole = [int(value) for value in found.tolist()]
    assert whole == found.tolist()
    assert sum(value**2 for value in whole) * Fraction(sigma) ** 2 <= DEVIATION**2
    if not torch.tensor(values).double().norm() <= 1e31:
        assert not any(whole)


@given(sigma=st.floats(0.01, 900.0))
def test_the_bound_is_the_largest_whole_number_that_the_noise_covers(sigma):
    """One more and σ would be less than what is charged."""
    largest = Grid(clip_norm=1.0, noise_multiplier=sigma).largest_square
    assert largest * Fraction(sigma) ** 2 <= DEVIATION**2 < (largest + 1) * Fraction(sigma) ** 2


def test_a_part_is_the_clipped_vector_to_half_a_step():
    grid = Grid(clip_norm=1.0, noise_multiplier=1.0)
    short, long = 0.3 * torch.nn.functional.normalize(made(500), dim=0), 50 * made(500, seed=1)
    assert float((grid.rounded(short) * grid.step - short).abs().max()) <= 0.5 * grid.step * (1 + 1e-6)
    clipped = grid.rounded(long) * grid.step
    assert 1 - 1e-4 < float(clipped.norm()) <= 1
    assert float((clipped - long.double() / long.double().norm()).abs().max()) <= grid.step


def test_where_the_nearest_whole_numbers_are_too_long_it_rounds_toward_zero():
    """All coordinates alike: to the nearest, all may go up, by half of the vector's length in all."""
    grid = Grid(clip_norm=1.0, noise_multiplier=300.0)
    toward_zero = 0
    for size in range(2, 700):
        whole = grid.rounded(torch.ones(size))
        total = torch.zeros(size, dtype=torch.float64)
        grid._add(torch.ones(size), total)  # by the native kernel, if it is there
        assert torch.equal(total, whole)
        assert int(whole.square().sum()) <= grid.largest_square
        longest = math.sqrt(grid.largest_square) - 2 - size / (16 * math.sqrt(grid.largest_square))
        toward_zero += round(longest / math.sqrt(size)) > float(whole[0])
    assert toward_zero > 20


def test_neighbouring_sums_differ_by_the_record_and_order_does_not_matter(monkeypatch):
    no_noise(monkeypatch)
    grid, random = Grid(clip_norm=0.5, noise_multiplier=2.0), RandomStream.seeded(0)
    records = [made(40, seed=seed) * 10.0**seed for seed in range(-4, 20)]
    records[3][5] = math.nan
    whole = grid.noised_total(records, 40, random)
    assert torch.equal(whole, grid.noised_total(reversed(records), 40, random))
    for number in range(len(records)):
        without = grid.noised_total(records[:number] + records[number + 1 :], 40, random)
        moved = in_steps(grid, whole) - in_steps(grid, without)
        assert int((moved**2).sum()) <= grid.largest_square
        assert torch.equal(moved.double(), grid.rounded(records[number]))


def test_the_noise_is_what_is_charged_and_is_there_without_records():
    grid = Grid(clip_norm=0.5, noise_multiplier=10.0)
    noise = grid.noised_total([], 40_000, RandomStream.seeded(1))
    assert noise.dtype == torch.float32
    squares = float((noise.double() / 5.0).square().sum())
    assert stats.kstest(noise.numpy() / 5.0, "norm").pvalue > 1e-4
    assert 0.0001 < stats.chi2.cdf(squares, 40_000) < 0.9999
    assert stats.chi2.cdf(squares * 1.06**2, 40_000) > 0.9999
    assert stats.chi2.cdf(squares / 1.06**2, 40_000) < 0.0001


def test_a_release_over_all_records_can_be_on_the_grid(monkeypatch):
    no_noise(monkeypatch)
    vectors = made(30, 20) / 10
    found = noised_total(
        vectors.split(7), 20, clip_norm=1.0, noise_multiplier=3.0, random=RandomStream.seeded(0), noise="grid"
    )
    grid = Grid(clip_norm=1.0, noise_multiplier=3.0)
    assert torch.equal(found, grid.noised_total(vectors, 20, RandomStream.seeded(0)))
    torch.testing.assert_close(found, vectors.sum(0), rtol=0, atol=30 * grid.step)


@pytest.mark.parametrize("sigma", [0.0, -1.0, 0.009, math.inf, math.nan])
def test_noise_that_the_grid_cannot_hold_is_refused(sigma):
    with pytest.raises(ConfigError, match="noise_multiplier="):
        Grid(clip_norm=1.0, noise_multiplier=sigma)


def test_a_grid_too_coarse_for_the_model_is_refused():
    Grid(clip_norm=1.0, noise_multiplier=10.0).check_size(582_026)
    with pytest.raises(ConfigError, match=r"10\.74"):
        Grid(clip_norm=1.0, noise_multiplier=11.0).check_size(582_026)


# ------------------------------------------------------------------------------------------------- one by one


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.3), nn.Linear(144, 3))


@pytest.mark.parametrize("is_softmax", [False, True])
def test_gradients_are_those_of_autograd(is_softmax):
    model = nn.Linear(64, 3, bias=False) if is_softmax else network().eval()
    x, y = made(5, 1, 8, 8), torch.tensor([0, 1, 2, 0, 1])
    x = x.flatten(1) if is_softmax else x
    samples = [*OneByOneClipper(model).gradients(x, y, seed=0)]
    total = torch.autograd.grad(nn.functional.cross_entropy(model(x), y, reduction="sum"), list(model.parameters()))
    expected = torch.cat([part.flatten() for part in total])
    torch.testing.assert_close(sum(s.vector for s in samples), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(sum(s.loss for s in samples), nn.functional.cross_entropy(model(x), y, reduction="sum"))


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e18])
@pytest.mark.parametrize("is_softmax", [False, True])
def test_a_sample_gradient_depends_on_nothing_but_itself(scale, is_softmax):
    """Bit by bit, under weights so large that rounding decides the class, and with dropout."""
    model = nn.Linear(64, 3, bias=False) if is_softmax else network().train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    clipper, y = OneByOneClipper(model), torch.tensor([0, 1, 2] * 3)
    x = made(9, 64) if is_softmax else made(9, 1, 8, 8)
    alone = {
        place: next(clipper.gradients(x, y, seed=7, rows=torch.tensor([row]), places=torch.tensor([place]))).vector
        for row, place in ((2, 20), (5, 50), (8, 80))
    }
    rows, places = torch.tensor([1, 2, 5, 7, 8]), torch.tensor([10, 20, 50, 70, 80])
    together = {
        place: sample.vector.clone()
        for place, sample in zip(
            places.tolist(), clipper.gradients(x, y, seed=7, rows=rows, places=places), strict=True
        )
    }
    for place, vector in alone.items():
        assert torch.equal(vector.view(torch.int32), together[place].view(torch.int32))


def test_torch_s_generator_is_left_as_it_was():
    clipper = OneByOneClipper(network())
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    [*clipper.gradients(made(3, 1, 8, 8), torch.tensor([0, 1, 2]), seed=1)]
    assert torch.equal(torch.rand(4), expected)


def test_a_step_moves_the_weights_by_what_it_releases(monkeypatch):
    no_noise(monkeypatch)
    model = nn.Linear(6, 3)
    before = torch.cat([p.detach().flatten().clone() for p in model.parameters()])
    x, y = made(8, 6), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    rows = torch.tensor([0, 3, 4])
    result = dp_sgd_step(OneByOneClipper(model), x, y, SETTINGS, RandomStream.seeded(0), rows=rows, places=rows)
    released = torch.cat([part.flatten() for part in result.noised_sum.values()])
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    torch.testing.assert_close(after, before - released * (0.1 / 5.0))
    assert result.private.norms.shape == result.private.losses.shape == (3,)
    assert 0 < float(released.norm()) <= 3 * 0.7


def test_an_empty_batch_is_pure_noise():
    x, y = made(8, 6), torch.zeros(8, dtype=torch.int64)
    clipper = OneByOneClipper(nn.Linear(6, 3))
    result = noised_sum(clipper, x, y, SETTINGS, RandomStream.seeded(0), rows=torch.zeros(0, dtype=torch.int64))
    assert 0.5 < float(torch.cat([p.flatten() for p in result.noised_sum.values()]).std()) / 0.91 < 1.5


@pytest.mark.parametrize("label", [17, -17])
@pytest.mark.parametrize("bias", [True, False])
def test_errors_quote_no_data(label, bias):
    with pytest.raises(AliDpflError, match="withheld") as caught:
        [*OneByOneClipper(nn.Linear(6, 3, bias=bias)).gradients(made(1, 6), torch.tensor([label]), seed=0)]
    assert "17" not in str(caught.value)


def test_models_that_mix_or_remember_are_refused():
    with pytest.raises(UnsupportedModelError):
        OneByOneClipper(nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)))
    clipper = OneByOneClipper(Remembering())
    for attempt in (
        lambda: [*clipper.gradients(made(1, 6), torch.tensor([1]), seed=0)],
        lambda: clipper.rehearse(made(1, 6), torch.tensor([1])),
    ):
        with pytest.raises(UnsupportedModelError, match="buffer"):
            attempt()
    OneByOneClipper(nn.Linear(6, 3)).rehearse(made(1, 6), torch.tensor([1]))


class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += x.sum()
        return self.linear(x)


def test_a_model_that_remembers_outside_its_buffers_is_refused():
    with pytest.raises(UnsupportedModelError, match="another gradient"):
        OneByOneClipper(RunningMean()).rehearse(made(1, 6), torch.tensor([1]))
    with pytest.raises(UnsupportedModelError, match="another gradient"):  # nobody has to ask for the trial
        [*OneByOneClipper(RunningMean()).gradients(made(1, 6), torch.tensor([1]), seed=0)]
    dropped = OneByOneClipper(nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 3)))
    dropped.rehearse(made(1, 6), torch.tensor([1]))  # randomness of its own is no memory


class RunningMean(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.mean = nn.Linear(6, 3), torch.zeros(6)

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return self.linear(x - self.mean)
