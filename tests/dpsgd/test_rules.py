"""Every rule alone, against autograd in double and one record at a time, on layers and shapes of many kinds."""

import contextlib
import copy
import itertools

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from alidpfl.dpsgd import native
from alidpfl.dpsgd.conv import can_defer
from alidpfl.dpsgd.gradient_forms import Storage
from alidpfl.dpsgd.layers import RULES
from alidpfl.dpsgd.model_check import trained_parameters

RECORDS = 6
CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
INSTANCE_NORMS = {1: nn.InstanceNorm1d, 2: nn.InstanceNorm2d, 3: nn.InstanceNorm3d}


def truths(layer: nn.Module, inputs: Tensor, grads: Tensor, records: int) -> list[dict[str, Tensor]]:
    """The gradients of each record or person, in double."""
    exact = copy.deepcopy(layer).double()
    names = list(trained_parameters(exact))
    found = []
    for x, g in zip(inputs.double().split(records), grads.double().split(records), strict=True):
        total = sum((exact(one[None]) * back[None]).sum() for one, back in zip(x, g, strict=True))
        parts = torch.autograd.grad(total, [exact.get_parameter(name) for name in names])
        found.append(dict(zip(names, parts, strict=True)))
    return found


def is_close(ours: Tensor, truth: Tensor) -> bool:
    return bool((ours.double() - truth).norm() <= 2e-5 * truth.norm() + 1e-6)


def check(layer: nn.Module, inputs: Tensor, records: int = 1) -> None:
    """Compare norms, each gradient and a weighted sum, for every way of storing them, with and without kernels."""
    grads = torch.randn_like(layer(inputs))
    truth = truths(layer, inputs, grads, records)
    names = list(truth[0])
    with torch.no_grad():
        for kernels, storage in itertools.product((contextlib.nullcontext, native.disabled), Storage):
            with kernels():
                if storage is Storage.DEFER and not can_defer(layer):
                    continue
                found = RULES[type(layer)](layer, names, inputs, grads, storage, records=records)
                assert found.keys() == truth[0].keys()
                if storage is Storage.DEFER:
                    check_deferred(found.pop("weight"), [own["weight"] for own in truth])
                for name, gradients in found.items():
                    check_parameter(gradients, [own[name] for own in truth])


def check_parameter(gradients, truth: list[Tensor]) -> None:
    squared = torch.stack([own.square().sum() for own in truth])
    torch.testing.assert_close(gradients.squared_norms, squared, rtol=2e-5, atol=1e-7)
    for number, own in enumerate(truth):
        alone = torch.eye(len(truth))[number]
        assert gradients.weighted_sum(alone).shape == own.shape
        assert is_close(gradients.weighted_sum(alone), own)
    factors = torch.linspace(0, 1, len(truth))
    assert is_close(gradients.weighted_sum(factors), sum(f * own for f, own in zip(factors, truth, strict=True)))


def check_deferred(late, truth: list[Tensor]) -> None:
    squared = torch.stack([own.square().sum() for own in truth])
    limit = float(squared.sqrt().median())
    norms, total = late.clipped_sum(torch.zeros_like(squared), limit)
    torch.testing.assert_close(norms.square(), squared, rtol=2e-5, atol=1e-7)
    factors = (limit / squared.sqrt()).clamp_max(1)
    assert total.shape == truth[0].shape
    assert is_close(total, sum(f * own for f, own in zip(factors, truth, strict=True)))


def of_dims(dims: int, low: int, high: int) -> st.SearchStrategy:
    """One number for all dimensions, or one for each."""
    number = st.integers(low, high)
    return number | st.tuples(*[number] * dims)


