"""The command `plan`: find the best use of a budget before any data is used."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from typer import Option

from alidpfl.cli.completion import one_of
from alidpfl.cli.options import AsJson, input_shape_of
from alidpfl.cli.progress import print_written, progress_bar, wide_console
from alidpfl.errors import ConfigError
from alidpfl.inputs.checks import as_bytes, as_seconds, option, whole
from alidpfl.registry import ACCOUNTANTS
from alidpfl.types import Unit, VaultLoss, VaultModel

if TYPE_CHECKING:
    from alidpfl.tables import Schema

_COMPUTED_BY = ("data", "dpsgd", "inputs", "planner", "policies", "privacy", "runs", "tables")
_MODELS, _UNITS = get_args(VaultModel), get_args(Unit)


def plan(  # noqa: PLR0917 - they are options
    epsilon: Annotated[float, Option(help="ε of every client.")] = 2.0,
    delta: Annotated[float, Option(help="δ of every client, in (0, 1).")] = 1e-5,
    clients: Annotated[int, Option(help="Number of clients.")] = 10,
    samples: Annotated[int, Option(help="Records of all clients together; with --unit person, persons.")] = 60_000,
    unit: Annotated[
        str, Option(help="What ε protects: a record, or a person with all records.", autocompletion=one_of(_UNITS))
    ] = "record",
    max_rounds: Annotated[int, Option(help="R_s: largest number of rounds.")] = 158,
    sample_rate: Annotated[float | None, Option(help="q, if it is fixed. Default: search for it.")] = None,
    noise_multiplier: Annotated[float | None, Option(help="σ, if it is fixed. Default: search for it.")] = None,
    accountant: Annotated[
        str, Option(help="Accountant that decides: pld, rdp or rdp-paper.", autocompletion=one_of(ACCOUNTANTS))
    ] = "pld",
    max_epochs: Annotated[float | None, Option(help="Most passes of a client over its data.")] = None,
    min_steps: Annotated[int, Option(help="Smallest number of steps to consider.")] = 100,
    time_limit: Annotated[str | None, Option(help="Most time, such as 2h; needs --seconds-per-round.")] = None,
    seconds_per_round: Annotated[float | None, Option(help="Duration of a round.")] = None,
    traffic_limit: Annotated[str | None, Option(help="Most traffic of all clients, such as 5GB.")] = None,
    model: Annotated[
        str,
        Option(
            help="cnn, compact_cnn, linear or mlp; PACKAGE.MODULE:FUNCTION; or a .toml file with the model of a run.",
            autocompletion=one_of(_MODELS),
        ),
    ] = "compact_cnn",
    input_shape: Annotated[
        str, Option(metavar="SHAPE", help="For a model of your own: shape of an input.")
    ] = "1,28,28",
    classes: Annotated[int, Option(help="For a model of your own: number of outputs.")] = 10,
    num_params: Annotated[int | None, Option(help="Number of parameters, for a model of your own.")] = None,
    schema: Annotated[
        Path | None, Option(help="Plan for the linear model of this table, and compare clip norms on made-up rows.")
    ] = None,
    loss: Annotated[
        str | None,
        Option(help="With --schema: the loss of the run (model.loss).", autocompletion=one_of(get_args(VaultLoss))),
    ] = None,
    quantile: Annotated[float, Option(help="With --loss quantile: its level (model.quantile).")] = 0.5,
    smallest_client: Annotated[
        int | None, Option(help="Records (or persons) of the smallest client. Default: equal sizes.")
    ] = None,
    heterogeneity: Annotated[float, Option(help="Γ: 10 at Dir(0.05), 5 at Dir(0.5), 1 at Dir(1), 0 IID.")] = 5.0,
    curvature: Annotated[float | None, Option(help="μ, if an earlier run measured it.")] = None,
    plot: Annotated[Path | None, Option(help="Draw the plan into this .svg or .png (needs matplotlib).")] = None,
    html: Annotated[Path | None, Option(help="Write an interactive page into this .html file.")] = None,
    as_json: AsJson = False,
) -> None:
    r"""Find the best use of a privacy budget and a number of rounds, before any data is used.

    Without --sample-rate and --noise-multiplier it searches for both: more
    compute at the same ε can give far more signal.

    Example:
      alidpfl plan --epsilon 2 --clients 10 --samples 60000 --max-rounds 158 \
        --max-epochs 40 --html plan.html
    """
    request = {**locals()}  # every option by its name, without those for the output and for the model's size
    if loss is not None:
        _check_loss(loss, schema)
    del request["plot"], request["html"], request["as_json"], request["input_shape"], request["classes"]
    if num_params is None and _is_own(model):
        request["num_params"] = _size(model, input_shape, classes, schema)
    request["time_limit"] = option("time_limit", time_limit, as_seconds)
    request["traffic_limit"] = option("traffic_limit", traffic_limit, as_bytes)
    request["schema"] = None if schema is None else _canonical(schema)
    from alidpfl.store.cache import cached

    # A plan that was made before comes from the cache, and nothing heavy is loaded.
    document = cached(request, lambda: _computed(request, schema), kind="plans", packages=_COMPUTED_BY)
    if plot is not None:
        from alidpfl.reporting.figures import plan_figure, save

        save(lambda: plan_figure(document), plot)
    if html is not None:
        from alidpfl.reporting.plan_page import plan_page
        from alidpfl.store.files import write_atomically

        write_atomically(html, plan_page(document).encode())
    if as_json:
        typer.echo(json.dumps(document, indent=2, allow_nan=False))
        return
    from alidpfl.reporting.plan_tables import plan_view

    wide_console().print(plan_view(document))
    print_written(plot, html)


def _is_own(model: str) -> bool:
    return ":" in model or model.endswith(".toml")


def _size(model: str, input_shape: str, classes: int, schema: Path | None) -> int:
    """Return the number of parameters of a model of the user's own."""
    if schema is not None:
        raise ConfigError(f"--model {model}: --schema plans for the linear model of a table; leave one out")
    shape = input_shape_of(input_shape)
    assert shape is not None  # noqa: S101 - for the type checker
    from alidpfl.config import load_config

    config = load_config(Path(model)) if model.endswith(".toml") else load_config(overrides=[f"model.factory={model}"])
    from alidpfl.federation.tensors import num_params, trained
    from alidpfl.runs.prepare import build_model

    return num_params(trained(build_model(config, shape, whole("classes", classes, low=1))))


