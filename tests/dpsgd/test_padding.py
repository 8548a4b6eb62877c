"""A record's gradient depends on that record only: the others change no bit of it, whatever their number."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from alidpfl.dpsgd import PerSampleClipper, SoftmaxClipper, native, padding
from alidpfl.dpsgd.conv_images import ImageConvolution, _by_kernel_rows
from alidpfl.dpsgd.padding import linear_layers, pad_columns, pad_rows, padded_linear, padded_size, unpadded_size
from alidpfl.dpsgd.recording import Recording
from alidpfl.models import make_model

from .zoo import Scale

HUGE = 1e3  # weights under which rounding decides the class


def made(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture(autouse=True)
def as_a_client_trains():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def clipper_for(name, is_native, monkeypatch):
    if not is_native:
        monkeypatch.setattr(native, "is_available", lambda: False)
    if name == "softmax":
        model = nn.Linear(784, 10, bias=False)
        clipper = SoftmaxClipper(model)
    else:
        model = make_model(name, (1, 28, 28), 10, hidden=128, seed=0)
        clipper = PerSampleClipper(model)
        nothing = torch.zeros(0, dtype=torch.int64)
        clipper.clipped_sum(torch.zeros(0, 1, 28, 28), nothing, clip_norm=1.0, seed=0)  # the trial, at its own weights
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(HUGE)
    return clipper


def own_facts(clipper, inputs, targets, rows):
    """Norm and loss of each sample of the batch, in the order of `rows`: they change if any bit of a gradient does."""
    found = clipper.clipped_sum(inputs, targets, clip_norm=1.0, seed=0, rows=rows).statistics
    return torch.stack([found.norms, found.losses.double()], dim=1)


@pytest.mark.parametrize("name", ["softmax", "linear", "mlp", "compact_cnn", "cnn"])
@pytest.mark.parametrize("is_native", [True, False])
def test_a_sample_does_not_feel_the_others(name, is_native, monkeypatch):
    """Batches of every size up to 20 and some beyond, each without its first sample too: all the others move up."""
    if is_native and not native.is_available():
        pytest.skip("no native kernels here")
    clipper = clipper_for(name, is_native, monkeypatch)
    shape = (784,) if name == "softmax" else (1, 28, 28)
    inputs, targets = made(150, *shape), torch.arange(150) % 10
    whole = own_facts(clipper, inputs, targets, torch.arange(150))
    for size in [*range(1, 20), 31, 33, 64, 90, 129]:
        assert torch.equal(own_facts(clipper, inputs, targets, torch.arange(size)), whole[:size])
        assert torch.equal(own_facts(clipper, inputs, targets, torch.arange(1, size + 1)), whole[1 : size + 1])


def test_the_norm_of_a_convolution_does_not_feel_how_many_records_follow():
    """Its squares are added over the rows of the kernel: in one order, in the last place of the batch too."""
    sizes = {"kernel_size": (5, 5), "stride": (1, 1), "dilation": (1, 1), "groups": 1}
    layer = ImageConvolution(in_channels=32, out_channels=64, **sizes)
    inputs, grads = made(64, 32, 12, 12), made(64, 8, 8, 64, seed=1)
    whole = _by_kernel_rows(layer, inputs, grads).squared_norms
    for size in range(1, 64):
        assert torch.equal(_by_kernel_rows(layer, inputs[:size], grads[:size]).squared_norms, whole[:size]), size


class Mean(nn.Module):
    """Over a sequence of positions."""

    def forward(self, x):
        return x.mean(1)


class Cut(nn.Module):
    """Without its first column, what is left is a view whose rows begin at boundaries of all kinds."""

    def forward(self, x):
        return x[:, 1:]


class Named(nn.Linear):
    """A subclass that computes the same."""


class MeanOverPlaces(nn.Module):
    """Of a sequence, an image or a volume of channels."""

    def forward(self, x):
        return x.flatten(2).mean(2)


def of_places(*layers, outputs):
    """Two layers with channels, so that the second one shows what the first one computed, and a linear layer."""
    return [*(module for layer in layers for module in (layer, nn.Tanh())), MeanOverPlaces(), nn.Linear(outputs, 2)]


# Not multiples of four, for in each of them rows begin at boundaries of all kinds; and multiples that are not of 16.
NETWORKS = {
    "13-3": [nn.Linear(13, 3)],
    "30-10": [nn.Linear(30, 10)],
    "301-2": [nn.Linear(301, 2)],
    "785-10": [nn.Linear(785, 10)],
    "784-5-10": [nn.Linear(784, 5), nn.ReLU(), nn.Linear(5, 10)],
    "784-30-10": [nn.Linear(784, 30), nn.ReLU(), nn.Linear(30, 10)],
    "784-50-10": [nn.Linear(784, 50), nn.ReLU(), nn.Linear(50, 10)],
    "784-101-10": [nn.Linear(784, 101), nn.ReLU(), nn.Linear(101, 10)],
    "13-5-7-3": [nn.Linear(13, 5), nn.ReLU(), nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)],
    "100-20-36-11": [nn.Linear(100, 20), nn.ReLU(), nn.Linear(20, 36), nn.ReLU(), nn.Linear(36, 11)],
    "7x30-17-11": [nn.Linear(30, 17), nn.ReLU(), nn.Linear(17, 11), Mean()],
    "301 cut to 300-2": [Cut(), nn.Linear(300, 2)],
    "20-33 cut to 32-3": [nn.Linear(20, 33), Cut(), nn.Linear(32, 3)],
    "13-3 by a subclass": [Named(13, 3)],
    "13-3 by normalised weights": [nn.utils.parametrizations.weight_norm(nn.Linear(13, 3))],
    **{
        f"20-{width} by {function.__name__}-3": [nn.Linear(20, width), function(), nn.Linear(width, 3)]
        for width in (1, 5)
        for function in (nn.Sigmoid, nn.SiLU, nn.ELU, nn.SELU, nn.Softplus, nn.Mish, nn.GELU)
    },
    "13-frozen-5-3": [nn.Linear(13, 5).requires_grad_(False), nn.ReLU(), nn.Linear(5, 3)],
    "conv1d 3-6": of_places(nn.Conv1d(3, 6, 3), nn.Conv1d(6, 7, 3), outputs=7),
    "conv1d 13-32 by 2": of_places(nn.Conv1d(13, 32, 4, stride=2), nn.Conv1d(32, 5, 1), outputs=5),
    "conv1d 9-9 depthwise": of_places(nn.Conv1d(9, 9, 3, groups=9), nn.Conv1d(9, 9, 1), outputs=9),
    "conv2d 4-16 grouped": of_places(nn.Conv2d(4, 16, 3, groups=2), nn.Conv2d(16, 16, 3, groups=4), outputs=16),
    "conv2d 7-7 depthwise": of_places(nn.Conv2d(7, 7, 3, groups=7), nn.Conv2d(7, 14, 3, groups=7), outputs=14),
    "conv2d 16-16 depthwise": of_places(nn.Conv2d(16, 16, 3, groups=16), nn.Conv2d(16, 16, 1), outputs=16),
    "conv3d 1-4": of_places(nn.Conv3d(1, 4, 3), nn.Conv3d(4, 5, 2), outputs=5),
    "conv3d 3-16 by 2": of_places(nn.Conv3d(3, 16, 2, stride=2), nn.Conv3d(16, 16, 2, padding=1), outputs=16),
    "conv3d 4-8 grouped": of_places(nn.Conv3d(4, 8, 2, groups=2), nn.Conv3d(8, 8, 2, groups=8), outputs=8),
    "transposed 3-6 of sequences": of_places(nn.Conv1d(3, 3, 2), nn.ConvTranspose1d(3, 6, 4, stride=2), outputs=6),
    "transposed 7-5": of_places(nn.Conv2d(7, 7, 2), nn.ConvTranspose2d(7, 5, 3, stride=2), outputs=5),
    "transposed 16-8": of_places(nn.Conv2d(4, 16, 2), nn.ConvTranspose2d(16, 8, 2, stride=2), outputs=8),
    "transposed 6-6 depthwise": of_places(nn.Conv2d(6, 6, 2), nn.ConvTranspose2d(6, 6, 2, groups=6), outputs=6),
    "transposed 4-3 of volumes": of_places(nn.Conv3d(4, 4, 2), nn.ConvTranspose3d(4, 3, 2, stride=2), outputs=3),
    "instance norm 7 of sequences": of_places(nn.Conv1d(7, 7, 1), nn.InstanceNorm1d(7, affine=True), outputs=7),
    "instance norm 5": of_places(nn.Conv2d(5, 5, 1), nn.InstanceNorm2d(5, affine=True), outputs=5),
    "instance norm 3 of volumes": of_places(nn.Conv3d(3, 3, 1), nn.InstanceNorm3d(3, affine=True), outputs=3),
    "group norm 6": of_places(nn.Conv2d(6, 6, 1), nn.GroupNorm(2, 6), outputs=6),
    "rms norm 13": [nn.Linear(13, 13), nn.RMSNorm(13), nn.Tanh(), Mean(), nn.Linear(13, 2)],
    "layer norm 30": [nn.Linear(30, 30), nn.LayerNorm(30), nn.Tanh(), Mean(), nn.Linear(30, 2)],
}
SHAPES = {
    "7x30-17-11": (7, 30),
    "conv1d 3-6": (3, 9),
    "conv1d 13-32 by 2": (13, 37),
    "conv1d 9-9 depthwise": (9, 17),
    "conv2d 4-16 grouped": (4, 9, 9),
    "conv2d 7-7 depthwise": (7, 7, 9),
    "conv2d 16-16 depthwise": (16, 6, 6),
    "conv3d 1-4": (1, 5, 6, 7),
    "conv3d 3-16 by 2": (3, 6, 6, 6),
    "conv3d 4-8 grouped": (4, 4, 5, 5),
    "transposed 3-6 of sequences": (3, 8),
    "transposed 7-5": (7, 5, 6),
    "transposed 16-8": (4, 5, 5),
    "transposed 6-6 depthwise": (6, 5, 5),
    "transposed 4-3 of volumes": (4, 4, 3, 4),
    "instance norm 7 of sequences": (7, 33),
    "instance norm 5": (5, 5, 7),
    "instance norm 3 of volumes": (3, 3, 4, 5),
    "group norm 6": (6, 5, 7),
    "rms norm 13": (5, 13),
    "layer norm 30": (3, 30),
}


def shape_of(name):
    """The shape of a record for a network: that of its first linear layer, if it is not listed."""
    layers = NETWORKS[name]
    wide = next(layer.in_features for layer in layers if isinstance(layer, nn.Linear))
    return SHAPES.get(name, (wide + isinstance(layers[0], Cut),))


@pytest.fixture
def bits(monkeypatch):
    """What each layer's gradients are made of, of the batch that was last: bit by bit, what the sample contributes."""
    seen = {}
    record = Recording._record

    def watching(self, unit, inputs, grads, *rest):
        seen.update({f"{unit.path} in": inputs[0].clone(), f"{unit.path} back": grads[0].clone()})
        return record(self, unit, inputs, grads, *rest)

    monkeypatch.setattr(Recording, "_record", watching)

    def of(clipper, inputs, targets):
        seen.clear()
        clipper.clipped_sum(inputs, targets, clip_norm=1.0, seed=0)
        return {name: tensor[: len(inputs)] for name, tensor in seen.items()}

    return of


