"""Losses by name: their values, their derivatives, and which targets they take."""

import math

import pytest
import torch
from torch import nn

from alidpfl.dpsgd import PerSampleClipper, make_loss
from alidpfl.dpsgd.losses import HUBER_WIDTH, quantile
from alidpfl.errors import ConfigError
from alidpfl.federation.tensors import steady_arithmetic
from alidpfl.registry import LOSSES
from alidpfl.types import LOSS_KINDS, default_loss, loss_for


def derivative(name: str, output: float, target: float, **options: float) -> float:
    outputs = torch.tensor([[output]], requires_grad=True)
    make_loss(name, **options)(outputs, torch.tensor([target])).sum().backward()
    assert outputs.grad is not None
    return float(outputs.grad)


def test_every_shipped_loss_has_a_kind() -> None:
    assert set(LOSS_KINDS) == set(LOSSES.shipped)


@pytest.mark.parametrize(
    ("name", "output", "target", "expected"),
    [
        ("squared", 3.0, 1.0, 2.0),
        ("squared", -3.0, 1.0, -4.0),
        ("huber", 0.5, 0.0, 0.5),
        ("huber", 30.0, 0.0, HUBER_WIDTH),
        ("poisson", 0.0, 4.0, -3.0),
        ("quantile", 0.0, 1.0, -0.5),
    ],
)
def test_derivatives_by_the_output(name: str, output: float, target: float, expected: float) -> None:
    assert derivative(name, output, target) == pytest.approx(expected)


def test_a_quantile_has_a_level() -> None:
    assert derivative("quantile", 0.0, 1.0, level=0.9) == pytest.approx(-0.9)
    assert derivative("quantile", 1.0, 0.0, level=0.9) == pytest.approx(0.1)
    assert make_loss("quantile") is not quantile  # a level is bound to it
    with pytest.raises(ConfigError, match="quantile=1"):
        make_loss("quantile", level=1.0)


def test_labels_are_averaged() -> None:
    outputs = torch.tensor([[0.0, 20.0], [0.0, 0.0]])
    losses = make_loss("binary")(outputs, torch.tensor([[1.0, 1.0], [0.0, 1.0]]))
    assert losses.tolist() == pytest.approx([0.5 * 0.693147, 0.693147], abs=1e-5)


@pytest.mark.parametrize("name", [name for name, kind in LOSS_KINDS.items() if kind == "number"])
def test_numbers_need_one_output(name: str) -> None:
    """Broadcasting (B, 1) against (B,) would mix the records of a batch."""
    assert make_loss(name)(torch.zeros(3, 1), torch.zeros(3)).shape == (3,)
    assert make_loss(name)(torch.zeros(3), torch.zeros(3)).shape == (3,)
    for outputs, targets in ((torch.zeros(3, 2), torch.zeros(3)), (torch.zeros(3, 1), torch.zeros(3, 1))):
        with pytest.raises(ConfigError, match="one output"):
            make_loss(name)(outputs, targets)


def test_labels_need_an_output_each() -> None:
    with pytest.raises(ConfigError, match="one output for each"):
        make_loss("binary")(torch.zeros(3, 1), torch.zeros(3, 2))


def test_a_loss_must_fit_the_kind_of_the_targets() -> None:
    assert [loss_for(kind) for kind in ("class", "number", "labels")] == ["cross_entropy", "squared", "binary"]
    assert loss_for("number", "huber") == "huber"
    assert loss_for("labels", "of_another_package") == "of_another_package"
    with pytest.raises(ConfigError, match=r'"cross_entropy".*"class".*"number".*squared'):
        loss_for("number", "cross_entropy")
    assert default_loss("labels") == "binary"


EXTREMES = [math.nan, math.inf, -math.inf, 3e38, -3e38, 1e31, 1e20, 1e-42]


@pytest.mark.parametrize("value", EXTREMES)
@pytest.mark.parametrize("name", [name for name, kind in LOSS_KINDS.items() if kind != "class"])
def test_a_record_with_an_extreme_target_moves_the_sum_by_at_most_the_clip_norm(name: str, value: float) -> None:
    """Data sets refuse some of these targets, and no step may rest on that. Other records keep their part."""
    torch.manual_seed(0)
    outputs = 2 if LOSS_KINDS[name] == "labels" else 1
    model, x = nn.Linear(5, outputs), torch.randn(40, 5)
    y = torch.rand(40, 2).round() if outputs == 2 else torch.rand(40)
    clipper, everybody = PerSampleClipper(model, loss=make_loss(name, level=0.8)), torch.arange(40)
    rest = everybody[everybody != 7]
    y[7] = value
    with steady_arithmetic():
        whole, without = (
            clipper.clipped_sum(x, y, clip_norm=0.05, seed=0, rows=rows).gradients for rows in (everybody, rest)
        )
        one = clipper.clipped_sum(x, y, clip_norm=0.05, seed=0, rows=everybody[7:8]).gradients
    moved = torch.cat([(whole[key] - without[key]).double().flatten() for key in whole])
    assert float(moved.norm()) <= 0.05
    alone = torch.cat([values.double().flatten() for values in one.values()])
    assert float(alone.norm()) <= 0.05
    assert bool(torch.isfinite(moved).all())


@pytest.mark.parametrize("name", [name for name, kind in LOSS_KINDS.items() if kind != "class"])
def test_the_trials_accept_the_losses(name: str) -> None:
    """Also for wide rows, and at weights that a server sent."""
    torch.manual_seed(0)
    labels = LOSS_KINDS[name] == "labels"
    model = nn.Sequential(nn.Linear(3000, 3 if labels else 1))
    clipper = PerSampleClipper(model, loss=make_loss(name))
    y = torch.ones(4, 3) if labels else torch.ones(4)
    for scale in (0.0, 1.0, 1e3):
        nn.init.normal_(model[0].weight, std=scale)
        found = clipper.clipped_sum(torch.randn(4, 3000), y, clip_norm=1.0, seed=0)
        assert float(found.gradients["0.weight"].norm()) <= 4
