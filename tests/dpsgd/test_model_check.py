"""Models, losses and batches that are refused. The error names the layer, the key or the value."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from alidpfl.dpsgd import PerSampleClipper, RandomStream, StepSettings, noised_sum, poisson_sample
from alidpfl.dpsgd.model_check import check_agreement
from alidpfl.errors import AliDpflError, ConfigError, DataError, UnsupportedModelError

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


class WithOptions(nn.Module):
    """A module without a rule that takes more than tensors."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(4))

    def forward(self, x, mask=None, scale=1.0, *, extra=None, others=()):
        x = self.gain * x * scale if mask is None else self.gain * x * mask
        return x + sum(others) + (0 if extra is None else 2 * extra)


class CallsWithOptions(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.layer, self.call = WithOptions(), call

    def forward(self, x):
        return self.call(self.layer, x)


class FunctionalDropout(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 40)

    def forward(self, x):
        return F.dropout(self.layer(x), 0.5, self.training)


REFUSED = {
    "batch-norm": (lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "'1' is BatchNorm1d.*nn.GroupNorm"),
    "tied": (Tied, r"a\.weight and b\.weight"),
    "shared storage": (SharedStorage, r"a\.weight and b\.weight"),
    "reused": (Reused, r"layer \(Linear\).*twice"),
    "behind the back": (BehindTheBack, "autograd"),
    "only behind the back": (OnlyBehindTheBack, "autograd"),
    "mixing": (Mixing, "autograd"),
    "stateful": (Counting, "seen is a buffer"),
    "spectral norm": (lambda: parametrizations.spectral_norm(nn.Linear(4, 4)), "per-sample gradients|buffer"),
    "merged batch": (MergedBatch, r"layer \(Linear\).*shape \((32|64), 2\)"),
    "functional dropout": (FunctionalDropout, r"nn\.Dropout"),
    "recurrent": (lambda: nn.Sequential(nn.LSTM(4, 4)), r"0 \(LSTM\)"),
    "instance norm": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.InstanceNorm1d(4, track_running_stats=True)),
        "track_running_stats=False",
    ),
    "a list of tensors": (
        lambda: CallsWithOptions(lambda layer, x: layer(x, others=[x])),
        r"layer \(WithOptions\) is called with a list",
    ),
    "a mask of the whole batch": (
        lambda: CallsWithOptions(lambda layer, x: layer(x, torch.ones(1, 4))),
        r"layer \(WithOptions\).*shape \(1, 4\)",
    ),
    "embedding max_norm": (lambda: nn.Embedding(4, 4, max_norm=1.0), "max_norm=None"),
    "embedding frequency": (lambda: nn.Embedding(4, 4, scale_grad_by_freq=True), "scale_grad_by_freq=False"),
    "lazy": (lambda: nn.Sequential(nn.LazyLinear(4)), r"0\.weight.*lazy"),
    "half precision": (lambda: nn.Linear(4, 4).half(), r"weight has dtype torch\.float16"),
    "nothing to train": (lambda: nn.Sequential(nn.Linear(4, 4)).requires_grad_(False), "requires_grad=True"),
    "no parameters": (nn.Flatten, "requires_grad=True"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_reason_and_remedy(name):
    build, message = REFUSED[name]

    def use() -> None:
        clipper = PerSampleClipper(build())
        clipper.clipped_sum(torch.rand(2, 4), torch.zeros(2, dtype=torch.long), clip_norm=1.0, seed=0)

    with pytest.raises(UnsupportedModelError, match=message):
        use()


@pytest.mark.parametrize(
    "call",
    [
        lambda layer, x: layer(x, None, 2.0),
        lambda layer, x: layer(x, mask=None, scale=3),
        lambda layer, x: layer(x, extra=x.square(), mask=x > 0),  # by name, in another order
        lambda layer, x: layer(extra=x.square(), x=x),
    ],
)
def test_a_module_without_a_rule_takes_numbers_and_none_too(call):
    model, x, y = CallsWithOptions(call), torch.randn(3, 4), torch.zeros(3, dtype=torch.long)
    truth = clipped_sum(gradients_one_by_one(model, x, y), 0.1)
    assert distance(PerSampleClipper(model).clipped_sum(x, y, clip_norm=0.1, seed=0).gradients, truth) < 1e-5


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
            r"torch\.uint8.*/ 255",
        ),
        (torch.zeros(2, 4).double(), torch.zeros(2).long(), r"torch\.float64"),
        (torch.zeros(2, 5), torch.zeros(2).long(), r"shape \(5,\)"),
        (torch.zeros(2, 4), torch.zeros(3).long(), "inputs and targets"),
        (torch.zeros(()), torch.zeros(3).long(), "inputs and targets"),
        (torch.zeros(2, 4), torch.zeros(2), r"torch\.float32"),
    ],
)
def test_bad_batches_are_named(inputs, targets, message):
    clipper = PerSampleClipper(nn.Sequential(nn.Linear(4, 4)))
    with pytest.raises(DataError, match=message):
        clipper.clipped_sum(inputs, targets, clip_norm=1.0, seed=0)