@pytest.mark.parametrize("scale", [1.0, HUGE])
@pytest.mark.parametrize("name", list(NETWORKS))
def test_a_sample_does_not_feel_its_place_in_a_layer_of_any_width(name, scale, bits):
    """Without the first record all others move up; what they give must be the same to the last bit."""
    model = nn.Sequential(*NETWORKS[name])
    clipper = PerSampleClipper(model)
    inputs, targets = made(128, *shape_of(name)), torch.arange(128) % 2
    clipper.clipped_sum(inputs[:0], targets[:0], clip_norm=1.0, seed=0)  # the trial, at its own weights
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    whole = bits(clipper, inputs, targets)
    trained = [layer for layer in model if any(p.requires_grad for p in layer.parameters())]
    assert len(whole) == 2 * len(trained)
    for first, last in [(1, 2), (1, 9), (1, 25), (2, 16), (2, 42), (3, 59), (3, 128), (40, 64), (40, 96)]:
        found = bits(clipper, inputs[first:last], targets[first:last])
        for what, of_all in whole.items():
            assert torch.equal(found[what], of_all[first:last])
    with torch.no_grad():  # the networks are shared by the tests
        for parameter, old in zip(model.parameters(), before, strict=True):
            parameter.copy_(old)


@pytest.mark.parametrize("width", [13, 30, 301, 785])
def test_softmax_regression_does_not_feel_a_place_without_the_kernels_either(width, monkeypatch):
    monkeypatch.setattr(native, "is_available", lambda: False)
    clipper = SoftmaxClipper(nn.Linear(width, 10, bias=False))
    inputs, targets = made(128, width), torch.arange(128) % 10
    whole = own_facts(clipper, inputs, targets, torch.arange(128))
    for first in (1, 2, 3, 40):
        found = own_facts(clipper, inputs[first:].clone(), targets[first:], torch.arange(128 - first))
        assert torch.equal(found, whole[first:])


