"""`alidpfl flower`: what a deployment on Flower needs. Parse, call, print."""

from pathlib import Path
from typing import Annotated

import typer

flower_app = typer.Typer(no_args_is_help=True, help="Train over nodes with Flower; docs/deploy.md is the guide.")

Overrides = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting; may be repeated.")
]


@flower_app.command()
def init(
    folder: Annotated[Path, typer.Argument(help="Folder to make: what `flwr run` takes.")],
    *,
    config: Annotated[Path | None, typer.Option(help="TOML file as for `alidpfl run`.")] = None,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder of the run on the server; by default runs/ + name.")] = None,
    nodes: Annotated[int | None, typer.Option(help="Nodes to wait for; by default data.clients.")] = None,
    simulation: Annotated[
        bool, typer.Option("--simulation", help="For Flower's simulator: no vaults, seeded, data.name split.")
    ] = False,
    no_evaluation: Annotated[
        bool, typer.Option("--no-evaluation", help="The server has no public test data to look at.")
    ] = False,
) -> None:
    """Write the app folder of a run: its settings, and which parts of the installed package run it.

    Example: alidpfl flower init hospital-run --config run.toml --nodes 3 && flwr run hospital-run my-superlink
    """
    from alidpfl.runs import load_config
    from alidpfl.runs.flower_config import FlowerOptions
    from alidpfl.runs.flower_folder import write_app_folder

    settings = load_config(config, overrides or [])
    options = FlowerOptions(
        out=str((out or Path("runs") / folder.name).absolute()),
        nodes=settings.data.clients if nodes is None else nodes,
        simulation=simulation,
        evaluate=not no_evaluation,
    )
    path = write_app_folder(folder, settings, options)
    typer.echo(f"wrote {path}; the run will be kept in {options.out}. Next: flwr run {folder} <superlink> --stream")


@flower_app.command()
def certs(
    folder: Annotated[Path, typer.Argument(help="New folder for the files.")],
    *,
    nodes: Annotated[int, typer.Option(help="How many nodes need a key.")] = 3,
    host: Annotated[
        list[str] | None, typer.Option(help="Name or address of the SuperLink; may be repeated. Default: this machine.")
    ] = None,
) -> None:
    """Make an authority, a server certificate and node keys, for trying a deployment out.

    In earnest the certificate comes from your own authority, and every node makes its own key.
    """
    from alidpfl.engines.certificates import make_certificates

    written = make_certificates(folder, hosts=host or ["127.0.0.1", "localhost"], nodes=nodes)
    for path in written:
        typer.echo(path)
    typer.echo("keep ca.key and server.key with the server; node_<n> goes to node n, node_<n>.pub to the SuperLink")
