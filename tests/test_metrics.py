"""Metrics against their definitions, pair by pair, and intervals against how often they hold the truth."""

import itertools
import math

import numpy as np
import pytest
from scipy import special

from alidpfl.metrics import Measures, calibration_curve, measure, wilson

REPETITIONS, RECORDS = 200, 150


def _pairs(scores, is_one):
    """The AUC by its definition: the share of pairs in the right order, ties one half."""
    ones, zeros = scores[is_one], scores[~is_one]
    found = [1.0 if a > b else 0.5 if a == b else 0.0 for a, b in itertools.product(ones, zeros)]
    return sum(found) / len(found)


def _f1(guess, truth):
    hits = sum(g and t for g, t in zip(guess, truth, strict=True))
    return 2 * hits / (sum(guess) + sum(truth))


def _made_up(seed, classes, records=60):
    random = np.random.default_rng(seed)
    targets = random.integers(0, classes, records)
    scores = np.round(random.normal(size=(records, classes)) + 1.5 * np.eye(classes)[targets], 1)  # with ties
    return scores.astype(np.float32), targets


@pytest.mark.parametrize("classes", [2, 3, 5])
def test_class_metrics_follow_their_definitions(classes):
    scores, targets = _made_up(1, classes)
    found = measure("class", scores, targets)
    probabilities = special.softmax(scores.astype(float), axis=1)
    guesses, one_hot = probabilities.argmax(1), np.eye(classes)[targets]
    ranked = [1] if classes == 2 else range(classes)
    assert found.values["accuracy"] == 100.0 * (guesses == targets).sum() / 60
    assert found.values["auc"] == pytest.approx(np.mean([_pairs(probabilities[:, c], targets == c) for c in ranked]))
    losses = [-math.log(p[t]) for p, t in zip(probabilities, targets, strict=True)]
    assert found.values["log_loss"] == pytest.approx(sum(losses) / 60)
    squares = ((probabilities - one_hot) ** 2).sum(1).mean()
    assert found.values["brier"] == pytest.approx(squares / 2 if classes == 2 else squares)
    assert found.values["macro_f1"] == pytest.approx(np.mean([_f1(guesses == c, targets == c) for c in range(classes)]))


def test_class_baselines_are_the_majority_and_the_shares():
    targets = np.array([0] * 6 + [1] * 3 + [2])
    found = measure("class", np.zeros((10, 3)), targets)
    shares = [0.6, 0.3, 0.1]
    assert found.baseline["accuracy"] == 60.0
    assert found.baseline["auc"] == found.values["auc"] == 0.5  # ties count one half
    assert found.baseline["log_loss"] == pytest.approx(-sum(p * math.log(p) for p in shares))
    assert found.baseline["brier"] == pytest.approx(1 - sum(p * p for p in shares))
    assert found.baseline["macro_f1"] == pytest.approx(2 * 6 / 16 / 3)
    alike = measure("class", np.log(np.tile(shares, (10, 1))), targets)  # a model that knows only the shares
    for name in ("accuracy", "log_loss", "brier", "macro_f1"):
        assert alike.values[name] == pytest.approx(alike.baseline[name]), name


def test_label_metrics_are_means_over_the_labels():
    random = np.random.default_rng(2)
    targets = (random.random((50, 3)) < [0.2, 0.5, 0.9]).astype(np.float32)
    scores = np.round(random.normal(size=(50, 3)) + targets, 1)
    found, probabilities = measure("labels", scores, targets, loss="binary"), special.expit(scores)
    assert "accuracy" not in found.values
    assert found.values["auc"] == pytest.approx(np.mean([_pairs(scores[:, k], targets[:, k] == 1) for k in range(3)]))
    chosen = np.where(targets == 1, probabilities, 1 - probabilities)
    assert found.values["log_loss"] == pytest.approx(-np.log(chosen).mean())
    assert found.values["brier"] == pytest.approx(((probabilities - targets) ** 2).mean())
    guesses = probabilities >= 0.5
    assert found.values["macro_f1"] == pytest.approx(np.mean([_f1(guesses[:, k], targets[:, k]) for k in range(3)]))
    shares = targets.mean(0)
    known = measure("labels", np.tile(special.logit(shares), (50, 1)), targets, loss="binary")
    for name, baseline in found.baseline.items():
        if name != "calibration":
            assert known.values[name] == pytest.approx(baseline), name
    assert known.values["calibration"] == pytest.approx(0, abs=1e-6)  # the shares are exact
    assert found.values["calibration"] > found.baseline["calibration"] > 0


def test_number_metrics_and_their_baselines():
    targets, outputs = np.array([1.0, 2.0, 4.0, 9.0]), np.array([[2.0], [2.0], [3.0], [6.0]])
    found = measure("number", outputs, targets, loss="quantile", quantile=0.75)
    assert found.values["rmse"] == pytest.approx(math.sqrt((1 + 0 + 1 + 9) / 4))
    assert found.values["mae"] == pytest.approx(5 / 4)
    assert found.values["r2"] == pytest.approx(1 - 11 / 38)
    assert found.values["pinball"] == pytest.approx((0.25 * 1 + 0 + 0.75 * 1 + 0.75 * 3) / 4)
    assert found.baseline == pytest.approx(
        {"rmse": math.sqrt(38 / 4), "mae": (2 + 1 + 1 + 6) / 4, "r2": 0.0, "pinball": (0.25 * 5 + 0.75 * 5) / 4},
        abs=1e-12,
    )
    assert "pinball" not in measure("number", outputs, targets, loss="squared").values


