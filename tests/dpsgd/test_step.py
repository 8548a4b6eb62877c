"""One DP-SGD step: its limits, its edges, what neighbouring data sets may change, and a canary audit."""

import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from scipy import stats
from torch import nn

from alidpfl.dpsgd import PerSampleClipper, RandomStream, StepSettings, add_noise, dp_sgd_step, noised_sum
from alidpfl.dpsgd.step import noise_grid
from alidpfl.errors import ConfigError

from .oracle import distance, norm
from .zoo import CASES

SETTINGS = StepSettings(clip_norm=1.0, noise_multiplier=1.1, learning_rate=0.5, expected_batch_size=9.0)
NO_PRIVACY = StepSettings(
    clip_norm=math.inf,
    noise_multiplier=0,
    learning_rate=0.1,
    expected_batch_size=8,
    unsafe=frozenset({"no-noise", "no-clipping"}),
)


def _frozen_noise() -> RandomStream:
    return RandomStream.seeded(42)


@pytest.mark.parametrize("name", ["paper-cnn-mnist", "mlp", "resnet", "embedding"])
def test_without_noise_and_clipping_it_is_plain_sgd(name):
    case = CASES[name]
    ours, plain = case.model(), case.model()
    clipper = PerSampleClipper(ours)
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.1)
    for step in range(3):
        x, y = case.batch(8, seed=step)
        dp_sgd_step(clipper, x, y, NO_PRIVACY, _frozen_noise())
        optimizer.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        optimizer.step()
    for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_the_step_is_the_formula():
    """w - η (clipped sum + σ C z) / B, with the noise of the same stream."""
    case = CASES["mlp"]
    model, (x, y) = case.model(), case.batch(6)
    before = {name: p.clone() for name, p in model.named_parameters()}
    clipper = PerSampleClipper(model)
    settings = StepSettings(clip_norm=0.3, noise_multiplier=2.0, learning_rate=0.7, expected_batch_size=11.0)
    clipped = clipper.clipped_sum(x, y, clip_norm=0.3, seed=0)
    result = dp_sgd_step(clipper, x, y, settings, _frozen_noise())

    stream = _frozen_noise()
    stream.integer()  # the seed of the model's own randomness
    noise = stream.normal(sum(p.numel() for p in before.values()))
    position = 0
    for name, parameter in model.named_parameters():
        z = noise[position : position + parameter.numel()].view_as(parameter)
        position += parameter.numel()
        expected = clipped.gradients[name] + 2.0 * 0.3 * z
        rounding = noise_grid(2.0 * 0.3) / 2
        torch.testing.assert_close(result.noised_sum[name], expected, rtol=0, atol=rounding * (1 + 1e-3))
        torch.testing.assert_close(parameter.detach(), before[name] - 0.7 / 11.0 * result.noised_sum[name])


@pytest.mark.parametrize("scale", [1e-20, 0.003, 1.0, 1.1, 2.0, 300.0])
def test_what_is_released_lies_on_a_grid_that_depends_on_the_noise_only(scale):
    """Low-order bits of a float sum tell what was added: without the grid, noise alone is told from noise on this."""
    added = {"nothing": 0.0, "little": scale / 3e5, "a lot": scale / 3, "much": 700 * scale}
    grid = noise_grid(scale)
    assert scale / 512 <= grid <= scale / 256
    assert math.frexp(grid)[0] == 0.5  # a power of two: no rounding but the one that is meant
    for what, value in added.items():
        for dtype in (torch.float32, torch.float64):
            released = {"weight": torch.full((4096,), value, dtype=dtype)}
            add_noise(released, scale, RandomStream.secure())
            places = released["weight"].double() / grid
            assert torch.equal(places, places.round()), what
            assert len(places.unique()) > 500
            assert abs(float(released["weight"].double().mean()) - value) < 6 * scale / 64


