"""The one-run audit (Steinke, Nasr & Jagielski 2023): one real training, a thousand canaries, each in by a fair coin.

Whoever sees every released update guesses which were in. Under (ε, δ)-DP only so many guesses can be right, however
clever they are: more of them refute the claim.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from alidpfl.audit.bounds import one_run_epsilon_bound
from alidpfl.audit.canaries import Canaries, CanaryGradients, make_canaries
from alidpfl.audit.one_step import check_confidence
from alidpfl.audit.subject import Subject, stream
from alidpfl.federation.federation import EngineWrapper, Federation
from alidpfl.inputs import checks
from alidpfl.policies import make_policy
from alidpfl.simulation.engine import Simulation
from alidpfl.simulation.runner import SimulationData
from alidpfl.types import ClientPlan, ClientUpdate, OnProgress

_CANARIES, _COINS = 3, 4  # numbers of streams
_SHARES = (0.02, 0.1, 0.5)  # of the canaries, that are guessed about
_NEVER = 10**9
_NORMAL = 1.4826  # standard deviations of a Gaussian in its median absolute deviation


@dataclass(frozen=True, kw_only=True)
class RunAudit:
    """What a whole training shows of its records."""

    claimed_epsilon: float
    """ε of the run, the claim."""
    delta: float
    """δ at which ε is claimed."""
    lower_bound: float
    """ε of the run, at least."""
    confidence: float
    """Probability with which the lower bound holds."""
    canaries: int
    """Records that were made up, each in by a coin."""
    guesses: int
    """In the attempt that shows most; abstained from the rest."""
    correct: int
    """How many of these guesses were right."""
    steps: int
    """Releases that were looked at."""
    strength: float
    """Mean length of a canary's clipped gradient at the first weights, over C."""
    overlap: float
    """Root mean square of the cosine between two canaries' gradients there."""
    scores_in: tuple[float, ...] = field(repr=False)
    """How much the releases showed of each canary that was in."""
    scores_out: tuple[float, ...] = field(repr=False)
    """Likewise for each that was out."""

    @property
    def is_refuted(self) -> bool:
        """True if more was guessed than the claim allows."""
        return self.lower_bound > self.claimed_epsilon


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """So many of the highest scores guessed to be in, of the lowest to be out."""

    guesses: int
    correct: int


def check_canaries(canaries: int) -> None:
    """Enough to say something, and few enough to end."""
    checks.whole("canaries", canaries, low=50, high=100_000)


def audit_run(
    subject: Subject,
    *,
    canaries: int = 1000,
    confidence: float = 0.95,
    seed: int | None = None,
    on_progress: OnProgress | None = None,
) -> RunAudit:
    """Train the subject's client once, with canaries, and bound ε by what an observer can tell of them.

    Args:
        subject: what is audited.
        canaries: made-up records; each is in by its own coin.
        confidence: probability that the bound holds.
        seed: to repeat an audit; None for noise from the operating system's entropy.
        on_progress: told of the share that is done.
    """
    check_confidence(confidence)
    check_canaries(canaries)
    made = make_canaries(subject, canaries, stream(seed, _CANARIES))
    is_in = stream(seed, _COINS).uniform(canaries) < 0.5  # noqa: PLR2004
    observer = Observer(subject, made)
    records = _records(subject, made, is_in)
    steps = _trained(subject, records, observer, seed, on_progress or (lambda _what, _share: None))
    bound, best = best_attempt(attempts(observer.scores, is_in), canaries, subject.budget.delta, confidence)
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
        scores_in=tuple(observer.scores[is_in].tolist()),
        scores_out=tuple(observer.scores[~is_in].tolist()),
    )


def attempts(scores: Tensor, is_in: Tensor) -> list[Attempt]:
    """How many guesses are right, for numbers of guesses that are fixed in advance."""
    order = is_in[scores.argsort(descending=True)]
    found = []
    for share in _SHARES:
        guesses = max(2, round(share * len(order)))
        found.append(Attempt(guesses=guesses, correct=int(order[:guesses].sum())))
        half = guesses // 2
        right = int(order[:half].sum()) + int((~order[len(order) - half :]).sum())
        found.append(Attempt(guesses=2 * half, correct=right))
    return found


