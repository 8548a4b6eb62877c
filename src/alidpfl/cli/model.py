"""The command `model`: show the network that a configuration declares, before any data is used."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table
from typer import Argument, Option

from alidpfl.cli.options import AsJson, Overrides, input_shape_of
from alidpfl.cli.progress import progress_bar, wide_console
from alidpfl.errors import ConfigError
from alidpfl.inputs.checks import whole

if TYPE_CHECKING:
    from alidpfl.config import Config
    from alidpfl.config.network import Network

_MEGABYTE = 10**6


def model(
    config: Annotated[Path, Argument(help="TOML file with declared layers (model.layers).")],
    overrides: Overrides = None,
    input_shape: Annotated[
        str | None, Option(metavar="SHAPE", help="Shape of an input, such as 1,28,28. Default: the data's.")
    ] = None,
    classes: Annotated[int | None, Option(help="Number of outputs. Default: the data's.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show a declared network: the shape after every layer, parameters, multiply-adds and memory.

    With --input-shape and --classes, no data are read.

    Example:
      alidpfl model network.toml --input-shape 1,28,28 --classes 10
    """
    from alidpfl.config import load_config
    from alidpfl.config.network import Network

    settings = load_config(config, overrides or [])
    if not settings.model.layers:
        raise ConfigError(
            f"{config} has {settings.model.setting}, and no layers to show; declare them as [[model.layers]], or count "
            "parameters with `alidpfl plan`"
        )
    shape, outputs = input_shape_of(input_shape), None if classes is None else whole("--classes", classes, low=1)
    if shape is None or outputs is None:
        own_shape, own_outputs = _of_data(settings)
        shape, outputs = shape or own_shape, outputs or own_outputs
    network = Network.of(settings.model.declared, shape, outputs)
    if as_json:
        typer.echo(json.dumps(_document(network)))
        return
    wide_console().print(_table(network, str(config)))
    typer.echo(_total(network))


def _of_data(config: "Config") -> tuple[tuple[int, ...], int]:
    """Return the shape of an input and the number of outputs that the configured data need."""
    with progress_bar() as show:
        from alidpfl.runs.data import load_data

        dataset = load_data(config, show)
    return dataset.input_shape, dataset.num_outputs


def _rows(network: "Network") -> list[dict[str, Any]]:
    from math import prod

    from alidpfl.config.network import number_of

    return [
        {
            "layer": number_of(layer.place),
            "type": layer.kind,
            "settings": layer.settings,
            "output": list(layer.applied.output),
            "parameters": sum(map(prod, layer.applied.parameters.values())),
            "multiply_adds": layer.applied.multiply_adds,
        }
        for layer in network.everyone
    ]


def _document(network: "Network") -> dict[str, Any]:
    return {
        "input_shape": list(network.input_shape),
        "layers": _rows(network),
        "parameters": network.num_params,
        "multiply_adds": network.multiply_adds,
        "activations": network.activations,
        "activation_bytes": network.activation_bytes(),
    }


def _table(network: "Network", title: str) -> Table:
    table = Table("layer", "", "output", title=escape(title))
    for heading in ("parameters", "multiply-adds"):
        table.add_column(heading, justify="right")
    table.add_row("", "inputs", _shape(network.input_shape), "", "")
    for row in _rows(network):
        counts = (f"{row[key]:,}" if row[key] else "·" for key in ("parameters", "multiply_adds"))
        what = f"{row['type']} {row['settings']}".strip()
        table.add_row(row["layer"], escape(what), _shape(row["output"]), *counts)
    return table


def _shape(sizes: tuple[int, ...] | list[int]) -> str:
    return " x ".join(map(str, sizes))


def _total(network: "Network") -> str:
    from alidpfl.config.network import RECORDS_AT_ONCE

    return (
        f"{network.num_params:,} parameters; {network.multiply_adds:,} multiply-adds a record; a step holds up to "
        f"{RECORDS_AT_ONCE} records at once, in at most {-(-network.activation_bytes() // _MEGABYTE):,} MB"
    )
