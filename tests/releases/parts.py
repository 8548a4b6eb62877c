"""Populations with known metrics, and their noised evaluations."""

import numpy as np

from alidpfl.metrics import measure
from alidpfl.releases.estimates import NoisedSums, next_edges
from alidpfl.releases.evaluation import contributions
from alidpfl.releases.queries import EvaluationQuery

OUTPUTS = {"two classes": 2, "four classes": 4, "labels": 3, "number": 1, "quantile": 1}
LEVEL = 0.8


def kind_of(task: str) -> str:
    return "class" if "classes" in task else "number" if task == "quantile" else task


def query(task: str, **changes) -> EvaluationQuery:
    changes = {"quantile": LEVEL, **changes} if task == "quantile" else changes
    return EvaluationQuery(task=kind_of(task), outputs=OUTPUTS[task], **changes)


def exact_measures(task: str, outputs, targets):
    loss = {"loss": "quantile", "quantile": LEVEL} if task == "quantile" else {}
    return measure(kind_of(task), outputs, targets, **loss)


def population(task: str, random, count: int):
    """Return outputs of an imperfect model, and targets."""
    if task == "two classes":
        x = 1.2 * random.normal(size=count) - 1
        y = (random.random(count) < 1 / (1 + np.exp(-x))).astype(int)
        return np.stack([np.zeros(count), 0.8 * x + 0.3 * random.normal(size=count)], axis=1), y
    if task == "four classes":
        x = 1.5 * random.normal(size=(count, 4))
        p = np.exp(x) / np.exp(x).sum(1, keepdims=True)
        return x + 0.4 * random.normal(size=x.shape), (p.cumsum(1) < random.random((count, 1))).sum(1)
    if task == "labels":
        x = random.normal(size=(count, 1)) + random.normal(size=(count, 3)) - np.array([0.0, 1.0, 0.5])
        y = (random.random(x.shape) < 1 / (1 + np.exp(-x))).astype(np.float32)
        return x + 0.5 * random.normal(size=x.shape), y
    x = np.clip(0.4 * random.normal(size=count), -1, 1)
    y = np.clip(x + 0.2 * random.normal(size=count), -1, 1)
    return (0.7 * x + 0.1 * random.normal(size=count))[:, None], y


def noised(asked: EvaluationQuery, records, random, noise: float, clients: int = 4) -> NoisedSums:
    """Return the sums of several clients, each with its own noise."""
    parts = np.array_split(contributions(asked, *records), clients)
    values = [part.sum(0) + noise * random.normal(size=part.shape[1]) for part in parts]
    return NoisedSums.of(asked, values, [noise] * clients)


def evaluated(task: str, random, count: int, noise: float) -> NoisedSums:
    """Return an evaluation whose bins were chosen by one before it, with twice the noise."""
    first = noised(query(task), population(task, random, count), random, 2 * noise)
    return noised(query(task, edges=next_edges(first)), population(task, random, count), random, noise)
