"""Privacy accounting: what steps cost, how many a budget pays for, how much noise they need. Never imports torch."""

from alidpfl.privacy.accounting import epsilon, epsilon_bound, max_steps, noise_multiplier_bound, noise_multiplier_for
from alidpfl.privacy.budget import PrivacyBudget
from alidpfl.privacy.client_ledger import FilteredLedger, Ledger, PlannedLedger
from alidpfl.privacy.filter import RdpFilter
from alidpfl.privacy.gaussian_filter import GaussianFilter
from alidpfl.privacy.group_privacy import MAX_GROUP, group_epsilon, naive_group_epsilon
from alidpfl.privacy.mechanisms import (
    MAX_NOISE_MULTIPLIER,
    MAX_STEPS,
    MIN_NOISE_MULTIPLIER,
    GaussianRelease,
    Mechanism,
    SampledGaussian,
)
from alidpfl.registry import ACCOUNTANTS

__all__ = [
    "ACCOUNTANTS",
    "MAX_GROUP",
    "MAX_NOISE_MULTIPLIER",
    "MAX_STEPS",
    "MIN_NOISE_MULTIPLIER",
    "FilteredLedger",
    "GaussianFilter",
    "GaussianRelease",
    "Ledger",
    "Mechanism",
    "PlannedLedger",
    "PrivacyBudget",
    "RdpFilter",
    "SampledGaussian",
    "epsilon",
    "epsilon_bound",
    "group_epsilon",
    "max_steps",
    "naive_group_epsilon",
    "noise_multiplier_bound",
    "noise_multiplier_for",
]
