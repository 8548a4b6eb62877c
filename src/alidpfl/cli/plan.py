"""The command `plan`: the best use of the budgets, before any data is touched."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from alidpfl.cli.completion import ACCOUNTANTS, MODELS, one_of
from alidpfl.cli.progress import progress_bar
from alidpfl.inputs.checks import as_bytes, as_seconds, option

_COMPUTED_BY = ("inputs", "planner", "policies", "privacy")


def plan(  # noqa: PLR0917 - they are options
    epsilon: Annotated[float, typer.Option(help="ε of every client.")] = 2.0,
    delta: Annotated[float, typer.Option(help="δ of every client, in (0, 1).")] = 1e-5,
    clients: Annotated[int, typer.Option(help="Number of clients.")] = 10,
    samples: Annotated[int, typer.Option(help="Records of all clients together.")] = 60_000,
    max_rounds: Annotated[int, typer.Option(help="R_s: rounds of communication that you can afford.")] = 158,
    sample_rate: Annotated[
        float | None, typer.Option(help="q, where that is decided; left out, it is searched.")
    ] = None,
    noise_multiplier: Annotated[
        float | None, typer.Option(help="σ, where that is decided; left out, it is searched.")
    ] = None,
    accountant: Annotated[
        str, typer.Option(help="pld, rdp or rdp-paper: who has the last word.", autocompletion=one_of(ACCOUNTANTS))
    ] = "pld",
    max_epochs: Annotated[
        float | None, typer.Option(help="Compute: most passes of a client over its data; searched within that.")
    ] = None,
    min_steps: Annotated[int, typer.Option(help="Fewest steps that are worth considering.")] = 100,
    time_limit: Annotated[str | None, typer.Option(help="Such as 2h; needs --seconds-per-round.")] = None,
    seconds_per_round: Annotated[float | None, typer.Option(help="How long a round takes.")] = None,
    traffic_limit: Annotated[str | None, typer.Option(help="Such as 5GB: all clients, both directions.")] = None,
    model: Annotated[
        str, typer.Option(help="cnn, compact_cnn, linear or mlp, for 1x28x28 images.", autocompletion=one_of(MODELS))
    ] = "compact_cnn",
    num_params: Annotated[int | None, typer.Option(help="Parameters of a model of your own, instead.")] = None,
    smallest_client: Annotated[int | None, typer.Option(help="Its records; left out: all have as many.")] = None,
    heterogeneity: Annotated[float, typer.Option(help="Γ: 10 at Dir(0.05), 5 at Dir(0.5), 1 at Dir(1), 0 IID.")] = 5.0,
    curvature: Annotated[float | None, typer.Option(help="μ, where an earlier run measured one.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it into this .svg or .png (needs matplotlib).")] = None,
    html: Annotated[
        Path | None, typer.Option(help="Write an interactive page, one file, to open in a browser.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable output.")] = False,
) -> None:
    r"""What a privacy budget and a number of rounds are best spent on, before any data is touched.

    Without --sample-rate or --noise-multiplier both are searched together: the
    same ε for more compute can give far more signal.

    Example:
      alidpfl plan --epsilon 2 --clients 10 --samples 60000 --max-rounds 158 \
        --max-epochs 40 --html plan.html
    """
    wishes = {
        "epsilon": epsilon,
        "delta": delta,
        "clients": clients,
        "samples": samples,
        "max_rounds": max_rounds,
        "sample_rate": sample_rate,
        "noise_multiplier": noise_multiplier,
        "accountant": accountant,
        "max_epochs": max_epochs,
        "min_steps": min_steps,
        "time_limit": option("time_limit", time_limit, as_seconds),
        "seconds_per_round": seconds_per_round,
        "traffic_limit": option("traffic_limit", traffic_limit, as_bytes),
        "model": model,
        "num_params": num_params,
        "smallest_client": smallest_client,
        "heterogeneity": heterogeneity,
        "curvature": curvature,
    }
    document = _answer(wishes)
    _draw(document, plot, html)
    if as_json:
        typer.echo(json.dumps(document, indent=2, allow_nan=False))
        return
    _print(document, plot, html)


def _answer(wishes: dict[str, Any]) -> dict[str, Any]:
    """The plan as a JSON document; what was asked before is remembered, and then nothing heavy is loaded."""
    from alidpfl.store.cache import remembered

    return remembered(wishes, lambda: _computed(wishes), kind="plans", packages=_COMPUTED_BY)


def _computed(wishes: dict[str, Any]) -> dict[str, Any]:
    with progress_bar("loading the accountants") as tell:
        from alidpfl.inputs.names import named
        from alidpfl.planner import MODEL_SIZES, Wishes, make_plan

        given = dict(wishes)
        model, num_params = given.pop("model"), given.pop("num_params")
        given["num_params"] = named("model", model, MODEL_SIZES) if num_params is None else num_params
        made = make_plan(Wishes(**given), on_progress=tell)
    return made.to_json()


def _draw(document: dict[str, Any], plot: Path | None, html: Path | None) -> None:
    if plot is not None:
        from alidpfl.reporting.figures import save_plan_figure

        save_plan_figure(document, plot)
    if html is not None:
        from alidpfl.reporting.plan_page import plan_page
        from alidpfl.store.files import write_atomically

        write_atomically(html, plan_page(document).encode())


def _print(document: dict[str, Any], *drawn: Path | None) -> None:
    from alidpfl.cli.progress import wide_console
    from alidpfl.reporting.plan_tables import plan_view

    console = wide_console()
    console.print(plan_view(document))
    for path in drawn:
        if path is not None:
            console.print(f"written to {path}", markup=False, highlight=False)
