"""`alidpfl vault`: enrol a data set, serve it, and show what it has spent."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.table import Table
from typer import Option

from alidpfl.cli.completion import complete_partition, one_of
from alidpfl.cli.options import AsJson
from alidpfl.errors import ConfigError
from alidpfl.registry import DATASETS
from alidpfl.types import AccountantName, AccountingKind, NoiseKind, OnExcess, Release, Unit, VaultLoss, VaultModel

if TYPE_CHECKING:
    from alidpfl.tables import Schema
    from alidpfl.vault.rounds import Vault
    from alidpfl.vault.sources import FileSource, SplitSource, TableSource

vault_app = typer.Typer(
    no_args_is_help=True,
    help="The owner's side of a deployment: one process holds the records, the noise and the ledger.\n\n"
    "Example:\n  alidpfl vault status --dir vault",
)
anchor_app = typer.Typer(
    no_args_is_help=True,
    help="Add or move the anchor, a file on another disk that detects restored copies of the vault's folder.\n\n"
    "Example:\n  alidpfl vault anchor add /mnt/other-disk/anchor --dir vault",
)
vault_app.add_typer(anchor_app, name="anchor")

_FLAGS = {"dirichlet_beta": "beta", "seed": "split_seed"}
Folder = Annotated[Path, Option("--dir", help="The vault's folder.")]
AnchorFile = Annotated[Path, typer.Argument(help="The anchor's file, on another disk.")]


@vault_app.command()
def init(
    *,
    data: Annotated[
        str,
        Option(
            help="Your .npz file (arrays x, y, person); a .csv or .parquet file of --schema; for trials strokes, ...",
            autocompletion=one_of(lambda: [name for name in DATASETS if name not in ("npz", "table")]),
        ),
    ],
    folder: Folder,
    epsilon: Annotated[float, Option(help="ε that this data set may spend in all runs.")],
    delta: Annotated[float, Option(help="δ, well below one over the number of records.")],
    sample_rate: Annotated[float, Option(help="Largest q, the probability that a record joins a batch.")],
    min_noise_multiplier: Annotated[float, Option(help="Least σ.")],
    max_steps_per_round: Annotated[int, Option(help="Largest τ, the number of local steps in a round.")],
    schema: Annotated[Path | None, Option(help="Schema of your table; a copy of it is enrolled.")] = None,
    unit: Annotated[
        Unit, Option(help="What ε protects: record, or person for all records of a person in this data set.")
    ] = "record",
    max_records: Annotated[
        int | None, Option(help="With --unit person: the most records of a person in a step; by default 4.")
    ] = None,
    max_clip_norm: Annotated[
        float | None, Option(help="Largest C; with --schema, by default the C that a run takes.")
    ] = None,
    min_clip_norm: Annotated[float, Option(help="Least C.")] = 1e-3,
    max_noise_multiplier: Annotated[
        float | None, Option(help="Largest σ; by default 100, or ten times the least σ if that is more.")
    ] = None,
    max_rounds: Annotated[int, Option(help="Rounds that the vault serves in all.")] = 10_000,
    on_excess: Annotated[OnExcess, Option(help="What to do with steps beyond the limit or the budget.")] = "cut",
    accounting: Annotated[
        AccountingKind, Option(help="planned charges each step at the largest q and least σ, filter at its own.")
    ] = "planned",
    accountant: Annotated[
        AccountantName,
        Option(metavar="NAME", help="Accountant of planned: pld (the tightest), rdp or rdp-paper."),
    ] = "pld",
    release: Annotated[Release, Option(help="Where noise is added; update only for pe_dpfl, variant output.")] = "step",
    noise: Annotated[NoiseKind, Option(help="grid is exact to the last bit, and slower.")] = "gaussian",
    model: Annotated[
        VaultModel | None,
        Option(metavar="NAME", help="cnn, compact_cnn (the default), linear (the default of tables) or mlp."),
    ] = None,
    hidden: Annotated[int, Option(help="Width of mlp's hidden layer.")] = 128,
    loss: Annotated[
        VaultLoss | None,
        Option(metavar="NAME", help="The loss; by default the usual one of classes, numbers or labels."),
    ] = None,
    quantile: Annotated[float, Option(help="Level of the loss quantile.")] = 0.5,
    statistics_noise: Annotated[
        float | None,
        Option(
            help="Release statistics of a table: all together spend as much as one with this σ. 0: none. Default: a "
            "hundredth of the budget for targets that are no classes, else none."
        ),
    ] = None,
    num_classes: Annotated[int | None, Option(help="Number of classes in your file: public, so you give it.")] = None,
    no_evaluate: Annotated[
        bool, Option("--no-evaluate", help="Answer no noised evaluations on the rows that --schema holds out.")
    ] = False,
    keep_answers: Annotated[int, Option(help="Number of answers to keep, for repeated requests.")] = 20,
    anchor: Annotated[Path | None, Option(help="File on another disk to detect a restored copy of the folder.")] = None,
    client: Annotated[int, Option(help="Trial: number of the client, from 0.")] = 0,
    clients: Annotated[int, Option(help="Trial: number of clients.")] = 10,
    partition: Annotated[
        str, Option(help="Trial: iid, dirichlet or natural.", autocompletion=complete_partition)
    ] = "dirichlet",
    beta: Annotated[float, Option(help="Trial: β of Dir(β).")] = 0.5,
    split_seed: Annotated[int, Option(help="Trial: seed of the split.")] = 0,
    validation: Annotated[float, Option(help="Trial: share that no client holds.")] = 0.0,
) -> None:
    r"""Enrol a data set: make a folder with its policy, its ledger and its public size.

    Example:
      alidpfl vault init --data patients.npz --num-classes 3 --model linear \
        --dir /var/lib/alidpfl/hospital-a --epsilon 2 --delta 1e-5 \
        --sample-rate 0.04 --min-noise-multiplier 1.1 --max-clip-norm 1 \
        --max-steps-per-round 10 && \
      alidpfl vault init --schema schema.toml --data hospitals/north.csv \
        --dir /var/lib/alidpfl/hospital-b --epsilon 2 --delta 1e-5 \
        --sample-rate 0.04 --min-noise-multiplier 1.1 --max-steps-per-round 10
    """
    from alidpfl.vault.accounts import budget_of
    from alidpfl.vault.enrolment import enrol
    from alidpfl.vault.policy import make_policy

    table = None if schema is None else _read_table_schema(schema, data)
    model = model or ("compact_cnn" if table is None else "linear")
    largest = _largest_clip_norm(max_clip_norm, table, model, loss, quantile)
    clip_norms = {"min_clip_norm": min_clip_norm, "max_clip_norm": largest}
    values = {
        "noise": noise,
        "data": _unit_terms(unit, max_records),
        "budget": {"epsilon": epsilon, "delta": delta},
        "accounting": {"kind": accounting, "accountant": accountant},
        "terms": {"sample_rate": sample_rate, "min_noise_multiplier": min_noise_multiplier, "release": release},
        "model": {"name": model, "hidden": hidden, "loss": loss, "quantile": quantile},
        "limits": {
            "max_steps_per_round": max_steps_per_round,
            "max_noise_multiplier": max_noise_multiplier,
            "max_rounds": max_rounds,
            "on_excess": on_excess,
            **clip_norms,
        },
        "service": {"keep_answers": keep_answers},
        "evaluation": {} if table is not None and table.held_out > 0 and not no_evaluate else None,
        "statistics": _statistics(statistics_noise, table, model, epsilon, delta),
    }
    split = {"partition": partition, "dirichlet_beta": beta, "seed": split_seed, "validation": validation}
    source = _source(data, num_classes, {"client": client, "clients": clients, **split}, table)
    policy = make_policy(values, "vault init", _flag)
    enrolment = enrol(folder.absolute(), source, policy, anchor=anchor, warn=_warn)
    if (weakness := budget_of(policy).weakness(enrolment.num_records, unit)) is not None:
        places = f"{folder} and {anchor}" if anchor else str(folder)
        way_back = f"The ledger keeps these terms for ever. Nothing is spent yet: delete {places}, and enrol again"
        _warn(f"{weakness}. {way_back}")
    held_out = ""
    if policy.evaluation is not None:
        held = "Rows" if unit == "record" else "Persons"
        held_out = f"{held} that the schema holds out are for evaluations with noise; their number stays private. "
    serve = f"alidpfl vault serve --dir {folder}" + (f" --anchor {anchor}" if anchor else "")
    typer.echo(
        f"enrolled {enrolment.num_records} {unit}s in {folder}; this number is public from now on. {held_out}Read "
        f"{folder / 'policy.toml'}, then run: {serve}"
    )


@vault_app.command()
def serve(
    folder: Folder,
    socket: Annotated[Path | None, Option(help="Socket to listen on; by default vault.sock in the folder.")] = None,
    group: Annotated[str | None, Option(help="Group that may connect too; needs a --socket outside --dir.")] = None,
    head: Annotated[str | None, Option(help="counter:hash that status printed; refuse a ledger without it.")] = None,
    anchor: Annotated[Path | None, Option(help="The vault's anchor; refuse a ledger with another or none.")] = None,
) -> None:
    r"""Load the records and serve training rounds on a Unix socket, until Ctrl-C or SIGTERM.

    Example:
      alidpfl vault serve --dir /var/lib/alidpfl/hospital-a \
        --anchor /mnt/other-disk/alidpfl/hospital-a.anchor \
        --socket /run/alidpfl/a.sock --group supernode
    """
    if group is not None and socket is None:
        raise ConfigError(
            f"--group {group}: only the owner can enter the vault's folder; give a --socket elsewhere, such as "
            "/run/alidpfl/vault.sock"
        )
    try:
        from alidpfl.vault.service import serve as run_service
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"serving needs {error.name}: in a clone of alidpfl run `pip install -c constraints.txt '.[vault]'`"
        ) from None

    ready = partial(_announce, folder)
    run_service(folder.absolute(), socket_path=socket, group=group, known_head=head, anchor=anchor, on_ready=ready)


@anchor_app.command("add")
def add_anchor(file: AnchorFile, folder: Folder) -> None:
    r"""Let a file on another disk follow the ledger, to detect restored copies of the folder. Stop the vault first.

    Example:
      alidpfl vault anchor add /mnt/other-disk/anchor \
        --dir /var/lib/alidpfl/hospital-a
    """
    from alidpfl.vault.anchor import add_anchor
    from alidpfl.vault.folder import VaultFolder

    _tell_anchor(add_anchor(VaultFolder(path=folder.absolute()), file), folder)


@anchor_app.command("move")
def move_anchor(file: AnchorFile, folder: Folder) -> None:
    r"""Move the anchor to another file. The old file stays, as a note. Stop the vault first.

    Example:
      alidpfl vault anchor move /mnt/third-disk/anchor \
        --dir /var/lib/alidpfl/hospital-a
    """
    from alidpfl.vault.anchor import move_anchor
    from alidpfl.vault.folder import VaultFolder

    _tell_anchor(move_anchor(VaultFolder(path=folder.absolute()), file), folder)


@vault_app.command()
def status(folder: Folder, as_json: AsJson = False) -> None:
    """Show what was spent, what is left, what was refused, and whether the vault is being served.

    Example:
      alidpfl vault status --dir /var/lib/alidpfl/hospital-a
    """
    from alidpfl.vault.folder import status

    told = status(folder.absolute())
    if as_json:
        typer.echo(json.dumps(told, indent=2))
    else:
        _print_status(told, folder)


def _tell_anchor(anchor: Path, folder: Path) -> None:
    typer.echo(
        f"{anchor} is the anchor from now on. Do not delete it. Give it to the service too, so that copies of {folder} "
        f"from before are refused: alidpfl vault serve --dir {folder} --anchor {anchor}"
    )


def _warn(text: str) -> None:
    typer.echo(f"warning: {text}", err=True)


def _unit_terms(unit: Unit, max_records: int | None) -> dict[str, Any]:
    """Return the section [data] of the policy."""
    from alidpfl.config.schema import DEFAULT_MAX_RECORDS

    default = DEFAULT_MAX_RECORDS if unit == "person" else None
    return {"unit": unit, "max_records": default if max_records is None else max_records}


def _statistics(
    given: float | None, table: "Schema | None", model: str, epsilon: float, delta: float
) -> dict[str, float] | None:
    """Return the terms of statistics: as the owner says, or else what a run with the same budget asks for."""
    from alidpfl.privacy import PrivacyBudget
    from alidpfl.runs.tables import default_statistics_noise, enrolled_statistics_noise

    if given is not None:
        if given and table is None:
            raise ConfigError(f"--statistics-noise {given:g} is for tables; give a --schema, or leave it out")
        return {"noise_multiplier": given} if given else None
    if table is None or table.target.kind == "class" or model != "linear":
        return None
    usual = default_statistics_noise(PrivacyBudget(epsilon=epsilon, delta=delta))
    return {"noise_multiplier": enrolled_statistics_noise(usual)}


def _read_table_schema(schema: Path, data: str) -> "Schema":
    from alidpfl.tables import read_schema
    from alidpfl.tables.read import SUFFIXES

    if Path(data).suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--data {data}: --schema describes a {' or '.join(SUFFIXES)} file; give one")
    return read_schema(schema)


def _largest_clip_norm(
    given: float | None, table: "Schema | None", model: str, loss: str | None, quantile: float
) -> float:
    """Return the largest C. By default, a run's own C for this schema and model is allowed, and no larger one."""
    from alidpfl.runs.tables import default_clip_norm

    if given is not None:
        return given
    if table is None:
        raise ConfigError("give --max-clip-norm: the largest C that you accept, such as 1")
    return default_clip_norm(table, model, loss, quantile)


