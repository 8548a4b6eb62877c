"""The whole plan."""

import json
import math
import re
from dataclasses import replace

import pytest
import torch

from alidpfl import Privacy, federate
from alidpfl.errors import BudgetExceededError, ConfigError
from alidpfl.planner import PlanRequest, make_plan
from alidpfl.planner.policy_paths import PlannedRun, policy_paths
from alidpfl.policies import make_policy
from alidpfl.privacy import PrivacyBudget, SampledGaussian, epsilon, max_steps

PAPER = PlanRequest(
    epsilon=2.0,
    delta=1e-5,
    clients=10,
    samples=60_000,
    max_rounds=158,
    sample_rate=0.015,
    noise_multiplier=1.1,
    num_params=582_026,
    seconds_per_round=13.0,
)


@pytest.fixture(scope="module")
def plan():
    return make_plan(PAPER)


def test_steps_by_each_accountant_are_the_known_ones(plan):
    assert plan.max_steps == {"rdp-paper": 314, "rdp": 547, "pld": 716}


def test_epsilon_if_rounds_or_steps_end_first(plan):
    for name, steps in plan.max_steps.items():
        for shown, count in ((plan.epsilon_if_rounds_end[name], 158), (plan.epsilon_if_steps_end[name], steps)):
            cost = epsilon([SampledGaussian(sample_rate=0.015, noise_multiplier=1.1, steps=count)], 1e-5, name)
            assert cost <= shown <= min(2.0, cost * 1.002)


def test_every_policy_is_within_both_budgets_and_says_what_it_wastes(plan):
    assert {p.policy for p in plan.policies} == {"ali", "corrected", "fixed", "paper", "ratio", "reference"}
    for p in plan.policies:
        assert p.steps <= 716
        assert p.rounds <= 158
        assert (p.unused_steps, p.unused_rounds) == (716 - p.steps, 158 - p.rounds)
        assert (
            p.ends_first
            == {(True, True): "both", (True, False): "rounds", (False, True): "privacy"}[
                p.unused_rounds == 0, p.unused_steps == 0
            ]
        )
        assert p.seconds == 13.0 * p.rounds
        assert p.bytes == p.rounds * 2 * 10 * 4 * 582_026
        assert p.least_steps <= p.local_steps <= p.most_steps
        assert p.covered == (p.policy not in ("paper", "reference"))
        assert p.epsilon_spent + p.unused_epsilon == pytest.approx(2.0)


def test_ratio_ends_both_budgets_together_and_fixed_cannot(plan):
    ratio, fixed = plan.policy("ratio"), plan.policy("fixed")
    assert (ratio.rounds, ratio.steps, ratio.ends_first) == (158, 716, "both")
    assert (ratio.least_steps, ratio.most_steps) == (4, 5)
    assert (fixed.local_steps, fixed.steps, fixed.unused_steps) == (4, 632, 84)


def test_more_rounds_than_steps_leaves_rounds_unused():
    found = make_plan(replace(PAPER, max_rounds=1000))
    ratio = found.policy("ratio")
    assert (ratio.local_steps, ratio.rounds, ratio.unused_rounds, ratio.ends_first) == (1, 716, 284, "privacy")
    assert found.epsilon_if_rounds_end["pld"] == math.inf


def test_the_document_is_json_with_what_was_promised(plan):
    document = json.loads(json.dumps(plan.to_json(), allow_nan=False))
    assert document["max_steps"] == {"rdp-paper": 314, "rdp": 547, "pld": 716}
    assert set(document["local_steps"]) == {"ali", "corrected", "fixed", "paper", "ratio", "reference"}
    assert all(isinstance(steps, int) for steps in document["local_steps"].values())
    assert 1.99 < document["epsilon_spent"] <= 2.0
    assert document["seconds"] == 158 * 13
    assert document["bytes"] == 158 * 46_562_080
    assert document["pareto"] == []
    assert document["curves"]["epsilon"]["pld"][-1][0] > 716


def test_a_searched_plan_has_a_front_with_one_recommended():
    found = make_plan(PlanRequest(epsilon=4.0, delta=1e-5, clients=5, samples=5_000, max_rounds=20, max_epochs=5.0))
    document = json.loads(json.dumps(found.to_json(), allow_nan=False))
    chosen = [row for row in document["pareto"] if row["recommended"]]
    assert len(chosen) == 1
    assert chosen[0]["sample_rate"] == document["sample_rate"]
    assert chosen[0]["noise_multiplier"] == document["noise_multiplier"]
    assert document["max_steps"]["pld"] >= chosen[0]["steps"]


