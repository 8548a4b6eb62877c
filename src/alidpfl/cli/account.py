"""The command `account`: what a budget pays for, and what steps cost."""

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from alidpfl.cli.progress import DESCRIPTION, moving_line, wide_console
from alidpfl.errors import BudgetExceededError, ConfigError
from alidpfl.registry import ACCOUNTANTS

PAPER_SETTING = {"sample_rate": 0.015, "noise_multiplier": 1.1, "delta": 1e-5}
PAPER_STEPS = {1.55: 79, 1.75: 177, 2.0: 317, 2.5: 598, 2.75: 775, 3.25: 1123, 3.75: 1585, 5.25: 2990}
"""ε to the number of steps that the paper prints for it (arXiv 2308.10457)."""


def account(
    *,
    sample_rate: Annotated[float, typer.Option(help="Probability that a record enters a batch, in (0, 1].")] = 0.015,
    noise_multiplier: Annotated[float, typer.Option(help="Noise standard deviation over the clip norm.")] = 1.1,
    delta: Annotated[float, typer.Option(help="δ of the budget, in (0, 1).")] = 1e-5,
    epsilon: Annotated[list[float] | None, typer.Option(help="ε of a budget; repeat for several columns.")] = None,
    steps: Annotated[
        list[int] | None, typer.Option(help="Show what this many steps cost instead; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print machine-readable output.")] = False,
) -> None:
    r"""Show how many DP-SGD steps a privacy budget pays for, by each accountant.

    Without --epsilon it shows the budgets of the paper. rdp-paper is the
    paper's own accountant, rdp has a tighter conversion, and pld is the
    tightest: use pld. All are safe: none reports less ε than is spent.

    Example:
      alidpfl account --sample-rate 0.01 --noise-multiplier 1.3 --epsilon 2 \
        --epsilon 4
    """
    if steps and epsilon:
        raise ConfigError(
            f"--steps {steps[0]} and --epsilon {epsilon[0]:g}: one follows from the other; give one of them"
        )
    mechanism = {"sample_rate": sample_rate, "noise_multiplier": noise_multiplier}
    setting = {**mechanism, "delta": delta}
    title = f"q = {sample_rate:g}, σ = {noise_multiplier:g}, δ = {delta:g}"
    if steps:
        costs = _costs(mechanism, delta, steps)
        if as_json:
            typer.echo(json.dumps({**setting, "costs": costs}, indent=2))
        else:
            wide_console().print(_costs_table(costs, f"ε of DP-SGD steps at {title}"))
        return
    budgets = _budgets(mechanism, delta, epsilon or list(PAPER_STEPS))
    if as_json:
        typer.echo(json.dumps({**setting, "budgets": budgets}, indent=2))
    else:
        wide_console().print(_budgets_table(budgets, f"DP-SGD steps at {title}"))


def _costs(mechanism: dict[str, Any], delta: float, counts: list[int]) -> list[dict[str, Any]]:
    """Return ε by each accountant for each number of steps."""
    with moving_line(DESCRIPTION) as progress:
        task = progress.add_task("loading the accountants")
        from alidpfl.privacy import SampledGaussian, epsilon

        found = []
        for count in counts:
            steps = SampledGaussian(**mechanism, steps=count)
            spent = {}
            for accountant in ACCOUNTANTS:
                progress.update(task, description=f"{count} steps by {accountant}")
                spent[accountant] = epsilon([steps], delta, accountant=accountant)
            found.append({"steps": count, "epsilon": spent})
    return found


def _costs_table(costs: list[dict[str, Any]], title: str) -> Table:
    from alidpfl.reporting.tables import rounded_up

    table = Table("steps", *(str(cost["steps"]) for cost in costs), title=title)
    for accountant in ACCOUNTANTS:
        table.add_row(f"at most, {accountant}", *(rounded_up(cost["epsilon"][accountant]) for cost in costs))
    return table


def _budgets(mechanism: dict[str, Any], delta: float, epsilons: list[float]) -> list[dict[str, Any]]:
    """Return for each ε the steps by each accountant (0 if it pays for none), and what the paper prints."""
    with moving_line(DESCRIPTION) as progress:
        task = progress.add_task("loading the accountants")
        from alidpfl.privacy import PrivacyBudget, SampledGaussian

        SampledGaussian(**mechanism)  # refuse wrong values before any work
        budgets = [PrivacyBudget(epsilon=value, delta=delta) for value in epsilons]
        is_papers, found = {**mechanism, "delta": delta} == PAPER_SETTING, []
        for budget in budgets:
            steps = {}
            for accountant in ACCOUNTANTS:
                progress.update(task, description=f"ε = {budget.epsilon:g} by {accountant}")
                steps[accountant] = _steps_or_zero(budget, mechanism, accountant)
            found.append(
                {
                    "epsilon": budget.epsilon,
                    "printed_in_paper": PAPER_STEPS.get(budget.epsilon) if is_papers else None,
                    "max_steps": steps,
                    "pld_over_rdp_paper": steps["pld"] / steps["rdp-paper"] if steps["rdp-paper"] else None,
                }
            )
    return found


def _steps_or_zero(budget: Any, mechanism: dict[str, Any], accountant: str) -> int:
    from alidpfl.privacy import max_steps

    try:
        return max_steps(budget, **mechanism, accountant=accountant)
    except BudgetExceededError:
        return 0


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
