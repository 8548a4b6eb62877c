"""`alidpfl flower`: prepare and try deployments on Flower."""

import json
import signal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table
from typer import Argument, Option

from alidpfl.cli.options import Overrides
from alidpfl.errors import ConfigError
from alidpfl.inputs import checks

if TYPE_CHECKING:
    from alidpfl.flower.demo import Tables

flower_app = typer.Typer(
    no_args_is_help=True,
    help="Train over nodes with Flower; see docs/how-to/deploy.md.\n\nExample:\n  alidpfl flower demo",
)

_DEMO_NODES = 3
_CAPS = {"max_client_weight": 0.5, "max_size_ratio": 3.0}


@flower_app.command()
def init(
    folder: Annotated[Path, Argument(help="Folder to make, for `flwr run`.")],
    *,
    config: Annotated[Path | None, Option(help="TOML file, as for `alidpfl run`.")] = None,
    overrides: Overrides = None,
    schema: Annotated[Path | None, Option(help="Train on tables of this schema, a file on the server.")] = None,
    test_rows: Annotated[
        Path | None, Option("--test", help="Public rows to evaluate on: test.csv or test.parquet on the server.")
    ] = None,
    out: Annotated[Path | None, Option(help="Run directory on the server; by default runs/NAME.")] = None,
    nodes: Annotated[int | None, Option(help="Nodes to wait for; by default data.clients.")] = None,
    simulation: Annotated[bool, Option("--simulation", help="For Flower's simulator: no vault, seeded noise.")] = False,
    no_evaluate: Annotated[bool, Option("--no-evaluate", help="The server has no public test data.")] = False,
    statistics: Annotated[
        bool, Option("--statistics", help="Ask for statistics of the tables; train nothing.")
    ] = False,
) -> None:
    r"""Write the app folder of a run, with its settings.

    Example:
      alidpfl flower init my-run --config run.toml --nodes 3 --no-evaluate && \
      flwr run my-run my-superlink && \
      alidpfl flower init tables --schema schema.toml --nodes 3
    """
    from alidpfl.flower.config import FlowerOptions, write_app_folder
    from alidpfl.flower.run import refuse_what_nodes_cannot
    from alidpfl.runs import load_config
    from alidpfl.runs.prepare import make_parts, make_settings
    from alidpfl.runs.tables import with_table_defaults

    if nodes is not None:
        checks.whole("--nodes", nodes, low=1)
    wanted = [*_table_settings(schema, test_rows), *(overrides or [])]
    settings = load_config(config, wanted)
    if not simulation:
        # Nobody can check how many records a node has. Those that claim 10^12 must not dominate the average.
        unset = {key: cap for key, cap in _CAPS.items() if getattr(settings.federation, key) is None}
        settings = load_config(config, [*wanted, *(f"federation.{key}={cap}" for key, cap in unset.items())])
    settings = with_table_defaults(settings.with_absolute_paths())
    if settings.data.name == "table" and nodes is None:
        raise ConfigError("give --nodes: the server has no rows, so it cannot count their owners")
    options = FlowerOptions(
        out=str((out or Path("runs") / folder.name).absolute()),
        nodes=settings.data.clients if nodes is None else nodes,
        simulation=simulation,
        evaluate=not no_evaluate,
        statistics=statistics,
    )
    if not simulation and not statistics:  # statistics train nothing
        refuse_what_nodes_cannot(settings, options, make_parts(settings).method)
        if settings.policy in ("ali", "corrected") and settings.method.heterogeneity is None:
            guess = make_settings(settings, shows_private_data=False).heterogeneity
            told = f"note: policy {settings.policy!r} needs the heterogeneity of the clients, which is unknown here"
            advice = f"method.heterogeneity={guess:g} is a guess; set it, or set method.policy=ratio"
            typer.echo(f"{told}: {advice}", err=True)
    path = write_app_folder(folder, settings, options)
    typer.echo(f"wrote {path}; the run directory will be {options.out}. Next: flwr run {folder} <superlink> --stream")


def _demo_tables(schema: Path | None, files: list[Path], nodes: int | None) -> "Tables | None":
    """Return the tables of a demonstration; None for generated digits."""
    if (schema is None) != (not files):
        raise ConfigError("--schema and --data belong together: give a schema and one file for each node")
    if schema is None:
        return None
    from alidpfl.data.table import TEST_STEM, table_files
    from alidpfl.flower.demo import Tables
    from alidpfl.tables import read_schema

    read_schema(schema)  # an error in it must not wait for the first process
    paths = [path.absolute() for path in table_files(files, None)]
    clients = tuple(path for path in paths if path.stem != TEST_STEM)
    if nodes not in (None, len(clients)):
        raise ConfigError(f"--nodes {nodes}: there are {len(clients)} private files, one for each node; leave it out")
    public = tuple(path for path in paths if path.stem == TEST_STEM)
    return Tables(schema=schema.absolute(), clients=clients, public=public)


