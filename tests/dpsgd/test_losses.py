"""Losses by name: their values, their derivatives, and which targets they take."""

import pytest
import torch

from alidpfl.dpsgd import make_loss
from alidpfl.dpsgd.losses import HUBER_WIDTH, quantile
from alidpfl.errors import ConfigError
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
