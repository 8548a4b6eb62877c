"""The command `account`: what a budget pays for, and what steps cost."""

import json
import math
from functools import partial
from typing import Annotated, Any

import typer
from rich.table import Table
from typer import Option

from alidpfl.cli.options import AsJson
from alidpfl.cli.progress import DESCRIPTION, moving_line, wide_console
from alidpfl.errors import BudgetExceededError, ConfigError
from alidpfl.registry import ACCOUNTANTS

PAPER_SETTING = {"sample_rate": 0.015, "noise_multiplier": 1.1, "delta": 1e-5}
PAPER_STEPS = {1.55: 79, 1.75: 177, 2.0: 317, 2.5: 598, 2.75: 775, 3.25: 1123, 3.75: 1585, 5.25: 2990}
"""ε to the number of steps that the paper prints for it (arXiv 2308.10457)."""


def account(
    *,
    sample_rate: Annotated[float, Option(help="Probability that a record enters a batch, in (0, 1].")] = 0.015,
    noise_multiplier: Annotated[
        float, Option(help="σ: standard deviation of the noise, divided by the clip norm.")
    ] = 1.1,
    delta: Annotated[float, Option(help="δ of the budget, in (0, 1).")] = 1e-5,
    epsilon: Annotated[list[float] | None, Option(help="ε of a budget; repeat for several columns.")] = None,
    steps: Annotated[list[int] | None, Option(help="Show what this many steps cost instead; may be repeated.")] = None,
    group: Annotated[
        int | None, Option(help="Also show ε of this many records of one person, protected as single records.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    r"""Show how many DP-SGD steps a privacy budget pays for, by each accountant.

    Without --epsilon it shows the budgets of the paper. rdp-paper is the
    paper's own accountant, rdp has a tighter conversion, and pld is the
    tightest: use pld. All are safe: none reports less ε than is spent.

    --group 30 shows what these steps cost a person with thirty records, at the
    same δ. The bound is exact: thirty equal records reach it.

    Example:
      alidpfl account --sample-rate 0.01 --noise-multiplier 1.3 --epsilon 2 \
        --epsilon 4
    """
    if steps and epsilon:
        raise ConfigError(f"--steps {steps[0]} and --epsilon {epsilon[0]:g}: one follows from the other; give one")
    mechanism = {"sample_rate": sample_rate, "noise_multiplier": noise_multiplier}
    setting, epsilons = {**mechanism, "delta": delta}, epsilon or list(PAPER_STEPS)
    title = f"DP-SGD steps at q = {sample_rate:g}, σ = {noise_multiplier:g}, δ = {delta:g}"
    document: dict[str, Any]
    answers = _answers(mechanism, delta, steps, epsilons)
    if steps:
        costs = [{"steps": count, "epsilon": spent} for count, spent in zip(steps, answers, strict=True)]
        document, table = {**setting, "costs": costs}, _costs_table(costs, f"ε of {title}")
    else:
        printed = PAPER_STEPS if setting == PAPER_SETTING else {}
        budgets = [
            {
                "epsilon": value,
                "printed_in_paper": printed.get(value),
                "max_steps": paid,
                "pld_over_rdp_paper": paid["pld"] / paid["rdp-paper"] if paid["rdp-paper"] else None,
            }
            for value, paid in zip(epsilons, answers, strict=True)
        ]
        document, table = {**setting, "budgets": budgets}, _budgets_table(budgets, title)
    tables = [table]
    if group is not None:
        counts = [cost["steps"] for cost in document["costs"]] if steps else [paid["pld"] for paid in answers]
        document["groups"] = _of_groups(mechanism, delta, group, [count for count in counts if count])
        tables.append(_groups_table(document["groups"], group, delta))
    if as_json:
        typer.echo(json.dumps(_strict(document), indent=2, allow_nan=False))
    else:
        wide_console().print(*tables, sep="\n")


def _strict(value: Any) -> Any:
    """Return a value that JSON can hold: infinity becomes null."""
    if isinstance(value, dict):
        return {key: _strict(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_strict(inner) for inner in value]
    return None if value == math.inf else value


def _of_groups(mechanism: dict[str, Any], delta: float, group: int, counts: list[int]) -> list[dict[str, Any]]:
    """Return ε of a record and of a group of records, for each number of steps."""
    from alidpfl.privacy import MAX_GROUP, SampledGaussian, epsilon, group_epsilon, naive_group_epsilon

    if not 1 <= group <= MAX_GROUP:
        raise ConfigError(f"--group {group} must be a whole number from 1 to {MAX_GROUP}")
    found = []
    with moving_line(DESCRIPTION) as progress:
        task = progress.add_task("loading the accountants")
        for count in counts:
            progress.update(task, description=f"{count} steps for {group} records")
            steps = [SampledGaussian(**mechanism, steps=count)]
            found.append(
                {
                    "group": group,
                    "steps": count,
                    "epsilon": epsilon(steps, delta),
                    "group_epsilon": group_epsilon(steps, delta, group),
                    "naive_group_epsilon": naive_group_epsilon(steps, delta, group),
                }
            )
    return found


def _groups_table(found: list[dict[str, Any]], group: int, delta: float) -> Table:
    from alidpfl.reporting.tables import rounded_up

    def shown(value: float) -> str:
        return "none" if value == math.inf else rounded_up(value)

    rows = {
        "ε of one record": "epsilon",
        f"ε of {group} records": "group_epsilon",
        "by the general rule": "naive_group_epsilon",
    }
    title = f"ε of {group} records of one person, by pld at δ = {delta:g}"
    caption = "The general rule knows nothing of the mechanism. It is here for comparison."
    table = Table("steps", *(str(one["steps"]) for one in found), title=title, caption=caption)
    for name, key in rows.items():
        table.add_row(name, *(shown(one[key]) for one in found))
    return table


def _answers(
    mechanism: dict[str, Any], delta: float, steps: list[int] | None, epsilons: list[float]
) -> list[dict[str, Any]]:
    """Return by each accountant the ε of each number of steps, or without `steps` the steps that each ε pays for."""
    with moving_line(DESCRIPTION) as progress:
        task = progress.add_task("loading the accountants")
        from alidpfl.privacy import PrivacyBudget, SampledGaussian, epsilon, max_steps

        def steps_or_zero(budget: PrivacyBudget, accountant: str) -> int:
            try:
                return max_steps(budget, **mechanism, accountant=accountant)
            except BudgetExceededError:
                return 0

        SampledGaussian(**mechanism)  # refuse wrong values before any work
        counted = [SampledGaussian(**mechanism, steps=count) for count in steps or []]
        budgets = [PrivacyBudget(epsilon=value, delta=delta) for value in epsilons]
        costs = [(f"{part.steps} steps", partial(epsilon, [part], delta)) for part in counted]
        paid = [(f"ε = {budget.epsilon:g}", partial(steps_or_zero, budget)) for budget in budgets]
        answers: list[dict[str, Any]] = []
        for words, answer in costs or paid:
            answers.append({})
            for accountant in ACCOUNTANTS:
                progress.update(task, description=f"{words} by {accountant}")
                answers[-1][accountant] = answer(accountant)
    return answers


def _costs_table(costs: list[dict[str, Any]], title: str) -> Table:
    from alidpfl.reporting.tables import rounded_up

    table = Table("steps", *(str(cost["steps"]) for cost in costs), title=title)
    for accountant in ACCOUNTANTS:
        table.add_row(f"at most, {accountant}", *(rounded_up(cost["epsilon"][accountant]) for cost in costs))
    return table


def _budgets_table(budgets: list[dict[str, Any]], title: str) -> Table:
    from alidpfl.privacy import MAX_STEPS

    def steps(count: int) -> str:
        return "none" if count == 0 else f"≥ {count}" if count == MAX_STEPS else str(count)

    pay = all(all(budget["max_steps"].values()) for budget in budgets)
    caption = None if pay else "none: the budget does not pay for one step; raise ε or the noise multiplier"
    table = Table("ε", *(f"{budget['epsilon']:g}" for budget in budgets), title=title, caption=caption)
    if any(budget["printed_in_paper"] for budget in budgets):
        table.add_row("printed in the paper", *(str(budget["printed_in_paper"] or "-") for budget in budgets))
    for accountant in ACCOUNTANTS:
        table.add_row(f"safe, {accountant}", *(steps(budget["max_steps"][accountant]) for budget in budgets))
    ratios = (budget["pld_over_rdp_paper"] for budget in budgets)
    table.add_row("pld / rdp-paper", *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios))
    return table
