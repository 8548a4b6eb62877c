"""The loop: limits are never crossed, charges come first, and a restored run goes on as if nothing had been."""

import itertools
import json
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from alidpfl.errors import ConfigError
from alidpfl.federation.server import ServerSettings
from alidpfl.federation.settings import Evaluation
from alidpfl.methods import METHODS, FedAvgDp
from alidpfl.policies import POLICIES
from alidpfl.policies.pace import Ratio
from alidpfl.types import ClientUpdate, RoundRecord, StopReason
from tests.federation.conftest import NOISE_MULTIPLIER, SIZES, make_training

COMBINATIONS = [
    *((method, policy, {}) for method in METHODS for policy in POLICIES),
    ("pe_dpfl", "fixed", {"variant": "output"}),
]


class FakeEngine:
    """Answers at once, with whatever `answer` makes of the server's weights and a plan."""

    def __init__(self, answer=lambda params, plan: params + 0.01):
        self.answer, self.seen = answer, []

    def train(self, params, plans):
        self.seen.append(plans)
        return [ClientUpdate(client=plan.client, params=self.answer(params, plan)) for plan in plans]

    def close(self):
        pass

    def evaluate(self, params, part):
        return Evaluation(accuracy=50.0, loss=1.0)


@pytest.mark.parametrize(("method", "policy", "options"), COMBINATIONS)
def test_every_method_with_every_policy_stays_within_both_budgets(method, policy, options):
    training = make_training(method, policy, method_options=options)
    records = list(training)
    assert 1 <= len(records) <= 8
    assert training.stop_reason in (StopReason.MAX_ROUNDS, StopReason.BUDGET)
    budget = 8.0 if options else 2.0
    assert all(value <= budget for value in training.epsilons.values())
    assert all(record.epsilon <= budget for record in records)
    assert set(records[-1].client_epsilon) == set(range(len(SIZES)))
    assert records[-1].accuracy is not None
    assert records[-1].covers_everything == (policy not in ("paper", "reference"))
    if not options and method != "adap_dpfl":
        assert sum(record.local_steps for record in records) <= training._ledger.max_steps


@pytest.mark.parametrize(("method", "policy", "options"), COMBINATIONS)
def test_a_restored_run_ends_as_an_uninterrupted_one(method, policy, options):
    server = ServerSettings(momentum=0.5, averaging=0.3)
    whole = make_training(method, policy, method_options=options, server=server)
    expected = [record.to_json() for record in whole]
    first = make_training(method, policy, method_options=options, server=server)
    told = [record.to_json() for record in itertools.islice(first, 3)]
    tensors, values = first.state()
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    second = make_training(method, policy, method_options=options, server=server)
    second.restore(tensors, json.loads(json.dumps(values)))
    told += [record.to_json() for record in second]
    assert told == expected
    assert torch.equal(second.params, whole.params)
    assert second.epsilons == whole.epsilons
    assert second.stop_reason == whole.stop_reason


def test_clients_are_charged_before_they_are_asked():
    class Breaks(FakeEngine):
        def train(self, params, plans):
            raise RuntimeError("the network is down")

    training = make_training(engine=Breaks())
    with pytest.raises(RuntimeError, match="down"):
        training.step()
    assert [training._ledger.steps_spent(client) for client in range(4)] == [training._ledger.steps_spent(0)] * 4
    assert training._ledger.steps_spent(0) >= 1


@pytest.mark.parametrize(("steps", "kept"), [(None, True), (1, False)])
def test_a_round_that_a_client_cut_short_is_not_averaged_into_one_gradient(steps, kept):
    class Cutting(FakeEngine):
        def train(self, params, plans):
            first, *others = super().train(params, plans)
            return [replace(first, steps=steps), *others]

    training = make_training(engine=Cutting(), policy="ali")
    record = training.step()
    assert record.local_steps > 1
    assert record.aggregated
    assert ("mean_gradient" in training.state()[0]) == kept  # step sizes differ: no common divisor
    assert training._ledger.steps_spent(0) == record.local_steps  # charged as asked
    assert record.cut == ({} if steps is None else {0: steps})
    assert RoundRecord.from_json(json.loads(json.dumps(record.to_json()))) == record


def test_a_forfeited_round_is_charged_and_not_run():
    engine = FakeEngine()
    training = make_training(engine=engine, policy="fixed")
    training.forfeit_round()
    assert engine.seen == []
    assert [training._ledger.steps_spent(client) for client in range(4)] == [2] * 4
    assert training.progress.round == 0


