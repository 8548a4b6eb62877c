"""The data set Synthetic(α, β) of FedProx (Li et al. 2020, section 5.1): clients differ in model and in inputs.

Client k has inputs x ~ N(v_k, Σ) with Σ_jj = j^-1.2, v_k,j ~ N(B_k, 1), B_k ~ N(0, β). Its classes are
y = argmax(softmax(Wx + b)), with the entries of W_k and b_k ~ N(u_k, 1), u_k ~ N(0, α). The authors' code takes α and β
as standard deviations and gives a client 50 + lognormal(4, 2) records; so does this module.
"""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from alidpfl.data.dataset import Dataset
from alidpfl.data.own import from_clients
from alidpfl.inputs import checks

NUM_INPUTS, NUM_CLASSES = 60, 10

Model: TypeAlias = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Weights W (60, 10) and bias b (10,)."""

_MAX_SPREAD = 1e6  # of α and β: far beyond any use, and far from where floats end
_MIN_SAMPLES = 50
_LOG_MEAN, _LOG_SIGMA = 4.0, 2.0
_DECAY = -1.2
_TEST_SHARE = 0.2
_STREAM = 4  # keeps these random numbers apart from those of the partitions


def load_synthetic(
    *,
    seed: int = 0,
    clients: int = 30,
    alpha: float = 1.0,
    beta: float = 1.0,
    is_iid: bool = False,
    max_samples: int = 2_000,
) -> Dataset:
    """Generate the data set, with natural clients. Each has 80 % of its records for training and 20 % for testing.

    Args:
        seed: the same seed gives the same data.
        clients: number of clients.
        alpha: α, how far the clients' models differ; 0 or more.
        beta: β, how far the clients' inputs differ; 0 or more.
        is_iid: True for one model and one distribution of inputs; α and β then have no effect.
        max_samples: most records of a client. The lognormal's tail reaches beyond 100,000.
    """
    checks.whole("seed", seed)
    checks.whole("clients", clients, low=1)
    checks.whole("max_samples", max_samples, low=_MIN_SAMPLES)
    for name, value in (("alpha", alpha), ("beta", beta)):
        checks.real(name, value, low=0, high=_MAX_SPREAD, rule=f"must be between 0 (equal clients) and {_MAX_SPREAD:g}")
    random = np.random.Generator(np.random.PCG64(np.random.SeedSequence([_STREAM, seed])))
    sizes = random.lognormal(_LOG_MEAN, _LOG_SIGMA, clients).clip(max=max_samples).astype(int)
    sizes = (sizes + _MIN_SAMPLES).clip(max=max_samples)
    shared = _draw_model(0.0, random)
    train, test = [], []
    for size in sizes:
        inputs, targets = _draw_client(int(size), alpha, beta, shared if is_iid else None, random)
        cut = len(inputs) - max(1, round(_TEST_SHARE * len(inputs)))
        train.append((inputs[:cut], targets[:cut]))
        test.append((inputs[cut:], targets[cut:]))
    together = tuple(np.concatenate(part) for part in zip(*test, strict=True))
    return from_clients(train, (together[0], together[1]), name="synthetic", num_classes=NUM_CLASSES, is_synthetic=True)


def _draw_model(mean: float, random: np.random.Generator) -> Model:
    return random.normal(mean, 1, (NUM_INPUTS, NUM_CLASSES)), random.normal(mean, 1, NUM_CLASSES)


def _draw_client(
    size: int, alpha: float, beta: float, shared: Model | None, random: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Return inputs (size, 60) and classes (size,) of one client; a `shared` model makes all clients alike."""
    model_mean = random.normal(0, alpha)  # u_k
    input_mean = random.normal(0, beta)  # B_k
    centre = random.normal(input_mean, 1, NUM_INPUTS)  # v_k
    weights, bias = _draw_model(model_mean, random)
    if shared is not None:
        centre, (weights, bias) = np.zeros(NUM_INPUTS), shared
    deviation = np.arange(1, NUM_INPUTS + 1) ** (_DECAY / 2)
    inputs = (centre + deviation * random.normal(size=(size, NUM_INPUTS))).astype(np.float32)
    targets = np.argmax(inputs @ weights + bias, axis=1)  # softmax keeps the order
    return inputs, targets.astype(np.int64)
