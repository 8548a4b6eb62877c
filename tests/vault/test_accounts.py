"""Accounts stay valid whatever a server chooses after seeing every answer."""

import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from alidpfl.privacy import PrivacyBudget, RdpFilter, SampledGaussian, epsilon, max_steps
from alidpfl.vault import enrolment
from alidpfl.vault.accounts import FilterAccount, filter_order, make_account
from alidpfl.vault.folder import LEDGER, status
from alidpfl.vault.policy import make_policy
from alidpfl.vault.refusals import RefusalCode, VaultRefusedError

from .parts import MOST_STEPS, NOISE, SAMPLE_RATE, CountingTrainer, body, made_vault, opened, policy_values

BUDGET = PrivacyBudget(epsilon=4.0, delta=1e-3)


def policy(**changes):
    return make_policy(policy_values(**changes), "test")


@given(
    rate=st.floats(0.01, 1.0),
    noise=st.floats(0.7, 5.0),
    less=st.floats(0.01, 1.0),
    more=st.floats(1.0, 4.0),
    steps=st.integers(1, 50),
)
@settings(max_examples=15, deadline=None)
def test_a_lower_rate_and_more_noise_never_cost_more(rate, noise, less, more, steps):
    """Planned accounting relies on this: a step at the terms dominates every step within the terms."""
    check_domination("rdp", rate=rate, noise=noise, less=less, more=more, steps=steps)


@pytest.mark.parametrize(("less", "more"), [(0.5, 1.0), (1.0, 1.3), (0.9, 1.1)])
def test_nor_by_the_tightest_accountant(less, more):
    check_domination("pld", rate=SAMPLE_RATE, noise=NOISE, less=less, more=more, steps=40)


def check_domination(accountant, *, rate, noise, less, more, steps):
    planned = SampledGaussian(sample_rate=rate, noise_multiplier=noise, steps=steps)
    run = SampledGaussian(sample_rate=rate * less, noise_multiplier=noise * more, steps=steps)
    assert epsilon([run], 1e-5, accountant) <= epsilon([planned], 1e-5, accountant) * (1 + 1e-9)


@pytest.mark.parametrize("accountant", ["rdp-paper", "rdp", "pld"])
def test_a_planned_account_pays_for_as_many_steps_as_the_accountant_allows(accountant):
    account = make_account(policy(accounting__accountant=accountant), None)
    most = max_steps(BUDGET, SAMPLE_RATE, NOISE, accountant=accountant)
    assert account.affordable(SAMPLE_RATE / 2, 10 * NOISE) == account.affordable(SAMPLE_RATE, NOISE) == most
    account.book(most - 1, SAMPLE_RATE, 10 * NOISE)  # more noise: charged all the same
    assert account.affordable(SAMPLE_RATE, NOISE) == 1
    account.book(1, SAMPLE_RATE, NOISE)
    assert 0.98 * 4 < account.epsilon() <= 4.0


def test_a_filter_charges_each_step_at_its_own_noise():
    terms = policy(accounting__kind="filter")
    order = filter_order(terms)
    assert order == RdpFilter.for_plan(BUDGET, SAMPLE_RATE, NOISE).order
    account, reference = make_account(terms, order), RdpFilter(budget=BUDGET, order=order)
    for steps, rate, noise in ((3, SAMPLE_RATE, NOISE), (5, SAMPLE_RATE / 2, 2 * NOISE), (1, SAMPLE_RATE, 1.5 * NOISE)):
        account.book(steps, rate, noise)
        reference = reference.charge(SampledGaussian(sample_rate=rate, noise_multiplier=noise, steps=steps))
    assert account.epsilon() == reference.epsilon_spent
    assert account.affordable(SAMPLE_RATE, NOISE) == reference.affordable_steps(SAMPLE_RATE, NOISE)
    assert account.affordable(SAMPLE_RATE, 2 * NOISE) > 2 * account.affordable(SAMPLE_RATE, NOISE)


@pytest.mark.parametrize("kind", ["planned", "filter"])
def test_what_is_in_the_ledger_is_booked_even_beyond_the_budget(kind):
    """A new version may have a looser accountant: then nothing is left, and nothing crashes."""
    terms = policy(accounting__kind=kind)
    account = make_account(terms, filter_order(terms))
    account.book(10_000, SAMPLE_RATE, NOISE)
    assert account.affordable(SAMPLE_RATE, NOISE) == 0
    assert account.units == 10_000
    assert account.epsilon() > 4.0


def test_noise_on_updates_is_accounted_over_all_records():
    terms = policy(terms__release="update", terms__min_noise_multiplier=4.0)
    assert make_account(terms, None).affordable(1.0, 4.0) == max_steps(BUDGET, 1.0, 4.0, accountant="rdp")
    assert filter_order(policy(terms__release="update", terms__min_noise_multiplier=4.0, accounting__kind="filter"))


# ------------------------------------------------------------------------------------------- whatever the sequence


