"""FedProx's synthetic data: shapes, seeds, the spread within clients and the distance between them."""

import pytest
import torch

from alidpfl.data import load
from alidpfl.errors import ConfigError


def test_shapes_and_clients():
    data = load("synthetic", clients=12, seed=0)
    assert (data.input_shape, data.num_classes, data.is_synthetic) == ((60,), 10, True)
    assert len(data.natural_clients) == 12
    together = torch.cat(data.natural_clients)
    assert torch.equal(together, torch.arange(len(data.train)))
    assert len(data.test) / (len(data.train) + len(data.test)) == pytest.approx(0.2, abs=0.01)
    sizes = [len(client) for client in data.natural_clients]
    assert min(sizes) >= 40
    assert max(sizes) <= 1600


def test_repeatable_by_seed():
    one, again, other = (load("synthetic", clients=3, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(one.train.inputs, again.train.inputs)
    assert torch.equal(one.test.targets, again.test.targets)
    assert one.train.inputs.shape != other.train.inputs.shape or not torch.equal(one.train.inputs, other.train.inputs)


def test_spread_of_the_inputs():
    """Σ_jj = j^-1.2 within a client."""
    data = load("synthetic", clients=40, seed=0, max_samples=5000)
    client = max(data.natural_clients, key=len)
    spread = data.train.inputs[client].var(dim=0)
    expected = torch.arange(1, 61) ** -1.2
    assert len(client) > 1000
    assert torch.allclose(spread / expected, torch.ones(60), atol=0.3)


def test_beta_moves_the_clients_apart():
    def distance(beta):
        data = load("synthetic", clients=60, alpha=0, beta=beta, seed=0)
        return torch.stack([data.train.inputs[c].mean() for c in data.natural_clients]).std().item()

    near, far = distance(0.0), distance(3.0)
    assert near < 0.3  # the mean of 60 numbers ~ N(0, 1)
    assert far == pytest.approx(3.0, rel=0.35)


def test_iid_clients_share_one_model_and_others_do_not():
    def distance(**options):
        """Total variation between the class shares of the two largest clients."""
        data = load("synthetic", clients=30, seed=2, **options)
        first, second = sorted(data.natural_clients, key=len)[-2:]
        shares = [torch.bincount(data.train.targets[c], minlength=10) / len(c) for c in (first, second)]
        return float((shares[0] - shares[1]).abs().sum() / 2)

    assert distance(is_iid=True) < 0.1
    assert distance(alpha=1.0, beta=1.0) > 0.4


@pytest.mark.parametrize(
    ("options", "value"),
    [
        ({"clients": 0}, "clients=0"),
        ({"alpha": -1.0}, "alpha=-1.0"),
        ({"beta": float("nan")}, "beta=nan"),
        ({"max_samples": 10}, "max_samples=10 .* 50"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_settings_are_checked(options, value):
    with pytest.raises(ConfigError, match=value):
        load("synthetic", **options)
