"""What a held-out record adds to an evaluation: from its outputs and target to a vector of norm at most 1."""

import numpy as np
from numpy.typing import NDArray
from scipy import special

from alidpfl.releases.queries import Array, EvaluationQuery


def contributions(query: EvaluationQuery, outputs: NDArray[np.generic], targets: NDArray[np.generic]) -> Array:
    """Return (b, size) vectors, each a function of its own record's outputs and target.

    Outputs that are not finite count as the worst answer, so that a diverged model is as visible as a bad one. Each
    entry is within its block's bound (see `EvaluationQuery.layout`): numbers are between -1 and 1, a record is in one
    bin of each histogram, and in as many tallies as it has classes.

    Args:
        query: what is asked.
        outputs: (b, outputs) of the model.
        targets: (b,) classes or numbers, or (b, outputs) labels.
    """
    with np.errstate(all="ignore"):  # overflow gives what is not finite, and that is handled
        if query.task == "number":
            return query.layout.join(_numbers(query, outputs, targets))
        return query.layout.join(_scored(query, np.asarray(outputs, dtype=np.float64), np.asarray(targets)))


def _numbers(query: EvaluationQuery, outputs: NDArray[np.generic], targets: NDArray[np.generic]) -> dict[str, Array]:
    predicted = np.asarray(outputs, dtype=np.float64).reshape(-1)
    truth = np.asarray(targets, dtype=np.float64).reshape(-1)
    predicted = np.exp(predicted) if query.exponential else predicted
    predicted, truth = (np.clip(values, query.low, query.high) for values in (predicted, truth))
    error = (truth - predicted) / query.largest_error
    error = np.where(np.isnan(error), 1.0, np.clip(error, -1.0, 1.0))
    e, y = np.abs(error), np.clip((truth - query.low) / query.half - 1, -1.0, 1.0)
    found = {
        "count": np.ones_like(e),
        "error": e,
        "error2": e**2,
        "target": y,
        "target2": y**2,
        "error4": e**4,
        "target3": y**3,
        "target4": y**4,
        "error2_target": e**2 * y,
        "error2_target2": e**2 * y**2,
    }
    if query.quantile is not None:
        found["pinball"] = np.maximum(query.quantile * error, (query.quantile - 1) * error)
        found["pinball2"] = found["pinball"] ** 2
    bins = query.layout.shape_of("targets")[0]
    places = np.minimum((np.nan_to_num(y + 1) / 2 * bins).astype(np.int64), bins - 1)
    return {name: values[:, None] for name, values in found.items()} | {"targets": _one_hot(places, bins)}


def _scored(query: EvaluationQuery, outputs: Array, targets: NDArray[np.generic]) -> dict[str, Array]:
    is_sound = np.isfinite(outputs).all(axis=1, keepdims=True)
    outputs, rows = np.where(is_sound, outputs, 0.0), np.arange(len(outputs))
    if query.task == "class":
        truth = _one_hot(targets.astype(np.int64), query.outputs)
        logarithms = special.log_softmax(outputs, axis=1)
        guesses = _one_hot(outputs.argmax(axis=1), query.outputs)
        probabilities, surprises = np.exp(logarithms), -(logarithms * truth).sum(1, keepdims=True)
        brier = ((probabilities - truth) ** 2).sum(1, keepdims=True) / 2
    else:
        truth = targets.astype(np.float64).reshape(outputs.shape)
        probabilities, surprises = special.expit(outputs), np.logaddexp(0, outputs) - outputs * truth
        guesses = (outputs >= 0).astype(np.float64)
        brier = (probabilities - truth) ** 2
    guesses = np.where(is_sound, guesses, 0.0)
    probabilities = np.where(is_sound, probabilities, 0.0)
    losses = np.where(is_sound, np.clip(surprises / query.largest_loss, 0.0, 1.0), 1.0).mean(1)
    brier = np.where(is_sound, np.clip(brier, 0.0, 1.0), 1.0).mean(1)
    correct = ((guesses == truth).all(1, keepdims=True) & is_sound)[:, 0].astype(np.float64)
    places = np.searchsorted(query.edges, probabilities, side="right")
    entries = {
        "counts": np.stack([np.ones(len(rows)), correct], axis=1),
        "losses": np.stack([losses, brier], axis=1),
        "tallies": np.stack([truth, guesses, truth * guesses], axis=1),
        "scores": _histograms(query, places[:, query.ranked], truth[:, query.ranked]),
    }
    if query.task == "class" and len(query.ranked) > 1:
        of_guess = places[rows, probabilities.argmax(axis=1)][:, None]
        entries["confidence"] = _histograms(query, of_guess, correct[:, None])[:, 0]
    return entries


def _one_hot(places: NDArray[np.int64], size: int) -> Array:
    found = np.zeros((len(places), size))
    found[np.arange(len(places)), places] = 1.0
    return found


def _histograms(query: EvaluationQuery, places: NDArray[np.int64], came: Array) -> Array:
    """Return (b, columns, bins, 2): each record is in one cell of each column, the bin of its score and its label."""
    cells = np.zeros((*places.shape, len(query.edges) + 1, 2))
    rows, columns = np.indices(places.shape)
    cells[rows, columns, places, came.astype(np.int64)] = 1.0
    return cells
