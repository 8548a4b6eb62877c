"""A claim small enough to audit in a second, and broken engines. Tests break engines by monkeypatching."""

import torch

from alidpfl.audit import Subject
from alidpfl.dpsgd import clipping, make_loss, softmax, step
from alidpfl.dpsgd import grid_noise as grid
from alidpfl.dpsgd.clipping import BatchStatistics, ClippedSum, PerSampleClipper
from alidpfl.federation import client
from alidpfl.federation.settings import FederationSettings
from alidpfl.methods import make_method
from alidpfl.policies import make_policy
from alidpfl.privacy import PrivacyBudget
from alidpfl.types import LOSS_KINDS

REAL_ADD_NOISE, REAL_MICROBATCH = step.add_noise, PerSampleClipper._microbatch


def softmax_regression(features: int = 8) -> torch.nn.Module:
    """Build a model that is clipped in closed form."""
    torch.manual_seed(0)
    return torch.nn.Linear(features, 3, bias=False)


def network(features: int = 8, outputs: int = 3) -> torch.nn.Module:
    """Build a model that needs the per-sample clipper."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(features, 5), torch.nn.Tanh(), torch.nn.Linear(5, outputs))


def subject(
    model=None,
    *,
    method="fedavg_dp",
    sigma=2.0,
    epsilon=1.0,
    clip_norm=0.5,
    records=20,
    features=8,
    noise="gaussian",
    loss="cross_entropy",
    **options,
) -> Subject:
    random, kind = torch.Generator().manual_seed(0), LOSS_KINDS[loss]
    if model is None:
        model = softmax_regression(features) if kind == "class" else network(features, 1 if kind == "number" else 3)
    inputs = torch.randn(records, features, generator=random)
    targets = {
        "class": torch.randint(3, (records,), generator=random),
        "number": torch.rand(records, generator=random),
        "labels": torch.rand(records, 3, generator=random).round(),
    }[kind]
    return Subject(
        model=model,
        inputs=inputs,
        targets=targets,
        loss=make_loss(loss, level=0.8),
        method=make_method(method, clip_norm=clip_norm, noise_multiplier=sigma, **options),
        policy=make_policy("fixed", local_steps=1),
        budget=PrivacyBudget(epsilon=epsilon, delta=1e-5),
        settings=FederationSettings(max_rounds=3, sample_rate=0.1, learning_rate=0.5),
        accountant="rdp",
        noise=noise,
        evaluation={"validation": (inputs[:5], torch.zeros_like(targets[:5]))},
    )


def too_little_noise(monkeypatch, ratio: float) -> None:
    def add_noise(gradients, scale, random):
        REAL_ADD_NOISE(gradients, scale / ratio, random)

    for module in (step, client):
        monkeypatch.setattr(module, "add_noise", add_noise)


def too_little_noise_on_the_grid(monkeypatch, ratio: float) -> None:
    real = grid.rounded_gaussian
    monkeypatch.setattr(grid, "rounded_gaussian", lambda size, random: (real(size, random) / ratio).round().long())


def noise_skipped_every(monkeypatch, number: int) -> None:
    calls = [0]

    def add_noise(gradients, scale, random):
        calls[0] += 1
        if calls[0] % number:
            REAL_ADD_NOISE(gradients, scale, random)
        else:
            gradients.update({name: gradient.float() for name, gradient in gradients.items()})

    monkeypatch.setattr(step, "add_noise", add_noise)


def noise_on_first_steps_alone(monkeypatch) -> None:
    train, real = client.LocalTrainer.train, REAL_ADD_NOISE
    steps = [0]

    def from_the_start(self, *arguments):
        steps[0] = 0
        return train(self, *arguments)

    def add_noise(gradients, scale, random):
        steps[0] += 1
        real(gradients, scale if steps[0] == 1 else 0.0, random)

    monkeypatch.setattr(client.LocalTrainer, "train", from_the_start)
    monkeypatch.setattr(step, "add_noise", add_noise)


def nothing_clipped(monkeypatch) -> None:
    for module in (clipping, softmax):
        monkeypatch.setattr(module, "clip_factors", lambda norms, _limit: torch.ones_like(norms))


def clipped_per_layer(monkeypatch) -> None:
    """Clip every tensor of a record's gradient to C, instead of the whole gradient."""

    def microbatch(self, inputs, targets, clip_norm, weights=None):
        assert weights is None, "for records, not for persons"
        sums = {name: torch.zeros_like(p, requires_grad=False) for name, p in self.parameters.items()}
        norms, losses = [], []
        for x, y in zip(inputs.split(1), targets.split(1), strict=True):
            one = REAL_MICROBATCH(self, x, y, torch.inf)
            norms.append(one.statistics.norms)
            losses.append(one.statistics.losses)
            if not bool(one.statistics.norms.isfinite().all()):
                continue
            for name, gradient in one.gradients.items():
                sums[name] += gradient * min(1.0, clip_norm / max(float(gradient.norm()), 1e-30))
        return ClippedSum(gradients=sums, statistics=BatchStatistics(norms=torch.cat(norms), losses=torch.cat(losses)))

    monkeypatch.setattr(PerSampleClipper, "_microbatch", microbatch)