def test_records_count_what_was_forfeited():
    """A client that forfeited all it had sits out, and its epsilon must still be the largest."""
    training = make_training(
        engine=FakeEngine(), policy="fixed", policy_options={"local_steps": 30}, clients_per_round=1
    )
    for _ in range(3):
        training.forfeit_round()
    record = training.step()
    assert record.epsilon >= max(training.epsilons.values())


def test_a_method_that_asks_for_raw_signals_must_be_admitted_too():
    class Nosy(FedAvgDp):
        signals = frozenset({"raw"})

    with pytest.raises(ConfigError, match="unaccounted-signals"):
        make_training(built=Nosy(clip_norm=1.0, noise_multiplier=NOISE_MULTIPLIER))
    admitted = make_training(
        built=Nosy(clip_norm=1.0, noise_multiplier=NOISE_MULTIPLIER), unsafe=frozenset({"unaccounted-signals"})
    )
    assert admitted.step().covers_everything is False


def test_records_say_when_something_else_shows_private_data():
    assert make_training(engine=FakeEngine(), shows_private_data=True).step().covers_everything is False


def test_dropouts_and_stragglers_are_charged_and_recorded_and_others_go_on():
    training = make_training(engine=FakeEngine(), dropout_rate=0.3, straggler_rate=0.2, max_rounds=30)
    records = list(training)
    lost = sum(len(record.dropped) for record in records)
    assert 0.2 < lost / (4 * len(records)) < 0.7  # 44 % expected
    assert len({training._ledger.steps_spent(client) for client in range(4)}) == 1
    assert any(record.dropped and record.aggregated for record in records)


def test_without_a_quorum_the_model_stays():
    training = make_training(engine=FakeEngine(), dropout_rate=0.4, server=ServerSettings(quorum=1.0), max_rounds=60)
    before = training.params.clone()
    seen = set()
    for record in training:
        seen.add(record.aggregated)
        assert record.aggregated == (not record.dropped)
        assert torch.equal(training.params, before) == (not record.aggregated)
        before = training.params.clone()
    assert seen == {True, False}  # else this shows nothing


def test_a_poisoned_update_is_left_out_of_the_mean():
    def answer(params, plan):
        return torch.full_like(params, float("nan")) if plan.client == 1 else params + 0.01

    training = make_training(engine=FakeEngine(answer))
    before = training.params.clone()
    record = training.step()
    assert record.rejected == {1: "values that are not finite"}
    assert torch.allclose(training.params, before + 0.01)
    honest = make_training(engine=FakeEngine())
    assert honest.step().rejected == {}


def test_time_limit_stops_before_the_round_that_would_cross_it():
    now = [0.0]

    class Slow(FakeEngine):
        def train(self, params, plans):
            now[0] += 5
            return super().train(params, plans)

    training = make_training(engine=Slow(), policy="fixed", time_limit=17.0, max_rounds=100, clock=lambda: now[0])
    assert len(list(training)) == 3
    assert training.stop_reason is StopReason.TIME_LIMIT
    assert training.progress.seconds <= 17


def test_traffic_limit_stops_before_the_round_that_would_cross_it():
    a_round = 2 * 4 * 4 * len(make_training(engine=FakeEngine()).params)
    training = make_training(engine=FakeEngine(), policy="fixed", traffic_limit=4 * a_round - 1, max_rounds=100)
    assert len(list(training)) == 3
    assert training.stop_reason is StopReason.TRAFFIC_LIMIT
    assert training.progress.bytes == 3 * a_round


def test_policies_plan_for_the_limit_that_ends_first():
    """Traffic for three rounds: `ratio` spreads all of R_c over three, not over the hundred allowed."""
    a_round = 2 * 4 * 4 * len(make_training(engine=FakeEngine()).params)
    training = make_training(engine=FakeEngine(), traffic_limit=3 * a_round, max_rounds=100)
    records = list(training)
    assert len(records) == 3
    assert records[-1].steps == training._ledger.max_steps
    assert max(r.local_steps for r in records) - min(r.local_steps for r in records) <= 1


def test_the_step_size_falls_by_the_limit_that_ends_first():
    """Traffic for ten rounds of a hundred: in the last of them a step that decays late has decayed."""
    engine, a_round = FakeEngine(), 2 * 4 * 4 * len(make_training(engine=FakeEngine()).params)
    training = make_training(engine=engine, traffic_limit=10 * a_round, max_rounds=100, schedule="late_decay")
    told = []

    class Noting(Ratio):
        def decide(self, situation):
            told.append(situation.learning_rate)
            return super().decide(situation)

    training._planner._policy = Noting()
    assert len(list(training)) == 10
    taken = [plans[0].learning_rates[0] for plans in engine.seen]
    assert taken[0] == 0.5
    assert taken[-1] < 0.25
    assert told == taken  # what a policy is told is what the next step takes


