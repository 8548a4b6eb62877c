"""The work of a step does not depend on the records: the same operations on the same shapes, in the same order.

Times on a shared machine are too noisy for a test. A second pass, a branch or another size shows in the operations.
"""

import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from alidpfl.dpsgd import (
    OneByOneClipper,
    PerSampleClipper,
    RandomStream,
    SoftmaxClipper,
    StepSettings,
    dp_sgd_step,
    make_loss,
    native,
    noised_total,
)
from alidpfl.federation.client import ClientData, LocalTrainer
from alidpfl.federation.tensors import flatten, steady_arithmetic, trained
from alidpfl.methods import make_method
from alidpfl.models.cnn import compact_cnn
from alidpfl.types import LOSS_KINDS, ClientPlan

from .zoo import CASES, Case

RECORDS, OUTLIER = 20, 7
VALUES = {"nan": math.nan, "inf": math.inf, "overflow": 3e38, "too large": 1e31, "denormal": 1e-42, "zero": 0.0}
MODELS = {
    **{name: CASES[name] for name in ("linear", "mlp", "paper-cnn-mnist", "sequence-gram", "sequence-stored")},
    **{name: CASES[name] for name in ("embedding", "fallback", "resnet", "conv-odd-channels", "conv-groups", "conv1d")},
    **{name: CASES[name] for name in ("conv-depthwise", "conv3d", "conv-transpose-2d", "instance-norm", "rms-norm")},
    "compact-cnn": Case(lambda: compact_cnn((1, 28, 28)), (1, 28, 28), 10),
}
SETTINGS = StepSettings(clip_norm=0.5, noise_multiplier=1.0, learning_rate=0.1, expected_batch_size=10.0)


