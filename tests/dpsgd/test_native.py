"""The native kernels of every instruction set that this CPU has, against the definition."""

import ctypes

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from alidpfl.dpsgd import native
from alidpfl.dpsgd.conv import convolution_gradients
from alidpfl.dpsgd.gradient_forms import Storage
from alidpfl.dpsgd.relu_pool import ReluMaxPool, join_relu_and_pool

pytestmark = pytest.mark.skipif(not native.is_available(), reason="the native kernels are not built on this machine")


@pytest.fixture(params=[0, 1, 2], ids=["portable", "avx2", "avx512"])
def instruction_set(request, monkeypatch):
    library = native._library()
    if request.param > library.instruction_set:
        pytest.skip("this CPU does not have it")
    chosen = native._Library(library.handle, request.param)
    monkeypatch.setattr(native, "_library", lambda: chosen)
    return request.param


@pytest.mark.parametrize("channels_out", [4, 8, 16, 32, 48, 64, 80, 112])
@pytest.mark.parametrize("options", [{}, {"stride": 2}, {"dilation": 2}, {"stride": (2, 1), "padding": (1, 2)}])
@pytest.mark.parametrize("channels_in", [1, 3, 7])
def test_convolution(instruction_set, channels_in, channels_out, options):
    torch.manual_seed(0)
    conv = nn.Conv2d(channels_in, channels_out, (3, 5), **options)
    x = torch.randn(3, channels_in, 11, 13)
    grad = torch.randn_like(conv(x))
    found = convolution_gradients(conv, ["weight"], x, grad, Storage.KEEP)["weight"]
    for n in range(3):
        truth = torch.autograd.grad((conv(x[n : n + 1]) * grad[n : n + 1]).sum(), conv.weight)[0]
        weights = torch.zeros(3)
        weights[n] = 1.0
        torch.testing.assert_close(found.weighted_sum(weights), truth, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found.squared_norms[n], truth.double().square().sum(), rtol=1e-5, atol=0)


@pytest.mark.parametrize("channels_out", [16, 48])
@pytest.mark.parametrize("options", [{}, {"stride": (2, 1), "padding": (1, 2)}])
def test_convolution_of_persons(instruction_set, channels_out, options):
    """Added over each person's records, the same as one by one."""
    torch.manual_seed(0)
    conv = nn.Conv2d(3, channels_out, (3, 5), **options)
    x = torch.randn(6, 3, 11, 13)
    grad = torch.randn_like(conv(x))
    found = convolution_gradients(conv, ["weight"], x, grad, Storage.KEEP, records=3)["weight"]
    for n in range(2):
        some = slice(3 * n, 3 * n + 3)
        truth = torch.autograd.grad((conv(x[some]) * grad[some]).sum(), conv.weight)[0]
        weights = torch.zeros(2)
        weights[n] = 1.0
        torch.testing.assert_close(found.weighted_sum(weights), truth, rtol=1e-4, atol=2e-4)
        torch.testing.assert_close(found.squared_norms[n], truth.double().square().sum(), rtol=1e-5, atol=0)


@pytest.mark.parametrize(("narrow", "wide"), [(1, 1), (10, 37), (33, 130)])
@pytest.mark.parametrize("records", [1, 2, 7])
def test_orthogonal_terms(instruction_set, narrow, wide, records):
    x, y = torch.randn(5, records, narrow), torch.randn(5, records, wide)
    if records > 1:
        x[2, 1] = 2 * x[2, 0]  # nothing new: its direction is zero
    directions, values, squared = native.orthogonal(x, y)
    truth = torch.einsum("bkn,bkm->bnm", x.double(), y.double())
    found = torch.einsum("bkn,bkm->bnm", directions.double(), values.double())
    torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(squared, truth.square().sum((1, 2)), rtol=1e-5, atol=1e-8)
    assert records == 1 or not directions[2, 1].any()


