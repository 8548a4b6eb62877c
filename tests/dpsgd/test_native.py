"""The native kernels of every instruction set that this CPU has, against the definition."""

import ctypes

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from alidpfl.dpsgd import native
from alidpfl.dpsgd.conv import conv2d_gradients
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
    found = conv2d_gradients(conv, ["weight"], x, grad, Storage.KEEP)["weight"]
    for n in range(3):
        truth = torch.autograd.grad((conv(x[n : n + 1]) * grad[n : n + 1]).sum(), conv.weight)[0]
        weights = torch.zeros(3)
        weights[n] = 1.0
        torch.testing.assert_close(found.weighted_sum(weights), truth, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found.squared_norms[n], truth.double().square().sum(), rtol=1e-5, atol=0)


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
    found = conv2d_gradients(conv, ["weight"], x, grad, Storage.KEEP)["weight"]
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