def test_a_poisson_model_predicts_the_logarithm_of_the_mean():
    targets = np.array([1.0, 2.0, 4.0])
    assert measure("number", np.log(targets)[:, None], targets, loss="poisson").values["mae"] == pytest.approx(0)


@pytest.mark.parametrize(
    ("kind", "outputs", "targets", "left"),
    [
        (
            "class",
            np.zeros((5, 2)),
            np.zeros(5, dtype=int),
            {"accuracy", "log_loss", "brier", "macro_f1", "calibration"},
        ),
        ("class", np.zeros((1, 3)), np.array([2]), {"accuracy", "log_loss", "brier", "macro_f1", "calibration"}),
        ("class", np.full((4, 2), np.nan), np.array([0, 1, 0, 1]), {"accuracy"}),
        ("class", np.zeros((0, 2)), np.zeros(0, dtype=int), set()),
        ("class", np.zeros((4, 1)), np.array([0, 1, 0, 1]), set()),  # one score: a loss of the user's own
        ("number", np.zeros((5, 1)), np.ones(5), {"rmse", "mae"}),
        ("number", np.zeros((1, 1)), np.ones(1), {"rmse", "mae"}),
        ("number", np.ones((5, 1)), np.ones(5), {"rmse", "mae"}),
        ("number", np.full((5, 1), np.inf), np.arange(5.0), set()),
        ("labels", np.full((5, 2), -1.0), np.zeros((5, 2)), {"log_loss", "brier", "calibration"}),
        ("labels", np.full((5, 2), np.nan), np.ones((5, 2)), set()),
        ("labels", np.zeros((1, 2)), np.ones((1, 2)), {"log_loss", "brier", "macro_f1", "calibration"}),
    ],
)
def test_what_the_data_cannot_tell_is_left_out(kind, outputs, targets, left):
    found = measure(kind, outputs, targets, loss="squared")
    assert set(found.values) == left
    assert found.baseline.keys() <= left
    assert found.intervals.keys() <= left
    numbers = [*found.values.values(), *found.baseline.values(), *itertools.chain(*found.intervals.values())]
    assert all(map(math.isfinite, numbers))


def test_a_perfect_ranking_of_few_records_has_a_wide_interval():
    few, many = (measure("class", np.eye(2)[t := np.arange(n) % 2], t).intervals["auc"] for n in (10, 1000))
    assert few[0] < 0.6
    assert 0.99 < many[0] < 1.0
    assert few[1] == many[1] == 1.0


def test_calibration_curve_and_error():
    predicted = np.array([0.05] * 10 + [0.31] * 20 + [1.0] * 4)
    came = np.array([0] * 9 + [1] + [1] * 10 + [0] * 10 + [1] * 4)
    curve = calibration_curve(predicted, came)
    assert [(b.count, pytest.approx(b.predicted), b.observed) for b in curve] == [
        (10, 0.05, 0.1),
        (20, 0.31, 0.5),
        (4, 1.0, 1.0),
    ]
    assert (curve[1].low, curve[1].high) == wilson(0.5, 20)
    scores = np.stack([np.zeros(34), special.logit(np.minimum(predicted, 1 - 1e-12))], axis=1)
    found = measure("class", scores, came)
    assert found.values["calibration"] == pytest.approx((10 * 0.05 + 20 * 0.19) / 34)
    assert [(b.count, b.observed) for b in found.calibration] == [(b.count, b.observed) for b in curve]


def test_the_calibration_baseline_is_what_chance_gives_to_exact_probabilities():
    random = np.random.default_rng(3)
    found = []
    for _ in range(REPETITIONS):
        scores = np.stack([np.zeros(400), random.normal(size=400)], axis=1)
        came = (random.random(400) < special.expit(scores[:, 1])).astype(int)
        measured = measure("class", scores, came)
        found.append((measured.values["calibration"], measured.baseline["calibration"]))
    seen, expected = np.mean(found, axis=0)
    assert seen == pytest.approx(expected, rel=0.05)


def _draw_class(random, records, classes):
    targets = random.choice(classes, records, p=[0.7, 0.3] if classes == 2 else [0.5, 0.3, 0.2])
    return random.normal(size=(records, classes)) + 0.8 * np.eye(classes)[targets], targets


def _draw(kind, random, records):
    if kind == "labels":
        targets = (random.random((records, 3)) < [0.3, 0.5, 0.7]).astype(float)
        targets[:, 1] = np.where(random.random(records) < 0.8, targets[:, 0], targets[:, 1])  # not independent
        return random.normal(size=(records, 3)) + targets, targets
    if kind == "number":
        signal = random.normal(size=records)
        return signal[:, None], 0.02 + 1.01 * signal + 0.2 * random.normal(size=records)
    return _draw_class(random, records, 2 if kind == "class" else 3)


@pytest.mark.parametrize("kind", ["class", "classes", "labels", "number"])
def test_intervals_hold_the_truth_in_95_percent_of_repetitions(kind):
    """Outside 90 % to 99 % is more than three standard deviations of 200 repetitions away from 95 %."""
    task, random = ("class" if kind == "classes" else kind), np.random.default_rng(4)
    truth = measure(task, *_draw(kind, random, 300_000), loss="quantile", quantile=0.7).values
    covered = dict.fromkeys(truth, 0)
    for _ in range(REPETITIONS):
        found: Measures = measure(task, *_draw(kind, random, RECORDS), loss="quantile", quantile=0.7)
        for name, (low, high) in found.intervals.items():
            covered[name] += low <= truth[name] <= high
    assert covered.pop("calibration", 0) == 0
    assert len(covered) >= 4
    shares = {name: count / REPETITIONS for name, count in covered.items()}
    assert all(0.9 <= share <= 0.99 for share in shares.values()), shares
