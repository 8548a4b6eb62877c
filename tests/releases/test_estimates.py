"""Metrics from noised sums: right without noise, and within their intervals as often as stated with it."""

from collections import Counter

import numpy as np
import pytest

from alidpfl.metrics import measure
from alidpfl.releases.estimates import NoisedSums, estimate, next_edges
from alidpfl.releases.evaluation import contributions

from .parts import OUTPUTS, evaluated, exact_measures, noised, population, query

METRICS = {
    "two classes": {"accuracy", "log_loss", "brier", "auc", "macro_f1"},
    "four classes": {"accuracy", "log_loss", "brier", "auc", "macro_f1"},
    "labels": {"log_loss", "brier", "auc", "macro_f1"},
    "number": {"mae", "rmse", "r2"},
    "quantile": {"mae", "rmse", "r2", "pinball"},
}
NUMBERS = ("number", "quantile")


def truth(task: str, count: int = 100_000) -> dict[str, float]:
    """The metrics of the whole population. Log losses are clipped as the query says."""
    outputs, targets = population(task, np.random.default_rng(99), count)
    found = dict(exact_measures(task, outputs, targets).values)
    if task not in NUMBERS:
        exact = NoisedSums.of(query(task), [contributions(query(task), outputs, targets).sum(0)], [1e-6])
        found["log_loss"] = estimate(exact).values["log_loss"]
    return {name: found[name] for name in METRICS[task]}


@pytest.mark.parametrize("task", OUTPUTS)
def test_without_noise_the_metrics_are_the_exact_ones(task):
    outputs, targets = population(task, np.random.default_rng(3), 20_000)
    exact = exact_measures(task, outputs, targets)
    for asked in (query(task), query(task, largest_loss=100.0)):
        found = estimate(NoisedSums.of(asked, [contributions(asked, outputs, targets).sum(0)], [1e-6]))
        assert set(found.values) == METRICS[task] == set(found.intervals)
        for name in METRICS[task] - ({"log_loss"} if asked.largest_loss < 100 else set()):
            assert found.values[name] == pytest.approx(exact.values[name], rel=1e-6 if name != "auc" else 2e-3), name
            low, high = found.intervals[name]
            assert low < exact.values[name] < high
            if (trivial := found.baseline.get(name)) is not None:
                rel = 0.01 if name in {"mae", "pinball"} else 1e-5  # from a histogram of targets
                assert trivial == pytest.approx(exact.baseline[name], rel=rel, abs=1e-6)


def test_errors_of_the_whole_range_are_not_cut():
    """Most people see a doctor seldom, some often. With large errors cut, a model would look better than it is."""
    random = np.random.default_rng(5)
    targets = np.clip(random.exponential(0.3, 5000) - 1, -1, 1)
    targets[:200], outputs = 1.0, np.full((5000, 1), -0.8)
    asked = query("number")
    found = estimate(NoisedSums.of(asked, [contributions(asked, outputs, targets).sum(0)], [1e-6]))
    exact = measure("number", outputs, targets)
    for name in METRICS["number"]:
        assert found.values[name] == pytest.approx(exact.values[name], rel=1e-5), name


# Of 60 intervals at 95 %, 46 or fewer cover the truth with probability 1e-8, and fewer metrics than 20 are tested.
@pytest.mark.parametrize(("repetitions", "least"), [(60, 47), pytest.param(200, 174, marks=pytest.mark.slow)])
@pytest.mark.parametrize("task", OUTPUTS)
def test_intervals_cover_the_truth_at_their_rate(task, repetitions, least):
    """Of 200 intervals at 95 %, 173 or fewer cover with probability 1e-5: sampling and noise are of equal size here."""
    random, expected, covered = np.random.default_rng(1), truth(task), Counter()
    for _ in range(repetitions):
        found = estimate(evaluated(task, random, 12_000 if task in NUMBERS else 4000, noise=2.9))
        assert set(found.intervals) == METRICS[task]
        for name, (low, high) in found.intervals.items():
            covered[name] += low <= expected[name] <= high
    assert min(covered.values()) >= least, covered