def test_a_loss_that_averages_is_refused():
    clipper = PerSampleClipper(nn.Linear(4, 4), loss=F.cross_entropy)
    with pytest.raises(ConfigError, match=r"shape \(\).*reduction=\"none\""):
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


def _class_balanced(outputs, targets):
    counts = torch.bincount(targets, minlength=outputs.shape[1])
    return F.cross_entropy(outputs, targets, reduction="none") * len(targets) / counts[targets]


def _pushing_apart(outputs, targets):
    others = targets.unsqueeze(0) != targets.unsqueeze(1)
    distances = (outputs.unsqueeze(0) - outputs.unsqueeze(1)).square().sum(2)
    return F.cross_entropy(outputs, targets, reduction="none") - 0.1 * (distances * others).sum(1)


def _pulling_together(outputs, targets):
    same = targets.unsqueeze(0) == targets.unsqueeze(1)
    distances = (outputs.unsqueeze(0) - outputs.unsqueeze(1)).square().sum(2)
    return F.cross_entropy(outputs, targets, reduction="none") + 0.1 * (distances * same).sum(1)


@pytest.mark.parametrize("loss", [_class_balanced, _pushing_apart, _pulling_together])
def test_losses_that_look_across_the_batch_are_refused(loss):
    clipper = PerSampleClipper(nn.Linear(4, 3), loss=loss)
    with pytest.raises(UnsupportedModelError, match="autograd"):
        clipper.clipped_sum(torch.rand(6, 4), torch.randint(3, (6,)), clip_norm=1.0, seed=0)


@pytest.mark.parametrize("label", [-7, 123456])
def test_bad_labels_are_not_quoted(label):
    clipper = PerSampleClipper(nn.Linear(4, 3))
    with pytest.raises(DataError, match="labels") as caught:
        clipper.clipped_sum(torch.rand(2, 4), torch.tensor([0, label]), clip_norm=1.0, seed=0)
    assert str(label) not in str(caught.value)
    assert caught.value.__suppress_context__


def test_results_do_not_show_private_values():
    result = noised_sum(
        PerSampleClipper(nn.Linear(4, 3)),
        torch.rand(2, 4),
        torch.zeros(2).long(),
        StepSettings(clip_norm=1.0, noise_multiplier=1.0, learning_rate=0.1, expected_batch_size=2),
        RandomStream.seeded(0),
    )
    for shown in (repr(result), str(result), repr(result.private)):
        assert "tensor" not in shown


def test_a_model_that_changed_is_refused():
    x, y = torch.rand(2, 4), torch.zeros(2).long()
    for change in (
        lambda model: setattr(model, "1", nn.Linear(4, 3)),
        lambda model: model[0].requires_grad_(False),
    ):
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 3))
        clipper = PerSampleClipper(model)
        clipper.clipped_sum(x, y, clip_norm=1.0, seed=0)
        change(model)
        with pytest.raises(ConfigError, match="PerSampleClipper"):
            clipper.clipped_sum(x, y, clip_norm=1.0, seed=0)


def _step(**change):
    given = {
        "clipper": PerSampleClipper(nn.Linear(4, 3)),
        "inputs": torch.rand(2, 4),
        "targets": torch.zeros(2).long(),
        "settings": StepSettings(clip_norm=1.0, noise_multiplier=1.0, learning_rate=0.1, expected_batch_size=2),
        "random": RandomStream.seeded(0),
    }
    return noised_sum(**{**given, **change})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _step(clipper=nn.Linear(4, 3)), "PerSampleClipper.*Linear"),
        (lambda: _step(random=torch.Generator()), "random.*Generator.*RandomStream"),
        (lambda: _step(inputs=[[1.0] * 4]), "inputs.*list"),
        (lambda: _step(inputs=torch.empty(2, 4, device="meta")), "inputs.*meta.*cpu"),
        (lambda: PerSampleClipper("model"), "model.*str"),
        (lambda: PerSampleClipper(nn.Linear(4, 3), loss="ce"), "loss='ce'"),
        (lambda: PerSampleClipper(nn.Linear(4, 3, device="meta")), "weight is on meta"),
        (lambda: poisson_sample(10.0, 0.5, RandomStream.seeded(0)), r"num_records=10\.0.*float"),
        (lambda: poisson_sample(10, "0.5", RandomStream.seeded(0)), r"sample_rate='0\.5'.*str"),
        (lambda: poisson_sample(10, True, RandomStream.seeded(0)), "sample_rate=True.*bool"),
        (lambda: PerSampleClipper(nn.Linear(4, 3), microbatch_size=True), "microbatch_size=True"),
        (lambda: poisson_sample(10, 0.5, 0), "random.*int.*RandomStream"),
    ],
)
def test_wrong_types_are_named(call, message):
    with pytest.raises(AliDpflError, match=message):
        call()