def test_padded_layers_compute_the_same_and_are_restored():
    layers = nn.Sequential(nn.Linear(13, 6), Named(6, 4), nn.Linear(4, 3))
    assert linear_layers(layers) == list(layers)
    inputs = made(5, 13)
    plain = layers(inputs)
    with padded_linear(linear_layers(layers)):
        assert torch.allclose(layers(inputs), plain, atol=1e-6)
        assert torch.equal(layers[0](input=inputs), layers[0](inputs))
        assert not linear_layers(layers)  # a layer with a way of its own is left alone
    assert all("forward" not in vars(layer) for layer in layers)
    with pytest.raises(KeyError), padded_linear(linear_layers(layers)):
        raise KeyError
    assert all("forward" not in vars(layer) for layer in layers)
    assert pad_columns(inputs).tolist() == [[*row, 0.0, 0.0, 0.0] for row in inputs.tolist()]


@pytest.mark.parametrize("width", [300, 301])
@pytest.mark.parametrize("kind", ["softmax", "network"])
def test_rounding_that_decides_the_class_decides_it_alike_for_every_batch(kind, width, monkeypatch):
    """Two classes whose scores are sums of the same numbers in another order: equal, but for their rounding.

    Whoever comes or goes must not turn the others' classes over: the sum moves by that sample's part alone.
    """
    monkeypatch.setattr(native, "is_available", lambda: False)
    for seed in range(6):
        row = 1e8 * made(width, seed=seed)
        other = row[torch.randperm(width, generator=torch.Generator().manual_seed(1))]
        model = nn.Linear(width, 2, bias=False)
        with torch.no_grad():
            model.weight.copy_(torch.stack([row, other]))
        clipper = SoftmaxClipper(model) if kind == "softmax" else PerSampleClipper(model)
        x = torch.full((40, width), 0.5) * torch.arange(1, 41)[:, None]
        y = torch.zeros(40, dtype=torch.int64)

        def total(some, clipper=clipper, x=x, y=y):
            return clipper.clipped_sum(x[some], y[some], clip_norm=1.0, seed=0).gradients["weight"].double()

        for batches in ([slice(n) for n in range(1, 13)], [slice(n, None) for n in range(40)]):
            for one, other_one in pairwise(total(some) for some in batches):
                assert float((one - other_one).norm()) <= 1 + 1e-5


