"""What the noised sums of an evaluation tell: metrics with 95 % intervals that cover sampling and noise. No records.

Everything here is post-processing. A metric is a function g of sums over records. Its variance has two parts, to first
order: the sum of the squares of what each record adds to g (sampling), and the noise of each sum times the derivative
of g by it. Where the records' part is not among the sums, an upper bound stands for it. A metric that the noise hides
is left out.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from alidpfl.metrics import CalibrationBin, Measures
from alidpfl.releases.queries import Array, EvaluationQuery

_NORMAL = float(special.ndtri(0.975))  # of a 95 % interval
_CLEAR = 5.0  # standard deviations of its noise that a count must have to be divided by
_SHOWN = 3.0  # the same for a sum of errors, and for a bin of the calibration curve
_EMPTY = 2.0  # bins with fewer are taken for empty when new edges are chosen
_BINS = 10
_LEAST_EDGES = 4
_TAIL = 3.0  # width of the two outer bins, in widths of their neighbours
_LARGEST_LOGIT = 12.0
_PARTS = 8  # of a bin of targets
_EXPECTED = {
    "class": ("accuracy", "auc", "log_loss", "brier", "macro_f1"),
    "labels": ("auc", "log_loss", "brier", "macro_f1"),
    "number": ("r2", "rmse", "mae"),
}
_BINARY = 2


@dataclass(frozen=True, kw_only=True)
class NoisedSums:
    """The sums of all clients that answered, by block, and the standard deviation of their noise."""

    query: EvaluationQuery
    sums: Mapping[str, Array]
    noise: Mapping[str, float]

    @classmethod
    def of(
        cls, query: EvaluationQuery, values: Sequence[NDArray[np.generic]], noise_multipliers: Sequence[float]
    ) -> "NoisedSums":
        """Add up what clients released, each with noise of its own."""
        total = np.sum([np.asarray(vector, dtype=np.float64) for vector in values], axis=0)
        deviation, scales = math.sqrt(sum(noise**2 for noise in noise_multipliers)), query.layout.scales
        noise = {name: deviation / scale for name, scale in scales.items()}
        return cls(query=query, sums=query.layout.split(total), noise=noise)


class _Found(NamedTuple):
    """A metric, its variance, its trivial value if there is one, and the range that it cannot leave."""

    value: float
    variance: float
    baseline: float | None = None
    low: float = 0.0
    high: float = math.inf
    is_squared: bool = False
    """True if the metric is the root of this value, and so are the ends of its interval."""


def estimate(noised: NoisedSums, *, unit: float = 1.0) -> Measures:
    """Return the metrics that can be told, with intervals.

    Log losses are clipped at the query's bound. Brier scores and baselines are as in `alidpfl.metrics.measure`. The
    calibration curve has the middle of each bin as its prediction.

    Args:
        noised: the noised sums.
        unit: what a difference of 1 between two numbers is in the unit that errors are shown in.
    """
    with np.errstate(all="ignore"):  # what is not finite is left out
        found = _numbers(noised, unit) if noised.query.task == "number" else _scored(noised)
        curve = _calibration(noised)
    expected = (*_EXPECTED[noised.query.task], *([] if noised.query.quantile is None else ["pinball"]))
    kept = {n: one for n, one in found.items() if one is not None and np.isfinite([one.value, one.variance]).all()}
    return Measures(
        values={name: _shown(one, one.value) for name, one in kept.items()},
        baseline={name: float(one.baseline) for name, one in kept.items() if one.baseline is not None},
        intervals={name: _interval(one) for name, one in kept.items()},
        calibration=curve,
        hidden=tuple(name for name in expected if name not in kept),
    )


def next_edges(noised: NoisedSums) -> tuple[float, ...]:
    """Return edges between which the scores of the next evaluation are about equally many. Few bins add less noise."""
    query = noised.query
    if query.task == "number":
        return query.edges
    cells = noised.sums["scores"].sum(axis=(0, 2))
    deviation = noised.noise["scores"] * math.sqrt(2 * len(query.ranked))
    mass = np.concatenate([[0.0], np.cumsum(np.where(cells > _EMPTY * deviation, cells, 0.0))])
    if mass[-1] <= 0:
        return query.edges
    ends = np.clip(special.logit([0.0, *query.edges, 1.0]), -_LARGEST_LOGIT, _LARGEST_LOGIT)
    wanted = special.expit(np.interp(np.arange(1, _BINS) / _BINS, mass / mass[-1], ends))
    edges = tuple(float(edge) for edge in np.unique(np.round(wanted, 6)) if 0 < edge < 1)
    return edges if len(edges) >= _LEAST_EDGES else query.edges


def _interval(found: _Found) -> tuple[float, float]:
    half = _NORMAL * math.sqrt(max(0.0, found.variance))
    return _shown(found, found.value - half), _shown(found, found.value + half)


def _shown(found: _Found, value: float) -> float:
    value = float(min(max(value, found.low), found.high))
    return math.sqrt(value) if found.is_squared else value


def _mean(total: float, count: float, spread: float, noise: float, count_noise: float) -> tuple[float, float]:
    """Return a mean and its variance.

    Args:
        total: noised sum of a value over the records.
        count: noised number of records.
        spread: variance of the value between records.
        noise: standard deviation of the noise of `total`.
        count_noise: that of `count`.
    """
    mean = total / count
    return mean, (count * max(0.0, spread) + noise**2 + (mean * count_noise) ** 2) / count**2


# ------------------------------------------------------------------------------------------- classes and labels


def _scored(noised: NoisedSums) -> dict[str, _Found | None]:
    query, (count, correct), noise = noised.query, noised.sums["counts"], noised.noise["counts"]
    if count < _CLEAR * noise:
        return {}
    shares = np.clip(noised.sums["tallies"][0], 0, None)
    shares = shares / shares.sum() if query.task == "class" else np.clip(shares / count, 0, 1)
    found: dict[str, _Found | None] = {}
    if query.task == "class":
        likely = np.clip((correct + 2) / (count + 4), 0, 1)  # a spread of 0 would be too sure (Agresti & Coull)
        value, variance = _mean(correct, count, likely * (1 - likely), noise, noise)
        found["accuracy"] = _Found(100 * value, 100**2 * variance, 100 * float(shares.max()), 0, 100)
    return found | _losses(noised, shares) | {"auc": _auc(noised), "macro_f1": _macro_f1(noised, shares)}


def _losses(noised: NoisedSums, shares: Array) -> dict[str, _Found | None]:
    """Return log loss and Brier score, if they are clear of noise.

    Their spread between records follows from the histograms of scores.
    """
    query, noise, count = noised.query, noised.noise["losses"], noised.sums["counts"][0]
    if query.task == "class":
        entropy, impurity = float(special.entr(shares).sum()), float((shares * (1 - shares)).sum())
        scale = 1.0 if query.outputs == _BINARY else 2.0
        impurity *= scale / 2
    else:
        entropy = float((special.entr(shares) + special.entr(1 - shares)).mean())
        impurity, scale = float((shares * (1 - shares)).mean()), 1.0
    found: dict[str, _Found | None] = {}
    for place, (name, factor, trivial) in enumerate(
        (("log_loss", query.largest_loss, entropy), ("brier", scale, impurity))
    ):
        if (total := float(noised.sums["losses"][place])) < _SHOWN * noise:
            continue  # a noised sum may be negative, and 0 would look like the best of all models
        mean = float(np.clip(total / count, 0, 1))
        most = mean * (1 - mean)  # Bhatia & Davis: no variable between 0 and 1 has more
        spread = min(most, max(0.0, _second_moment(noised, name) - mean**2))
        value, variance = _mean(total, count, spread, noise, noised.noise["counts"])
        found[name] = _Found(factor * value, factor**2 * variance, trivial, 0, factor)
    return found


def _second_moment(noised: NoisedSums, name: str) -> float:
    """Return about the mean square of a loss from the histograms of scores; infinite if they do not tell."""
    query, count = noised.query, noised.sums["counts"][0]
    middles = _middles(query)
    wrong = np.stack([middles, 1 - middles], axis=1)  # distance from the label, by bin and label
    cells = np.clip(noised.sums["scores"], 0, None)
    if name == "brier":
        several = query.task == "class" and query.outputs > _BINARY
        return math.inf if several else float((cells * wrong**4).sum() / count / len(query.ranked))
    losses = np.clip(-np.log1p(-wrong) / query.largest_loss, 0, 1) ** 2
    if query.task == "class" and query.outputs > _BINARY:  # a record's loss is that of its own class
        return float((cells[:, :, 1] * losses[:, 1]).sum() / count)
    return float((cells * losses).sum() / count / len(query.ranked))


def _auc(noised: NoisedSums) -> _Found | None:
    """Return the mean area under the ROC curve over the ranked outputs."""
    noise, values, sampling, by_noise = noised.noise["scores"], [], 0.0, 0.0
    for cells in noised.sums["scores"]:
        zeros, ones = cells[:, 0], cells[:, 1]
        num_zeros, num_ones = zeros.sum(), ones.sum()
        if min(num_zeros, num_ones) < _CLEAR * noise * math.sqrt(len(cells)):
            return None
        below = (np.cumsum(zeros) - zeros / 2) / num_zeros
        above = (num_ones - np.cumsum(ones) + ones / 2) / num_ones
        value = float((ones * below).sum() / num_ones)
        inside = _order_inside(noised, cells)
        of_one, of_zero = (below - value) / num_ones, (above - value) / num_zeros
        values.append(value + inside)
        sampling += math.sqrt(max(0.0, float((ones * of_one**2).sum() + (zeros * of_zero**2).sum())))
        by_noise += noise**2 * float((of_one**2).sum() + (of_zero**2).sum())
    # The columns share records, so their sampling errors may all go one way. Their noise is independent.
    variance = (sampling**2 + by_noise) / len(values) ** 2
    return _Found(float(np.mean(values)), variance, 0.5, 0, 1)


def _order_inside(noised: NoisedSums, cells: Array) -> float:
    """Return what the order of scores within bins adds to an area that counts them as ties.

    In a bin of width w on the scale of log-odds, let the odds of a label be proportional to e^(bt) and the zeros be
    evenly spread. Then a one is above a zero with probability 1/2 + bw/12. The slope b is fitted over all bins that are
    clear of noise. It is 1 for exact probabilities.
    """
    zeros, ones = np.clip(cells, 0, None).T
    edges = special.logit(noised.query.edges)
    widths = np.concatenate([[_TAIL * (edges[1] - edges[0])], np.diff(edges), [_TAIL * (edges[-1] - edges[-2])]])
    middles = np.concatenate([[edges[0] - widths[0] / 2], edges + widths[1:] / 2])
    is_clear = np.minimum(zeros, ones) > _SHOWN * noised.noise["scores"]
    slope = 1.0
    if is_clear.sum() > _BINARY:
        weights = np.sqrt(zeros * ones / (zeros + ones))[is_clear]
        slope = float(np.polyfit(middles[is_clear], np.log(ones / zeros)[is_clear], 1, w=weights)[0])
    shares = zeros * ones / (zeros.sum() * ones.sum())
    return float((shares * np.clip(max(0.0, slope) * widths / 12, 0, 0.5)).sum())


def _macro_f1(noised: NoisedSums, shares: Array) -> _Found | None:
    noise, (true, guessed, both) = noised.noise["tallies"], noised.sums["tallies"]
    either = true + guessed
    if (either < _CLEAR * math.sqrt(2) * noise).any():
        return None
    scores = 2 * both / either
    inside, outside = np.clip(both, 0, None), np.clip(either - 2 * both, 0, None)
    sampling = np.sqrt(inside * (2 - 2 * scores) ** 2 + outside * scores**2) / either
    by_noise = noise**2 * (4 + 2 * scores**2) / either**2
    columns = len(scores)
    constant = 2 * shares / (1 + shares)
    if noised.query.task == "class":
        trivial = float(constant.max()) / columns
    else:
        trivial = float(np.where(shares >= 0.5, constant, 0).mean())  # noqa: PLR2004 - the more frequent one
    variance = (float(sampling.sum()) ** 2 + float(by_noise.sum())) / columns**2
    return _Found(float(scores.mean()), variance, trivial, 0, 1)


def _calibration(noised: NoisedSums) -> tuple[CalibrationBin, ...]:
    """Return predicted and observed shares in bins: of class 1 of two classes, of the class guessed, or of all labels.

    The labels of a record may all agree. So intervals of their shares are as wide as if there was one label a record.
    """
    query = noised.query
    name = "confidence" if "confidence" in noised.sums else "scores"
    if query.task == "number":
        return ()
    labels = query.outputs if query.task == "labels" else 1
    cells, noise = noised.sums[name].reshape(-1, len(query.edges) + 1, 2), noised.noise[name]
    cells, noise = cells.sum(0), noise * math.sqrt(len(cells))
    found = []
    for predicted, (zeros, ones) in zip(_middles(query), cells, strict=True):
        count = zeros + ones
        if count < _SHOWN * math.sqrt(2) * noise:
            continue
        share = float(np.clip(ones / count, 0, 1))
        likely = (share * count + 2) / (count + 4)
        spread = likely * (1 - likely) * count * labels
        variance = (spread + noise**2 * (share**2 + (1 - share) ** 2)) / count**2
        low, high = _interval(_Found(share, variance, None, 0, 1))
        found.append(CalibrationBin(predicted=float(predicted), observed=share, low=low, high=high, count=round(count)))
    return tuple(found)


def _middles(query: EvaluationQuery) -> Array:
    ends: Array = np.array([0.0, *query.edges, 1.0])
    middles: Array = (ends[1:] + ends[:-1]) / 2
    return middles


# ----------------------------------------------------------------------------------------------------- numbers


def _numbers(noised: NoisedSums, unit: float) -> dict[str, _Found | None]:
    query, noise = noised.query, noised.noise
    sums = {name: float(values[0]) for name, values in noised.sums.items() if name != "targets"}
    count, error, error2 = sums["count"], sums["error"], sums["error2"]
    if count < _CLEAR * noise["count"]:
        return {}
    scale = unit * query.largest_error
    variance, deviation = _variance(sums, noise)
    found: dict[str, _Found | None] = {}
    if error > _SHOWN * noise["error"]:
        spread = error2 / count - (error / count) ** 2
        value, of_value = _mean(error, count, spread, noise["error"], noise["count"])
        found["mae"] = _Found(scale * value, scale**2 * of_value, _trivial(noised, 0.5, 2 * unit), 0, scale)
    if query.quantile is not None and sums["pinball"] > _SHOWN * noise["pinball"]:
        spread = sums["pinball2"] / count - (sums["pinball"] / count) ** 2
        value, of_value = _mean(sums["pinball"], count, spread, noise["pinball"], noise["count"])
        found["pinball"] = _Found(scale * value, scale**2 * of_value, _trivial(noised, query.quantile, unit), 0, scale)
    if error2 > _SHOWN * noise["error2"]:
        spread = sums["error4"] / count - (error2 / count) ** 2
        value, of_value = _mean(error2, count, spread, noise["error2"], noise["count"])
        trivial = unit * query.half * math.sqrt(max(0.0, variance))
        found["rmse"] = _Found(scale**2 * value, scale**4 * of_value, trivial, 0, scale**2, is_squared=True)
    if variance > _CLEAR * deviation:
        found["r2"] = _r2(query, sums, noise, variance)
    return found


def _variance(sums: Mapping[str, float], noise: Mapping[str, float]) -> tuple[float, float]:
    """Return the variance of the targets, and the standard deviation that noise gives it."""
    count, mean = sums["count"], sums["target"] / sums["count"]
    by_noise = math.hypot(noise["target2"], 2 * mean * noise["target"], mean**2 * noise["count"])
    return sums["target2"] / count - mean**2, by_noise / count


def _r2(query: EvaluationQuery, sums: Mapping[str, float], noise: Mapping[str, float], variance: float) -> _Found:
    count, error2, y, y2 = (sums[name] for name in ("count", "error2", "target", "target2"))
    unexplained = (query.largest_error / query.half) ** 2 * error2 / count / variance
    # Derivatives of the share by the sums of 1, e², y and y². They are of degree 0: what records add is centred.
    slopes = np.array(
        [
            unexplained * (-1 / count + (y2 / count**2 - 2 * y**2 / count**3) / variance),
            unexplained / error2 if error2 else 0.0,
            unexplained * 2 * y / count**2 / variance,
            -unexplained / count / variance,
        ]
    )
    products = np.array(
        [
            [count, error2, y, y2],
            [error2, sums["error4"], sums["error2_target"], sums["error2_target2"]],
            [y, sums["error2_target"], y2, sums["target3"]],
            [y2, sums["error2_target2"], sums["target3"], sums["target4"]],
        ]
    )
    sampling = max(0.0, float(slopes @ products @ slopes))
    deviations = np.array([noise[name] for name in ("count", "error2", "target", "target2")])
    return _Found(1 - unexplained, sampling + float(((slopes * deviations) ** 2).sum()), 0.0, -math.inf, 1)


def _trivial(noised: NoisedSums, level: float, unit: float) -> float | None:
    """Return about the mean pinball loss of a constant, the targets' own quantile, from the histogram of targets.

    Targets count as spread evenly over their bin. Negative counts stay: cut off, they would bias the mean.
    """
    query, cells = noised.query, noised.sums["targets"]
    if (total := float(cells.sum())) < _CLEAR * noised.noise["targets"] * math.sqrt(len(cells)):
        return None
    shares = np.repeat(cells / total / _PARTS, _PARTS)
    values = query.low + (np.arange(len(shares)) + 0.5) / len(shares) * (query.high - query.low)
    quantile = values[int(np.argmax(np.cumsum(shares) >= min(level, 1 - 1e-9)))]
    loss = unit * float(shares @ np.maximum(level * (values - quantile), (level - 1) * (values - quantile)))
    return loss if loss > 0 else None