class Operations(TorchDispatchMode):
    """Records every operation of torch and every native kernel, with types, shapes and strides of its tensors."""

    def __init__(self, monkeypatch) -> None:
        super().__init__()
        self.seen = []
        call = native._call

        def watched(name, sizes, *arguments):
            self._note(f"{name} {sizes}", arguments)
            call(name, sizes, *arguments)

        monkeypatch.setattr(native, "_call", watched)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._note(str(func), (args, kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _note(self, name, arguments) -> None:
        tensors = [value for value in tree_leaves(arguments) if isinstance(value, torch.Tensor)]
        self.seen.append((name, [(t.dtype, t.shape, t.stride()) for t in tensors]))


def operations(monkeypatch, work) -> list:
    with monkeypatch.context() as patch, steady_arithmetic():
        watching = Operations(patch)
        with watching:
            work()
    return watching.seen


def with_outlier(case: Case, value: float):
    """A model and a batch with one record that meets the value: in its inputs, or in its token's row of weights."""
    model, (x, y) = case.model(), case.batch(RECORDS)
    if case.tokens:
        x[x == case.tokens - 1] = 0
        x[OUTLIER, 3] = case.tokens - 1
        with torch.no_grad():
            model[0].weight[case.tokens - 1] = value
    else:
        x[OUTLIER].flatten()[::2] = value
    return model, x, y


def same_work(monkeypatch, step) -> None:
    """`step` takes the outlier's value. Its first call for a shape tries the model, so that one comes before."""
    expected = operations(monkeypatch, step(0.5))
    assert len(expected) > 10
    for name, value in VALUES.items():
        assert operations(monkeypatch, step(value)) == expected, name


@pytest.mark.parametrize("limit", [0, 2**25], ids=["rewritten", "kept"])
@pytest.mark.parametrize("name", MODELS)
def test_every_record_takes_the_same_operations(name, limit, path, monkeypatch):
    def step(value):
        model, x, y = with_outlier(MODELS[name], value)
        clipper = PerSampleClipper(model, max_gradient_bytes=limit)
        clipper.clipped_sum(*MODELS[name].batch(0), clip_norm=1.0, seed=0)
        return lambda: dp_sgd_step(clipper, x, y, SETTINGS, RandomStream.seeded(0))

    same_work(monkeypatch, step)


@pytest.mark.parametrize("weights", [1.0, 1e37], ids=["usual weights", "weights that overflow"])
def test_softmax_regression_takes_the_same_operations(weights, path, monkeypatch):
    def step(value):
        torch.manual_seed(0)
        model = nn.Linear(20, 5, bias=False)
        with torch.no_grad():
            model.weight.mul_(weights)
        x, y = CASES["linear"].batch(RECORDS)
        x[OUTLIER] = value
        return lambda: dp_sgd_step(SoftmaxClipper(model), x, y, SETTINGS, RandomStream.seeded(0))

    same_work(monkeypatch, step)


@pytest.mark.parametrize("name", ["mlp", "compact-cnn", "embedding", "softmax"])
def test_noise_on_a_grid_takes_the_same_operations(name, monkeypatch):
    def step(value):
        case = CASES["linear"] if name == "softmax" else MODELS[name]
        model, x, y = with_outlier(case, value)
        clipper = OneByOneClipper(nn.Linear(20, 5, bias=False) if name == "softmax" else model)
        clipper.rehearse(x[:0], y[:0])
        return lambda: dp_sgd_step(clipper, x, y, SETTINGS, RandomStream.seeded(0))

    same_work(monkeypatch, step)


def task_step(loss: str, clip):
    """Return what `same_work` calls: the value is in a record's inputs, or in its target."""
    kind = LOSS_KINDS[loss]

    def step(value, where):
        torch.manual_seed(0)
        made = nn.Sequential(nn.Linear(20, 4), nn.Tanh(), nn.Linear(4, 3 if kind == "labels" else 1))
        x = torch.randn(RECORDS, 20)
        y = torch.rand(RECORDS, 3).round() if kind == "labels" else torch.rand(RECORDS)
        (x if where == "inputs" else y)[OUTLIER] = value
        clipper = clip(made, make_loss(loss, level=0.8))
        if isinstance(clipper, OneByOneClipper):
            clipper.rehearse(x[:0], y[:0])
        else:
            clipper.clipped_sum(x[:0], y[:0], clip_norm=1.0, seed=0)
        return lambda: dp_sgd_step(clipper, x, y, SETTINGS, RandomStream.seeded(0))

    return step


@pytest.mark.parametrize("where", ["inputs", "targets"])
@pytest.mark.parametrize("loss", [name for name, kind in LOSS_KINDS.items() if kind != "class"])
def test_every_loss_takes_the_same_operations(loss, where, path, monkeypatch):
    step = task_step(loss, lambda model, compute: PerSampleClipper(model, loss=compute))
    same_work(monkeypatch, lambda value: step(value, where))


@pytest.mark.parametrize("where", ["inputs", "targets"])
@pytest.mark.parametrize("loss", [name for name, kind in LOSS_KINDS.items() if kind != "class"])
def test_every_loss_takes_the_same_operations_on_a_grid(loss, where, monkeypatch):
    step = task_step(loss, lambda model, compute: OneByOneClipper(model, loss=compute))
    same_work(monkeypatch, lambda value: step(value, where))


@pytest.mark.parametrize("noise", ["gaussian", "grid"])
def test_a_release_over_all_records_takes_the_same_operations(noise, monkeypatch):
    def step(value):
        vectors = torch.randn(RECORDS, 30, generator=torch.Generator().manual_seed(0))
        vectors[OUTLIER] = value
        return lambda: noised_total(
            vectors.split(8), 30, clip_norm=1.0, noise_multiplier=1.0, random=RandomStream.seeded(0), noise=noise
        )

    same_work(monkeypatch, step)


def test_noise_on_an_update_takes_the_same_operations(monkeypatch):
    """Plain steps without clipping: weights that overflow make the whole update non-finite, and it is dropped."""
    plan = ClientPlan(
        client=0,
        round=1,
        learning_rates=(1e30,),
        sample_rate=1.0,
        clip_norm=1.0,
        noise_multiplier=1.0,
        release="update",
    )

    def step(value):
        model, x, y = with_outlier(CASES["mlp"], value)
        trainer = LocalTrainer(make_method("pe_dpfl", clip_norm=1.0, noise_multiplier=1.0).objective(model))
        data = ClientData(inputs=x, targets=y, rows=torch.arange(RECORDS))
        trainer.rehearse(data)
        weights = flatten(trained(model))
        return lambda: trainer.train(weights, data, plan, RandomStream.seeded(0))

    same_work(monkeypatch, step)
