"""A federation small enough to reason about: linear models, a handful of records, an engine in this process."""

import pytest
import torch

from alidpfl.federation.loop import Federation
from alidpfl.federation.settings import FederationSettings
from alidpfl.methods import make_method
from alidpfl.policies import make_policy
from alidpfl.privacy import FilteredLedger, PlannedLedger, PrivacyBudget
from alidpfl.simulation.engine import Simulation
from alidpfl.simulation.runner import SimulationData

SAMPLE_RATE, NOISE_MULTIPLIER = 0.2, 2.0
SIZES = (30, 20, 50, 40)
BUDGET = PrivacyBudget(epsilon=2.0, delta=1e-3)


def make_data(num_features: int = 6, num_classes: int = 3) -> SimulationData:
    random = torch.Generator().manual_seed(0)
    total = sum(SIZES)
    targets = torch.randint(num_classes, (total,), generator=random)
    inputs = torch.randn(total, num_features, generator=random) + 2 * torch.eye(num_features)[targets]
    clients = torch.arange(total).split(list(SIZES))
    evaluation = {"test": (inputs[:50], targets[:50]), "validation": (inputs[50:90], targets[50:90])}
    return SimulationData(inputs=inputs, targets=targets, clients=clients, evaluation=evaluation)


def make_model(num_features: int = 6, num_classes: int = 3) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(num_features, 4), torch.nn.Tanh(), torch.nn.Linear(4, num_classes))


def make_training(
    method="fedavg_dp", policy="ratio", *, engine=None, server=None, method_options=None, built=None, **settings
):
    """A Federation over the small federation; `settings` go to FederationSettings."""
    model, policy_options = make_model(), settings.pop("policy_options", {})
    if policy == "fixed":
        policy_options.setdefault("local_steps", 2)
    built = built or make_method(method, clip_norm=1.0, noise_multiplier=NOISE_MULTIPLIER, **(method_options or {}))
    clock = settings.pop("clock", None)
    if built.adapts_noise:
        ledger = FilteredLedger(BUDGET, SAMPLE_RATE, NOISE_MULTIPLIER)
    elif built.release == "update":
        ledger = PlannedLedger(PrivacyBudget(epsilon=8.0, delta=1e-3), 1.0, NOISE_MULTIPLIER, accountant="rdp")
    else:
        ledger = PlannedLedger(BUDGET, SAMPLE_RATE, NOISE_MULTIPLIER, accountant="rdp")
    defaults = {"max_rounds": 8, "sample_rate": SAMPLE_RATE, "learning_rate": 0.5, "evaluate_every": 3}
    if policy in ("paper", "reference"):
        defaults["unsafe"] = frozenset({"unaccounted-signals"})
    return Federation(
        model=model,
        engine=engine or Simulation(model=model, method=built, data=make_data(), seed=5, processes=1),
        method=built,
        policy=make_policy(policy, **policy_options),
        ledger=ledger,
        sizes=SIZES,
        settings=FederationSettings(**{**defaults, **settings}),
        server_settings=server,
        **({"clock": clock} if clock else {}),
    )


@pytest.fixture
def small_data() -> SimulationData:
    return make_data()
