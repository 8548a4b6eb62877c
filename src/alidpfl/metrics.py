"""How good predictions are, beside a trivial model, with 95 % intervals. Never imports torch.

Every interval but the accuracy's comes from influence values: what each record adds to the metric, to first order.
Their spread gives the standard error, also of a mean over classes, where the classes share records.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special, stats

from alidpfl.types import TaskKind

Array: TypeAlias = NDArray[np.float64]
Interval: TypeAlias = tuple[float, float]

HEADLINES: Mapping[str, str] = {
    "accuracy": "accuracy (%)",
    "pinball": "pinball loss",
    "r2": "R²",
    "rmse": "RMSE",
    "auc": "AUC",
    "log_loss": "log loss",
}
"""The metrics that stand for a task, with their titles. The first that a run has stands for it; see `headline`."""
SMALLER_IS_BETTER = frozenset({"pinball", "rmse", "log_loss"})
"""The headlines of which the least value is the best."""
_TWO_SIDED = 0.975  # the quantile of a 95 % interval
_NORMAL = float(special.ndtri(_TWO_SIDED))
_BINARY = 2


@dataclass(frozen=True, kw_only=True)
class CalibrationBin:
    """Records with similar predicted probabilities, and how often the event came."""

    predicted: float
    """Mean predicted probability."""
    observed: float
    """Share of the records in which the event came."""
    low: float
    """Lower end of the 95 % interval of `observed`."""
    high: float
    """Upper end of it."""
    count: int
    """Number of records."""


@dataclass(frozen=True, kw_only=True)
class Measures:
    """Metrics by name. A metric that the data cannot tell, such as the AUC of one class, is left out."""

    values: Mapping[str, float] = field(default_factory=dict)
    baseline: Mapping[str, float] = field(default_factory=dict)
    """The same metrics of a model that ignores the inputs: the majority class, the class shares, or the mean.

    For `calibration`, where such a model has none, it is the error that chance gives to exact probabilities.
    """
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    """95 % intervals: what other records of the same kind could have given, and other noise if there is noise."""
    calibration: tuple[CalibrationBin, ...] = ()
    """The calibration curve of a class task, or of all labels together."""
    hidden: tuple[str, ...] = ()
    """Metrics that the noise of a release hides. They are left out above."""


@dataclass(frozen=True)
class _Found:
    """A metric, its trivial value, and its interval; None where there is none."""

    value: float
    baseline: float | None
    interval: Interval | None


def headline(metrics: Mapping[str, object]) -> str | None:
    """Return the metric that stands for a task, out of those that were measured.

    >>> headline({"log_loss": 0.4, "auc": 0.9, "accuracy": 85.0}), headline({"mae": 2.0, "rmse": 3.0}), headline({})
    ('accuracy', 'rmse', None)
    """
    return next((name for name in HEADLINES if name in metrics), None)


def measure(
    kind: TaskKind,
    outputs: ArrayLike,
    targets: ArrayLike,
    *,
    loss: str | None = None,
    quantile: float = 0.5,
    unit: float = 1.0,
) -> Measures:
    """Return all metrics of a task.

    Args:
        kind: "class", "number" or "labels".
        outputs: (n, classes) or (n, labels) scores before softmax or sigmoid, or (n, 1) numbers.
        targets: (n,) classes, (n,) numbers, or (n, labels) of 0 and 1.
        loss: name of the loss. "poisson" predicts the logarithm of the mean; "quantile" adds the pinball loss.
        quantile: the level of the "quantile" loss.
        unit: what a difference of 1 between two numbers is in the unit that errors are shown in.

    Returns:
        The metrics. Those that are undefined or not finite are left out.
    """
    scores, truth = np.asarray(outputs, dtype=np.float64), np.asarray(targets)
    if len(truth) == 0 or not _fit(kind, scores, truth) or (kind == "labels" and not np.isfinite(scores).all()):
        return Measures()
    with np.errstate(all="ignore"):  # a diverged model: what is not finite is left out
        if kind == "number":
            predictions = np.exp(scores.reshape(-1)) if loss == "poisson" else scores.reshape(-1)
            level = quantile if loss == "quantile" else None
            return _collected(_numbers(unit * predictions, unit * truth.astype(np.float64), level))
        if kind == "labels":
            labels = truth.astype(np.float64)
            return _collected(_labels(scores, labels), calibration_curve(special.expit(scores), labels))
        return _measure_classes(scores, truth.astype(np.int64))


def headline_text(accuracy: float | None, metrics: Mapping[str, float], digits: int = 2) -> str:
    """Return the metric that stands for a task, as a text; an empty one if there is none.

    >>> headline_text(84.6, {"accuracy": 84.6, "auc": 0.9}), headline_text(None, {"r2": 0.25, "rmse": 3.0})
    ('accuracy 84.60 %', 'r2 0.25')
    """
    if accuracy is not None:
        return f"accuracy {accuracy:.{digits}f} %"
    name = headline(metrics)
    return "" if name is None else f"{name} {metrics[name]:.4g}"


def _fit(kind: TaskKind, scores: Array, truth: NDArray[np.generic]) -> bool:
    """Return whether outputs and targets have the shapes of the task. A loss of your own may need others."""
    if kind == "class":
        is_table = scores.ndim == 2 and scores.shape[1] > 1 and truth.ndim == 1  # noqa: PLR2004 - records and classes
        return is_table and len(scores) == len(truth) and bool(truth.min() >= 0 and truth.max() < scores.shape[1])
    return scores.shape == truth.shape if kind == "labels" else scores.size == len(truth) == truth.size


def calibration_curve(probabilities: ArrayLike, labels: ArrayLike, bins: int = 10) -> tuple[CalibrationBin, ...]:
    """Return predicted and observed shares in bins of equal width. Empty bins are left out.

    The labels of a record may all agree. So intervals of their shares are as wide as if there was one label a record.

    Args:
        probabilities: (n,) of the event, or (n, k) of several labels.
        labels: of the same shape, 0 and 1: whether it came.
        bins: number of bins in [0, 1].
    """
    predicted, came = np.asarray(probabilities, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    each = 1 if predicted.ndim == 1 else predicted.shape[1]
    predicted, came = predicted.reshape(-1), came.reshape(-1)
    places = _bins(predicted, bins)
    found = []
    for place in np.unique(places):
        inside = places == place
        count, observed = int(inside.sum()), float(came[inside].mean())
        low, high = wilson(observed, count / each)
        found.append(
            CalibrationBin(
                predicted=float(predicted[inside].mean()), observed=observed, low=low, high=high, count=count
            )
        )
    return tuple(found)


def wilson(share: float, count: float) -> Interval:
    """Return Wilson's 95 % interval of a share of `count` records.

    >>> low, high = wilson(0.5, 100)
    >>> round(low, 3), round(high, 3)
    (0.404, 0.596)
    """
    z2 = _NORMAL**2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = _NORMAL * math.sqrt(share * (1 - share) / count + z2 / (4 * count**2)) / (1 + z2 / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def _collected(found: Mapping[str, _Found | None], calibration: tuple[CalibrationBin, ...] = ()) -> Measures:
    """Leave out what is missing or not finite."""
    kept = {name: one for name, one in found.items() if one is not None and math.isfinite(one.value)}
    baselines = {name: one.baseline for name, one in kept.items()}
    intervals = {name: one.interval for name, one in kept.items()}
    return Measures(
        values={name: one.value for name, one in kept.items()},
        baseline={name: value for name, value in baselines.items() if value is not None and math.isfinite(value)},
        intervals={
            name: ends for name, ends in intervals.items() if ends is not None and all(map(math.isfinite, ends))
        },
        calibration=calibration,
    )


# ------------------------------------------------------------------------------------------------------ the tasks


def _measure_classes(scores: Array, truth: NDArray[np.int64]) -> Measures:
    accuracy: dict[str, _Found | None] = {"accuracy": _accuracy(scores, truth)}
    if not np.isfinite(scores).all():
        return _collected(accuracy)
    probabilities = special.softmax(scores, axis=1)
    surprises = -special.log_softmax(scores, axis=1)[np.arange(len(truth)), truth]
    found = _classes(probabilities, surprises, truth)
    return _collected(accuracy | found, calibration_curve(*_event(probabilities, truth)))


def _accuracy(scores: Array, truth: NDArray[np.int64]) -> _Found:
    total, correct = len(truth), int((scores.argmax(1) == truth).sum())
    low, high = wilson(correct / total, total)
    majority = 100.0 * int(np.bincount(truth).max()) / total
    return _Found(100.0 * correct / total, majority, (100.0 * low, 100.0 * high))


def _classes(probabilities: Array, surprises: Array, truth: NDArray[np.int64]) -> dict[str, _Found | None]:
    """Return the metrics of one class a record. With two classes, AUC and calibration are those of class 1."""
    num_classes = probabilities.shape[1]
    is_class = np.eye(num_classes)[truth]
    shares = is_class.mean(0)
    scale = 0.5 if num_classes == _BINARY else 1.0  # of the Brier score: with two classes, that of class 1
    squares = scale * ((probabilities - is_class) ** 2).sum(1)
    ranked = slice(1, 2) if num_classes == _BINARY else slice(None)
    guesses = np.eye(num_classes)[probabilities.argmax(1)]
    constant = np.zeros_like(is_class)
    constant[:, shares.argmax()] = 1
    return {
        "auc": _auc(probabilities[:, ranked], is_class[:, ranked]),
        "log_loss": _mean(surprises, float(special.entr(shares).sum())),
        "brier": _mean(squares, scale * float((shares * (1 - shares)).sum())),
        "macro_f1": _macro_f1(guesses, is_class, constant),
        "calibration": _calibration_error(*_event(probabilities, truth)),
    }


def _labels(scores: Array, truth: Array) -> dict[str, _Found | None]:
    """Return the metrics of several yes-or-no labels a record, averaged over the labels."""
    probabilities, shares = special.expit(scores), truth.mean(0)
    surprises = np.logaddexp(0, scores) - scores * truth  # exact for large scores
    entropy = special.entr(shares) + special.entr(1 - shares)
    constant = np.broadcast_to(shares >= 0.5, truth.shape).astype(np.float64)  # noqa: PLR2004 - the more frequent one
    return {
        "auc": _auc(probabilities, truth),
        "log_loss": _mean(surprises.mean(1), float(entropy.mean())),
        "brier": _mean(((probabilities - truth) ** 2).mean(1), float((shares * (1 - shares)).mean())),
        "macro_f1": _macro_f1((probabilities >= 0.5).astype(np.float64), truth, constant),  # noqa: PLR2004
        "calibration": _calibration_error(probabilities.reshape(-1), truth.reshape(-1)),
    }


def _numbers(predictions: Array, truth: Array, level: float | None) -> dict[str, _Found | None]:
    """Return the metrics of numbers, and the pinball loss at a level."""
    errors, mean, total = truth - predictions, truth.mean(), len(truth)
    squares, around_mean = errors**2, (truth - mean) ** 2
    mse, variance = float(squares.mean()), float(around_mean.mean())
    found: dict[str, _Found | None] = {
        "rmse": _Found(math.sqrt(mse), math.sqrt(variance), _by_logarithm(math.sqrt(mse), squares / (2 * mse))),
        "mae": _mean(np.abs(errors), float(np.abs(truth - np.median(truth)).mean())),
    }
    if truth.min() < truth.max():
        unexplained = mse / variance
        ends = _by_logarithm(unexplained, squares / mse - around_mean / variance) if total > _BINARY else None
        found["r2"] = _Found(1 - unexplained, 0.0, None if ends is None else (1 - ends[1], 1 - ends[0]))
    if level is not None:
        constant = truth - np.quantile(truth, level, method="inverted_cdf")
        found["pinball"] = _mean(_pinball(errors, level), float(_pinball(constant, level).mean()))
    return found


# ---------------------------------------------------------------------------------------------------- the metrics


def _mean(values: Array, baseline: float) -> _Found:
    """Return a mean of losses, none of which is below 0."""
    value = float(values.mean())
    ends = _student(value, values)
    return _Found(value, baseline, None if ends is None else (max(0.0, ends[0]), ends[1]))


def _auc(scores: Array, truth: Array) -> _Found | None:
    """Return the area under the ROC curve, a mean over the columns that have both values. Ties count one half.

    A record's influence is DeLong's placement: the share of the other group that it is ranked rightly against.
    """
    total, fewest = len(truth), math.inf
    values, influence = [], np.zeros(total)
    for column in range(scores.shape[1]):
        is_one = truth[:, column] == 1
        ones = int(is_one.sum())
        if not 0 < ones < total:
            continue
        ranks, zeros = stats.rankdata(scores[:, column]), total - ones
        placed = np.empty(total)
        placed[is_one] = (ranks[is_one] - stats.rankdata(scores[is_one, column])) / zeros
        placed[~is_one] = 1 - (ranks[~is_one] - stats.rankdata(scores[~is_one, column])) / ones
        value = float(placed[is_one].mean())
        values.append(value)
        influence += (placed - value) * np.where(is_one, total / ones, total / zeros)
        fewest = min(fewest, ones, zeros)
    if not values:
        return None
    value = float(np.mean(values))
    if value in (0.0, 1.0):  # no spread to learn from: as if each record of the smaller group were one trial
        return _Found(value, 0.5, wilson(value, fewest))
    return _Found(value, 0.5, _by_logit(value, influence / len(values)))


def _macro_f1(guesses: Array, truth: Array, constant: Array) -> _Found | None:
    """Return the mean of F1 = 2 TP / (guessed + true) over the columns that were guessed or are true."""
    value, influence = _f1(guesses, truth)
    if value is None:
        return None
    return _Found(value, _f1(constant, truth)[0], _by_logit(value, influence))


def _f1(guesses: Array, truth: Array) -> tuple[float | None, Array]:
    """Return macro F1 and each record's influence on it."""
    counted = guesses + truth
    seen = counted.any(0)
    if not seen.any():
        return None, np.zeros(len(truth))
    hits, counted = 2 * (guesses * truth)[:, seen], counted[:, seen]
    scores = hits.sum(0) / counted.sum(0)
    return float(scores.mean()), ((hits - scores * counted) / counted.mean(0)).mean(1)


