"""What was `ali`'s τ in every round of the tables: one of the two limits that it is held to, or Lemma 2's own?"""

import functools
from collections import Counter
from collections.abc import Iterator, Mapping

from reproduction.results import Result

from alidpfl.policies import Decision, Situation, paced
from alidpfl.policies.pace import even_steps
from alidpfl.privacy import MAX_STEPS, PrivacyBudget, max_steps

_MEANING = """So what acts is mostly *whether* the curvature stands out of its noise, which lets `ali` spend early, and
only where Lemma 2 chose τ itself also its value."""


def section(known: Mapping[str, Result]) -> str:
    """How often it was which; empty where no run tells."""
    by_split = _decided(known)
    counts = sum(by_split.values(), Counter())
    if not counts:
        return ""
    limits = (
        f"In {counts.total()} rounds where R_c > R_s, τ was the cap, twice the even pace, in {counts['cap']}; the even "
        f"pace, taken while the curvature does not stand out of its noise, in {counts['pace']}; the two are the same "
        f"number in {counts['both']}; and anything else, a τ that Lemma 2 itself chose, in {counts['other']}."
    )
    return f"**What decided `ali`'s τ.** {limits} {_where_lemma_2_spoke(by_split)} {_MEANING}"


def in_short(known: Mapping[str, Result]) -> str:
    """In a sentence or two."""
    told = _where_lemma_2_spoke(_decided(known))
    return f"The step size was constant. {told}" if told else "The step size was constant."


def _where_lemma_2_spoke(by_split: Mapping[str, Counter[str]]) -> str:
    """Only rounds in which it could choose count: in the others no curvature was resolved, or the limits are one."""
    could = {split: counts for split, counts in by_split.items() if counts["cap"] + counts["other"]}
    if not could:
        return ""
    its_own = {split: counts for split, counts in could.items() if counts["other"]}
    told = [f"{split}: {_share(counts)}" for split, counts in its_own.items()]
    never = f"in none of the {len(could) - len(its_own)} other splits" if told else "in no split"
    every = _share(sum(could.values(), Counter()))
    return f"Where Lemma 2 could choose, its τ lay below the cap in {every} rounds ({'; '.join([*told, never])})."


def _share(counts: Counter[str]) -> str:
    return f"{counts['other']} of {counts['cap'] + counts['other']}"


def _decided(known: Mapping[str, Result]) -> dict[str, Counter[str]]:
    """By split, in how many rounds which limit, or Lemma 2 itself, was `ali`'s τ."""
    found: dict[str, Counter[str]] = {}
    for result in known.values():
        if counts := Counter(_deciders(result)):
            found.setdefault(_split(result), Counter()).update(counts)
    return dict(sorted(found.items()))


def _split(result: Result) -> str:
    told = result.settings
    partition = "IID" if told["data.partition"] == "iid" else f"Dir({told['data.dirichlet_beta']:g})"
    return f"{told['data.name']}, {partition}, seed {told['run.seed']}"


def _deciders(result: Result) -> Iterator[str]:
    told = result.settings
    if told.get("method.policy") != "ali":
        return
    budget = PrivacyBudget(epsilon=told["privacy.epsilon"], delta=told["privacy.delta"])
    rate, rounds = told["privacy.sample_rate"], told["federation.max_rounds"]
    steps = _affordable(budget, rate, result.noise_multiplier, told["privacy.accountant"])
    if steps <= rounds:  # Lemma 1 decides
        return
    spent = 0
    for number, taken in enumerate(result.local_steps):
        if spent >= steps:
            return
        situation = Situation(**_ANY, round=number, max_rounds=rounds, max_steps=steps, steps_spent=spent)
        cap, pace = paced(Decision(local_steps=MAX_STEPS, why=""), situation).local_steps, even_steps(situation)
        yield ("both" if cap == pace else "cap") if taken == cap else "pace" if taken == pace else "other"
        spent += taken


_affordable = functools.cache(lambda budget, rate, noise, name: max_steps(budget, rate, noise, accountant=name))
_ANY = {
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
"""What neither limit depends on."""