def test_the_grid_leaves_the_noise_as_it_was():
    """Mean, deviation and the share of odd places, of a million: rounding is neither to one side nor coarse."""
    released = {"weight": torch.zeros(1_000_000)}
    add_noise(released, 1.5, RandomStream.secure())
    values = released["weight"].double()
    assert abs(float(values.mean())) < 6 * 1.5e-3
    assert float(values.std()) == pytest.approx(1.5, rel=6 / math.sqrt(2e6))
    odd = (values / noise_grid(1.5)).round().remainder(2).mean()
    assert float(odd) == pytest.approx(0.5, abs=6 * 0.0005)


def test_noise_too_small_for_a_grid_is_refused():
    with pytest.raises(ConfigError, match="1e-25"):
        noise_grid(1e-26)


def test_noise_has_the_right_scale_in_the_released_sum():
    """125,000 coordinates without data: standard deviation σC within 1 %, and not that of a mean or of C alone."""
    model = nn.Linear(500, 250, bias=False)
    settings = StepSettings(clip_norm=0.2, noise_multiplier=3.0, learning_rate=0.1, expected_batch_size=50.0)
    x, y = torch.zeros(0, 500), torch.zeros(0, dtype=torch.long)
    released = noised_sum(PerSampleClipper(model), x, y, settings, RandomStream.secure()).noised_sum["weight"]
    sample = (released / (0.2 * 3.0)).flatten().double().numpy()
    assert abs(sample.std() - 1) < 0.01
    assert stats.kstest(sample, "norm").pvalue > 1e-6
    assert stats.kstest(sample * 1.5, "norm").pvalue < 1e-6
    assert stats.kstest(sample * 2 / 3, "norm").pvalue < 1e-6


def test_noise_is_independent_across_tensors_and_steps():
    model = nn.Sequential(nn.Linear(200, 200, bias=False), nn.Linear(200, 200, bias=False))
    clipper, random = PerSampleClipper(model), RandomStream.secure()
    x, y = torch.zeros(0, 200), torch.zeros(0, dtype=torch.long)
    tensors = []
    for _ in range(2):
        tensors += [g.flatten() for g in noised_sum(clipper, x, y, SETTINGS, random).noised_sum.values()]
    correlations = torch.corrcoef(torch.stack(tensors)) - torch.eye(4)
    assert float(correlations.abs().max()) < 5 / math.sqrt(200 * 200)