@pytest.mark.parametrize("task", ["two classes", "number"])
def test_the_intervals_are_not_much_too_wide(task):
    """Intervals that are three times narrower cover much less often: the test above can fail."""
    random, expected, covered, repetitions = np.random.default_rng(1), truth(task), Counter(), 60
    for _ in range(repetitions):
        for name, (low, high) in estimate(evaluated(task, random, 4000, noise=2.9)).intervals.items():
            middle, sixth = (low + high) / 2, (high - low) / 6
            covered[name] += middle - sixth <= expected[name] <= middle + sixth
    assert max(covered.values()) < 47, covered


def test_what_noise_hides_is_left_out():
    outputs, targets = population("two classes", np.random.default_rng(0), 30)
    found = estimate(noised(query("two classes"), (outputs, targets), np.random.default_rng(1), noise=20.0))
    assert not found.values
    assert not found.calibration
    few = estimate(noised(query("two classes"), (outputs, targets), np.random.default_rng(1), noise=0.6))
    assert "accuracy" in few.values
    assert "auc" not in few.values
    assert "auc" in few.hidden
    assert "accuracy" not in few.hidden
    assert set(found.hidden) == METRICS["two classes"]


@pytest.mark.parametrize("task", OUTPUTS)
def test_every_metric_is_shown_or_said_to_be_hidden(task):
    records = population(task, np.random.default_rng(0), 400)
    for noise in (1e-6, 3.0, 30.0, 1000.0):
        found = estimate(noised(query(task), records, np.random.default_rng(1), noise=noise))
        assert set(found.values) | set(found.hidden) == METRICS[task]
        assert not set(found.values) & set(found.hidden)


def test_r2_of_a_target_with_few_large_values_is_clear_of_noise():
    """Most of the range is empty, as with visits to a doctor: the weights of the sums decide how much noise R² has."""
    random = np.random.default_rng(2)
    targets = np.clip(random.exponential(0.3, 4000) - 1, -1, 1)
    outputs = (targets + 0.1 * random.normal(size=4000))[:, None]
    told = [estimate(noised(query("number"), (outputs, targets), random, noise=3.0)) for _ in range(100)]
    values = [one.values["r2"] for one in told if "r2" in one.values]
    assert len(values) == 100
    assert np.std(values) < 0.13  # with equal weights it would be 0.17


@pytest.mark.parametrize(("task", "errors"), [("number", ("mae", "rmse")), ("two classes", ("log_loss", "brier"))])
def test_an_error_that_noise_hides_is_left_out_and_not_zero(task, errors):
    """A noised sum of errors may be negative. Clamped to 0, it would look like the best of all models."""
    random, records, found = np.random.default_rng(4), population(task, np.random.default_rng(0), 1000), []
    for noise in (1.0, 8.0):  # with the first, most are clear of their noise
        found += [estimate(noised(query(task), records, random, noise=noise)) for _ in range(200)]
    for name in errors:
        shown = [(one.values[name], one.intervals[name][0]) for one in found if name in one.values]
        assert all(value > low >= 0 for value, low in shown)
        assert 0 < len(shown) < len(found)


def test_an_error_that_is_clear_of_its_noise_is_shown():
    outputs = population("number", np.random.default_rng(0), 20_000)
    for seed in range(20):
        found = estimate(noised(query("number"), outputs, np.random.default_rng(seed), noise=3.0))
        assert set(found.values) == METRICS["number"]


def test_new_edges_share_the_scores_equally():
    outputs, targets = population("two classes", np.random.default_rng(0), 20_000)
    first = noised(query("two classes"), (outputs, targets), np.random.default_rng(1), noise=3.0)
    edges = next_edges(first)
    assert len(edges) == 9
    second = query("two classes", edges=edges)
    cells = second.layout.split(contributions(second, outputs, targets).sum(0))["scores"].sum(axis=(0, 2))
    assert cells.min() > 0.06 * 20_000
    assert cells.max() < 0.15 * 20_000
    nothing = noised(query("two classes"), (outputs[:0], targets[:0]), np.random.default_rng(1), noise=3.0)
    assert len(next_edges(nothing)) >= 4


