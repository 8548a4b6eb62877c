"""Every way of mixing records that we know is refused before a private batch is used, and its honest relatives pass."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from alidpfl.dpsgd import OneByOneClipper, PerSampleClipper, mixing
from alidpfl.dpsgd.made_up import NEAR_EQUAL, SPREAD, SampleMaker
from alidpfl.dpsgd.model_check import made_up_targets
from alidpfl.errors import DataError, UnsupportedModelError
from alidpfl.models import make_model

from .mixers import (
    CLASSES,
    HONEST,
    MIXERS,
    WIDTH,
    Around,
    Case,
    RunningQuantile,
    RunningShare,
    Tokens,
    binary,
    of_labels,
    squared_error,
    standardised,
)
from .zoo import CASES

SEEDS = range(3)
NOTHING = (torch.zeros(0, WIDTH), torch.zeros(0, dtype=torch.int64))


def use(clipper: PerSampleClipper, steps: int = 1, batch=NOTHING) -> None:
    """Run steps with empty batches: no record is used."""
    for _ in range(steps):
        clipper.clipped_sum(*batch, clip_norm=1.0, seed=0)


@pytest.mark.parametrize("name", MIXERS)
def test_mixing_is_refused_before_any_record_is_used(name):
    for seed in SEEDS:
        with pytest.raises(UnsupportedModelError):
            use(PerSampleClipper(MIXERS[name].model(seed), loss=MIXERS[name].loss), batch=MIXERS[name].nothing)


@pytest.mark.parametrize("name", HONEST)
def test_honest_models_are_accepted(name):
    for seed in SEEDS:
        use(PerSampleClipper(HONEST[name].model(seed), loss=HONEST[name].loss), steps=5, batch=HONEST[name].nothing)


@pytest.mark.parametrize("name", CASES)
def test_every_kind_of_layer_is_accepted(name):
    case = CASES[name]
    use(PerSampleClipper(case.model()), steps=3, batch=case.batch(0))


@pytest.mark.parametrize("name", HONEST)
def test_rounding_stays_far_below_the_tolerance(name, monkeypatch):
    """No honest model comes within a factor of 5 of a refusal. So another seed or processor does not refuse it."""
    found, real = [], mixing.disagreement

    def spy(*gradients):
        found.append(real(*gradients))
        return found[-1]

    monkeypatch.setattr(mixing, "disagreement", spy)
    use(PerSampleClipper(HONEST[name].model(), loss=HONEST[name].loss), steps=2, batch=HONEST[name].nothing)
    assert len(found) > 5
    assert max(found) < 0.2


class Later(nn.Module):
    """Mixes once a weight has grown beyond 5."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(WIDTH, CLASSES)

    def forward(self, x):
        return self.layer(x - x.mean(0) if self.layer.bias.abs().max() > 5 else x)


@pytest.mark.parametrize("steps_before", [1, 2, 3, 50, 300])
def test_mixing_that_begins_during_training_is_refused(steps_before):
    model = Later()
    clipper = PerSampleClipper(model)
    use(clipper, steps_before)
    with torch.no_grad():
        model.layer.bias.fill_(6.0)
    with pytest.raises(UnsupportedModelError, match="mixes"):
        use(clipper, 257)


def test_a_loss_that_begins_to_balance_labels_during_training_is_refused():
    """At weights of the moment, only the targets of the others tell: they must change in the trial too."""

    def later(outputs, labels):
        weight = labels.sum() if outputs.abs().max() > 1e6 else torch.ones(())
        return (binary(outputs, labels) * weight).mean(1)

    case = of_labels(later)
    clipper = PerSampleClipper(model := case.model(), loss=case.loss)
    use(clipper, 3, case.nothing)
    with torch.no_grad():
        model.bias.fill_(2e6)
    with pytest.raises(UnsupportedModelError, match="mixes"):
        use(clipper, 257, case.nothing)


def test_no_trial_runs_at_weights_that_show_records():
    """Without clipping there is no noise either: whether a trial fails would tell about the records so far."""
    model = Later()
    clipper = PerSampleClipper(model)
    use(clipper)
    with torch.no_grad():
        model.layer.bias.fill_(6.0)
    batch = torch.zeros(1, WIDTH), torch.zeros(1, dtype=torch.int64)
    for _ in range(9):
        clipper.clipped_sum(*batch, clip_norm=math.inf, seed=0)
    with pytest.raises(UnsupportedModelError, match="mixes"):
        use(clipper, 257)


