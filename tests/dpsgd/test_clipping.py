"""Exactness of the clipped sum: against the oracle, in its limits, and whatever the batch is split into."""

import functools
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from alidpfl.dpsgd import PerSampleClipper, native
from alidpfl.dpsgd.clipping import SAFETY
from alidpfl.dpsgd.gradient_forms import Bilinear, Storage, clip_factors
from alidpfl.dpsgd.linear import linear_gradients
from alidpfl.dpsgd.padding import padded_size
from alidpfl.dpsgd.recording import find_units
from alidpfl.models import make_model

from .oracle import clipped_sum, distance, gradients_one_by_one, norm
from .zoo import CASES, Scale


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("keep", ["stored", "recomputed"])
def test_equals_the_oracle(name, keep, path):
    """Norms and the clipped sum, with a clip norm that clips about half of the samples."""
    model, (x, y) = CASES[name].model(), CASES[name].batch(7)
    truth = gradients_one_by_one(model, x, y)
    norms = torch.tensor([norm(g) for g in truth])
    clip_norm = float(norms.median())

    limit = 32 << 20 if keep == "stored" else 0
    ours = PerSampleClipper(model, max_gradient_bytes=limit).clipped_sum(x, y, clip_norm=clip_norm, seed=0)

    torch.testing.assert_close(ours.statistics.norms, norms.double(), rtol=2e-5, atol=1e-7)
    assert (norms > clip_norm).any()
    assert (norms < clip_norm).any()
    assert distance(ours.gradients, clipped_sum(truth, clip_norm)) <= 1e-4 * clip_norm


@pytest.mark.parametrize("name", ["paper-cnn-mnist", "resnet", "embedding", "fallback", "sequence-gram"])
@pytest.mark.parametrize("size", [1, 7, 64])
def test_physical_batch_sizes_agree_with_a_plain_loop(name, size, path):
    model, (x, y) = CASES[name].model(), CASES[name].batch(19)
    truth = clipped_sum(gradients_one_by_one(model, x, y), 0.7)
    ours = PerSampleClipper(model, microbatch_size=size).clipped_sum(x, y, clip_norm=0.7, seed=0)
    assert ours.statistics.norms.shape == (19,)
    assert distance(ours.gradients, truth) <= 1e-4


@pytest.mark.parametrize("name", ["paper-cnn-mnist", "resnet", "embedding", "attention"])
def test_no_clipping_gives_the_batch_gradient(name, path):
    model, (x, y) = CASES[name].model(), CASES[name].batch(12)
    batch = torch.autograd.grad(F.cross_entropy(model(x), y, reduction="sum"), list(model.parameters()))
    ours = PerSampleClipper(model).clipped_sum(x, y, clip_norm=math.inf, seed=0)
    for (parameter, _), gradient in zip(model.named_parameters(), batch, strict=True):
        torch.testing.assert_close(ours.gradients[parameter], gradient, rtol=1e-4, atol=1e-5)


@pytest.mark.skipif(not native.is_available(), reason="the native kernels are not built on this machine")
@pytest.mark.parametrize("name", [name for name in CASES if "conv" in name or "cnn" in name or name == "resnet"])
def test_native_and_torch_paths_agree(name):
    model, (x, y) = CASES[name].model(), CASES[name].batch(9)
    clipper = PerSampleClipper(model)
    fast = clipper.clipped_sum(x, y, clip_norm=0.5, seed=0)
    with native.disabled():
        slow = clipper.clipped_sum(x, y, clip_norm=0.5, seed=0)
    torch.testing.assert_close(fast.statistics.norms, slow.statistics.norms, rtol=1e-5, atol=1e-7)
    assert distance(fast.gradients, slow.gradients) <= 2e-5


@settings(deadline=None, max_examples=40)
@given(
    norms=st.lists(st.floats(0, 1e30), min_size=1, max_size=8),
    clip_norm=st.floats(1e-6, 1e6),
)
def test_no_contribution_exceeds_the_clip_norm(norms, clip_norm):
    norms = torch.tensor(norms, dtype=torch.float64)
    factors = clip_factors(norms, clip_norm * SAFETY).float().double()  # as they are applied
    assert (factors <= 1).all()
    assert (factors * norms <= clip_norm).all()
    assert ((factors == 1) | (factors * norms >= clip_norm * (1 - 2e-6))).all(), "clipped more than needed"


