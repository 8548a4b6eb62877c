"""The one-run audit (Steinke, Nasr & Jagielski 2023): one real training with a thousand canaries.

Each canary is included by a fair coin. An observer of every release guesses which canaries were in. (ε, δ)-DP limits
how many guesses can be correct. More correct guesses refute the claim.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import torch
from torch import Tensor

from alidpfl.audit.bounds import one_run_epsilon_bound
from alidpfl.audit.canaries import Canaries, CanaryGradients, make_canaries
from alidpfl.audit.one_step import check_options
from alidpfl.audit.subject import Subject, stream
from alidpfl.dpsgd import Groups
from alidpfl.federation.loop import Federation
from alidpfl.federation.settings import EngineWrapper
from alidpfl.policies import make_policy
from alidpfl.simulation.engine import Simulation
from alidpfl.simulation.runner import SimulationData
from alidpfl.types import ClientPlan, ClientUpdate, OnProgress

_CANARIES, _COINS = 3, 4  # numbers of random streams
_SHARES = (0.02, 0.1, 0.5)  # of the canaries to guess
_NEVER = 10**9
_NORMAL = 1.4826  # standard deviation of a Gaussian over its median absolute deviation


@dataclass(frozen=True, kw_only=True)
class RunAudit:
    """Findings about one whole training."""

    claimed_epsilon: float
    """ε that the run claims."""
    delta: float
    """δ of the claim."""
    lower_bound: float
    """Lower bound on ε of the run."""
    confidence: float
    """Probability that the lower bound holds."""
    canaries: int
    """Number of canaries."""
    guesses: int
    """Guesses of the best attempt. It abstains from the other canaries."""
    correct: int
    """Number of these guesses that were correct."""
    steps: int
    """Number of releases."""
    strength: float
    """Mean norm of a canary's clipped gradient at the initial weights, over C."""
    overlap: float
    """Root mean square cosine between the gradients of two canaries there."""
    scores_in: tuple[float, ...] = field(repr=False)
    """Scores of the canaries that were in."""
    scores_out: tuple[float, ...] = field(repr=False)
    """Scores of the canaries that were out."""

    @property
    def is_refuted(self) -> bool:
        """Return whether more guesses were correct than the claim allows."""
        return self.lower_bound > self.claimed_epsilon


class Attempt(NamedTuple):
    """Guesses that the canaries with the highest scores are in, and those with the lowest are out."""

    guesses: int
    correct: int


def audit_run(
    subject: Subject,
    *,
    canaries: int = 1000,
    confidence: float = 0.95,
    seed: int | None = None,
    on_progress: OnProgress | None = None,
) -> RunAudit:
    """Train the subject's client once with canaries, and bound ε by how well an observer finds them.

    Args:
        subject: what to audit.
        canaries: number of canaries.
        confidence: probability that the bound holds.
        seed: repeats an audit; None for fresh entropy.
        on_progress: called with the current task and the share that is done.

    Returns:
        The bound, and the guesses that it follows from.

    Raises:
        ConfigError: `canaries` or `confidence` is out of range.
    """
    check_options(canaries=canaries, confidence=confidence)
    made = make_canaries(subject, canaries, stream(seed, _CANARIES))
    is_in = stream(seed, _COINS).uniform(canaries) < 0.5  # noqa: PLR2004
    scores, steps = _trained(subject, made, is_in, seed, on_progress or (lambda *_: None))
    bound, best = best_attempt(attempts(scores, is_in), canaries, subject.budget.delta, confidence)
    return RunAudit(
        claimed_epsilon=subject.budget.epsilon,
        delta=subject.budget.delta,
        lower_bound=bound,
        confidence=confidence,
        canaries=canaries,
        guesses=best.guesses,
        correct=best.correct,
        steps=steps,
        strength=made.strength,
        overlap=made.overlap,
        scores_in=tuple(scores[is_in].tolist()),
        scores_out=tuple(scores[~is_in].tolist()),
    )


def attempts(scores: Tensor, is_in: Tensor) -> list[Attempt]:
    """Return the correct guesses for numbers of guesses that are fixed in advance."""
    order = is_in[scores.argsort(descending=True)]
    found = []
    for share in _SHARES:
        guesses = max(2, round(share * len(order)))
        half = guesses // 2
        right = int(order[:half].sum()) + int((~order[len(order) - half :]).sum())
        found += [Attempt(guesses, int(order[:guesses].sum())), Attempt(2 * half, right)]
    return found


