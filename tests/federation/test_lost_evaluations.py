"""Kills between a release and its checkpoint, many in a row: the account covers every release that left."""

import itertools
import json

import numpy as np
import pytest

from alidpfl.federation.private_evaluation import PrivateEvaluation
from alidpfl.federation.settings import Evaluation
from alidpfl.privacy import PrivacyBudget
from alidpfl.releases.queries import EvaluationQuery, Released
from alidpfl.types import ClientUpdate, StopReason
from tests.federation.conftest import make_training

BUDGET = PrivacyBudget(epsilon=2.0, delta=1e-5)
POINTS = ("trained", "first answer", "released", "recorded", "saved")
SCENARIOS = {
    "rounds": ({"max_rounds": 5}, 3),
    "every round": ({"max_rounds": 4}, 9),
    "one release": ({"max_rounds": 3}, 1),
    "budget": ({"max_rounds": 9, "policy_options": {"local_steps": 7}}, 4),
    "budget of one round": ({"max_rounds": 9, "policy_options": {"local_steps": 40}}, 3),
    "few clients": ({"max_rounds": 40, "policy_options": {"local_steps": 10}, "clients_per_round": 2}, 6),
    "time": ({"max_rounds": 9, "time_limit": 4.5}, 4),
    "traffic": ({"max_rounds": 9, "traffic_limit": 8000}, 4),
    "limits that end nothing": ({"max_rounds": 12, "time_limit": 1e9, "traffic_limit": 10**12}, 12),
    "noise that adapts": ({"max_rounds": 9, "policy_options": {"local_steps": 5}}, 4),
}
"""Settings, and the number of releases."""


class _KilledError(Exception):
    pass


class Answers:
    """Answers at once. Keeps the noise of each release that left, and dies where it is told."""

    def __init__(self, left):
        self.left, self.point, self.losses = left, None, itertools.count(0, -1)

    def train(self, params, plans):
        self.at("trained")
        return [ClientUpdate(client=plan.client, params=params + 0.01) for plan in plans]

    def release(self, _params, plans):
        for plan in plans:
            self.left.setdefault(plan.client, []).append(plan.noise_multiplier)
            self.at("first answer")
        self.at("released")
        return [Released(client=plan.client, values=np.ones(plan.query.layout.size, np.float32)) for plan in plans]

    def evaluate(self, _params, part):
        return Evaluation(accuracy=None, loss=float(next(self.losses))) if part == "validation" else None

    def at(self, point):
        if self.point == point:
            raise _KilledError

    def close(self):
        pass


def made(scenario, left):
    """Return a run in its first state, and its engine. A falling loss lowers the noise of one method after 3 rounds."""
    (settings, releases), seconds, engine = SCENARIOS[scenario], itertools.count(), Answers(left)
    method, options = "fedavg_dp", {}
    if scenario == "noise that adapts":
        method, options = "adap_dpfl", {"noise_decay": 0.05}
    settings = {**settings, "policy_options": dict(settings.get("policy_options", {}))}
    clock = {"clock": lambda: float(next(seconds))}
    training = make_training(method, "fixed", engine=engine, method_options=options, **settings, **clock)
    training.private_evaluation = PrivateEvaluation(
        query=EvaluationQuery(task="class", outputs=2),
        budget=BUDGET,
        accountant="rdp",
        releases=releases,
        max_rounds=settings["max_rounds"],
        clients=range(4),
    )
    return training, engine


def checkpoint(training):
    tensors, values = training.state()
    return {name: tensor.clone() for name, tensor in tensors.items()}, json.dumps(values)


def lives(scenario, deaths):
    """Run to the end, as `execute` and `resume` do. Each death is a round of a life, and the point where it is killed.

    Yields:
        The run at the start of each life and at its end if it is the last, and the noise of what left so far.
    """
    left, saved = {}, None
    for death in [*deaths, (0, "")]:
        training, engine = made(scenario, left)
        if saved is not None:
            training.restore(saved[0], json.loads(saved[1]))
            training.forfeit_round()
        saved = checkpoint(training)
        yield training, left
        try:
            for number in itertools.count(1):
                engine.point = death[1] if number == death[0] else None
                if training.step() is None:
                    break
                engine.at("recorded")
                saved = checkpoint(training)
                engine.at("saved")
        except _KilledError:
            continue
        yield training, left
        return


def check(training, left):
    """The charged sum of 1/σ² covers what left each client, and is within the budget."""
    private = training.private_evaluation
    spent = private.to_json()["spent"]
    for noises in left.values():
        assert sum(noise**-2 for noise in noises) <= spent
    assert private.epsilon <= BUDGET.epsilon
    assert (private.facts() is not None) or not left


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_without_a_kill_what_is_charged_is_what_left(scenario):
    *_, (training, left) = lives(scenario, [])
    ended = ("budget", "budget of one round", "few clients", "noise that adapts")
    expected = {"time": StopReason.TIME_LIMIT, "traffic": StopReason.TRAFFIC_LIMIT}
    expected |= dict.fromkeys(ended, StopReason.BUDGET)
    assert training.stop_reason == expected.get(scenario, StopReason.MAX_ROUNDS)
    check(training, left)
    assert sum(noise**-2 for noise in left[0]) == pytest.approx(training.private_evaluation.to_json()["spent"])


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_killed_once_in_every_round(scenario, point):
    for number in range(1, 10):
        for training, left in lives(scenario, [(number, point)]):
            check(training, left)


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_killed_in_the_same_round_again_and_again(scenario, point):
    for number in (1, 2, 4):
        for training, left in lives(scenario, [(number, point), *[(1, point)] * 15]):
            check(training, left)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_killed_anywhere_many_times(scenario):
    chance = np.random.default_rng(0)
    for _ in range(20):
        deaths = [(chance.integers(1, 4), chance.choice(POINTS)) for _ in range(chance.integers(2, 13))]
        for training, left in lives(scenario, deaths):
            check(training, left)


@pytest.mark.parametrize("scenario", ["rounds", "budget", "few clients"])
def test_a_round_that_was_not_the_last_does_not_cost_the_last_evaluation(scenario):
    *_, (training, left) = lives(scenario, [(1, "recorded")])
    assert training.last_evaluation is not None
    noises = left[0]
    assert noises[-1] < min(noises[:-1], default=float("inf"))
