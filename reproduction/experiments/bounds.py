"""Measure how loose the bounds are, and whether their minimisers follow the best τ.

`python -m reproduction.experiments.bounds [PROBLEMS]` prints the figures of docs/explanation/theory.md.
"""

import sys
from collections import defaultdict
from dataclasses import replace

import numpy as np
from scipy.stats import spearmanr

from alidpfl.policies import Problem, bound_a, bound_b, paper_bound
from reproduction.experiments.convex import Outcome, Quadratics, Training, described, random_case, simulate, weights

LOCAL_STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24)
MAX_ROUNDS = 12
PACES = (2, 4, 8, 16)
"""R_c / R_s."""
REPETITIONS = 200
BOUNDS = {"(A)": bound_a, "(B)": bound_b}
SAMPLE_RATES = {"Poisson batches": None, "full batches": 1.0}
"""None: as drawn, 0.2 to 0.8. With full batches v is only the noise, without the bound C² on what batches add."""


def main(problems: str = "60") -> None:
    """Print looseness and agreement for the same random problems, with two ways of drawing batches."""
    for title, rate in SAMPLE_RATES.items():
        random = np.random.default_rng(7)
        ratios: dict[str, list[float]] = defaultdict(list)
        chosen: dict[str, list[float]] = defaultdict(list)
        for number in range(int(problems)):
            clients, training = random_case(random)
            training = replace(training, sample_rate=rate or training.sample_rate)
            _measure(clients, training, number, ratios, chosen)
        print(f"{title}; {problems} problems")
        _report(ratios, chosen)


def _measure(
    clients: Quadratics,
    training: Training,
    number: int,
    ratios: dict[str, list[float]],
    chosen: dict[str, list[float]],
) -> None:
    by_rounds = _outcomes(clients, training, dict.fromkeys(LOCAL_STEPS, MAX_ROUNDS), number)
    problem = _problem(clients, training, by_rounds)
    for name, bound in BOUNDS.items():
        for steps, outcome in by_rounds.items():
            where = f"{name} {'τ = 1' if steps == 1 else 'τ > 1'}"
            ratios[where].append(bound(problem).value(steps) / outcome.mean)
    pace = PACES[number % len(PACES)]
    rounds = {steps: min(MAX_ROUNDS, MAX_ROUNDS * pace // steps) for steps in LOCAL_STEPS}
    by_both = _outcomes(clients, training, rounds, number)
    _note(chosen, "rounds", by_rounds, _rules(clients, problem, LOCAL_STEPS[-1]))
    _note(chosen, "both", by_both, _rules(clients, problem, pace))


def _outcomes(clients: Quadratics, training: Training, rounds: dict[int, int], seed: int) -> dict[int, Outcome]:
    """Return outcomes by τ, each with the same stream of random numbers."""
    return {
        steps: simulate(
            clients,
            training,
            rounds=count,
            local_steps=steps,
            repetitions=REPETITIONS,
            random=np.random.default_rng(seed),
        )
        for steps, count in rounds.items()
    }


def _problem(clients: Quadratics, training: Training, outcomes: dict[int, Outcome]) -> Problem:
    spread = max(outcome.dissimilarity for outcome in outcomes.values())
    return described(clients, training, rounds=MAX_ROUNDS, dissimilarity=spread)


def _rules(clients: Quadratics, problem: Problem, most: int) -> dict[str, float]:
    """Return the τ of each rule; `most` is the even pace, or the end of the grid."""
    apart = clients.optimum - clients.means
    gap = float(weights(clients) @ np.einsum("id,ide,ie->i", apart, clients.hessians, apart) / 2)
    paper = paper_bound(
        curvature=problem.strong_convexity,
        heterogeneity=gap,
        clip_norm=problem.clip_norm,
        noise_power=problem.noise_power,
        total_steps=MAX_ROUNDS * most,
    )
    asked = {name: bound(problem).best_real() for name, bound in BOUNDS.items()}
    asked["Lemma 2"] = paper.best_at_fixed_rounds
    return {name: min(steps, most) for name, steps in asked.items()} | {"even pace": most}


def _note(chosen: dict[str, list[float]], limits: str, outcomes: dict[int, Outcome], rules: dict[str, float]) -> None:
    best = min(outcomes, key=lambda steps: outcomes[steps].mean)
    chosen[f"{limits}: best"].append(best)
    for name, asked in rules.items():
        nearest = min(outcomes, key=lambda steps: abs(np.log(steps / asked)))
        chosen[f"{limits}: {name}"].append(asked)
        chosen[f"{limits}: {name}, cost"].append(outcomes[nearest].mean / outcomes[best].mean)


def _report(ratios: dict[str, list[float]], chosen: dict[str, list[float]]) -> None:
    for name, values in ratios.items():
        low, middle, high = np.quantile(values, [0, 0.5, 0.9])
        print(f"bound/actual {name}: least {low:.2f}, median {middle:.0f}, nine tenths below {high:.0f}")
    for limits in ("rounds", "both"):
        best = chosen[f"{limits}: best"]
        print(f"{limits} limited: best τ quartiles {np.quantile(best, [0.25, 0.5, 0.75]).tolist()}")
        for name in ("(A)", "(B)", "Lemma 2", "even pace"):
            asked, cost = chosen[f"{limits}: {name}"], chosen[f"{limits}: {name}, cost"]
            rank = f"{spearmanr(best, asked).statistic:.2f}" if len(set(asked)) > 1 else "-"
            fewer = np.mean(np.array(asked) < 0.99 * np.array(best))
            held = np.mean(np.array(asked) == np.array(chosen[f"{limits}: even pace"]))
            print(
                f"  {name}: rank correlation {rank}, error / least error: median {np.median(cost):.2f}, "
                f"nine tenths below {np.quantile(cost, 0.9):.2f}; fewer than best {fewer:.0%}, held {held:.0%}"
            )


if __name__ == "__main__":
    main(*sys.argv[1:])
