"""Synthetic(α, β) of FedProx (Li et al. 2020, section 5.1): clients that differ in their model and in their inputs.

Client k: inputs x ~ N(v_k, Σ) with Σ_jj = j^-1.2, v_k,j ~ N(B_k, 1), B_k ~ N(0, β); classes y = argmax(softmax(Wx + b))
with the entries of W_k and b_k ~ N(u_k, 1), u_k ~ N(0, α). As in the authors' code, α and β are standard deviations,
and a client has 50 + a lognormal(4, 2) number of samples.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from alidpfl.data.dataset import Dataset
from alidpfl.data.own import Client, from_clients
from alidpfl.inputs import checks

NUM_INPUTS, NUM_CLASSES = 60, 10

_LARGEST_SPREAD = 1e6  # of α and β: far beyond any use, and far from where floats end
_MIN_SAMPLES = 50
_LOG_MEAN, _LOG_SIGMA = 4.0, 2.0
_DECAY = -1.2
_TEST_SHARE = 0.2
_STREAM = 4  # other numbers than the partitions draw from the same seed


@dataclass(frozen=True, kw_only=True)
class SyntheticSettings:
    """What the data set is made from."""

    clients: int = 30
    alpha: float = 1.0
    """How far the clients' models differ; 0 or more."""
    beta: float = 1.0
    """How far the clients' inputs differ; 0 or more."""
    is_iid: bool = False
    """One model and one distribution of inputs for all; α and β then mean nothing."""
    max_samples: int = 2_000
    """Most samples of a client: the lognormal's tail reaches beyond 100,000."""

    def __post_init__(self) -> None:
        checks.whole("clients", self.clients, low=1)
        checks.whole("max_samples", self.max_samples, low=_MIN_SAMPLES)
        for name in ("alpha", "beta"):
            rule = f"must be from 0, which makes all clients alike, to {_LARGEST_SPREAD:g}"
            checks.real(name, getattr(self, name), low=0, high=_LARGEST_SPREAD, rule=rule)


def make_synthetic(settings: SyntheticSettings, seed: int) -> Dataset:
    """Make the data set; of each client 80 % is for training and 20 % for testing.

    >>> data = make_synthetic(SyntheticSettings(clients=3), seed=0)
    >>> data.input_shape, len(data.natural_clients)
    ((60,), 3)
    """
    checks.whole("seed", seed)
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([_STREAM, seed])))
    sizes = (random.lognormal(_LOG_MEAN, _LOG_SIGMA, settings.clients).clip(max=settings.max_samples)).astype(int)
    sizes = (sizes + _MIN_SAMPLES).clip(max=settings.max_samples)
    shared = _draw_model(0.0, random)
    train: list[Client] = []
    test_inputs, test_targets = [], []
    for size in sizes:
        inputs, targets = _draw_client(settings, int(size), shared, random)
        cut = len(inputs) - max(1, round(_TEST_SHARE * len(inputs)))
        train.append((inputs[:cut], targets[:cut]))
        test_inputs.append(inputs[cut:])
        test_targets.append(targets[cut:])
    test = (np.concatenate(test_inputs), np.concatenate(test_targets))
    return from_clients(train, test, name="synthetic", num_classes=NUM_CLASSES, is_synthetic=True)


Model = tuple[NDArray[np.float64], NDArray[np.float64]]


def _draw_model(mean: float, random: np.random.Generator) -> Model:
    return random.normal(mean, 1, (NUM_INPUTS, NUM_CLASSES)), random.normal(mean, 1, NUM_CLASSES)


def _draw_client(
    settings: SyntheticSettings, size: int, shared: Model, random: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Inputs (size, 60) and classes (size,) of one client."""
    model_mean = random.normal(0, settings.alpha)  # u_k
    input_mean = random.normal(0, settings.beta)  # B_k
    centre = random.normal(input_mean, 1, NUM_INPUTS)  # v_k
    weights, bias = _draw_model(model_mean, random)
    if settings.is_iid:
        centre, (weights, bias) = np.zeros(NUM_INPUTS), shared
    deviation = np.arange(1, NUM_INPUTS + 1) ** (_DECAY / 2)
    inputs = (centre + deviation * random.normal(size=(size, NUM_INPUTS))).astype(np.float32)
    targets = np.argmax(inputs @ weights + bias, axis=1)  # softmax keeps the order
    return inputs, targets.astype(np.int64)