def test_an_empty_batch_is_pure_noise():
    case = CASES["paper-cnn-mnist"]
    model, (x, y) = case.model(), case.batch(0)
    before = [p.clone() for p in model.parameters()]
    result = dp_sgd_step(PerSampleClipper(model), x, y, SETTINGS, _frozen_noise())
    assert result.private.norms.shape == (0,)
    assert abs(norm(result.noised_sum) / (1.1 * math.sqrt(582_026)) - 1) < 0.01
    assert all(not torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


def test_dropout_masks_differ_from_step_to_step():
    """The model's own randomness is drawn anew for every step, from the stream."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 200), nn.Dropout(0.5), nn.ReLU(), nn.Linear(200, 3))
    clipper, random = PerSampleClipper(model), RandomStream.seeded(1)
    x, y = torch.randn(4, 10), torch.randint(3, (4,))
    first, second = (noised_sum(clipper, x, y, SETTINGS, random).private.norms for _ in range(2))
    assert not torch.allclose(first, second)


def test_many_microbatches_are_released_in_float32():
    clipper = PerSampleClipper(nn.Linear(6, 3), microbatch_size=2)
    x, y = torch.randn(7, 6), torch.randint(3, (7,))
    assert clipper.clipped_sum(x, y, clip_norm=1.0, seed=0).gradients["weight"].dtype == torch.float64
    released = noised_sum(clipper, x, y, SETTINGS, _frozen_noise()).noised_sum
    assert {g.dtype for g in released.values()} == {torch.float32}


def _with_hostile_samples(x: torch.Tensor) -> torch.Tensor:
    hostile = x[:5].clone()
    hostile[0] = math.nan
    hostile[1] = math.inf
    hostile[2] = 1e30
    hostile[3, ..., 0] = math.nan
    hostile[4] = -3e38
    return torch.cat([x, hostile])


@pytest.mark.parametrize(
    "name",
    [
        *("paper-cnn-mnist", "resnet", "mlp", "sequence-gram", "sequence-stored", "fallback", "conv-groups"),
        *("conv-depthwise", "conv1d-depthwise", "conv3d", "conv-transpose-2d", "rms-norm"),
    ],
)
@pytest.mark.parametrize("limit", [0, 32 << 20])
def test_samples_with_non_finite_gradients_contribute_nothing(name, limit):
    case = CASES[name]
    model, (x, y) = case.model(), case.batch(6)
    clipper = PerSampleClipper(model, max_gradient_bytes=limit)
    clean = clipper.clipped_sum(x, y, clip_norm=1.0, seed=0)
    dirty_y = torch.cat([y, y[:5]])
    dirty = clipper.clipped_sum(_with_hostile_samples(x), dirty_y, clip_norm=1.0, seed=0)
    assert dirty.statistics.num_non_finite >= 3
    contributing = 5 - dirty.statistics.num_non_finite
    assert distance(clean.gradients, dirty.gradients) <= contributing * 1.0 + 1e-4
    torch.testing.assert_close(dirty.statistics.norms[:6], clean.statistics.norms, rtol=1e-5, atol=1e-6)


def test_a_record_without_gradient_leaves_the_output_bit_identical():
    """The divisor is a constant: a record more or less that pulls nowhere changes nothing at all."""
    model = nn.Linear(6, 3, bias=False)
    torch.manual_seed(1)
    x, y = torch.randn(4, 6), torch.randint(3, (4,))
    more_x, more_y = torch.cat([x, torch.zeros(1, 6)]), torch.cat([y, torch.zeros(1, dtype=torch.long)])
    clipper = PerSampleClipper(model)
    one = noised_sum(clipper, x, y, SETTINGS, _frozen_noise())
    other = noised_sum(clipper, more_x, more_y, SETTINGS, _frozen_noise())
    assert other.private.norms[-1] == 0
    assert torch.equal(one.noised_sum["weight"], other.noised_sum["weight"])
    before = model.weight.detach().clone()
    dp_sgd_step(clipper, x, y, SETTINGS, _frozen_noise())
    after_one = model.weight.detach().clone()
    with torch.no_grad():
        model.weight.copy_(before)
    dp_sgd_step(clipper, more_x, more_y, SETTINGS, _frozen_noise())
    assert torch.equal(model.weight, after_one)


REPLAYS = [
    "paper-cnn-mnist",
    "resnet",
    "mlp",
    "sequence-gram",
    "sequence-stored",
    "embedding",
    "fallback",
    "attention",
    "conv-stride",
    "conv-depthwise",
    "conv1d",
    "conv3d-16-channels",
    "conv-transpose-2d",
    "instance-norm",
    "rms-norm",
]


@pytest.mark.parametrize("name", REPLAYS)
def test_replay_neighbouring_batches(name):
    """With and without one sample, hostile ones included: the sums differ by at most C, and nothing else differs."""
    case = CASES[name]
    model = case.model()
    clipper = PerSampleClipper(model)
    tight = dataclasses.replace(SETTINGS, clip_norm=0.05)
    for pair in range(24):
        x, y = case.batch(2 + pair % 9, seed=pair)
        if not case.tokens:
            x[-1] *= (1.0, math.nan, math.inf, 1e4, 1e-30, 3e38, 0.0, -1e18)[pair % 8]
        settings = (SETTINGS, tight)[pair % 2]
        sums = [clipper.clipped_sum(x[:n], y[:n], clip_norm=settings.clip_norm, seed=0) for n in (len(x), len(x) - 1)]
        assert distance(sums[0].gradients, sums[1].gradients) <= settings.clip_norm * (1 + 1e-6)
        released = [noised_sum(clipper, x[:n], y[:n], settings, _frozen_noise()) for n in (len(x), len(x) - 1)]
        for one, other in zip(*(r.noised_sum.values() for r in released), strict=True):
            assert one.shape == other.shape
            assert one.dtype == other.dtype
            assert torch.isfinite(one).all()


def _canary_outputs(settings: StepSettings, with_canary: bool, draws: int, sigma_divisor: float) -> torch.Tensor:
    """Projections of one released sum on the canary's gradient; the worst case is a batch that may hold it alone."""
    model = nn.Linear(8, 2, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    clipper = PerSampleClipper(model)
    x = 1e3 * torch.ones(1, 8) if with_canary else torch.zeros(0, 8)
    y = torch.zeros(len(x), dtype=torch.long)
    canary = clipper.clipped_sum(1e3 * torch.ones(1, 8), torch.zeros(1, dtype=torch.long), clip_norm=1.0, seed=0)
    direction = canary.gradients["weight"] / canary.gradients["weight"].norm()
    broken = dataclasses.replace(settings, noise_multiplier=settings.noise_multiplier / sigma_divisor)
    random = RandomStream.secure()
    return (
        torch.stack(
            [(noised_sum(clipper, x, y, broken, random).noised_sum["weight"] * direction).sum() for _ in range(draws)]
        )
        / settings.clip_norm
    )


def _lower_bound_on_mu(present: torch.Tensor, absent: torch.Tensor, alpha: float = 1e-4) -> float:
    """Clopper-Pearson lower bound on the Gaussian-DP parameter: mu >= z(1 - FPR) - z(FNR) at the middle threshold."""
    threshold = float((present.mean() + absent.mean()) / 2)
    n = len(present)
    upper = [
        stats.beta.ppf(1 - alpha / 2, int(errors) + 1, n - int(errors))
        for errors in ((absent > threshold).sum(), (present <= threshold).sum())
    ]
    return float(stats.norm.ppf(1 - upper[0]) - stats.norm.ppf(upper[1]))


@pytest.mark.parametrize(("sigma_divisor", "refuted"), [(1.0, False), (1.25, True)])
def test_canary_audit_of_one_step(sigma_divisor, refuted):
    """The real step stays below its claim mu = 1 / σ; one with its noise divided by 1.25 is caught."""
    settings = dataclasses.replace(SETTINGS, noise_multiplier=1.0)
    present, absent = (_canary_outputs(settings, flag, 6_000, sigma_divisor) for flag in (True, False))
    assert (_lower_bound_on_mu(present, absent) > 1 / settings.noise_multiplier) == refuted


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"noise_multiplier": 0}, r"noise_multiplier=0 .*0\.001.*no-noise"),
        ({"noise_multiplier": -1.0}, r"noise_multiplier=-1\.0 .*0\.001"),
        ({"noise_multiplier": math.nan}, r"noise_multiplier=nan .*0\.001"),
        ({"noise_multiplier": math.inf}, "noise_multiplier=inf"),
        ({"clip_norm": 0.0}, r"clip_norm=0\.0"),
        ({"clip_norm": math.inf}, "clip_norm=inf"),
        ({"clip_norm": math.inf, "unsafe": frozenset({"no-clipping"})}, "clip_norm=inf"),
        ({"clip_norm": math.nan}, "clip_norm=nan"),
        ({"noise_multiplier": 1e-200}, r"noise_multiplier=1e-200 .*0\.001"),
        ({"learning_rate": 0}, "learning_rate=0"),
        ({"noise_multiplier": True}, "noise_multiplier=True.*bool"),
        ({"noise_multiplier": False, "unsafe": frozenset({"no-noise"})}, "noise_multiplier=False.*bool"),
        ({"clip_norm": "1"}, "clip_norm='1'.*str"),
        ({"learning_rate": math.inf}, "learning_rate=inf"),
        ({"expected_batch_size": 0}, "expected_batch_size=0"),
        ({"unsafe": frozenset({"no-nose"})}, "no-nose.*no-noise.*no-clipping"),
    ],
)
def test_bad_settings_are_named(change, message):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(SETTINGS, **change)