def _event(probabilities: Array, truth: NDArray[np.int64]) -> tuple[Array, Array]:
    """Return the probabilities that calibration is about: of class 1 of two classes, else of the class guessed."""
    if probabilities.shape[1] == _BINARY:
        return probabilities[:, 1], (truth == 1).astype(np.float64)
    return probabilities.max(1), (probabilities.argmax(1) == truth).astype(np.float64)


def _calibration_error(predicted: Array, came: Array, bins: int = 10) -> _Found:
    """Return the expected calibration error, and the error that chance gives to exact probabilities.

    It has no interval: near 0 it is far from normal, and always too high.
    """
    places, total = _bins(predicted, bins), len(predicted)
    gaps = np.abs(np.bincount(places, predicted - came, bins))
    chance = np.sqrt(2 / math.pi * np.bincount(places, predicted * (1 - predicted), bins))
    return _Found(float(gaps.sum()) / total, float(chance.sum()) / total, None)


def _bins(probabilities: Array, bins: int) -> NDArray[np.int64]:
    return np.minimum((probabilities * bins).astype(np.int64), bins - 1)


def _pinball(errors: Array, level: float) -> Array:
    return np.maximum(level * errors, (level - 1) * errors)


# -------------------------------------------------------------------------------------------------- the intervals


def _student(value: float, influence: Array) -> Interval | None:
    """Return Student's interval of a value from each record's influence on it. None for a single record."""
    total = len(influence)
    if total < 2:  # noqa: PLR2004 - a single record has no spread
        return None
    half = float(special.stdtrit(total - 1, _TWO_SIDED) * influence.std(ddof=1)) / math.sqrt(total)
    return value - half, value + half


def _by_logarithm(value: float, influence: Array) -> Interval | None:
    """Return the interval of a positive metric from each record's influence on its logarithm."""
    ends = _student(math.log(value), influence) if 0 < value < math.inf else None
    return None if ends is None else (float(np.exp(ends[0])), float(np.exp(ends[1])))


def _by_logit(share: float, influence: Array) -> Interval | None:
    """Return the interval of a metric between 0 and 1, on the scale of log-odds, so that it stays between them."""
    if not 0 < share < 1:
        return None
    ends = _student(float(special.logit(share)), influence / (share * (1 - share)))
    return None if ends is None else (float(special.expit(ends[0])), float(special.expit(ends[1])))