def test_factors_at_the_limits():
    norms = torch.tensor([0.0, 1.0, math.inf, math.nan], dtype=torch.float64)
    assert clip_factors(norms, 2.0).tolist() == [1, 1, 0, 0]
    assert clip_factors(norms, math.inf).tolist() == [1, 1, 0, 0]


ONE_AT_A_TIME = [
    *("resnet", "sequence-gram", "sequence-stored", "embedding", "conv-depthwise", "conv1d", "conv3d-groups"),
    *("conv-transpose-2d", "instance-norm", "rms-norm"),
]


@settings(deadline=None, max_examples=25)
@given(scale=st.floats(1e-3, 1e4), clip_norm=st.floats(1e-3, 1e2), seed=st.integers(0, 10**6))
def test_a_single_sample_contributes_at_most_the_clip_norm(scale, clip_norm, seed):
    """What is really summed, in floating point, and not only what the factors promise."""
    for name in ONE_AT_A_TIME:
        x, y = CASES[name].batch(1, seed)
        for limit in (0, 32 << 20):
            clipper, before = _clipper_of(name, limit)
            with torch.no_grad():
                for parameter, weights in zip(clipper.parameters.values(), before, strict=True):
                    parameter.copy_(weights * (1 + math.log10(scale)))
            ours = clipper.clipped_sum(x, y, clip_norm=clip_norm, seed=0)
            assert norm(ours.gradients) <= clip_norm * (1 + 1e-6)


@functools.cache
def _clipper_of(name, limit):
    """A clipper that has tried its model, which takes most of the time, and the weights that it had."""
    clipper = PerSampleClipper(CASES[name].model(), max_gradient_bytes=limit)
    return clipper, [weights.detach().clone() for weights in clipper.parameters.values()]


class _Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


def _largest(clipper, batches):
    """The longest contribution of a single sample, at C = 1."""
    found = [clipper.clipped_sum(x, y, clip_norm=1.0, seed=0).gradients for x, y in batches]
    return max(norm(gradients) for gradients in found)