def _canonical(schema: Path) -> str:
    from alidpfl.tables import read_schema

    return read_schema(schema).canonical()


def _check_loss(loss: str, schema: Path | None) -> None:
    from alidpfl.inputs.names import named

    if schema is None:
        raise ConfigError(f"--loss {loss} is for the trials of --schema; give a schema, or leave it out")
    named("loss", loss, dict.fromkeys(get_args(VaultLoss)))


def _computed(request: dict[str, Any], schema_file: Path | None) -> dict[str, Any]:
    with progress_bar("loading the accountants") as show:
        from alidpfl.inputs.names import named
        from alidpfl.planner import MODEL_SIZES, PlanRequest, make_plan

        given = dict(request)
        model, num_params, _ = given.pop("model"), given.pop("num_params"), given.pop("schema")
        loss, quantile = given.pop("loss"), given.pop("quantile")
        schema = None if schema_file is None else _trainable(schema_file, loss, quantile)
        if num_params is None:
            of_model = named("model", model, MODEL_SIZES)
            num_params = of_model if schema is None else (schema.width + 1) * schema.num_outputs
        plan = make_plan(PlanRequest(**given, num_params=num_params), on_progress=show)
        if schema is None:
            return plan.to_json()
        from alidpfl.runs.clip_norms import try_clip_norms

        trials = try_clip_norms(
            schema,
            plan.request,
            plan.setting,
            loss=loss,
            quantile=quantile,
            on_share=lambda share: show("training", share),
        )
        return {**plan.to_json(), "clip_norms": [asdict(trial) for trial in trials]}


def _trainable(schema_file: Path, loss: str | None, quantile: float) -> "Schema":
    """Return the schema. Refuse a loss or a level that do not fit it, before the search."""
    from alidpfl.data.table import trainable_schema
    from alidpfl.dpsgd import make_loss
    from alidpfl.types import loss_for

    schema = trainable_schema(schema_file, loss)
    make_loss(loss_for(schema.target.kind, loss), level=quantile)
    return schema
