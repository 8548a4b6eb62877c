"""The command `account`: what a budget pays for, and what steps cost. Parse, call, print."""

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from alidpfl.cli.progress import DESCRIPTION, moving_line
from alidpfl.errors import ConfigError


def account(
    *,
    sample_rate: Annotated[float, typer.Option(help="Probability that a sample enters a batch, in (0, 1].")] = 0.015,
    noise_multiplier: Annotated[float, typer.Option(help="Noise standard deviation over the clip norm.")] = 1.1,
    delta: Annotated[float, typer.Option(help="δ of the budget, in (0, 1).")] = 1e-5,
    epsilon: Annotated[list[float] | None, typer.Option(help="ε of a budget; repeat for several columns.")] = None,
    steps: Annotated[
        list[int] | None, typer.Option(help="The other way round: what so many steps cost; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    r"""How many DP-SGD steps a privacy budget pays for, by each accountant; by default the paper's budgets.

    rdp-paper is the paper's own accountant, rdp the same with a tighter
    conversion, pld the tightest: use pld. All are safe: they never claim less ε
    than is spent.

    Example:
      alidpfl account --sample-rate 0.01 --noise-multiplier 1.3 --epsilon 2 \
        --epsilon 4
    """
    if steps and epsilon:
        raise ConfigError(
            f"--steps {steps[0]} and --epsilon {epsilon[0]:g}: one follows from the other; give one of them"
        )
    setting = {"sample_rate": sample_rate, "noise_multiplier": noise_multiplier, "delta": delta}
    told = f"q = {sample_rate:g}, σ = {noise_multiplier:g}, δ = {delta:g}"
    if steps:
        costs = _costs(sample_rate, noise_multiplier, delta, steps)
        if as_json:
            typer.echo(json.dumps({**setting, "costs": costs}, indent=2))
        else:
            _print_costs(costs, f"ε of DP-SGD steps at {told}")
        return
    columns = _columns(sample_rate, noise_multiplier, delta, epsilon)
    if as_json:
        typer.echo(json.dumps({**setting, "budgets": columns}, indent=2))
    else:
        _print_columns(columns, f"DP-SGD steps at {told}")


def _costs(sample_rate: float, noise_multiplier: float, delta: float, counts: list[int]) -> list[dict[str, Any]]:
    """One entry for each number of steps: ε by each accountant, never less than is spent."""
    with moving_line(DESCRIPTION) as progress:
        task = progress.add_task("loading the accountants")
        from alidpfl.privacy import ACCOUNTANTS, SampledGaussian, epsilon

        found = []
        for count in counts:
            steps = SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier, steps=count)
            spent = {}
            for accountant in ACCOUNTANTS:
                progress.update(task, description=f"{count} steps by {accountant}")
                spent[accountant] = epsilon([steps], delta, accountant=accountant)
            found.append({"steps": count, "epsilon": spent})
    return found


def _print_costs(costs: list[dict[str, Any]], title: str) -> None:
    from alidpfl.cli.progress import wide_console
    from alidpfl.privacy import ACCOUNTANTS
    from alidpfl.reporting.tables import rounded_up

    table = Table("steps", *(str(cost["steps"]) for cost in costs), title=title)
    for accountant in ACCOUNTANTS:
        table.add_row(f"at most, {accountant}", *(rounded_up(cost["epsilon"][accountant]) for cost in costs))
    wide_console().print(table)


def _columns(
    sample_rate: float, noise_multiplier: float, delta: float, epsilons: list[float] | None
) -> list[dict[str, Any]]:
    """One entry for each ε: the steps by each accountant (0 where not one is paid for) and what the paper prints."""
    with moving_line(DESCRIPTION) as progress:
        task = progress.add_task("loading the accountants")
        from alidpfl.privacy import ACCOUNTANTS, PrivacyBudget, SampledGaussian
        from reproduction import paper

        SampledGaussian(sample_rate=sample_rate, noise_multiplier=noise_multiplier)  # refuse before any work
        budgets = [PrivacyBudget(epsilon=value, delta=delta) for value in epsilons or paper.ITERATIONS]
        setting = (sample_rate, noise_multiplier, delta)
        is_papers = setting == (paper.SAMPLE_RATE, paper.NOISE_MULTIPLIER, paper.DELTA)
        columns = []
        for budget in budgets:
            steps = {}
            for accountant in ACCOUNTANTS:
                progress.update(task, description=f"ε = {budget.epsilon:g} by {accountant}")
                steps[accountant] = _steps_or_zero(budget, sample_rate, noise_multiplier, accountant)
            columns.append(
                {
                    "epsilon": budget.epsilon,
                    "printed_in_paper": paper.ITERATIONS.get(budget.epsilon) if is_papers else None,
                    "max_steps": steps,
                    "pld_over_rdp_paper": steps["pld"] / steps["rdp-paper"] if steps["rdp-paper"] else None,
                }
            )
    return columns


def _steps_or_zero(budget: Any, sample_rate: float, noise_multiplier: float, accountant: str) -> int:
    from alidpfl.errors import BudgetExceededError
    from alidpfl.privacy import max_steps

    try:
        return max_steps(budget, sample_rate, noise_multiplier, accountant=accountant)
    except BudgetExceededError:
        return 0


def _print_columns(columns: list[dict[str, Any]], title: str) -> None:
    from alidpfl.cli.progress import wide_console
    from alidpfl.privacy import ACCOUNTANTS, MAX_STEPS

    def steps(count: int) -> str:
        return "none" if count == 0 else f"≥ {count}" if count == MAX_STEPS else str(count)

    table = Table("ε", *(f"{c['epsilon']:g}" for c in columns), title=title, caption=_caption(columns))
    if any(c["printed_in_paper"] for c in columns):
        table.add_row("printed in the paper", *(str(c["printed_in_paper"] or "-") for c in columns))
    for accountant in ACCOUNTANTS:
        table.add_row(f"safe, {accountant}", *(steps(c["max_steps"][accountant]) for c in columns))
    ratios = (c["pld_over_rdp_paper"] for c in columns)
    table.add_row("pld / rdp-paper", *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios))
    wide_console().print(table)


def _caption(columns: list[dict[str, Any]]) -> str | None:
    if all(all(c["max_steps"].values()) for c in columns):
        return None
    return "none: the budget does not pay for one step; raise ε or the noise multiplier"
