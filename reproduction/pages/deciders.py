"""Count what decided the τ of `ali` in each round: its cap, the even pace, or Lemma 2 itself."""

import functools
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from alidpfl.policies import Decision, Situation, paced
from alidpfl.policies.pace import even_steps
from alidpfl.privacy import MAX_STEPS, PrivacyBudget, max_steps
from reproduction.results import Result
from reproduction.tables import markdown_lines

CAP, PACE, BOTH, LEMMA_2 = "cap", "pace", "both", "lemma2"
"""The cap of twice the even pace, the even pace, a round in which the two are equal, and a τ from Lemma 2."""

_UNUSED: dict[str, Any] = {
    "previous_steps": 1,
    "num_params": 1,
    "clip_norm": 1.0,
    "noise_multiplier": 1.0,
    "sample_rate": 0.5,
    "learning_rate": 1.0,
    "expected_batch_size": 1.0,
    "weight_concentration": 1.0,
    "heterogeneity": 0.0,
}
"""Fields of a situation that the two limits do not depend on."""


def blocks(known: Mapping[str, Result]) -> dict[str, str]:
    """Return the generated parts of the pages about what decided τ."""
    by_split = decided(known)
    total = sum(by_split.values(), Counter[str]())
    counts = {f"rounds_{name}": str(total[name]) for name in (CAP, PACE, BOTH, LEMMA_2)}
    could = total[CAP] + total[LEMMA_2]
    own = {split: found for split, found in by_split.items() if found[LEMMA_2]}
    others = [found for split, found in by_split.items() if split not in own and found[CAP]]
    places = [[split, f"{found[LEMMA_2]} of {found[CAP] + found[LEMMA_2]}"] for split, found in own.items()]
    places.append([f"{len(others)} other splits", f"0 of {sum(found[CAP] for found in others)}"])
    return {
        "rounds_counted": str(total.total()),
        **counts,
        "lemma2_share": f"{total[LEMMA_2]} of {could}",
        "lemma2_places": "\n".join(markdown_lines(["split", "rounds"], places)),
    }


def decided(known: Mapping[str, Result]) -> dict[str, Counter[str]]:
    """Return by split in how many rounds each limit, or Lemma 2 itself, gave the τ of `ali`."""
    found: dict[str, Counter[str]] = {}
    for result in known.values():
        if counts := Counter(_deciders(result)):
            found.setdefault(_split(result), Counter()).update(counts)
    return dict(sorted(found.items()))


def _split(result: Result) -> str:
    settings = result.settings
    partition = "IID" if settings["data.partition"] == "iid" else f"Dir({settings['data.dirichlet_beta']:g})"
    return f"{settings['data.name']}, {partition}, seed {settings['run.seed']}"


def _deciders(result: Result) -> Iterator[str]:
    settings = result.settings
    if settings.get("method.policy") != "ali" or settings.get("run.evaluate_on") == "validation":
        return
    budget = PrivacyBudget(epsilon=settings["privacy.epsilon"], delta=settings["privacy.delta"])
    rate, rounds = settings["privacy.sample_rate"], settings["federation.max_rounds"]
    steps = _affordable(budget, rate, result.noise_multiplier, settings["privacy.accountant"])
    if steps <= rounds:  # Lemma 1 decides
        return
    spent = 0
    for number, taken in enumerate(result.local_steps):
        if spent >= steps:
            return
        situation = Situation(**_UNUSED, round=number, max_rounds=rounds, max_steps=steps, steps_spent=spent)
        cap, pace = paced(Decision(local_steps=MAX_STEPS, why=""), situation).local_steps, even_steps(situation)
        yield (BOTH if cap == pace else CAP) if taken == cap else PACE if taken == pace else LEMMA_2
        spent += taken


@functools.cache
def _affordable(budget: PrivacyBudget, sample_rate: float, noise_multiplier: float, accountant: str) -> int:
    return max_steps(budget, sample_rate, noise_multiplier, accountant=accountant)