class Mix(nn.Module):
    """Mixes samples in some way, before a linear layer."""

    def __init__(self, mix, first=None):
        super().__init__()
        self.mix, self.first, self.layer = mix, first or nn.Identity(), nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(self.mix(self.first(x)))


def _dead():
    layer = nn.Linear(4, 4)
    with torch.no_grad():
        layer.weight.abs_().neg_()
        layer.bias.fill_(-1)
    return nn.Sequential(layer, nn.ReLU())


class RunningMaximum(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("largest", torch.full((), 1000.0))

    def forward(self, x):
        self.largest = torch.maximum(self.largest, x.detach().abs().max())
        return self.layer(x / self.largest)


@pytest.mark.parametrize(
    "model",
    [
        Mix(lambda x: x - F.relu(-x).mean(0)),
        Mix(lambda x: x - x.mean(0) if (x < 0).any() else x),
        Mix(lambda x: x - x.mean(0) if len(x) > 2 else x),
        Mix(lambda x: x / (x.norm() / 10).clamp(min=1)),
        Mix(lambda x: x + 1e-3 * x.mean(0)),
        Mix(lambda x: x - x.mean(0), _dead()),
    ],
    ids=[
        "negative part",
        "only with negatives",
        "only in larger batches",
        "norm of outliers",
        "weakly",
        "behind a dead ReLU",
    ],
)
def test_other_ways_of_mixing_are_refused(model):
    with pytest.raises(UnsupportedModelError, match="autograd"):
        PerSampleClipper(model).clipped_sum(torch.rand(4, 4), torch.zeros(4).long(), clip_norm=1.0, seed=0)


def test_a_buffer_that_only_real_data_change_is_noticed():
    clipper = PerSampleClipper(RunningMaximum())
    with pytest.raises(UnsupportedModelError, match="largest is a buffer"):
        clipper.clipped_sum(torch.full((2, 4), 1e6), torch.zeros(2).long(), clip_norm=1.0, seed=0)


def test_a_trial_that_shows_nothing_is_no_pass():
    clipper = PerSampleClipper(nn.Linear(4, 3), loss=lambda outputs, targets: 0.0 * outputs.sum(1))
    with pytest.raises(UnsupportedModelError, match="gradients of this model are zero"):
        clipper.clipped_sum(torch.rand(2, 4), torch.zeros(2).long(), clip_norm=1.0, seed=0)


def test_agreement_needs_both_norms_and_sums():
    norms, sums = torch.tensor([5.0, 1.0], dtype=torch.float64), {"w": torch.tensor([4.0, 4.0])}
    check_agreement((norms, sums), (norms, sums))
    for bad_norms, bad_sums in ((norms * 1.01, sums), (norms, {"w": sums["w"] * 1.01}), (norms * math.nan, sums)):
        with pytest.raises(UnsupportedModelError):
            check_agreement((bad_norms, bad_sums), (norms, sums))


class BeginsAtZero(nn.Module):
    """A norm over the batch in a branch whose scale begins at zero, under a head that does: it mixes once trained."""

    def __init__(self):
        super().__init__()
        self.scale, self.head = nn.Linear(4, 4, bias=False), nn.Linear(4, 3)
        for layer in (self.scale, self.head):
            nn.init.zeros_(layer.weight)

    def forward(self, x):
        return self.head(x + self.scale((x - x.mean(0)) / (x.std(0, unbiased=False) + 1e-5)))


def test_what_mixes_only_once_it_is_trained_is_refused_at_the_start():
    model = BeginsAtZero()
    with pytest.raises(UnsupportedModelError, match="autograd"):
        PerSampleClipper(model).clipped_sum(torch.rand(0, 4), torch.zeros(0).long(), clip_norm=1.0, seed=0)
    assert not any(layer.weight.any() for layer in (model.scale, model.head))  # the trial leaves no trace