def test_the_short_trial_is_repeated_often_at_first_and_rarely_later(monkeypatch):
    clipper, tried = PerSampleClipper(nn.Linear(WIDTH, CLASSES)), []
    steps = iter(range(10**6))
    monkeypatch.setattr(clipper._trials, "_try_company", lambda maker: tried.append(number))
    for number in steps:
        use(clipper)
        if number == 1100:
            break
    assert tried[2:] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 768, 1024]  # before the first step at two weights


@pytest.mark.parametrize("value", [0.0, 1e-30, 1e10, 3e38, math.inf, math.nan])
@pytest.mark.parametrize("name", ["linear", "mlp", "compact_cnn", "cnn"])
def test_no_weights_make_an_honest_model_fail(name, value):
    """A server may send any weights after the round was charged. The short trial must not end the round."""
    model = make_model(name, (1, 28, 28), 10, hidden=16, seed=0)
    clipper, one_by_one = PerSampleClipper(model), OneByOneClipper(model)
    batch = torch.zeros(0, 1, 28, 28), torch.zeros(0, dtype=torch.int64)
    use(clipper, 1, batch)
    one_by_one.rehearse(*batch)
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            signs = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)).sign()
            parameter.copy_(value * signs)
    use(clipper, 3, batch)
    for _ in range(3):
        list(one_by_one.gradients(*batch, seed=0))


def test_dropout_does_not_hide_mixing_that_happens_in_training_mode_only():
    case = MIXERS["in training mode only"]
    with pytest.raises(UnsupportedModelError, match="mixes"):
        use(PerSampleClipper(case.model()))
    use(PerSampleClipper(case.model().eval()))


def test_a_change_of_mode_is_tried_anew():
    model = MIXERS["in training mode only"].model().eval()
    clipper = PerSampleClipper(model)
    use(clipper, 10)
    model.train()
    with pytest.raises(UnsupportedModelError, match="mixes"):
        use(clipper)


def test_trials_leave_weights_modes_and_randomness_as_they_were():
    model = HONEST["dropout"].model()
    before, state = [p.clone() for p in model.parameters()], torch.get_rng_state()
    use(PerSampleClipper(model), 3)
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert all(module.training for module in model.modules())
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.requires_grad for p in model.parameters())


def test_a_trial_has_a_full_micro_batch():
    """Mixing in batches of more than 100 records shows only there."""
    only_large = Case(lambda: Around(lambda x: standardised(x) if len(x) > 100 else x))
    with pytest.raises(UnsupportedModelError, match="mixes"):
        use(PerSampleClipper(only_large.model(), microbatch_size=128))
    use(PerSampleClipper(only_large.model(), microbatch_size=64))  # which never runs so many at once
    sizes = []
    model = nn.Sequential(nn.Linear(WIDTH, CLASSES))
    model.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    use(PerSampleClipper(model, microbatch_size=256))
    assert max(sizes) == 256


def test_a_large_network_is_tried_with_fewer_samples(monkeypatch):
    model, sizes = nn.Sequential(nn.Linear(WIDTH, CLASSES)), []
    monkeypatch.setattr(mixing, "_MULTIPLICATIONS", 3 * 70 * WIDTH * CLASSES)  # enough for 70 samples
    model.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    use(PerSampleClipper(model, microbatch_size=256))
    assert max(sizes) == 64


def test_integer_inputs_and_real_targets():
    batch = torch.zeros(0, 5, dtype=torch.int64), torch.zeros(0)
    use(PerSampleClipper(Tokens(is_mixing=False), loss=squared_error), 3, batch)
    with pytest.raises(UnsupportedModelError, match="mixes"):
        use(PerSampleClipper(Tokens(is_mixing=True, beyond=100), loss=squared_error), 1, batch)


class StateLater(RunningQuantile):
    """Keeps a state once a weight has grown beyond 5."""

    def forward(self, x):
        return super().forward(x) if self.layer.bias.abs().max() > 5 else self.layer(x)


def test_one_record_at_a_time_a_state_that_begins_during_training_is_refused():
    model = StateLater()
    clipper = OneByOneClipper(model)
    for _ in range(3):
        list(clipper.gradients(*NOTHING, seed=0))
    with torch.no_grad():
        model.layer.bias.fill_(6.0)
    with pytest.raises(UnsupportedModelError, match="state"):
        [list(clipper.gradients(*NOTHING, seed=0)) for _ in range(9)]