def _table_settings(schema: Path | None, test_rows: Path | None) -> list[str]:
    """Return the settings that the options for tables stand for."""
    if schema is None:
        if test_rows is not None:
            raise ConfigError(f"--test {test_rows} has rows of a table: give its --schema too")
        return []
    rows = [] if test_rows is None else [f"data.files={json.dumps([str(test_rows)])}"]
    return ["data.name=table", f"data.schema_file={json.dumps(str(schema))}", *rows]


@flower_app.command()
def certs(
    folder: Annotated[Path, Argument(help="New folder for the files.")],
    *,
    nodes: Annotated[int, Option(help="Number of nodes that get a key.")] = 3,
    host: Annotated[
        list[str] | None,
        Option(help="Name or address of the SuperLink; may be repeated. This machine is always added."),
    ] = None,
) -> None:
    """Make an authority, a server certificate and node keys for a trial deployment.

    In production, use a certificate of your own authority, and let every node
    make its own key.

    Example:
      alidpfl flower certs keys --nodes 3 --host superlink.example.org
    """
    from alidpfl.flower.demo.certificates import make_certificates

    for path in make_certificates(folder, hosts=host or [], nodes=nodes):
        typer.echo(path)
    typer.echo(
        "keep ca.key where only root can read it; copy server.key to the SuperLink and node_<n> to node n; register "
        "node_<n>.pub with the SuperLink"
    )


@flower_app.command()
def demo(
    files: Annotated[list[Path] | None, Argument(metavar="[FILES]", help="More files of --data.")] = None,
    *,
    nodes: Annotated[
        int | None, Option(min=1, help="Number of nodes, each with a vault: by default 3, or one for each table.")
    ] = None,
    schema: Annotated[Path | None, Option(help="Train on your own tables of this schema.")] = None,
    data: Annotated[
        list[Path] | None, Option(help="CSV or Parquet files, one for each node; test.csv has public rows.")
    ] = None,
    rounds: Annotated[int, Option(min=1, help="Number of rounds.")] = 4,
    overrides: Overrides = None,
    keep: Annotated[Path | None, Option(help="Keep logs, keys and vaults in this new folder.")] = None,
    insecure: Annotated[bool, Option("--insecure", help="Use no TLS and no node keys.")] = False,
) -> None:
    r"""Run a deployment on this machine: SuperLink, SuperNodes and vaults train on generated digits, or on your tables.

    All processes are ended afterwards, also after Ctrl-C or a failure.

    Example:
      alidpfl flower demo --nodes 3 --rounds 4 && \
      alidpfl flower demo --schema schema.toml --data hospitals/*.csv \
        --keep demo && \
      alidpfl flower demo --schema schema.toml --data hospitals/*.csv \
        --set privacy.unit=person --set privacy.max_records=3
    """
    from alidpfl.flower.demo import run_demo
    from alidpfl.reporting.tables import rounded_up

    if keep is not None and keep.exists():
        raise ConfigError(f"--keep {keep} exists; give a new folder")
    tables = _demo_tables(schema, [*(data or []), *(files or [])], nodes)
    count = len(tables.clients) if tables is not None else nodes or _DEMO_NODES
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C: no process is left behind
    try:
        with TemporaryDirectory(prefix="alidpfl-demo-") as temporary:
            folder = Path(temporary) if keep is None else keep
            told = run_demo(
                folder,
                nodes=count,
                rounds=rounds,
                insecure=insecure,
                say=typer.echo,
                tables=tables,
                overrides=overrides or (),
            )
    finally:
        signal.signal(signal.SIGTERM, before)
    table = Table(
        "node", f"{told[0]['unit']}s", "ε spent", "of", "δ", "rounds", "refused", title="What each vault has spent"
    )
    for number, status in enumerate(told):
        spent, refused = rounded_up(status["epsilon_spent"]), sum(status["refusals"].values())
        numbers = (number, status["num_records"], spent, status["epsilon"], status["delta"])
        table.add_row(*map(str, numbers), str(status["rounds_released"]), str(refused))
    Console().print(table)