def _of(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("scale", [1e6, 1e9, 1e12, 1e15, 1e18])
@pytest.mark.parametrize(("positions", "width", "outputs"), [(3, 30, 17), (4, 32, 32), (8, 64, 64)])
def test_positions_that_nearly_cancel_are_clipped(positions, width, outputs, scale):
    """To 1e-8 of their size: what a double has left of their norm is error, what is summed is not small at all."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(width, outputs), _Mean(), nn.Linear(outputs, 2))
    clipper, label = PerSampleClipper(model), torch.tensor([0])
    clipper.clipped_sum(torch.zeros(0, positions, width), label[:0], clip_norm=1.0, seed=0)
    with torch.no_grad():  # as a hostile server might
        model[0].weight.zero_()
        model[0].bias.zero_()
        model[2].weight.mul_(1e-3)
    batches = []
    for seed in range(20):
        record = scale * _of(seed, positions, width)
        record[-1] = -record[:-1].double().sum(0).float()
        batches.append((record[None], label))
    assert _largest(clipper, batches) <= 1 + 1e-6


@pytest.mark.parametrize("scale", [1e6, 1e9, 1e12, 1e15, 1e18])
def test_tokens_whose_rows_nearly_cancel_are_clipped(scale):
    model = nn.Sequential(nn.Embedding(20, 16), nn.Flatten(), nn.Linear(64, 2))
    clipper, record, label = PerSampleClipper(model), torch.full((1, 4), 5), torch.tensor([0])
    clipper.clipped_sum(record[:0], label[:0], clip_norm=1.0, seed=0)
    found = []
    for seed in range(20):
        for share in (0.0, 0.9, 0.97, 0.99):
            weights = scale * _of(seed, 2, 4, 16)
            weights[:, 2] = -weights[:, :2].double().sum(1).float()
            weights[:, 3] = (-share * weights[:, :3].double().sum(1)).float()
            with torch.no_grad():
                model[0].weight.zero_()
                model[2].weight.copy_(weights.flatten(1))
                model[2].bias.zero_()
            found.append(_largest(clipper, [(record, label)]))
    assert max(found) <= 1 + 1e-6


@pytest.mark.parametrize("positions", [16, 128])  # norms by Gram matrices, and by writing out
@pytest.mark.parametrize("limit", [0, 32 << 20])
def test_cancelling_positions_do_not_slip_through(positions, limit):
    """Huge terms that cancel exactly: the true norm is 0, what rounding leaves of the sum must still be clipped."""
    torch.manual_seed(0)
    layer = nn.Linear(64, 64, bias=False)
    x = torch.randn(1, 1, 64).expand(1, positions, 64)
    half = 1e4 * torch.randn(positions // 2, 64)
    weights = torch.cat([half, -half])[torch.randperm(positions)]  # the positions' output gradients

    def loss(outputs, targets):
        return (outputs * weights).sum((1, 2))

    ours = PerSampleClipper(layer, loss=loss, max_gradient_bytes=limit).clipped_sum(
        x, torch.zeros(1), clip_norm=1e-4, seed=0
    )
    assert norm(ours.gradients) <= 1e-4 * (1 + 1e-6)
    plain = torch.autograd.grad(loss(layer(x), None).sum(), layer.weight)[0]
    assert plain.norm() > 1e-3, "rounding leaves too little for this test to mean anything"


def test_cancelling_tokens_do_not_slip_through():
    torch.manual_seed(0)
    layer = nn.Embedding(3, 64)
    half = 1e6 * torch.randn(256, 64)
    weights = torch.cat([half, -half])[torch.randperm(512)]

    def loss(outputs, targets):
        return (outputs * weights).sum((1, 2))

    tokens = torch.ones(1, 512, dtype=torch.long)
    ours = PerSampleClipper(layer, loss=loss).clipped_sum(tokens, torch.zeros(1), clip_norm=1e-4, seed=0)
    assert norm(ours.gradients) <= 1e-4 * (1 + 1e-6)
    plain = torch.autograd.grad(loss(layer(tokens), None).sum(), layer.weight)[0]
    assert plain.norm() > 1e-3, "rounding leaves too little for this test to mean anything"


@pytest.mark.parametrize("outputs", [1, 2, 8])
def test_tiny_gradients_times_huge_inputs_do_not_slip_through(outputs):
    """Squares that underflow in float32, times inputs that make up for it."""
    inputs, back = torch.full((1, 1), 1e19), torch.full((1, outputs), 2e-23)
    found = linear_gradients(nn.Linear(1, outputs), ["weight"], inputs, back, Storage.KEEP)["weight"]
    factors = clip_factors(found.squared_norms.sqrt(), 1e-6).float()
    assert 0.9e-6 < float(found.weighted_sum(factors).double().norm()) <= 1e-6 * (1 + 1e-6)


@pytest.mark.parametrize("cancelled", [1e-2, 1e-4, 1e-6])
def test_positions_that_cancel_in_part_do_not_slip_through(cancelled):
    """The Gram matrix of such a record has terms that are 1 / cancelled^2 times its norm: single precision is lost."""
    for seed in range(20):
        random = torch.Generator().manual_seed(seed)
        inputs = torch.randn(1, 1, 64, generator=random).expand(1, 2, 64).contiguous()
        back = torch.randn(1, 1, 64, generator=random)
        found = linear_gradients(
            nn.Linear(64, 64), ["weight"], inputs, torch.cat([back, -back * (1 + cancelled)], 1), Storage.KEEP
        )["weight"]
        assert isinstance(found, Bilinear), "this is the test of Gram matrices"
        factors = clip_factors(found.squared_norms.sqrt(), 1e-6).float()
        assert 0.5e-6 < float(found.weighted_sum(factors).double().norm()) <= 1e-6 * (1 + 1e-6)


@pytest.mark.parametrize("positions", [20, 30, 40, 50])
def test_positions_that_are_rounded_up_one_after_the_other_do_not_slip_through(positions):
    """One, many of a little more than half a unit in its last place, and what takes them all back.

    In single precision each of the many would count as a whole unit, and the sum come out at twice the clip norm.
    """
    little = 0.6 * 2.0**-23
    steps = torch.tensor([1.0, *[little] * (positions - 2), -1 - little * (positions - 2)])
    inputs, back = torch.ones(1, positions, 256), steps[None, :, None].expand(1, positions, 256).contiguous()
    found = linear_gradients(nn.Linear(256, 256), ["weight"], inputs, back, Storage.KEEP)["weight"]
    assert isinstance(found, Bilinear), "this is the test of Gram matrices"
    factors = clip_factors(found.squared_norms.sqrt(), 1e-6).float()
    assert float(found.weighted_sum(factors).double().norm()) <= 1e-6 * (1 + 1e-6)


def test_frozen_parameters_get_no_gradient_and_do_not_count():
    model, (x, y) = CASES["resnet"].model(), CASES["resnet"].batch(5)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not name.startswith("0.") and not name.endswith("bias"))
    truth = gradients_one_by_one(model, x, y)
    ours = PerSampleClipper(model).clipped_sum(x, y, clip_norm=0.1, seed=0)
    assert ours.gradients.keys() == truth[0].keys()
    torch.testing.assert_close(
        ours.statistics.norms, torch.tensor([norm(g) for g in truth]).double(), rtol=1e-5, atol=0
    )
    assert distance(ours.gradients, clipped_sum(truth, 0.1)) <= 1e-5


def test_the_model_is_left_as_it_was():
    model, (x, y) = CASES["paper-cnn-mnist"].model(), CASES["paper-cnn-mnist"].batch(3)
    model[7].weight.requires_grad_(False)
    before = {name: p.clone() for name, p in model.named_parameters()}
    state = torch.get_rng_state()
    PerSampleClipper(model).clipped_sum(x, y, clip_norm=1.0, seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter, before[name])
        assert parameter.requires_grad == (name != "7.weight")
        assert parameter.grad is None
    assert not any(m._forward_hooks for m in model.modules())
    assert [type(m) for m in model] == [type(m) for m in CASES["paper-cnn-mnist"].model()]


def test_the_model_is_left_as_it_was_after_an_error():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))

    def loss(outputs, targets):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        PerSampleClipper(model, loss=loss).clipped_sum(torch.rand(2, 4), torch.zeros(2), clip_norm=1.0, seed=0)
    assert all(p.requires_grad for p in model.parameters())
    assert not any(m._forward_hooks for m in model.modules())


def test_dropout_is_seeded_and_active():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(10, 50), nn.Dropout(0.5), nn.ReLU(), nn.Linear(50, 3))
    x, y = torch.randn(8, 10), torch.randint(3, (8,))
    clipper = PerSampleClipper(model)
    first, again, other = (clipper.clipped_sum(x, y, clip_norm=1.0, seed=s) for s in (1, 1, 2))
    assert distance(first.gradients, again.gradients) == 0
    assert distance(first.gradients, other.gradients) > 1e-3
    model.eval()
    without = PerSampleClipper(model).clipped_sum(x, y, clip_norm=1.0, seed=1)
    assert distance(first.gradients, without.gradients) > 1e-3


@pytest.mark.parametrize("limit", [0, 32 << 20])
def test_rounding_that_always_goes_the_same_way(limit, path):
    """Constant samples, long sums: every addition rounds alike, and the clipped norm must hold all the same."""
    torch.manual_seed(0)

    def total(outputs, targets):
        return outputs.flatten(1).sum(1)

    cases = [
        (nn.Linear(16384, 1, bias=False), (16384,)),
        (nn.Conv2d(1, 16, 3), (1, 120, 120)),
        (nn.Conv1d(3, 4, 3), (3, 9000)),
        (nn.Conv2d(2, 2, 3, groups=2), (2, 70, 70)),
        (nn.Conv3d(1, 2, 2), (1, 24, 24, 24)),
        (nn.ConvTranspose2d(1, 2, 3), (1, 90, 90)),
        (nn.InstanceNorm1d(2, affine=True), (2, 9000)),
        (nn.RMSNorm(4), (4096, 4)),
        (nn.Linear(4, 4), (4096, 4)),
        (nn.Linear(256, 256, bias=False), (256, 256)),
        (nn.Linear(300, 300), (100, 300)),
        (nn.Embedding(2, 8), (512,)),
        (Scale(20_000), (20_000,)),
    ]
    for model, shape in cases:
        has_tokens = isinstance(model, nn.Embedding)
        if has_tokens and (path, limit) != ("torch", 0):
            continue  # no kernel and no limit concerns them, and a trial takes ten seconds
        clipper = PerSampleClipper(model, loss=total, microbatch_size=padded_size(1), max_gradient_bytes=limit)
        for value, clip_norm in itertools.product([1] if has_tokens else [1.99749, 0.1, 3e-3], (1.0, 1e-3)):
            ours = clipper.clipped_sum(torch.full((1, *shape), value), torch.zeros(1), clip_norm=clip_norm, seed=0)
            assert norm(ours.gradients) <= clip_norm * (1 + 1e-6), (type(model).__name__, value)


def test_huge_norms_have_no_imprecise_factor():
    """Near 1e38 a float32 factor, or a gradient times it, is denormal and rounds up: such samples are dropped."""
    for positions in ((), (3,)):  # with positions the gradient is a sum
        layer = nn.Linear(16, 16, bias=False)
        for scale in (1e-10, 1e-9, 1e10, 1e17):
            clipper = PerSampleClipper(layer, loss=lambda o, t, scale=scale: o.flatten(1).sum(1) * scale)
            for value in (1e5, 7e11, 1.8e19, 1.3e38, 3e38):
                x = torch.full((1, *positions, 16), value)
                for clip_norm in (1e-6, 1e-3, 1.0):
                    ours = clipper.clipped_sum(x, torch.zeros(1), clip_norm=clip_norm, seed=0)
                    assert norm(ours.gradients) <= clip_norm * (1 + 1e-6), (positions, scale, value, clip_norm)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_hostile_weights_cannot_lift_a_sample_over_the_clip_norm(name):
    """Hidden values of 1e38 and gradients of 1e-11 behind them: with denormals, 1.95 C."""
    shape = (1, 28, 28)
    model = make_model(name, shape, 10, hidden=128, seed=0)
    clipper = PerSampleClipper(model)
    nothing = torch.zeros(0, *shape), torch.zeros(0).long()
    clipper.clipped_sum(*nothing, clip_norm=1.0, seed=0)  # tried at its own weights
    hidden_bias, output_bias = list(model.parameters())[-3], list(model.parameters())[-1]
    for clip_norm in (1e-5, 1e-3, 1.0):
        for value in torch.linspace(0.7e38, 3.4e38, 9).tolist():
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
                hidden_bias.fill_(value)
                output_bias[0] = 26.0
            ours = clipper.clipped_sum(torch.rand(1, *shape), torch.tensor([0]), clip_norm=clip_norm, seed=0)
            assert norm(ours.gradients) <= clip_norm * (1 + 1e-6)


def test_large_batches_differ_by_no_more_than_one_sample():
    """Twenty thousand like samples: summed in float32, moving every micro-batch by one would round by 5e-4 of C."""
    torch.manual_seed(0)
    x, y = 0.3 + 0.1 * torch.randn(20_000, 100), torch.zeros(20_000).long()
    clipper = PerSampleClipper(nn.Linear(100, 10))
    whole, without = (clipper.clipped_sum(x[i:], y[i:], clip_norm=1.0, seed=0) for i in (0, 1))
    assert distance(whole.gradients, without.gradients) <= 1 + 5e-5


def test_own_loss():
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    x, y = torch.randn(6, 4), torch.rand(6)

    def squared_error(outputs, targets):
        return (outputs.squeeze(1) - targets).square()

    truth = gradients_one_by_one(model, x, y, squared_error)
    ours = PerSampleClipper(model, loss=squared_error).clipped_sum(x, y, clip_norm=0.5, seed=0)
    assert distance(ours.gradients, clipped_sum(truth, 0.5)) <= 1e-5


def test_gradient_memory_is_bounded_whatever_the_batch():
    """Bytes of written-out gradients alive at once, for a limit far below what the batch would need."""
    model, (x, y) = CASES["paper-cnn-mnist"].model(), CASES["paper-cnn-mnist"].batch(64)
    limit = 1 << 20
    seen = []
    for size in (8, 64):
        clipper = PerSampleClipper(model, max_gradient_bytes=limit)
        plan = clipper._plan_storage(size)
        seen.append(plan)
        kept = [unit for unit in find_units(model) if plan[unit.path] is Storage.KEEP]
        stored = 4 * size * sum(unit.num_params for unit in kept)
        assert stored <= limit
        truth = PerSampleClipper(model).clipped_sum(x[:size], y[:size], clip_norm=1.0, seed=0)
        ours = clipper.clipped_sum(x[:size], y[:size], clip_norm=1.0, seed=0)
        assert distance(ours.gradients, truth.gradients) <= 1e-4
    assert seen[0] != seen[1], "the larger batch must keep fewer layers"


def test_a_fallback_module_shrinks_the_microbatch():
    """But never below the size to which batches are padded: see test_padding.py."""
    of_a_sample = 4 * 8  # the fallback's gain
    for samples, at_once in ((2, padded_size(1)), (70, 64), (1000, 128)):
        clipper = PerSampleClipper(CASES["fallback"].model(), max_gradient_bytes=samples * of_a_sample)
        assert clipper._microbatch_size == at_once