@st.composite
def convolutions(draw, dims: int, *, is_transposed: bool = False):
    """A convolution and the shape of its inputs. Channels of 16 and 32 are for the native kernel."""
    groups = draw(st.sampled_from([1, 1, 2, 3, 16]))
    channels_in, channels_out = (groups * draw(st.sampled_from([1, 2, 3, 16])) for _ in range(2))
    assume(max(channels_in, channels_out) <= 48)
    options = {
        "kernel_size": draw(of_dims(dims, 1, 3)),
        "stride": draw(of_dims(dims, 1, 3)),
        "dilation": draw(of_dims(dims, 1, 2)),
        "bias": draw(st.booleans()),
    }
    if is_transposed:
        options["padding"] = draw(of_dims(dims, 0, 1))
        steps = [options[name] for name in ("stride", "dilation")]
        least = min(min(step) if isinstance(step, tuple) else step for step in steps)
        options["output_padding"] = draw(st.integers(0, least - 1))
    else:
        options["padding"] = draw(of_dims(dims, 0, 2) | st.sampled_from(["same", "valid"]))
        if options["padding"] == "same":
            options["stride"] = 1
    kind = TRANSPOSED if is_transposed else CONVOLUTIONS
    layer = kind[dims](channels_in, channels_out, groups=groups, **options)
    sizes = [draw(st.integers(5, 8 if dims < 3 else 6)) for _ in range(dims)]
    return layer, (channels_in, *sizes)


@pytest.mark.filterwarnings("ignore:Using padding=.same.")
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("is_transposed", [False, True])
@settings(deadline=None, max_examples=40)
@given(data=st.data(), records=st.sampled_from([1, 1, 2, 3]))
def test_convolutions(dims, is_transposed, data, records):
    layer, shape = data.draw(convolutions(dims, is_transposed=is_transposed))
    torch.manual_seed(0)
    inputs = torch.randn(RECORDS, *shape)
    try:
        layer(inputs)
    except RuntimeError:  # an output of no size
        assume(False)
    check(layer, inputs, records)


@pytest.mark.parametrize("records", [1, 2, 3])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    ("shape", "normalised"),
    [((7,), 1), ((4, 9), 1), ((4, 9), 2), ((1, 5), 1), ((3, 2, 5), 1), ((3, 2, 5), 2), ((3, 2, 5), 3), ((4, 1, 10), 2)],
)
def test_norms_of_positions(shape, normalised, bias, records):
    torch.manual_seed(0)
    for layer in (
        nn.LayerNorm(shape[-normalised:], bias=bias),
        nn.RMSNorm(shape[-normalised:], eps=1e-3 if bias else None),
    ):
        if isinstance(layer, nn.RMSNorm) and layer.eps is None:
            layer.eps = torch.finfo(torch.float32).eps  # the default is that of the numbers' type
        nn.init.normal_(layer.weight)
        check(layer, 3 * torch.randn(RECORDS, *shape), records)


@pytest.mark.parametrize("records", [1, 2, 3])
@pytest.mark.parametrize("channels", [1, 3, 16])
@pytest.mark.parametrize("sizes", [(5,), (33,), (4, 7), (9, 9), (1, 4, 5), (4, 6, 3)])
def test_norms_of_channels(sizes, channels, records):
    torch.manual_seed(0)
    for layer in (INSTANCE_NORMS[len(sizes)](channels, affine=True, eps=1e-3), nn.GroupNorm(1, channels)):
        nn.init.normal_(layer.weight)
        check(layer, 3 * torch.randn(RECORDS, channels, *sizes), records)


@pytest.mark.parametrize("records", [1, 2, 3])
@pytest.mark.parametrize(
    ("positions", "width", "outputs"), [((), 7, 5), ((), 5, 40), ((3,), 24, 32), ((9,), 4, 5), ((2, 3), 8, 3)]
)
def test_linear_layers(positions, width, outputs, records):
    torch.manual_seed(0)
    check(nn.Linear(width, outputs), torch.randn(RECORDS, *positions, width), records)


def test_every_rule_is_tested_here():
    """But for that of Embedding, whose inputs are no numbers (test_clipping.py)."""
    of_dims = {*CONVOLUTIONS.values(), *TRANSPOSED.values(), *INSTANCE_NORMS.values()}
    assert of_dims | {nn.GroupNorm, nn.LayerNorm, nn.RMSNorm, nn.Linear, nn.Embedding} == set(RULES)
