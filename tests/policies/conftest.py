"""A situation to vary, and runs of a policy against the budgets."""

from dataclasses import replace

import pytest

from alidpfl.policies import Situation

BASE = Situation(
    round=0,
    max_rounds=158,
    max_steps=317,
    steps_spent=0,
    previous_steps=0,
    num_params=582026,
    clip_norm=1.0,
    noise_multiplier=1.1,
    sample_rate=0.015,
    learning_rate=0.5,
    expected_batch_size=12.0,
    weight_concentration=0.1,
    heterogeneity=10.0,
)


@pytest.fixture
def situation():
    return BASE


def run(policy, situation, signals=None, rounds_run=None):
    """Every τ until either budget ends, each round charged in full. `signals(k)` gives what was measured."""
    spent, previous, taken = 0, 0, []
    for k in range(situation.max_rounds if rounds_run is None else rounds_run):
        if spent >= situation.max_steps:
            break
        measured = signals(k) if signals else {}
        now = replace(situation, round=k, steps_spent=spent, previous_steps=previous, **measured)
        previous = policy.decide(now).local_steps
        spent += previous
        taken.append(previous)
    return taken
