"""What is refused, with which reason and which remedy; and input that does not fit."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from alidpfl.dpsgd import PerSampleClipper
from alidpfl.errors import ConfigError, DataError, UnsupportedModelError

from .oracle import clipped_sum, distance, gradients_one_by_one


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
        self.b.weight = self.a.weight

    def forward(self, x):
        return self.b(self.a(x))


class SharedStorage(Tied):
    def __init__(self):
        super().__init__()
        self.b.weight = nn.Parameter(self.a.weight.data)


class Reused(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(self.layer(x))


class BehindTheBack(nn.Module):
    """Calls its layer, and uses the weight a second time without calling it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x) + F.linear(x, self.layer.weight)


class OnlyBehindTheBack(BehindTheBack):
    def forward(self, x):
        return F.linear(x, self.layer.weight, self.layer.bias)


class Mixing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        out = self.layer(x)
        return out - out.mean(0, keepdim=True)


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += x.sum()
        return self.layer(x)


class MergedBatch(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x.reshape(-1, 2)).reshape(len(x), -1)


class FunctionalDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 40)

    def forward(self, x):
        return F.dropout(self.layer(x), 0.5, self.training)


REFUSED = {
    "batch-norm": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)),
        r"1 is BatchNorm1d: it mixes the samples .* use nn.GroupNorm",
    ),
    "tied": (Tied, r"a.weight and b.weight share memory \(tied parameters\).* give each its own tensor"),
    "shared storage": (SharedStorage, r"a.weight and b.weight share memory"),
    "reused": (Reused, r"layer \(Linear\) is used twice in one forward pass.* make a layer for each use"),
    "behind the back": (BehindTheBack, "do not agree with autograd"),
    "only behind the back": (OnlyBehindTheBack, "do not agree with autograd"),
    "mixing": (Mixing, "mixes the samples of a batch"),
    "stateful": (Counting, "seen is a buffer that the forward pass rewrites"),
    "spectral norm": (
        lambda: parametrizations.spectral_norm(nn.Linear(4, 4)),
        "per-sample gradients|buffer that the forward pass rewrites",
    ),
    "merged batch": (MergedBatch, r"takes or gives a tensor of shape \(4, 2\).* keep the batch first"),
    "functional dropout": (FunctionalDropout, "randomness is drawn other than by nn.Dropout"),
    "recurrent": (
        lambda: nn.Sequential(nn.LSTM(4, 4)),
        r"0 \(LSTM\) reuses its weights.* use convolutions or attention",
    ),
    "instance norm": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.InstanceNorm1d(4, track_running_stats=True)),
        "keeps running statistics.* set track_running_stats=False",
    ),
    "embedding max_norm": (lambda: nn.Embedding(4, 4, max_norm=1.0), "rewrites its weights.* set max_norm=None"),
    "embedding frequency": (
        lambda: nn.Embedding(4, 4, scale_grad_by_freq=True),
        "counts over the whole batch; set scale_grad_by_freq=False",
    ),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(4)), "not initialised yet .* run the model once"),
    "half precision": (lambda: nn.Linear(4, 4).half(), "has dtype torch.float16; .* call model.float()"),
    "nothing to train": (
        lambda: nn.Sequential(nn.Linear(4, 4)).requires_grad_(False),
        "no parameter with requires_grad=True, so there is nothing to train; unfreeze a layer",
    ),
    "no parameters": (nn.Flatten, "nothing to train"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_reason_and_remedy(name):
    build, message = REFUSED[name]

    def use() -> None:
        clipper = PerSampleClipper(build())
        clipper.clipped_sum(torch.rand(2, 4), torch.zeros(2, dtype=torch.long), clip_norm=1.0, seed=0)

    with pytest.raises(UnsupportedModelError, match=message):
        use()


def test_batch_norm_that_is_switched_to_training_later():
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False)).eval()
    clipper = PerSampleClipper(model)
    x, y = torch.randn(3, 4), torch.zeros(3, dtype=torch.long)
    truth = clipped_sum(gradients_one_by_one(model, x, y), 0.1)
    assert distance(clipper.clipped_sum(x, y, clip_norm=0.1, seed=0).gradients, truth) < 1e-5
    model.train()
    with pytest.raises(UnsupportedModelError, match="BatchNorm"):
        clipper.clipped_sum(x, y, clip_norm=0.1, seed=0)


def test_errors_about_models_quote_no_data():
    """The trial runs on made-up samples, so that even a message with numbers in it could not tell of real ones."""
    secret = torch.full((2, 4), 123456.0)
    for name in ("mixing", "behind the back", "stateful"):
        with pytest.raises(UnsupportedModelError) as caught:
            PerSampleClipper(REFUSED[name][0]()).clipped_sum(secret, torch.zeros(2).long(), clip_norm=1.0, seed=0)
        assert "123456" not in str(caught.value)


def test_a_model_is_not_refused_for_what_its_data_hold():
    """NaN or huge values in the first batch must not change the verdict on the structure."""
    for value in (math.nan, math.inf, 1e38):
        x = torch.full((3, 4), value)
        result = PerSampleClipper(nn.Linear(4, 4)).clipped_sum(x, torch.zeros(3).long(), clip_norm=1.0, seed=0)
        assert torch.isfinite(result.gradients["weight"]).all()


@pytest.mark.parametrize(
    ("inputs", "targets", "message"),
    [
        (
            torch.zeros(2, 4, dtype=torch.uint8),
            torch.zeros(2).long(),
            r"dtype torch.uint8 .* inputs.to\(torch.float32\) / 255",
        ),
        (torch.zeros(2, 4).double(), torch.zeros(2).long(), "dtype torch.float64"),
        (torch.zeros(2, 5), torch.zeros(2).long(), r"cannot take inputs of shape \(5,\)"),
        (torch.zeros(2, 4), torch.zeros(3).long(), "must have the same first dimension"),
        (torch.zeros(()), torch.zeros(3).long(), "must have the same first dimension"),
        (torch.zeros(2, 4), torch.zeros(2), "cannot take inputs"),
    ],
)
def test_bad_batches_are_named(inputs, targets, message):
    clipper = PerSampleClipper(nn.Sequential(nn.Linear(4, 4)))
    with pytest.raises(DataError, match=message):
        clipper.clipped_sum(inputs, targets, clip_norm=1.0, seed=0)


def test_a_loss_that_averages_is_refused():
    clipper = PerSampleClipper(nn.Linear(4, 4), loss=F.cross_entropy)
    with pytest.raises(ConfigError, match=r"loss returned shape \(\) for a batch of 2.*reduction=\"none\""):
        clipper.clipped_sum(torch.zeros(2, 4), torch.zeros(2).long(), clip_norm=1.0, seed=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"microbatch_size": 0}, "microbatch_size=0"), ({"max_gradient_bytes": -1}, "max_gradient_bytes=-1")],
)
def test_bad_limits_are_named(options, message):
    with pytest.raises(ConfigError, match=message):
        PerSampleClipper(nn.Linear(4, 4), **options)


@pytest.mark.parametrize("clip_norm", [0.0, -1.0, math.nan, 1e-11])
def test_bad_clip_norms_are_named(clip_norm):
    with pytest.raises(ConfigError, match=f"clip_norm={clip_norm}"):
        PerSampleClipper(nn.Linear(4, 4)).clipped_sum(
            torch.zeros(1, 4), torch.zeros(1).long(), clip_norm=clip_norm, seed=0
        )
