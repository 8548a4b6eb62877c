"""Trials of clip norms on made-up rows: the rows are possible ones, and the noise is that of the plan."""

import math

import numpy as np
import pytest
import torch

from alidpfl.errors import ConfigError
from alidpfl.planner import PlanRequest, Setting
from alidpfl.runs import clip_norms
from alidpfl.runs.clip_norms import try_clip_norms
from alidpfl.runs.tables import default_clip_norm, gradient_bound
from alidpfl.tables import parse_schema
from alidpfl.tables.encode import Encoder

COLUMNS = {
    "age": {"kind": "number", "low": 0, "high": 110},
    "sex": {"kind": "category", "values": ["f", "m"]},
    "smoker": {"kind": "flag"},
}
TARGETS = {
    "class": {"column": "died", "kind": "class", "values": ["no", "yes"]},
    "number": {"column": "days", "kind": "number", "low": 0, "high": 30},
    "labels": {"kind": "labels", "columns": ["fever", "pain", "cough"]},
}


def schema_of(kind):
    return parse_schema({"target": TARGETS[kind], "columns": COLUMNS})


def tried(kind, samples=4000, noise=2.0, **loss):
    request = PlanRequest(epsilon=2, delta=1e-5, clients=4, samples=samples, max_rounds=20)
    setting = Setting(sample_rate=0.5, noise_multiplier=noise, local_steps=3, steps=60, signal_to_noise=1.0)
    return try_clip_norms(schema_of(kind), request, setting, **loss)


@pytest.mark.parametrize("kind", TARGETS)
def test_made_up_rows_are_encodings_of_possible_rows(kind):
    schema = schema_of(kind)
    rows, encoder = clip_norms._Rule(clip_norms._Task(schema, "", 0.5)).rows(300, seed=5), Encoder(schema)
    again = encoder.encode(encoder.decode(rows.inputs.numpy())).inputs
    assert np.abs(again - rows.inputs.numpy()).max() < 1e-6
    assert rows.kind == kind


@pytest.mark.parametrize(("kind", "metric", "best"), [("class", "auc", max), ("number", "rmse", min)])
def test_trials_rise_in_c_and_end_with_the_best_possible(kind, metric, best):
    trials = tried(kind)
    schema = schema_of(kind)
    bound = gradient_bound(schema, {"class": "cross_entropy", "number": "squared"}[kind])
    assert [trial.clip_norm for trial in trials] == [1.0, default_clip_norm(schema, "linear"), bound, None]
    assert best(trial.metrics[metric] for trial in trials) == trials[-1].metrics[metric]


@pytest.mark.parametrize(
    ("loss", "quantile", "metric"), [("huber", 0.5, "rmse"), ("poisson", 0.5, "rmse"), ("quantile", 0.9, "pinball")]
)
def test_trials_train_with_the_loss_of_the_run(loss, quantile, metric):
    """At the bound, with little noise, training comes near the best possible model of that loss."""
    schema, trials = schema_of("number"), tried("number", 10**6, noise=0.5, loss=loss, quantile=quantile)
    default, bound = default_clip_norm(schema, "linear", loss, quantile), gradient_bound(schema, loss, quantile)
    assert [trial.clip_norm for trial in trials] == [*sorted({1.0, default, bound}), None]
    best, reached = trials[-1].metrics[metric], trials[-2].metrics[metric]
    assert best < reached < 1.15 * best


def test_a_level_of_another_quantile_is_learnt():
    """The pinball losses at 0.1 and 0.9 are those of the two models: neither fits the other level."""
    low, high = (tried("number", 10**6, noise=0.5, loss="quantile", quantile=level)[-2] for level in (0.1, 0.9))
    assert low.metrics["pinball"] < 0.06
    assert high.metrics["pinball"] < 0.06


def test_a_loss_of_another_kind_is_refused():
    with pytest.raises(ConfigError, match="huber"):
        tried("class", loss="huber")


def test_a_small_c_biases_probabilities_and_the_bound_does_not():
    smallest, *_, bound, best = tried("class", samples=1_000_000)
    assert smallest.metrics["log_loss"] > best.metrics["log_loss"] + 0.02
    assert abs(bound.metrics["log_loss"] - best.metrics["log_loss"]) < 0.01


def test_fewer_records_give_more_noise_and_worse_models():
    """The noise must be that of the records of the plan, though fewer rows are made up."""
    few, many = (tried("class", samples=samples, noise=20.0)[2].metrics["log_loss"] for samples in (500, 500_000))
    assert few > many + 0.02


def test_the_noise_is_that_of_the_mean_over_the_clients(monkeypatch):
    seen = []
    step = clip_norms.dp_sgd_step
    monkeypatch.setattr(clip_norms, "dp_sgd_step", lambda *a, **k: seen.append(a[3]) or step(*a, **k))
    tried("class", samples=50_000, noise=3.0)
    rows = clip_norms._MOST_ROWS
    for settings in seen:
        # On a coordinate of the mean gradient: 4 clients with sigma C / (q n / 4) each, averaged.
        expected = math.sqrt(4) * 3.0 * settings.clip_norm / (0.5 * 50_000)
        assert settings.noise_scale / settings.expected_batch_size == pytest.approx(expected)
        assert settings.expected_batch_size == 0.5 * rows


def test_trials_can_be_repeated():
    torch.manual_seed(1)
    first = tried("labels")
    torch.manual_seed(2)
    assert tried("labels") == first
