"""The paper's setting to the integer; the figures are this file's own copy (design note algorithm.md)."""

import math

import dp_accounting
import pytest

from alidpfl.cli.account import PAPER_SETTING, PAPER_STEPS
from alidpfl.privacy import PrivacyBudget, SampledGaussian, epsilon, max_steps
from alidpfl.privacy.accountants import ORDERS
from reproduction import paper

SAMPLE_RATE, NOISE_MULTIPLIER, DELTA = 0.015, 1.1, 1e-5
EPSILONS = (1.55, 1.75, 2.0, 2.5, 2.75, 3.25, 3.75, 5.25)
GOLDEN = {
    "rdp-paper": (78, 174, 314, 596, 770, 1119, 1537, 3007),
    "rdp": (281, 393, 547, 896, 1099, 1519, 2028, 3800),
    "pld": (422, 545, 716, 1115, 1341, 1843, 2408, 4440),
}
PRINTED = (79, 177, 317, 598, 775, 1123, 1585, 2990)


def steps(count):
    return SampledGaussian(sample_rate=SAMPLE_RATE, noise_multiplier=NOISE_MULTIPLIER, steps=count)


@pytest.mark.parametrize("accountant", GOLDEN)
def test_max_steps_of_the_papers_budgets(accountant):
    budgets = [PrivacyBudget(epsilon=value, delta=DELTA) for value in EPSILONS]
    found = [max_steps(budget, SAMPLE_RATE, NOISE_MULTIPLIER, accountant=accountant) for budget in budgets]
    assert found == list(GOLDEN[accountant])


@pytest.mark.parametrize("accountant", GOLDEN)
@pytest.mark.parametrize("column", [0, 7])
def test_both_ends_of_a_golden_count(accountant, column):
    count, limit = GOLDEN[accountant][column], EPSILONS[column]
    assert epsilon([steps(count)], DELTA, accountant) <= limit < epsilon([steps(count + 1)], DELTA, accountant)


def test_the_papers_settings_are_the_recovered_ones():
    assert (paper.SAMPLE_RATE, paper.NOISE_MULTIPLIER, paper.DELTA) == (SAMPLE_RATE, NOISE_MULTIPLIER, DELTA)
    assert dict(zip(EPSILONS, PRINTED, strict=True)) == paper.ITERATIONS == PAPER_STEPS
    assert tuple(PAPER_SETTING.values()) == (SAMPLE_RATE, NOISE_MULTIPLIER, DELTA)


def test_the_papers_count_at_epsilon_2_overspends():
    assert epsilon([steps(317)], DELTA, "rdp-paper") == pytest.approx(2.005, abs=5e-4)


def test_epsilon_is_dp_accountings_own():
    event = steps(1000).event
    renyi = dp_accounting.rdp.RdpAccountant(list(ORDERS)).compose(event)
    papers = min(r - math.log(DELTA) / (a - 1) for a, r in zip(renyi.orders, renyi.rdp, strict=True))
    losses = dp_accounting.pld.PLDAccountant(value_discretization_interval=1e-4).compose(event)
    assert epsilon([steps(1000)], DELTA, "rdp-paper") == pytest.approx(papers, rel=1e-9)
    assert epsilon([steps(1000)], DELTA, "rdp") == pytest.approx(renyi.get_epsilon(DELTA), rel=1e-9)
    assert epsilon([steps(1000)], DELTA, "pld") == pytest.approx(losses.get_epsilon(DELTA), rel=1e-6)