def best_attempt(made: Sequence[Attempt], canaries: int, delta: float, confidence: float) -> tuple[float, Attempt]:
    """The largest bound on ε, and whose it is. Each attempt may err by its share only: the best was picked after."""
    each = 1 - (1 - confidence) / len(made)
    bounds = [
        one_run_epsilon_bound(canaries=canaries, guesses=a.guesses, correct=a.correct, delta=delta, confidence=each)
        for a in made
    ]
    best = max(range(len(made)), key=lambda number: (bounds[number], made[number].correct / made[number].guesses))
    return bounds[best], made[best]


class Observer:
    """Sees the weights before and after every release, knows the canaries, and scores how much of each is in it."""

    def __init__(self, subject: Subject, canaries: Canaries) -> None:
        self._gradients = CanaryGradients(subject.objective())
        self._canaries = canaries
        self._groups = [canaries.targets == label for label in canaries.targets.unique()]
        self.scores = torch.zeros(len(canaries.targets), dtype=torch.float64)
        """(m,) the higher, the more likely in."""

    def see(self, before: Tensor, after: Tensor, plan: ClientPlan) -> None:
        """Add what this release tells.

        Canaries of one label have much in common, so each is compared with its like. Releases count by the inverse of
        the variance that they have among canaries: one without noise then outweighs all others.
        """
        canaries, clip_norm = self._canaries, plan.clip_norm
        along = before - after
        products = self._gradients.products(before, canaries.inputs, canaries.targets, along, clip_norm)
        for group in self._groups:
            products[group] -= products[group].median()
        size = clip_norm**2 * sum(plan.learning_rates)  # of a canary that is in, but for a constant
        spread = max(_NORMAL * float(products.abs().median()), 1e-9 * size)
        self.scores += products * (size / spread**2)


class _Watched(EngineWrapper):
    """A simulation whose every release is looked at."""

    def __init__(self, engine: Simulation, observer: Observer) -> None:
        super().__init__(engine)
        self._observer = observer

    def train(self, params: Tensor, plans: Sequence[ClientPlan]) -> list[ClientUpdate]:
        before = params.clone()
        updates = self._engine.train(params, plans)
        for plan, update in zip(plans, updates, strict=True):
            self._observer.see(before, update.params, plan)
        return updates


def _trained(subject: Subject, records: SimulationData, observer: Observer, seed: int | None, tell: OnProgress) -> int:
    """Run the federation of one client to its end; returns the number of releases.

    Where the noise is on steps, every step is a round of its own: the observer sees all weights between, as the
    accounting assumes.
    """
    settings, policy = replace(subject.settings, evaluate_every=_NEVER), subject.policy
    if subject.method.release == "step":
        settings = replace(settings, max_rounds=subject.max_steps, max_local_steps=1)
        policy = make_policy("fixed", local_steps=1)
    engine = Simulation(
        model=copy.deepcopy(subject.model),
        method=subject.method,
        data=records,
        seed=seed,
        processes=1,
        noise=subject.noise,
    )
    with Federation(
        model=subject.model,
        engine=_Watched(engine, observer),
        sizes=[len(rows) for rows in records.clients],
        method=subject.method,
        policy=policy,
        ledger=subject.ledger(),
        settings=settings,
        server_settings=subject.server_settings,
    ) as federation:
        for record in federation:
            tell("one run", record.number / settings.max_rounds)
        return federation.progress.round


def _records(subject: Subject, canaries: Canaries, is_in: Tensor) -> SimulationData:
    """The client's records and the canaries; one that is out is replaced by one of NaN, which contributes nothing."""
    own, nothing = len(subject.inputs), len(subject.inputs) + len(is_in)
    rows = torch.where(is_in, torch.arange(own, nothing), nothing)
    return SimulationData(
        inputs=torch.cat([subject.inputs, canaries.inputs, torch.full_like(subject.inputs[:1], torch.nan)]),
        targets=torch.cat([subject.targets, canaries.targets, canaries.targets[:1]]),
        clients=[torch.cat([torch.arange(own), rows])],
        evaluation=subject.evaluation,
    )