def best_attempt(made: Sequence[Attempt], canaries: int, delta: float, confidence: float) -> tuple[float, Attempt]:
    """Return the largest bound on ε and its attempt. Attempts share the error, because the best is picked later.

    The arguments beside the attempts are those of `one_run_epsilon_bound`.
    """
    each = 1 - (1 - confidence) / len(made)
    bounds = [
        one_run_epsilon_bound(canaries=canaries, guesses=a.guesses, correct=a.correct, delta=delta, confidence=each)
        for a in made
    ]
    return max(zip(bounds, made, strict=True), key=lambda pair: (pair[0], pair[1].correct / pair[1].guesses))


class _Observer(EngineWrapper):
    """Scores how much every release of a simulation shows of each canary."""

    def __init__(self, engine: Simulation, subject: Subject, canaries: Canaries) -> None:
        super().__init__(engine)
        self._gradients = CanaryGradients(subject.objective())
        self._canaries = canaries
        self._groups = [canaries.groups == number for number in canaries.groups.unique()]
        self.scores = torch.zeros(len(canaries.targets), dtype=torch.float64)  # higher: the canary is more likely in

    def train(self, params: Tensor, plans: Sequence[ClientPlan]) -> list[ClientUpdate]:
        before = params.clone()
        updates = self._engine.train(params, plans)
        for plan, update in zip(plans, updates, strict=True):
            self._score(before, before - update.params, plan)
        return updates

    def _score(self, before: Tensor, along: Tensor, plan: ClientPlan) -> None:
        # Canaries of one label have similar gradients, so each is compared with those of its label. A release counts
        # by the inverse of its variance over canaries, so that one without noise outweighs all others.
        canaries = self._canaries
        products = self._gradients.products(before, canaries.inputs, canaries.targets, along, plan.clip_norm)
        for group in self._groups:
            products[group] -= products[group].median()
        size = plan.clip_norm**2 * sum(plan.learning_rates)  # the product of a canary that is in, up to a constant
        spread = max(_NORMAL * float(products.abs().median()), 1e-9 * size)
        self.scores += products * (size / spread**2)


def _trained(
    subject: Subject, canaries: Canaries, is_in: Tensor, seed: int | None, report: OnProgress
) -> tuple[Tensor, int]:
    """Train one client to the end; return the scores of the canaries and the number of releases.

    If the noise is on steps, every step is its own round. So the observer sees all weights, as accounting assumes.
    """
    settings, policy = replace(subject.settings, evaluate_every=_NEVER), subject.policy
    if subject.method.release == "step":
        settings = replace(settings, max_rounds=subject.max_steps, max_local_steps=1)
        policy = make_policy("fixed", local_steps=1)
    method, records = subject.method, _records(subject, canaries, is_in)
    model = copy.deepcopy(subject.model)
    engine = Simulation(
        model=model, method=method, data=records, seed=seed, processes=1, noise=subject.noise, loss=subject.loss
    )
    observer = _Observer(engine, subject, canaries)
    with Federation(
        model=subject.model,
        engine=observer,
        sizes=records.sizes,
        method=method,
        policy=policy,
        ledger=subject.ledger(),
        settings=settings,
        server_settings=subject.server_settings,
    ) as federation:
        for record in federation:
            report("one run", record.number / settings.max_rounds)
        return observer.scores, federation.progress.round


def _records(subject: Subject, canaries: Canaries, is_in: Tensor) -> SimulationData:
    """Return the client's records and the canaries. A record of NaN, which adds nothing, replaces each that is out.

    If persons are protected, each canary is a person.
    """
    own, nothing = len(subject.inputs), len(subject.inputs) + len(is_in)
    rows = torch.where(is_in, torch.arange(own, nothing), nothing)
    groups, added = subject.groups, subject.canary_groups(rows)
    if groups is not None and added is not None:
        rows, offsets = added.rows, torch.cat([groups.offsets, added.offsets[1:] + own])
        groups = Groups(rows=torch.cat([groups.rows, rows]), offsets=offsets)
    return SimulationData(
        inputs=torch.cat([subject.inputs, canaries.inputs, torch.full_like(subject.inputs[:1], torch.nan)]),
        targets=torch.cat([subject.targets, canaries.targets, canaries.targets[:1]]),
        clients=[torch.cat([torch.arange(own), rows])],
        evaluation=subject.evaluation,
        groups=() if groups is None else (groups,),
        max_records=subject.max_records,
    )