def _source(
    data: str, num_classes: int | None, split: dict[str, Any], table: "Schema | None"
) -> "FileSource | TableSource | SplitSource":
    from pydantic import ValidationError

    from alidpfl.config.wording import refused
    from alidpfl.vault.sources import FileSource, SplitSource, TableSource

    if table is not None:
        if num_classes is not None:
            raise ConfigError(f"--num-classes {num_classes}: the schema has the classes; leave it out")
        return TableSource(path=str(Path(data).absolute()), canonical_schema=table.canonical())
    if Path(data).suffix.lower() in (".csv", ".parquet"):
        raise ConfigError(f"--data {data} is a table: give its --schema, such as schema.toml")
    names, is_file = get_args(SplitSource.model_fields["name"].annotation), data.endswith(".npz")
    if not is_file and data not in names:
        raise ConfigError(f"--data {data}: give your own .npz file, or for a trial one of {', '.join(names)}")
    kind: type[FileSource | SplitSource] = FileSource if is_file else SplitSource
    own = {"path": str(Path(data).absolute()), "num_classes": num_classes}
    values = own if is_file else {"name": data, **split}
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        problems = [(problem, str(problem["loc"][0])) for problem in error.errors()]
        told = [refused(problem, _flag(key), values[key], kind.model_fields[key]) for problem, key in problems]
        raise ConfigError(f"vault init: {'; '.join(told)}") from None


