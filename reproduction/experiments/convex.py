"""Federated DP-SGD on strongly convex problems with known constants, to test the bounds of `alidpfl.policies.theory`.

Only numpy is used. Arrays are (repetitions, clients, samples, dimensions). The tests of the bounds and
`python -m reproduction.experiments.bounds` use this module.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from alidpfl.policies import Problem, noise_power

Floats = NDArray[np.float64]


class Clients(Protocol):
    """The clients' data, with the exact values of everything that the bounds need."""

    @property
    def present(self) -> NDArray[np.bool_]:
        """Which samples exist: (clients, samples). False is padding."""

    @property
    def smoothness(self) -> float:
        """The smoothness L."""

    @property
    def strong_convexity(self) -> float:
        """The strong convexity μ."""

    @property
    def optimum(self) -> Floats:
        """The minimiser w*."""

    def sample_gradients(self, points: Floats) -> Floats:
        """Return per-sample gradients: (R, N, d) or (R, 1, d) to (R, N, n, d)."""

    def client_gradients(self, points: Floats) -> Floats:
        """Return the gradients ∇F_i: (R, N, d) or (R, 1, d) to (R, N, d)."""


@dataclass(frozen=True, kw_only=True)
class Quadratics:
    """Quadratic clients: F_i(w) is the mean over the samples j of ½ (w − a_j)ᵀ H_i (w − a_j)."""

    hessians: Floats
    """The Hessians H_i: (N, d, d)."""
    centres: Floats
    """The centres a_j: (N, n, d)."""
    present: NDArray[np.bool_]

    @property
    def smoothness(self) -> float:
        """The smoothness L, the largest eigenvalue of any client."""
        return float(np.linalg.eigvalsh(self.hessians).max())

    @property
    def strong_convexity(self) -> float:
        """The strong convexity μ, the smallest eigenvalue of any client."""
        return float(np.linalg.eigvalsh(self.hessians).min())

    @cached_property
    def means(self) -> Floats:
        """The minimiser of each F_i: (N, d)."""
        return (self.centres * self.present[..., None]).sum(1) / self.present.sum(1)[:, None]

    @property
    def optimum(self) -> Floats:
        """The minimiser w*, from Σ p_i H_i (w* − ā_i) = 0."""
        weighted = weights(self)[:, None, None] * self.hessians
        return np.linalg.solve(weighted.sum(0), np.einsum("ide,ie->d", weighted, self.means))

    def sample_gradients(self, points: Floats) -> Floats:
        """Return H_i (w_i − a_j)."""
        return self._times_hessian(points)[:, :, None, :] - self._pulls

    def client_gradients(self, points: Floats) -> Floats:
        """Return H_i (w_i − ā_i)."""
        return self._times_hessian(points) - self._mean_pulls

    @cached_property
    def _pulls(self) -> Floats:
        return np.einsum("ide,ije->ijd", self.hessians, self.centres)

    @cached_property
    def _mean_pulls(self) -> Floats:
        return np.einsum("ide,ie->id", self.hessians, self.means)

    def _times_hessian(self, points: Floats) -> Floats:
        return np.matmul(self.hessians, points[..., None])[..., 0]


@dataclass(frozen=True, kw_only=True)
class Kinked:
    """Clients with a kink: F_i(w) is the sum over coordinates of ½ L x² above 0 and ½ μ x² below.

    Every client has one sample, the same for all. Gradients of quadratics are linear, so that noise with mean zero does
    not move the mean of local models. Here it does.
    """

    clients: int
    dimensions: int
    smoothness: float
    strong_convexity: float

    @property
    def present(self) -> NDArray[np.bool_]:
        """Which samples exist: one for each client."""
        return np.ones((self.clients, 1), bool)

    @property
    def optimum(self) -> Floats:
        """The minimiser 0."""
        return np.zeros(self.dimensions)

    def sample_gradients(self, points: Floats) -> Floats:
        """Return Lx or μx in every coordinate."""
        return self.client_gradients(points)[:, :, None, :]

    def client_gradients(self, points: Floats) -> Floats:
        """Return Lx or μx in every coordinate."""
        slopes = np.where(points > 0, self.smoothness, self.strong_convexity) * points
        return np.broadcast_to(slopes, (points.shape[0], self.clients, self.dimensions))