@pytest.mark.parametrize("records", [1, 2, 3, 4, 5, 8, 9, 13])
@pytest.mark.parametrize(("features", "classes"), [(1, 2), (130, 3), (2100, 10)])
def test_softmax_of_persons(instruction_set, records, features, classes):
    torch.manual_seed(0)
    inputs, persons = torch.randn(200, features), 11
    rows = torch.randperm(200)[: persons * records]
    weights = torch.zeros(features, native.softmax_width(classes))
    weights[:, :classes] = torch.randn(features, classes)
    x = inputs[rows].double().view(persons, records, features)
    scores, products = native.softmax_scores(inputs, rows, weights, records)
    torch.testing.assert_close(scores.double(), (x @ weights.double()).flatten(0, 1), rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(products.view(persons, records, records), x @ x.mT, rtol=1e-5, atol=1e-3)
    residuals, groups = torch.randn(persons * records, classes), torch.arange(persons) // 3
    own = residuals.view(persons, records, classes)
    truth = torch.einsum("brc,brf->bcf", own.double(), x)
    found = native.softmax_gradient(inputs, rows, groups, residuals, records)
    torch.testing.assert_close(found, truth.sum(0), rtol=1e-4, atol=1e-4)
    limit = float(truth.flatten(1).norm(dim=1).median())
    factors = (limit / truth.flatten(1).norm(dim=1)).clamp_max(1)
    expected = (factors[:, None, None] * truth).sum(0)
    norms, total = native.softmax_persons(inputs, rows.view(persons, records), groups, own.contiguous(), limit)
    torch.testing.assert_close(norms, truth.flatten(1).norm(dim=1), rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-4)
    if records > 1:
        scaled = own.clone()
        norms = native.clip_persons(products, scaled, features, largest_input=1e20, limit=limit)
        torch.testing.assert_close(norms, truth.flatten(1).norm(dim=1), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(scaled, factors[:, None, None].float() * own, rtol=1e-4, atol=1e-6)


def test_normal_numbers(instruction_set):
    from alidpfl.dpsgd.randomness import _box_muller

    generator = torch.Generator().manual_seed(1)
    radius = torch.randint(-(2**63), 2**63 - 1, (50_000,), generator=generator)
    angle = torch.randint(-(2**31), 2**31, (50_000,), generator=generator).to(torch.int32)
    radius[:4] = torch.tensor([2**30, 2**32 - 1, -1, 2**63 - 1])
    angle[:16] = torch.arange(16).mul(2**28).sub(2**31).to(torch.int32)  # every sixteenth of a turn
    fast, slow = torch.empty(100_000), torch.empty(100_000)
    native.box_muller(radius.clone(), angle.clone(), out=fast)
    _box_muller(radius.clone(), angle.clone(), out=slow)
    torch.testing.assert_close(fast, slow, rtol=2e-6, atol=4e-6)


def _both(x: torch.Tensor, grad: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    results = []
    for layer in (nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)), ReluMaxPool(nn.MaxPool2d(2))):
        leaf = x.clone().contiguous(memory_format=torch.channels_last).requires_grad_()
        out = layer(leaf)
        results.append((out.detach(), torch.autograd.grad(out, leaf, grad)[0]))
    return results


@settings(deadline=None, max_examples=30)
@given(height=st.integers(2, 9), width=st.integers(2, 9), channels=st.integers(1, 37), seed=st.integers(0, 1000))
def test_relu_and_pooling_bit_for_bit(height, width, channels, seed):
    """Ties, zeros, infinities and sizes with a row left over, in every combination of them that turns up."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.tensor([-1.0, -0.0, 0.0, 1.0, 2.0, 2.0, float("inf"), -float("inf"), 1e-40])
    x = values[torch.randint(len(values), (2, channels, height, width), generator=generator)]
    grad = torch.randn(2, channels, height // 2, width // 2, generator=generator)
    (plain, plain_grad), (joined, joined_grad) = _both(x, grad)
    assert torch.equal(plain, joined)
    assert torch.equal(plain_grad, joined_grad)


def test_relu_and_pooling_on_every_instruction_set(instruction_set):
    torch.manual_seed(0)
    x, grad = torch.randn(3, 19, 6, 7), torch.randn(3, 19, 3, 3)
    (plain, plain_grad), (joined, joined_grad) = _both(x, grad)
    assert torch.equal(plain, joined)
    assert torch.equal(plain_grad, joined_grad)


def test_nan_passes_as_in_pytorch():
    x = torch.tensor([[[[1.0, float("nan")], [3.0, 2.0]]]])
    (plain, _), (joined, _) = _both(x, torch.ones(1, 1, 1, 1))
    assert plain.isnan().all()
    assert joined.isnan().all()


@pytest.mark.parametrize(
    ("layers", "pools"),
    [
        ([nn.ReLU(), nn.MaxPool2d(2)], 1),
        ([nn.MaxPool2d(2), nn.ReLU()], 1),
        ([nn.ReLU(), nn.MaxPool2d(2), nn.ReLU(), nn.MaxPool2d(2)], 2),
        ([nn.MaxPool2d(3, 1, 1), nn.ReLU(inplace=True), nn.Tanh()], 1),
        ([nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True), nn.Sequential(nn.ReLU(), nn.MaxPool2d((1, 2)))], 2),
        ([nn.Tanh(), nn.MaxPool2d(2), nn.AvgPool2d(1)], 0),
        ([nn.ReLU6(), nn.MaxPool2d(2)], 0),
    ],
)
def test_joined_networks_are_the_same_function(layers, pools):
    network = nn.Sequential(*layers)
    types = [type(m) for m in network.modules()]
    joined = join_relu_and_pool(network)
    assert sum(isinstance(m, ReluMaxPool) for m in joined.modules()) == pools
    assert [type(m) for m in network.modules()] == types, "the original is left as it is"
    x = torch.randn(2, 5, 9, 9).contiguous(memory_format=torch.channels_last)
    one, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    first, second = network(one * 1), joined(other * 1)
    assert torch.equal(first, second)
    first.square().sum().backward()
    second.square().sum().backward()
    assert torch.equal(one.grad, other.grad)


def test_watched_layers_are_left_alone():
    network = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2))
    network[0].register_forward_hook(lambda *_: None)
    assert join_relu_and_pool(network) is network


def test_denormal_numbers_do_not_change_the_mode_of_the_processor():
    conv, x = nn.Conv2d(1, 16, 3), torch.full((1, 1, 5, 5), 1e-40)
    grad = torch.full((1, 16, 3, 3), 1e-3)
    found = convolution_gradients(conv, ["weight"], x, grad, Storage.KEEP)["weight"]
    assert float(found.squared_norms) == 0
    assert float(torch.tensor(1e-40) * 1.0) > 0, "flushing must end with the kernel"


def test_wrong_shapes_never_reach_c():
    shape = native.ConvShape(
        batch=1, records=1, sample_size=16, out_height=2, out_width=2, channels_out=16, runs_y=3, runs_x=1,
        run_length=3, run_step_y=4, run_step_x=1, step_y=4, step_x=1,
    )  # fmt: skip
    good_x, good_g = torch.zeros(16), torch.zeros(64)
    native.conv_gradients(shape, good_x, good_g)
    for x, g in (
        (good_x[:15], good_g),
        (good_x, good_g[:60]),
        (good_x.double(), good_g),
        (good_x, torch.zeros(128)[::2]),
    ):
        with pytest.raises(ValueError, match="expected"):
            native.conv_gradients(shape, x, g)
    for x, y in ((torch.zeros(2, 3, 4), torch.zeros(2, 2, 4)), (torch.zeros(2, 3, 4), torch.zeros(2, 3, 8)[..., ::2])):
        with pytest.raises(ValueError, match="expected"):
            native.orthogonal(x, y)
    inputs, rows, weights = torch.zeros(5, 4), torch.arange(5), torch.zeros(4, native.softmax_width(3))
    with pytest.raises(ValueError, match="whole number of persons"):
        native.softmax_scores(inputs, rows, weights, 2)
    with pytest.raises(ValueError, match="whole number of persons"):
        native.softmax_gradient(inputs, rows, torch.zeros(2).long(), torch.zeros(5, 3), 2)
    with pytest.raises(ValueError, match="expected"):
        native.softmax_gradient(inputs, rows[:4], torch.zeros(4).long(), torch.zeros(4, 3), 2)
    with pytest.raises(IndexError):
        native.softmax_persons(inputs, rows[:4].view(2, 2) + 2, torch.zeros(2).long(), torch.zeros(2, 2, 3), 1.0)
    with pytest.raises(ValueError, match="expected"):
        native.clip_persons(torch.zeros(2, 2, 2), torch.zeros(2, 2, 3), 4, largest_input=1.0, limit=1.0)
    with pytest.raises(ValueError, match="expected"):
        native.box_muller(torch.zeros(4).long(), torch.zeros(4).int(), out=torch.zeros(7))


def test_the_environment_switches_the_kernels_off(monkeypatch):
    monkeypatch.setenv("ALIDPFL_NATIVE", "0")
    assert native._library.__wrapped__() is None


def test_a_library_that_does_not_load_is_no_error(monkeypatch):
    def broken(path):
        raise OSError(path)

    monkeypatch.setattr(ctypes, "CDLL", broken)
    assert native._library.__wrapped__() is None


def test_fallback_without_kernels_gives_the_same_pooling():
    x = torch.randn(2, 3, 6, 6).contiguous(memory_format=torch.channels_last)
    layer = ReluMaxPool(nn.MaxPool2d(2))
    with native.disabled():
        assert torch.equal(layer(x), F.max_pool2d(F.relu(x), 2))