class HostileServer(RuleBasedStateMachine):
    """Any sequence of requests, replays, crashes and restarts of a vault on the disk."""

    kind: str

    @initialize(on_excess=st.sampled_from(["cut", "refuse"]))
    def enrol(self, on_excess):
        self.tmp = Path(tempfile.mkdtemp())
        self.folder = made_vault(
            self.tmp,
            accounting__kind=self.kind,
            limits__on_excess=on_excess,
            budget__epsilon=2.0,
            terms__min_noise_multiplier=1.0,
        )
        self.trainer, self.answers = CountingTrainer(), {}

    @rule(
        run=st.sampled_from("ab"),
        number=st.integers(0, 12),
        steps=st.sampled_from([1, 2, MOST_STEPS, MOST_STEPS + 1, 10**6]),
        noise=st.sampled_from([0.5, 1.0, 1.5, 3.0, 1e9]),
        rate=st.sampled_from([SAMPLE_RATE / 2, SAMPLE_RATE, 1.0]),
        value=st.sampled_from([0.0, 0.0, 1.0]),
        crash=st.sampled_from([None, None, "training", "storing"]),
    )
    def ask(self, *, run, number, steps, noise, rate, value, crash):
        sent = body(value, run=run, round=number, steps=steps, noise_multiplier=noise, sample_rate=rate)
        with opened(self.folder, self.trainer) as vault:
            if crash == "training":
                vault.trainer = Crashing(self.trainer)
            if crash == "storing":
                vault.answers.store = crashed
            try:
                answer = vault.answer(sent)
            except (VaultRefusedError, Crash):
                return
        assert self.answers.setdefault((run, number), answer) == answer  # a round has one answer, ever

    @rule(cut=st.integers(1, 400))
    def a_line_is_cut_off(self, cut):
        """A crash in the middle of writing a line."""
        path = self.folder.path / LEDGER
        line = path.read_bytes().splitlines(keepends=True)[-1]
        with path.open("ab") as file:
            file.write(line[:cut][:-1])

    @invariant()
    def recorded_is_at_least_what_was_trained(self):
        if not hasattr(self, "folder"):
            return
        assert status(self.folder.path)["units_spent"] >= self.trainer.steps

    @invariant()
    def the_budget_is_never_crossed(self):
        """A separate account composes what was really trained, as if it had been fixed in advance."""
        if not hasattr(self, "folder"):
            return
        assert status(self.folder.path)["epsilon_spent"] <= 2.0
        run = [
            SampledGaussian(sample_rate=p.sample_rate, noise_multiplier=p.noise_multiplier, steps=p.steps)
            for p in self.trainer.plans
        ]
        assert epsilon(run, 1e-3, "rdp") <= 2.0
        assert all(p.noise_multiplier >= 1.0 and p.sample_rate <= SAMPLE_RATE for p in self.trainer.plans)
        assert all(p.steps <= MOST_STEPS for p in self.trainer.plans)

    def teardown(self):
        if hasattr(self, "tmp"):
            shutil.rmtree(self.tmp)


class Crash(BaseException):
    """The process died here."""


def crashed(*arguments):
    raise Crash


class Crashing(CountingTrainer):
    """Dies after the noise was drawn."""

    def __init__(self, counted):
        self.counted = counted

    def job(self, asked):
        def train(start, plan):
            self.counted.plans.append(plan)
            raise Crash

        return train


class HostileServerOfPlanned(HostileServer):
    kind = "planned"


class HostileServerOfFilter(HostileServer):
    kind = "filter"


QUICK = settings(max_examples=12, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck))
TestPlanned, TestFilter = HostileServerOfPlanned.TestCase, HostileServerOfFilter.TestCase
TestPlanned.settings = TestFilter.settings = QUICK


def test_the_state_machine_reaches_the_end_of_a_budget():
    """Otherwise the invariants above would prove little."""
    machine = HostileServerOfPlanned()
    machine.enrol("cut")
    for number in range(13):
        machine.ask(run="a", number=number, steps=10**6, noise=1.0, rate=SAMPLE_RATE, value=0.0, crash=None)
    machine.recorded_is_at_least_what_was_trained()
    machine.the_budget_is_never_crossed()
    with opened(machine.folder, machine.trainer) as vault, pytest.raises(VaultRefusedError) as caught:
        vault.answer(body(run="b", noise_multiplier=1.0))
    assert caught.value.code is RefusalCode.BUDGET
    machine.teardown()


def test_the_filters_order_is_that_of_the_enrolment(tmp_path, monkeypatch):
    """A later version might choose another order, but the theorem does not cover a change after the first answer."""
    other = filter_order(policy(accounting__kind="filter")) + 3
    with monkeypatch.context() as patch:
        patch.setattr(enrolment, "filter_order", lambda policy: other)
        folder = made_vault(tmp_path, accounting__kind="filter")
    with opened(folder, CountingTrainer()) as vault:
        served = vault.ledger.book.account
    for account in (served, folder.read(folder.policy())[1].account):
        assert isinstance(account, FilterAccount)
        assert account._filter.order == other
