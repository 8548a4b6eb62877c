"""A demonstration of a deployment: SuperLink, SuperNodes and vaults on this machine train on digits or on tables."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alidpfl.errors import ConfigError

if TYPE_CHECKING:
    from alidpfl.flower.demo.loopback import Loopback

_EPSILON, _DELTA, _SAMPLE_RATE, _NOISE_MULTIPLIER = 2.0, 1e-5, 0.04, 1.2
_MOST_SECONDS = 900.0
_POLL = 0.2
_OURS = "alidpfl: "


@dataclass(frozen=True, kw_only=True)
class Tables:
    """The user's own tables, one for each node."""

    schema: Path
    clients: tuple[Path, ...]
    public: tuple[Path, ...] = ()
    """Files of public rows, named test, to evaluate on; at most one."""


def run_demo(
    folder: Path,
    *,
    nodes: int,
    rounds: int,
    insecure: bool,
    say: Callable[[str], None],
    tables: Tables | None = None,
) -> list[dict[str, Any]]:
    """Train for a few rounds, end all processes, and return what `alidpfl vault status` says of every vault.

    Args:
        folder: gets logs, keys and vaults.
        nodes: number of nodes, each with a vault.
        rounds: number of rounds.
        insecure: use no TLS and no node keys.
        say: shows a line to the user.
        tables: tables to train on, one for each node; None for generated digits.

    Raises:
        ConfigError: Flower is not installed. Nothing is enrolled then.
        LoopbackError: a process failed.
    """
    if find_spec("flwr") is None:  # found without importing it
        raise ConfigError(
            "the demo needs Flower: in a clone of alidpfl run `pip install -c constraints.txt '.[flower]'`; "
            "without it, `alidpfl run` trains on this machine"
        )
    from alidpfl.flower.demo.loopback import Loopback

    with Loopback(folder, nodes=nodes, insecure=insecure) as loopback:
        say(f"enrolling {nodes} data sets, each with its own vault, under {folder}")
        for client in range(nodes):
            _enrol(loopback, client, tables)
            loopback.start_vault(client)
        say("starting the SuperLink" + (" WITHOUT encryption" if insecure else ", with TLS and node keys"))
        loopback.start_superlink()
        if not insecure:
            loopback.register_nodes()
        for client in range(nodes):
            loopback.start_node(client)
        _make_app(loopback, rounds, tables)
        say(f"training for {rounds} rounds")
        loopback.submit(loopback.folder / "app")
        _follow(loopback, say)
        status = ("vault", "status", "--json", "--dir")
        return [json.loads(loopback.alidpfl(*status, loopback.vault_folder(client))) for client in range(nodes)]


def _enrol(loopback: "Loopback", client: int, tables: Tables | None) -> None:
    budget = ["--epsilon", str(_EPSILON), "--delta", str(_DELTA)]
    terms = ["--sample-rate", str(_SAMPLE_RATE), "--min-noise-multiplier", str(_NOISE_MULTIPLIER)]
    limits = ["--max-steps-per-round", "50"]
    where = ["--dir", str(loopback.vault_folder(client))]
    if tables is None:
        share = ["--client", str(client), "--clients", str(loopback.nodes)]
        records = ["--data", "strokes", "--max-clip-norm", "1", *share]
    else:
        records = ["--schema", str(tables.schema), "--data", str(tables.clients[client])]
    loopback.alidpfl("vault", "init", *where, *records, *budget, *terms, *limits)


def _make_app(loopback: "Loopback", rounds: int, tables: Tables | None) -> None:
    settings = {
        **({"data.clients": loopback.nodes} if tables is None else {}),
        "privacy.epsilon": _EPSILON,
        "privacy.delta": _DELTA,
        "privacy.sample_rate": _SAMPLE_RATE,
        "privacy.noise_multiplier": _NOISE_MULTIPLIER,
        "federation.max_rounds": rounds,
        "run.evaluate_every": 1,
    }
    changes = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    where: list[str | Path] = [loopback.folder / "app", "--out", loopback.folder / "run"]
    if tables is not None:
        where += ["--schema", tables.schema, "--nodes", str(loopback.nodes)]
        where += [part for path in tables.public for part in ("--test", path)]
    loopback.alidpfl("flower", "init", *where, *changes)


def _follow(loopback: "Loopback", say: Callable[[str], None]) -> None:
    """Show our own lines in the run's log until the run is over."""
    shown, end, is_over = 0, time.monotonic() + _MOST_SECONDS, False
    while not is_over:
        time.sleep(_POLL)
        is_over = not loopback.is_running("run") or time.monotonic() > end
        lines = _lines(loopback)
        for line in lines[shown:]:
            if str(loopback.folder) not in line:  # the demo may delete that folder, which the server does not know
                say(f"  {line}")
        shown = len(lines)
    if not (loopback.folder / "run" / "summary.json").exists():
        raise loopback.failure("run", "failed")


def _lines(loopback: "Loopback") -> list[str]:
    log = loopback.log("run")
    whole = log.read_text(errors="replace").rpartition("\n")[0] if log.exists() else ""
    return [line.partition(_OURS)[2] for line in whole.splitlines() if _OURS in line]