def test_padding_adds_nothing(monkeypatch):
    """Also where its own gradient is not finite: biases of 3e38 overflow on zeros."""
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    clipper = PerSampleClipper(model)
    x, y = made(3, 4), torch.tensor([0, 1, 2])
    clipper.clipped_sum(x, y, clip_norm=1.0, seed=0)  # the trial, at its own weights
    with torch.no_grad():
        model[0].bias.fill_(3e38)
        model[2].bias.fill_(3e38)
    found = clipper.clipped_sum(x, y, clip_norm=1.0, seed=0)
    assert found.statistics.num_non_finite == 3
    assert all(bool((g == 0).all()) for g in found.gradients.values())


def cancelling_sequences(positions, width):
    """The last position takes back what the others add up to, but for rounding."""
    x = made(100, positions, width) * 1e12
    x[:, -1] = -x[:, :-1].double().sum(1).float()
    return x


def cancelling_places(channels, kernel, side, dims=2):
    """The last patch takes back what the others add up to."""
    patches = made(100, channels, side**dims, kernel**dims) * 1e12
    patches[:, :, -1] = -patches[:, :, :-1].double().sum(2).float()
    apart = patches.view(100, channels, *[side] * dims, *[kernel] * dims)
    order = [axis for dim in range(2, 2 + dims) for axis in (dim, dim + dims)]
    return apart.permute(0, 1, *order).reshape(100, channels, *[side * kernel] * dims)


CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}
TRANSPOSED = {1: nn.ConvTranspose1d, 2: nn.ConvTranspose2d, 3: nn.ConvTranspose3d}
CANCELLING = {
    **{
        f"{positions} x {width}-{outputs}": (
            [nn.Linear(width, outputs), Mean()],
            cancelling_sequences(positions, width),
            outputs,
        )
        for positions, width, outputs in ((33, 13, 2), (7, 5, 3), (12, 7, 10), (9, 16, 5), (3, 64, 64), (5, 31, 17))
    },
    **{
        f"{side}^{dims} of {channels}-{outputs} by {kernel}, {groups} groups": (
            [CONVOLUTIONS[dims](channels, outputs, kernel, stride=kernel, groups=groups, bias=False), MeanOverPlaces()],
            cancelling_places(channels, kernel, side, dims),
            outputs,
        )
        for channels, outputs, kernel, side, dims, groups in (
            *((7, 6, 1, 6, 2, 1), (3, 5, 1, 3, 2, 1), (5, 10, 2, 5, 2, 1), (1, 33, 3, 3, 2, 1), (4, 16, 3, 5, 2, 1)),
            *((7, 5, 3, 3, 2, 1), (17, 3, 1, 3, 2, 1), (19, 6, 1, 6, 2, 1), (9, 10, 2, 5, 2, 1)),  # kernel rows
            *((3, 5, 3, 9, 1, 1), (6, 16, 2, 7, 1, 1), (17, 5, 1, 12, 1, 1), (3, 5, 2, 3, 3, 1), (3, 16, 2, 2, 3, 1)),
            *((6, 10, 2, 4, 2, 2), (9, 9, 3, 5, 1, 3), (4, 6, 2, 2, 3, 2)),
            *((7, 7, 3, 3, 2, 7), (5, 10, 2, 5, 2, 5), (16, 16, 3, 5, 2, 16), (5, 5, 3, 11, 1, 5), (3, 6, 2, 2, 3, 3)),
        )
    },
    **{
        f"{side}^{dims} of {channels}-{outputs} to {kernel}, {groups} groups": (
            [TRANSPOSED[dims](channels, outputs, kernel, stride=kernel, groups=groups, bias=False), MeanOverPlaces()],
            cancelling_places(channels, 1, side, dims),
            outputs,
        )
        for channels, outputs, kernel, side, dims, groups in (
            *((3, 5, 2, 9, 1, 1), (7, 5, 2, 5, 2, 1), (16, 3, 3, 3, 2, 1), (3, 4, 2, 3, 3, 1)),
            *((6, 4, 2, 5, 2, 2), (7, 7, 2, 5, 2, 7)),
        )
    },
}