@dataclass(frozen=True, kw_only=True)
class Training:
    """The parameters of a training."""

    learning_rate: float
    sample_rate: float
    clip_norm: float
    noise_multiplier: float
    start: Floats


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The outcome of K rounds of τ steps."""

    squared_distances: Floats
    """‖w̄ − w*‖², or 0 in repetitions in which a gradient exceeded C: (repetitions,)."""
    unclipped: float
    """The share of repetitions in which no per-sample gradient exceeded C."""
    dissimilarity: float
    """ζ, the largest over steps of sqrt(mean over repetitions of Σ p_i ‖∇F_i(w̄) − ∇F(w̄)‖²)."""

    @property
    def mean(self) -> float:
        """The estimate of E‖w̄ − w*‖²."""
        return float(self.squared_distances.mean())

    @property
    def standard_error(self) -> float:
        """The standard error of that estimate."""
        return float(self.squared_distances.std(ddof=1) / math.sqrt(len(self.squared_distances)))


def weights(clients: Clients) -> Floats:
    """Return the weights p_i = |D_i| / Σ|D_j|."""
    counts = clients.present.sum(1)
    return counts / counts.sum()


def simulate(
    clients: Clients,
    training: Training,
    *,
    rounds: int,
    local_steps: int,
    repetitions: int,
    random: np.random.Generator,
) -> Outcome:
    """Simulate federated DP-SGD with Poisson batches, the constant divisor q·n_i and Gaussian noise.

    A repetition in which a per-sample gradient exceeds C counts as 0 from then on, because the bounds exclude it.

    Args:
        clients: The data.
        training: Step size, sample rate, clip norm, noise and start.
        rounds: The number of rounds K.
        local_steps: The number of local steps τ of a round.
        repetitions: The number of repetitions.
        random: The generator of all random numbers.

    Returns:
        The distances from the minimiser, and what the bounds need besides.
    """
    counted, share = np.ones(repetitions, bool), weights(clients)
    average, spread = np.tile(training.start, (repetitions, 1)), 0.0
    for _ in range(rounds):
        local = np.repeat(average[:, None, :], len(share), axis=1)
        for _ in range(local_steps):
            gradients = clients.sample_gradients(local)
            exceeds = (np.einsum("rijd,rijd->rij", gradients, gradients) > training.clip_norm**2) & clients.present
            counted &= ~exceeds.any((1, 2))
            spread = max(spread, float((counted * _disagreement(clients, average, share)).mean()))
            local = local - training.learning_rate * _noised(gradients, clients.present, training, random)
            average = np.einsum("i,rid->rd", share, local)
    distances = counted * ((average - clients.optimum) ** 2).sum(-1)
    return Outcome(squared_distances=distances, unclipped=float(counted.mean()), dissimilarity=math.sqrt(spread))


def described(clients: Clients, training: Training, *, rounds: float, dissimilarity: float) -> Problem:
    """Return the values that the bounds need. The smallest batch makes every client's variance at most v."""
    batch = training.sample_rate * float(clients.present.sum(1).min())
    dimensions = len(training.start)
    return Problem(
        smoothness=clients.smoothness,
        strong_convexity=clients.strong_convexity,
        learning_rate=training.learning_rate,
        rounds=rounds,
        clip_norm=training.clip_norm,
        noise_power=noise_power(training.noise_multiplier, training.clip_norm, dimensions, batch),
        sample_rate=training.sample_rate,
        batch_size=batch,
        weight_concentration=float((weights(clients) ** 2).sum()),
        initial_distance=float(np.linalg.norm(training.start - clients.optimum)),
        dissimilarity=dissimilarity,
    )


def random_case(random: np.random.Generator) -> tuple[Quadratics, Training]:
    """Draw clients of different sizes, Hessians and minimisers. C is 1.5 to 3 times the longest first gradient."""
    count, dimensions, most = int(random.integers(2, 6)), int(random.integers(1, 5)), 16
    sizes = random.integers(8, most + 1, count)
    convexity = 10 ** random.uniform(-1.5, 0)
    hessians = np.stack([_hessian(random, dimensions, convexity) for _ in range(count)])
    apart, around = 10 ** random.uniform(-1.5, 0.5), 10 ** random.uniform(-1.5, 0)
    middles = apart * random.standard_normal((count, 1, dimensions))
    clients = Quadratics(
        hessians=hessians,
        centres=middles + around * random.standard_normal((count, most, dimensions)),
        present=np.arange(most) < sizes[:, None],
    )
    direction = random.standard_normal(dimensions)
    start = clients.optimum + 10 ** random.uniform(-0.5, 1) * direction / np.linalg.norm(direction)
    norms = np.linalg.norm(clients.sample_gradients(start[None, None]), axis=-1)
    training = Training(
        learning_rate=random.uniform(0.02, 0.5) / clients.smoothness,
        sample_rate=random.uniform(0.2, 0.8),
        clip_norm=float(random.uniform(1.5, 3) * norms[0][clients.present].max()),
        noise_multiplier=10 ** random.uniform(-2, 0),
        start=start,
    )
    return clients, training


def _hessian(random: np.random.Generator, dimensions: int, convexity: float) -> Floats:
    rotation = np.linalg.qr(random.standard_normal((dimensions, dimensions)))[0]
    made: Floats = rotation @ np.diag(random.uniform(convexity, 1, dimensions)) @ rotation.T
    return made


def _noised(gradients: Floats, present: NDArray[np.bool_], training: Training, random: np.random.Generator) -> Floats:
    """Return (Σ over the batch + N(0, σ²C²I)) / (q·n_i): (R, N, d)."""
    drawn = (random.random(gradients.shape[:3]) < training.sample_rate) & present
    sums = np.matmul(drawn[:, :, None, :].astype(float), gradients)[:, :, 0, :]
    noise = training.noise_multiplier * training.clip_norm * random.standard_normal(sums.shape)
    return (sums + noise) / (training.sample_rate * present.sum(1))[:, None]


def _disagreement(clients: Clients, average: Floats, share: Floats) -> Floats:
    """Return Σ p_i ‖∇F_i(w̄) − ∇F(w̄)‖²: (R,)."""
    each = clients.client_gradients(average[:, None, :])
    mean = np.einsum("i,rid->rd", share, each)
    return np.einsum("i,ri->r", share, ((each - mean[:, None, :]) ** 2).sum(-1))