def test_calibration_shows_a_model_that_is_too_sure():
    random = np.random.default_rng(0)
    x = random.normal(size=30_000)
    targets = (random.random(30_000) < 1 / (1 + np.exp(-x))).astype(int)
    outputs = np.stack([np.zeros(30_000), 3 * x], axis=1)
    curve = estimate(noised(query("two classes"), (outputs, targets), random, noise=3.0)).calibration
    assert len(curve) >= 5
    assert curve[0].high > curve[0].observed > curve[0].predicted + 0.05
    assert curve[-1].low < curve[-1].observed < curve[-1].predicted - 0.05


@pytest.mark.parametrize("task", NUMBERS)
def test_trivial_values_have_no_bias_by_noise(task):
    """Most bins of the targets are empty. What noise puts there must not count on average."""
    random = np.random.default_rng(3)
    outputs, targets = population(task, random, 12_000)
    targets = np.where(np.abs(targets) < 0.3, targets, 0.125)
    exact, asked = exact_measures(task, outputs, targets), query(task)
    told = [estimate(noised(asked, (outputs, targets), random, noise=3.0)).baseline for _ in range(30)]
    for name in METRICS[task] & {"mae", "pinball"}:
        assert np.mean([one[name] for one in told]) == pytest.approx(exact.baseline[name], rel=0.15)


def test_calibration_of_labels_shows_a_model_that_is_too_sure():
    random = np.random.default_rng(0)
    x = random.normal(size=(20_000, 3))
    targets = (random.random(x.shape) < 1 / (1 + np.exp(-x))).astype(int)
    curve = estimate(noised(query("labels"), (3 * x, targets), random, noise=3.0)).calibration
    exact = measure("labels", 3 * x, targets)
    assert exact.values["calibration"] > 10 * exact.baseline["calibration"]
    for bins in (curve, exact.calibration):
        assert sum(part.count for part in bins) == pytest.approx(60_000, rel=0.02)
        assert bins[0].low > bins[0].predicted + 0.05
        assert bins[-1].high < bins[-1].predicted - 0.05


def test_intervals_of_labels_allow_for_labels_that_agree():
    """With three equal labels a record, an interval is that of one label a record."""
    random = np.random.default_rng(0)
    x = random.normal(size=(3000, 1))
    targets = (random.random(x.shape) < 1 / (1 + np.exp(-x))).astype(int)
    one, three = (measure("labels", np.tile(x, k), np.tile(targets, k)).calibration for k in (1, 3))
    for part, other in zip(one, three, strict=True):
        assert (part.low, part.high) == pytest.approx((other.low, other.high))
        assert 3 * part.count == other.count


def test_numbers_are_shown_in_the_unit_of_the_table():
    outputs, targets = population("number", np.random.default_rng(3), 20_000)
    sums = NoisedSums.of(query("number"), [contributions(query("number"), outputs, targets).sum(0)], [1e-6])
    plain, scaled = estimate(sums), estimate(sums, unit=10.0)
    for name in ("mae", "rmse"):
        assert scaled.values[name] == pytest.approx(10 * plain.values[name])
        assert scaled.intervals[name] == pytest.approx(tuple(10 * end for end in plain.intervals[name]))
    assert scaled.values["r2"] == plain.values["r2"]
    assert scaled.baseline["rmse"] == pytest.approx(10 * plain.baseline["rmse"])


def test_counts_that_are_predicted_by_their_logarithm():
    random = np.random.default_rng(0)
    rates = np.exp(0.5 * random.normal(size=20_000) - 1)
    targets = np.clip(random.poisson(4 * rates) / 4, 0, 2)
    outputs = np.log(rates)[:, None]
    asked = query("number", low=0.0, high=2.0, exponential=True)
    found = estimate(NoisedSums.of(asked, [contributions(asked, outputs, targets).sum(0)], [1e-6]))
    exact = measure("number", np.clip(outputs, None, np.log(2)), targets, loss="poisson")
    assert found.values["r2"] == pytest.approx(exact.values["r2"], abs=0.01)  # errors above half the range are clipped
    assert found.values["mae"] == pytest.approx(exact.values["mae"], rel=0.01)