@pytest.mark.parametrize("policy", ["ratio", "fixed", "ali", "corrected"])
def test_a_policy_path_is_what_training_does(policy):
    """The planner asks the same policies as the loop: their τ agree round by round (no curvature is resolved here)."""
    clients = [(torch.randn(100, 5), torch.randint(2, (100,))) for _ in range(2)]
    privacy = Privacy(epsilon=2.0, delta=1e-3, sample_rate=0.2, noise_multiplier=2.0)
    request = PlanRequest(epsilon=2.0, delta=1e-3, clients=2, samples=200, max_rounds=9, num_params=12)
    most = max_steps(request.budget, 0.2, 2.0)
    assert most % 9 != 0
    chosen = make_policy("fixed", local_steps=most // 9) if policy == "fixed" else policy
    with federate(
        torch.nn.Linear(5, 2), clients, privacy=privacy, max_rounds=9, learning_rate=1e-6, policy=chosen, seed=1
    ) as federation:
        ran = [record.local_steps for record in federation]
    run = PlannedRun(sample_rate=0.2, noise_multiplier=2.0, max_steps=most, max_rounds=9)
    planned = {path.policy: path for path in policy_paths(request, run)}[policy]
    assert list(planned.local_steps) == ran
    assert len(set(ran)) == (1 if policy == "fixed" else 2)


def test_nothing_is_measured_before_the_first_round():
    run = PlannedRun(sample_rate=0.015, noise_multiplier=1.1, max_steps=716, max_rounds=158)
    found = {path.policy: path.local_steps for path in policy_paths(PAPER, run)}
    assert found["paper"][0] == found["reference"][0] == 1 < max(found["paper"])


def test_a_compute_limit_cuts_what_policies_use():
    limited = make_plan(replace(PAPER, max_epochs=3.0))
    assert limited.max_steps["pld"] == 716
    assert all(p.steps * 0.015 <= 3.0 for p in limited.policies)


def test_more_steps_than_are_counted_are_drawn_as_far_as_they_are():
    plan = make_plan(replace(PAPER, epsilon=4.0, sample_rate=0.0005, noise_multiplier=2.0, accountant="rdp"))
    assert plan.max_steps["pld"] > 8_000_000
    assert max(x for x, _ in plan.curves.epsilon["pld"]) <= 10_000_000


@pytest.mark.parametrize("max_rounds", [1, 7, 158])
@pytest.mark.parametrize("max_steps", [1, 158, 4321])
def test_no_policy_ever_plans_past_a_budget(max_rounds, max_steps):
    request = replace(PAPER, max_rounds=max_rounds, curvature=0.01)
    run = PlannedRun(sample_rate=0.015, noise_multiplier=1.1, max_steps=max_steps, max_rounds=max_rounds)
    for path in policy_paths(request, run):
        assert sum(path.local_steps) <= max_steps
        assert 1 <= len(path.local_steps) <= max_rounds
        assert min(path.local_steps) >= 1


def test_a_budget_for_less_than_a_step_says_which_noise_and_which_epsilon_would_do():
    with pytest.raises(BudgetExceededError) as error:
        make_plan(replace(PAPER, epsilon=0.01))
    asked, needed = (float(number) for number in re.findall(r"noise_multiplier=([\d.]+)", str(error.value)))
    assert asked == 1.1
    cost = epsilon([SampledGaussian(sample_rate=0.015, noise_multiplier=needed, steps=158)], 1e-5)
    assert cost <= 0.01
    assert "0.2305" in str(error.value)
    assert max_steps(PrivacyBudget(epsilon=0.2305, delta=1e-5), 0.015, 1.1) >= 1


def test_notes_warn_of_a_small_batch_a_large_delta_a_low_signal_and_an_unknown_curvature():
    def notes(**changes):
        return " ".join(make_plan(replace(PAPER, accountant="rdp", **changes)).notes)

    small = notes(delta=1e-3, smallest_client=10)
    assert "0.15 records" in small
    assert "curvature" in small
    assert "delta=0.001 is not below 1/n for the largest client" in small  # below 1/10, but 6,000 records are the mean
    assert "delta" not in notes(delta=1e-4, smallest_client=10)
    assert "signal-to-noise is" in notes(samples=200, sample_rate=0.1, noise_multiplier=4.0)
    assert "signal-to-noise is" not in small
    assert "curvature" not in notes(curvature=0.1)


def test_an_unknown_accountant_gets_the_nearest():
    with pytest.raises(ConfigError, match=r"accountant='plt'.*'pld'"):
        make_plan(replace(PAPER, accountant="plt"))
