"""The commands `data list`, `data get` and `data show`."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from alidpfl.cli.completion import one_of
from alidpfl.cli.options import AsJson, DataDir
from alidpfl.cli.progress import progress_bar, wide_console
from alidpfl.data.sources import SOURCES
from alidpfl.registry import DATASETS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

data_app = typer.Typer(
    no_args_is_help=True,
    help="List and download data sets, and show how records are split among clients.\n\n"
    "Example:\n  alidpfl data show strokes",
)

_MAX_CLIENTS = 40  # in the tables on the terminal
_SHADES = " ░▒▓█"
_CORNER = "class ↓ client →"


@data_app.command(name="list")
def list_data(data_dir: DataDir = None, as_json: AsJson = False) -> None:
    """List every data set: where it is, whether it is intact, and how to get it.

    Example:
      alidpfl data list
    """
    from alidpfl.data.directories import inventory

    entries = inventory(data_dir)
    if as_json:
        typer.echo(json.dumps([asdict(entry) for entry in entries], indent=2))
        return
    table = Table("name", "kind", "state", "layout", "size", "where, or what to do", title="Data sets")
    for entry in entries:
        size = f"{entry.num_bytes / 1e6:.0f} MB" if entry.num_bytes else ""
        where = "; ".join(text for text in (entry.folder, entry.note) if text)
        table.add_row(entry.name, entry.kind, entry.state, entry.layout, size, where)
    wide_console().print(table)


@data_app.command()
def get(
    name: Annotated[str, Argument(help="mnist, fashion_mnist or cifar10.", autocompletion=one_of(SOURCES))],
    data_dir: Annotated[Path | None, Option(help="Target folder. Default: $ALIDPFL_DATA_DIR or your cache.")] = None,
) -> None:
    """Download a data set from its own site and compare it with its published checksums.

    Example:
      alidpfl data get mnist
    """
    from alidpfl import data

    with progress_bar() as on_progress:
        folder = data.get(name, data.download_directory(data_dir), on_progress=on_progress)
    typer.echo(f"{name} is in {folder}")


@data_app.command()
def show(
    name: Annotated[str, Argument(help="A data set; `alidpfl data list` lists them.", autocompletion=one_of(DATASETS))],
    *,
    clients: Annotated[int, Option(help="Number of clients.")] = 10,
    partition: Annotated[
        Literal["dirichlet", "iid", "natural"] | None,
        Option(help="Default: natural if the data set has clients of its own, else dirichlet."),
    ] = None,
    beta: Annotated[float, Option(help="β of the Dirichlet split: smaller is more skewed.")] = 0.5,
    seed: Annotated[int, Option(help="Seed of the split and of generated data.")] = 0,
    sample_rate: Annotated[float, Option(help="q: warn about clients with q·n below 1.")] = 0.04,
    data_dir: DataDir = None,
    schema: Annotated[Path | None, Option(help="Schema of the files in --data-dir, for `table`.")] = None,
    plot: Annotated[Path | None, Option(help="Draw the split to this .svg or .png file.")] = None,
    as_json: AsJson = False,
) -> None:
    r"""Show how many records of each class each client holds, or how many records if there are no classes.

    Example:
      alidpfl data show strokes --clients 10 --partition dirichlet --beta 0.05 \
        --plot split.svg
    """
    import numpy as np

    from alidpfl import data
    from alidpfl.data.own import TEST_FILE
    from alidpfl.data.partition import client_rows

    options: dict[str, Any] = {"clients": clients} if name == "synthetic" else {}
    if name == "table":
        options["schema_file"] = schema
    with progress_bar() as on_progress:
        dataset = data.load(name, data_dir=data_dir, seed=seed, on_progress=on_progress, **options)
    kind = partition or ("dirichlet" if dataset.natural_clients is None else "natural")
    rows = client_rows(dataset, kind, clients=clients, dirichlet_beta=beta, seed=seed)
    parts = [own.numpy() for own in rows]
    is_class = dataset.kind == "class"
    labels = dataset.train.targets.numpy() if is_class else np.zeros(len(dataset.train), np.int64)
    counts = data.label_counts(labels, parts, dataset.num_classes if is_class else 1)
    small = data.small_clients(parts, sample_rate)
    split = {"iid": "even split", "natural": "natural clients"}.get(kind, f"Dir({beta:g})")
    title = f"{name}: {len(parts)} clients, {split}, seed {seed}"
    names = dataset.client_names if kind == "natural" else ()
    if plot is not None:
        from alidpfl.reporting.figures import save, split_figure

        save(lambda: split_figure(counts, title), plot)
    if as_json:
        document = {
            "name": dataset.name,
            "is_synthetic": dataset.is_synthetic,
            "partition": kind,
            "beta": beta if kind == "dirichlet" else None,
            "seed": seed,
            "num_train": len(dataset.train),
            "num_test": len(dataset.test),
            "counts": counts.tolist(),
            "small_clients": list(small),
            "client_names": list(names),
        }
        typer.echo(json.dumps(document))
    else:
        _print_picture(counts, title, names)
    if small:
        _warn_of(small, sample_rate)
    if dataset.test_is_held_out:
        share = f"without {TEST_FILE}, a tenth" if dataset.encoder is None else "without a test table, a share"
        typer.echo(f"note: {share} of each client's records is held out and not counted", err=True)


def _print_picture(counts: "NDArray[np.int64]", title: str, names: Sequence[str]) -> None:
    """Print tables with a row for each class and a column for each client, as many as the terminal's width needs."""
    console = Console()  # on a pipe, 80 columns or $COLUMNS
    shown = counts[:_MAX_CLIENTS]
    console.print(title)  # a table's own title would be folded to the table's width
    most = max(int(counts.max()), 1)
    cell_width = max(len(str(int(shown.sum(axis=1).max(initial=0)))), len(_cell(most, most))) + 2  # space and line
    fitting = max(1, (console.width - len(_CORNER) - 4) // cell_width)
    for start in range(0, len(shown), fitting):
        console.print(_block(shown[start : start + fitting], start, most))
    if (left := len(counts) - len(shown)) > 0:
        console.print(f"and {left} more clients: --plot or --json shows all")
    if names:  # file names can contain anything: print them as plain text
        told = (f"{i} = {name if name.isprintable() else repr(name)}" for i, name in enumerate(names[:_MAX_CLIENTS]))
        console.print(f"clients: {', '.join(told)}", markup=False, highlight=False)


def _block(counts: "NDArray[np.int64]", first_client: int, most: int) -> Table:
    table = Table(_CORNER, padding=(0, 0, 0, 1))
    for client in range(len(counts)):
        table.add_column(str(first_client + client), justify="right")
    for label in range(counts.shape[1]):
        table.add_row(str(label), *(_cell(int(number), most) for number in counts[:, label]))
    table.add_section()
    table.add_row("all", *(str(int(total)) for total in counts.sum(axis=1)))
    return table


def _cell(number: int, most: int) -> str:
    if number == 0:
        return "·"
    shade = _SHADES[-(-number * (len(_SHADES) - 1) // most)]  # rounded up: any number above 0 is visible
    return f"{number} {shade}"


def _warn_of(small: Sequence[int], sample_rate: float) -> None:
    names = ", ".join(map(str, small[:10])) + (" ..." if len(small) > 10 else "")  # noqa: PLR2004
    typer.echo(
        f"warning: {len(small)} of the clients ({names}) expect less than one record per batch at "
        f"sample_rate={sample_rate:g}: they add mostly noise; raise the sample rate or beta, or take fewer clients",
        err=True,
    )