class SeenClasses(RunningShare):
    """Weighs records less once others than class 0 were seen."""

    def __call__(self, outputs, targets):
        self.share = min(self.share, 0.1) if bool((targets > 0).any()) else self.share
        return F.cross_entropy(outputs, targets, reduction="none") * self.share


@pytest.mark.parametrize(("loss", "targets"), [(RunningShare(), torch.zeros(0, CLASSES)), (SeenClasses(), NOTHING[1])])
def test_one_record_at_a_time_a_loss_with_a_state_of_the_targets_is_refused(loss, targets):
    model = Case(lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES))).model()
    with pytest.raises(UnsupportedModelError, match="state"):
        OneByOneClipper(model, loss=loss).rehearse(torch.zeros(0, WIDTH), targets)


def test_made_up_labels_are_zeros_and_ones():
    """Also one column and flags. In some batches each column has a lone 1; others have columns of one value."""
    for columns, dtype in ((5, torch.float32), (1, torch.float32), (3, torch.bool)):
        like = torch.zeros(0, columns, dtype=dtype)
        maker = SampleMaker(shape=(2,), dtype=torch.float32, target_shape=(columns,), target_dtype=dtype)
        batches = [maker.batch(kind, 32, torch.Generator().manual_seed(0))[1] for kind in (SPREAD, NEAR_EQUAL)]
        found = [made_up_targets(like, number) for number in range(3)] + batches
        assert all(labels.dtype == dtype and set(labels.unique().tolist()) == {0, 1} for labels in found)
        assert all((labels.sum(0) == 1).all() for labels in (found[2], batches[0]))
        if columns > 2:
            assert all(((labels == 0).all(0).any(), (labels == 1).all(0).any()) == (True, True) for labels in
                       (*found[:2], batches[1]))  # fmt: skip


def test_made_up_numbers_are_whole_or_normal_with_repeats_and_an_outlier():
    maker = SampleMaker(shape=(2,), dtype=torch.float32, target_dtype=torch.float32)
    rare, mixed = (maker.batch(kind, 32, torch.Generator().manual_seed(0))[1] for kind in (SPREAD, NEAR_EQUAL))
    probes = [made_up_targets(torch.zeros(0), number) for number in range(3)]
    for whole in (rare, mixed[::2], probes[0]):
        assert torch.equal(whole, whole.round())
        assert whole.min() == 0
        assert len(whole.unique()) < len(whole)
    assert rare[0] >= 10 * rare[1:].max()
    assert not torch.equal(mixed[1::2], mixed[1::2].round())
    assert mixed.min() < 0
    assert min(probes[1].min(), probes[2].min()) < 0


def test_made_up_rows_are_near_equal_or_spread():
    maker = SampleMaker(shape=(3, 4), dtype=torch.float32, num_classes=5)
    near, labels = maker.batch(NEAR_EQUAL, 64, torch.Generator().manual_seed(0))
    assert float((near - near.mean(0)).norm(dim=(1, 2)).max()) < 0.02
    assert len(near.flatten(1).unique(dim=0)) == 64
    assert sorted(labels.unique().tolist()) == [0, 1, 2, 3, 4]
    sizes = maker.rows(SPREAD, 64, torch.Generator().manual_seed(0)).norm(dim=(1, 2))
    assert float(sizes.max() / sizes.min()) > 100
    tokens = SampleMaker(shape=(20,), dtype=torch.int64, num_tokens=7)
    rows = tokens.rows(NEAR_EQUAL, 64, torch.Generator().manual_seed(0))
    assert 0 < float((rows != rows.mode(0).values).float().mean()) < 0.3
    assert int(rows.max()) < 7


def test_a_model_that_fails_on_one_record_alone_is_refused():
    def needs_two(x):
        if len(x) == 1:
            raise ValueError("need two")
        return x

    with pytest.raises(UnsupportedModelError, match="alone"):
        use(PerSampleClipper(Around(needs_two)))


def test_a_model_that_fails_on_every_batch_is_no_mixing_model():
    def fails(outputs, targets):
        return F.cross_entropy(outputs[:, :1], targets + 5, reduction="none")

    with pytest.raises(DataError):
        use(PerSampleClipper(nn.Linear(WIDTH, CLASSES), loss=fails))