def test_the_last_round_is_cut_to_what_is_left():
    training = make_training(engine=FakeEngine(), policy="fixed", policy_options={"local_steps": 7}, max_rounds=1000)
    records = list(training)
    assert training.stop_reason is StopReason.BUDGET
    assert records[-1].steps == training._ledger.max_steps
    assert records[-1].steps % 7 != 0  # else this shows nothing


@given(
    st.integers(1, 60), st.integers(1, 4), st.sampled_from(["ratio", "fixed", "ali", "corrected"]), st.floats(0, 0.5)
)
@settings(max_examples=40, deadline=None)
def test_no_client_ever_runs_past_r_c(max_rounds, drawn, policy, dropout):
    engine = FakeEngine()
    training = make_training(
        engine=engine, policy=policy, max_rounds=max_rounds, clients_per_round=drawn, dropout_rate=dropout
    )
    records = list(training)
    for client in range(4):
        sent = sum(plan.steps for plans in engine.seen for plan in plans if plan.client == client)
        assert sent <= training._ledger.steps_spent(client) <= training._ledger.max_steps
    assert len(records) <= max_rounds


def test_cohorts_are_drawn_anew_each_round_and_repeatable():
    def cohorts(seed):
        engine = FakeEngine()
        list(make_training(engine=engine, policy="fixed", clients_per_round=2, max_rounds=8, seed=seed))
        return [[plan.client for plan in plans] for plans in engine.seen]

    assert cohorts(1) == cohorts(1) != cohorts(2)
    assert len({tuple(cohort) for cohort in cohorts(1)}) > 2
    assert all(len(cohort) == 2 for cohort in cohorts(1))


def test_no_round_plans_more_than_its_clients_can_pay_for():
    """One client of four a round, few rounds: an even pace would ask for more than R_c of whoever is drawn."""
    training = make_training(engine=FakeEngine(), clients_per_round=1, max_rounds=3)
    assert all(record.local_steps <= training._ledger.max_steps for record in training)


@pytest.mark.parametrize("method", ["fedavg_dp", "ali_dpfl"])
def test_no_round_plans_more_than_anybody_would_run(method):
    free = make_training(engine=FakeEngine(), method=method, max_rounds=3)
    held = make_training(engine=FakeEngine(), method=method, max_rounds=3, max_local_steps=2)
    assert max(record.local_steps for record in free) > 2
    records = list(held)
    assert [record.local_steps for record in records] == [2, 2, 2]
    assert held._ledger.steps_spent(0) == records[-1].steps == 6  # nobody is charged for steps that nobody runs


def test_half_the_clients_a_round_can_run_twice_the_steps():
    training = make_training(engine=FakeEngine(), clients_per_round=2, max_rounds=10)
    everybody = make_training(engine=FakeEngine(), max_rounds=10)
    assert sum(r.local_steps for r in training) == pytest.approx(2 * sum(r.local_steps for r in everybody), rel=0.1)


@pytest.mark.parametrize("policy", ["paper", "reference"])
def test_unaccounted_signals_must_be_asked_for_by_name(policy):
    with pytest.raises(ConfigError, match="unaccounted-signals"):
        make_training(policy=policy, unsafe=frozenset())


def test_private_policies_never_ask_for_raw_signals():
    for policy in set(POLICIES) - {"paper", "reference"}:
        engine = FakeEngine()
        make_training(engine=engine, policy=policy).step()
        assert all("raw" not in plan.signals for plan in engine.seen[0])


def test_learning_rates_fall_with_the_scarcer_budget():
    rounds_scarce = list(make_training(engine=FakeEngine(), schedule="linear", policy="fixed", max_rounds=4))
    assert [r.learning_rate for r in rounds_scarce] == pytest.approx([0.5, 0.375, 0.25, 0.125], rel=0.05)
    steps_scarce = list(make_training(engine=FakeEngine(), schedule="linear", policy="ratio", max_rounds=100_000))
    assert steps_scarce[-1].learning_rate < 0.05


@pytest.mark.parametrize(
    "setting",
    [
        {"max_rounds": 0},
        {"dropout_rate": 1.0},
        {"time_limit": -1.0},
        {"learning_rate": 0.0},
        {"unsafe": frozenset({"x"})},
    ],
)
def test_settings_out_of_range_are_named(setting):
    with pytest.raises(ConfigError, match=next(iter(setting))):
        make_training(**setting)