@pytest.mark.parametrize("is_native", [True, False])
@pytest.mark.parametrize("name", list(CANCELLING))
def test_a_record_whose_terms_cancel_does_not_feel_its_place(name, is_native, monkeypatch):
    """Its gradient is what rounding leaves: where that goes by the place, all records change if the first one goes."""
    if not is_native:
        monkeypatch.setattr(native, "is_available", lambda: False)
    layers, inputs, outputs = CANCELLING[name]
    model, targets = nn.Sequential(*layers), torch.arange(100) % outputs
    clipper = PerSampleClipper(model)
    clipper.clipped_sum(inputs[:0], targets[:0], clip_norm=1.0, seed=0)  # the trial, at weights that are not zero
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    whole = clipper.clipped_sum(inputs, targets, clip_norm=1.0, seed=0)
    without = clipper.clipped_sum(inputs[1:], targets[1:], clip_norm=1.0, seed=0)
    assert torch.equal(whole.statistics.norms[1:], without.statistics.norms)
    moved = sum(float((whole.gradients[n].double() - g).square().sum()) for n, g in without.gradients.items())
    assert moved**0.5 <= 1 + 1e-4
    assert float(whole.statistics.norms.max()) > 1, "nothing was clipped"


@pytest.mark.parametrize("width", [3, 17, 31, 48, 54])
@pytest.mark.parametrize("positions", [2, 3, 5, 7])
def test_a_sequence_of_tokens_does_not_feel_its_place(positions, width):
    """Norms of rows that repeat come from products of their gradients: these must not round by where they begin."""
    tokens, targets = (
        torch.randint(5, (100, positions), generator=torch.Generator().manual_seed(width)),
        torch.arange(100),
    )
    model = nn.Sequential(nn.Embedding(5, width), nn.Flatten(), nn.Linear(width * positions, 100))
    with torch.no_grad():
        model[2].weight.copy_(HUGE * made(100, width * positions))
    clipper = PerSampleClipper(model)
    whole, without = (
        clipper.clipped_sum(tokens[first:], targets[first:], clip_norm=1.0, seed=0).statistics.norms for first in (0, 1)
    )
    assert torch.equal(whole[1:], without)


@pytest.mark.parametrize("settings", [{"microbatch_size": 20}, {"max_gradient_bytes": 80}])
def test_small_pieces_are_padded_too(settings, bits):
    """A piece of 20 samples, because more are not wanted, or because more gradients of a module would not fit."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 5), nn.Mish(), Scale(5), nn.Linear(5, 3))
    clipper = PerSampleClipper(model, **settings)
    piece = clipper._microbatch_size
    assert piece == settings.get("microbatch_size", padded_size(1))
    for seed in range(20):
        inputs, targets = made(piece, 20, seed=seed), torch.arange(piece) % 3
        whole, shifted = bits(clipper, inputs, targets), bits(clipper, inputs[1:], targets[1:])
        for name, of_all in whole.items():
            assert torch.equal(of_all[1:], shifted[name]), name


def test_sizes(monkeypatch):
    monkeypatch.setattr(padding, "_MULTIPLE", 16)
    assert [padded_size(size) for size in (1, 15, 16, 17, 24, 33, 128)] == [16, 16, 16, 32, 32, 48, 128]
    assert [unpadded_size(size) for size in (1, 13, 16, 20, 100, 128)] == [1, 13, 16, 16, 96, 128]
    whole = pad_rows(torch.ones(2, 3), 4, 7.0)
    assert whole.tolist() == [[1.0] * 3] * 2 + [[7.0] * 3] * 2
    kept = torch.ones(4)
    assert pad_rows(kept, 4) is kept
