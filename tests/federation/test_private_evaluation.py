"""When evaluations on held-out records come, and what they cost."""

import json

import numpy as np
import pytest

from alidpfl.federation.private_evaluation import PrivateEvaluation
from alidpfl.privacy import GaussianRelease, PrivacyBudget, epsilon
from alidpfl.releases.queries import EvaluationQuery, Released

BUDGET = PrivacyBudget(epsilon=2.0, delta=1e-5)
QUERY = EvaluationQuery(task="class", outputs=2)


def plan(releases=5, max_rounds=20, clients=(0, 1, 2)) -> PrivateEvaluation:
    return PrivateEvaluation(query=QUERY, budget=BUDGET, releases=releases, max_rounds=max_rounds, clients=clients)


def asked(private: PrivateEvaluation, rounds: int) -> dict[int, float]:
    """σ by round of a run with so many rounds."""
    found = {}
    for done in range(1, rounds + 1):
        if plans := private.plans(done, is_last=done == rounds):
            found[done] = plans[0].noise_multiplier
            assert {(p.number, p.noise_multiplier, p.query) for p in plans} == {(done, found[done], plans[0].query)}
            assert [p.client for p in plans] == [0, 1, 2]
    return found


def released(plans, value=1000.0):
    size = plans[0].query.layout.size
    return [Released(client=p.client, values=np.full(size, value, np.float32)) for p in plans]


@pytest.mark.parametrize(
    ("releases", "max_rounds", "rounds", "expected"),
    [
        (1, 20, 20, [20]),
        (2, 20, 20, [10, 20]),
        (5, 20, 20, [4, 8, 12, 16, 20]),
        (5, 20, 9, [4, 8, 9]),  # the budget of the steps ended first
        (5, 3, 3, [1, 2, 3]),
        (100, 4, 4, [1, 2, 3, 4]),
    ],
)
def test_the_last_round_always_has_an_evaluation_and_half_of_the_budget(releases, max_rounds, rounds, expected):
    private = plan(releases, max_rounds)
    found = asked(private, rounds)
    assert list(found) == expected
    mechanisms = [GaussianRelease(noise_multiplier=noise) for noise in found.values()]
    assert epsilon(mechanisms, BUDGET.delta) <= private.epsilon * (1 + 1e-9)
    assert private.epsilon <= BUDGET.epsilon
    if len(expected) == releases:
        assert private.epsilon > 0.999 * BUDGET.epsilon
    shares = [noise**-2 for noise in found.values()]
    assert shares[-1] == pytest.approx(shares[0] * (releases - 1 if len(expected) > 1 else 1))
    assert not private.plans(rounds + 1, is_last=True)  # nothing is left for a second one


def test_a_lost_round_is_charged_as_if_it_had_been_evaluated():
    private, other = plan(), plan()
    other.plans(4, is_last=False)
    private.forfeit(4, may_be_last=False)
    private.forfeit(5, may_be_last=False)
    assert private.epsilon == other.epsilon > 0
    assert private.facts().noise_multiplier is None
    private.forfeit(6, may_be_last=True)
    assert not private.plans(20, is_last=True)


def test_a_restored_plan_goes_on_where_it_was():
    private = plan()
    plans = private.plans(4, is_last=False)
    private.take(plans, released(plans)[:2])
    again = plan()
    again.restore(json.loads(json.dumps(private.to_json())))
    assert again.evaluation(4) == private.evaluation(4)
    assert again.evaluation(5) is None
    assert again.facts() == private.facts()
    assert again.facts().clients == 2
    assert again.plans(8, is_last=False) == private.plans(8, is_last=False)
    assert again.epsilon == private.epsilon


def test_no_answer_is_no_evaluation():
    private = plan()
    private.take(private.plans(4, is_last=False), [])
    assert private.evaluation(4) is None
    assert private.facts().clients == 0