def _flag(key: str) -> str:
    """Return the option of `init` that sets a key of the policy or of the source."""
    return f"--{_FLAGS.get(key, key.rpartition('.')[2]).replace('_', '-')}"


def _announce(folder: Path, vault: "Vault", where: Path) -> None:
    unsafe, anchor = ", ".join(vault.policy.unsafe), vault.ledger.anchor
    if unsafe:
        typer.echo(f"warning: the policy allows {unsafe}: no epsilon covers that", err=True)
    note = "" if anchor else "there is no anchor: if this disk or your home is restored, the vault spends twice"
    if anchor is not None and anchor.stat().st_dev == folder.stat().st_dev:
        note = "the anchor is on the vault's own disk: if that disk is restored, the vault spends twice"
    if note:
        typer.echo(f"note: {note}", err=True)
    typer.echo(f"listening on {where}; ledger head {vault.ledger.head}")


def _print_status(told: dict[str, Any], folder: Path) -> None:
    from rich.markup import escape

    from alidpfl.cli.progress import wide_console
    from alidpfl.errors import printable
    from alidpfl.reporting.tables import rounded_down, rounded_up

    table = Table("", "", title=escape(f"Vault {folder}"), show_header=False)
    table.add_row("being served", f"yes, by {told['served_by']}" if told["served_by"] else "no")
    table.add_row(f"{told['unit']}s", str(told["num_records"]))
    at_most = f"; at most {told['max_records']} of them in a step" if told["unit"] == "person" else ""
    table.add_row("protected", told["protects"] + at_most)
    table.add_row("ε spent", f"{rounded_up(told['epsilon_spent'])} of {told['epsilon']:g} at δ = {told['delta']:g}")
    if told["weakness"] is not None:
        table.add_row("WEAK", told["weakness"])
    table.add_row("ε left", rounded_down(told["epsilon_left"]))
    table.add_row(f"{told['charged']} spent, left", f"{told['units_spent']}, {told['units_left']}")
    lost = f"; {told['rounds_lost']} more charged and lost" if told["rounds_lost"] else ""
    served = f"{told['rounds_released']} in {told['runs']} runs{lost}; at most {told['rounds_left']} more"
    table.add_row("rounds served", served)
    for row in _query_rows(told):
        table.add_row(*row)
    if told["slot"] is not None:
        table.add_row("time slot", f"{told['slot']['round']:.3g} s and {told['slot']['step']:.3g} s a step")
    table.add_row("slots overrun", str(told["overruns"]))
    for entry in told["last_overruns"][-3:]:
        taken = f"round {entry['round']} of {entry['run']}: {entry['seconds']:.3g} s in a slot of {entry['slot']:.3g} s"
        table.add_row("", escape(printable(taken)))
    refused = ", ".join(f"{count} {code}" for code, count in told["refusals"].items())
    table.add_row("refused", refused or "none")
    for entry in told["last_refusals"][-3:]:  # a hostile server may have written the message
        table.add_row("", escape(printable(f"{entry['code']}: {entry['message']}")))
    if told["unsafe"]:
        table.add_row("UNSAFE", f"the policy allows {', '.join(told['unsafe'])}")
    if not told["covers_everything"]:
        uses = ", ".join(f"{count} rounds by {use}" for use, count in told["rounds_not_covered"].items())
        table.add_row("NOT COVERED by ε", uses)
    table.add_row("head", told["head"])
    table.add_row("anchor", told["anchor"] or "none: write the head down elsewhere")
    wide_console().print(table)


def _query_rows(told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Return what queries have spent, for each part of the records that they may read."""
    from alidpfl.reporting.tables import rounded_up

    held_out = "held-out rows" if told["unit"] == "record" else "held-out persons"
    for part, what in (("evaluation", held_out), ("statistics", "statistics")):
        if (found := told[part]) is not None:
            spent = f"ε {rounded_up(found['epsilon_spent'])} of {found['epsilon']:g}"
            share = f"{100 * found['share_spent']:.3g} % of what they may spend"
            yield what, f"{found['answered']} queries answered: {spent}, {share}; at most {found['left']} more"
