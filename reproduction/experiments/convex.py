"""Federated DP-SGD on strongly convex problems whose every constant is known, to hold the bounds of theory.py against.

numpy only, and vectorised over repetitions: arrays are (repetitions, clients, samples, dimensions). The tests of the
bounds and `python -m reproduction.experiments.bounds` use it.
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
    """Whose data: everything that the bounds ask for, exactly."""

    @property
    def present(self) -> NDArray[np.bool_]:
        """(clients, samples): False pads clients that hold fewer."""

    @property
    def smoothness(self) -> float:
        """L."""

    @property
    def strong_convexity(self) -> float:
        """μ."""

    @property
    def optimum(self) -> Floats:
        """w*."""

    def sample_gradients(self, points: Floats) -> Floats:
        """(R, N, d) or (R, 1, d) to (R, N, n, d)."""

    def client_gradients(self, points: Floats) -> Floats:
        """∇F_i: (R, N, d) or (R, 1, d) to (R, N, d)."""


@dataclass(frozen=True, kw_only=True)
class Quadratics:
    """F_i(w) = mean over its samples j of ½ (w − a_j)ᵀ H_i (w − a_j)."""

    hessians: Floats
    """(N, d, d)."""
    centres: Floats
    """a: (N, n, d)."""
    present: NDArray[np.bool_]

    @property
    def smoothness(self) -> float:
        """L: the largest eigenvalue of any client."""
        return float(np.linalg.eigvalsh(self.hessians).max())

    @property
    def strong_convexity(self) -> float:
        """μ: the smallest."""
        return float(np.linalg.eigvalsh(self.hessians).min())

    @cached_property
    def means(self) -> Floats:
        """Where each F_i is smallest: (N, d)."""
        return (self.centres * self.present[..., None]).sum(1) / self.present.sum(1)[:, None]

    @property
    def optimum(self) -> Floats:
        """w*: Σ p_i H_i (w* − ā_i) = 0."""
        weighted = weights(self)[:, None, None] * self.hessians
        return np.linalg.solve(weighted.sum(0), np.einsum("ide,ie->d", weighted, self.means))

    def sample_gradients(self, points: Floats) -> Floats:
        """H_i (w_i − a_j)."""
        return self._times_hessian(points)[:, :, None, :] - self._pulls

    def client_gradients(self, points: Floats) -> Floats:
        """H_i (w_i − ā_i)."""
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
    """F_i(w) = Σ over coordinates of ½ L x² above 0 and ½ μ x² below: one sample a client, the same for all.

    On quadratics gradients are linear, so that zero-mean noise in local models never moves their mean. Here it does.
    """

    clients: int
    dimensions: int
    smoothness: float
    strong_convexity: float

    @property
    def present(self) -> NDArray[np.bool_]:
        """One sample each."""
        return np.ones((self.clients, 1), bool)

    @property
    def optimum(self) -> Floats:
        """0."""
        return np.zeros(self.dimensions)

    def sample_gradients(self, points: Floats) -> Floats:
        """Lx or μx in every coordinate."""
        return self.client_gradients(points)[:, :, None, :]

    def client_gradients(self, points: Floats) -> Floats:
        """Lx or μx in every coordinate."""
        slopes = np.where(points > 0, self.smoothness, self.strong_convexity) * points
        return np.broadcast_to(slopes, (points.shape[0], self.clients, self.dimensions))


@dataclass(frozen=True, kw_only=True)
class Training:
    """How it is trained."""

    learning_rate: float
    sample_rate: float
    clip_norm: float
    noise_multiplier: float
    start: Floats


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """After K rounds of τ steps."""

    squared_distances: Floats
    """1{no gradient exceeded C} ‖w̄ − w*‖²: (repetitions,)."""
    unclipped: float
    """The share of the repetitions in which no per-sample gradient ever exceeded C."""
    dissimilarity: float
    """ζ: the largest over steps of sqrt(mean over repetitions of Σ p_i ‖∇F_i(w̄) − ∇F(w̄)‖²)."""

    @property
    def mean(self) -> float:
        """The estimate of E‖w̄ − w*‖²."""
        return float(self.squared_distances.mean())

    @property
    def standard_error(self) -> float:
        """Of that estimate."""
        return float(self.squared_distances.std(ddof=1) / math.sqrt(len(self.squared_distances)))


def weights(clients: Clients) -> Floats:
    """p_i = |D_i| / Σ|D_j|."""
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
    """`rounds` x `local_steps`; Poisson batches, the constant divisor q·n_i, Gaussian noise.

    A repetition in which a per-sample gradient exceeds C counts as 0 from then on: the bounds are of the others.
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
    """What the bounds ask for. Batch sizes differ: the smallest one makes every client's variance at most v."""
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
    """Clients of different sizes, Hessians and optima; C at 1.5 to 3 times the longest gradient at the start."""
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
    """(Σ over the batch + N(0, σ²C²I)) / (q·n_i): (R, N, d)."""
    drawn = (random.random(gradients.shape[:3]) < training.sample_rate) & present
    sums = np.matmul(drawn[:, :, None, :].astype(float), gradients)[:, :, 0, :]
    noise = training.noise_multiplier * training.clip_norm * random.standard_normal(sums.shape)
    return (sums + noise) / (training.sample_rate * present.sum(1))[:, None]


def _disagreement(clients: Clients, average: Floats, share: Floats) -> Floats:
    """Σ p_i ‖∇F_i(w̄) − ∇F(w̄)‖²: (R,)."""
    each = clients.client_gradients(average[:, None, :])
    mean = np.einsum("i,rid->rd", share, each)
    return np.einsum("i,ri->r", share, ((each - mean[:, None, :]) ** 2).sum(-1))
