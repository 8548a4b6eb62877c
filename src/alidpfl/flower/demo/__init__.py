"""A demonstration of a deployment: SuperLink, SuperNodes and vaults on this machine train on digits or on tables."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alidpfl.config.load import load_config
from alidpfl.errors import ConfigError

if TYPE_CHECKING:
    from alidpfl.config.schema import Config
    from alidpfl.flower.demo.loopback import Loopback

_EPSILON, _DELTA, _SAMPLE_RATE, _NOISE_MULTIPLIER = 2.0, 1e-5, 0.04, 1.2
_MOST_STEPS = 50
_MODEL_OPTIONS = {"name": "model", "hidden": "hidden", "loss": "loss", "quantile": "quantile"}
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
    overrides: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Train for a few rounds, end all processes, and return what `alidpfl vault status` says of every vault.

    Args:
        folder: gets logs, keys and vaults.
        nodes: number of nodes, each with a vault.
        rounds: number of rounds.
        insecure: use no TLS and no node keys.
        say: shows a line to the user.
        tables: tables to train on, one for each node; None for generated digits.
        overrides: settings of the run, such as "privacy.unit=person". The vaults are enrolled on terms that fit them.

    Raises:
        ConfigError: Flower is not installed, or a setting is wrong. Nothing is enrolled then.
        LoopbackError: a process failed.
    """
    if find_spec("flwr") is None:  # found without importing it
        raise ConfigError(
            "the demo needs Flower: in a clone of alidpfl run `pip install -c constraints.txt '.[flower]'`; "
            "without it, `alidpfl run` trains on this machine"
        )
    from alidpfl.flower.demo.loopback import Loopback
    from alidpfl.runs.tables import with_table_defaults

    settings = [*_settings(nodes, rounds, tables), *overrides]
    config = with_table_defaults(load_config(overrides=settings))
    with Loopback(folder, nodes=nodes, insecure=insecure) as loopback:
        say(f"enrolling {nodes} data sets, each with its own vault, under {folder}")
        for client in range(nodes):
            _enrol(loopback, client, tables, config)
            loopback.start_vault(client)
        say("starting the SuperLink" + (" WITHOUT encryption" if insecure else ", with TLS and node keys"))
        loopback.start_superlink()
        if not insecure:
            loopback.register_nodes()
        for client in range(nodes):
            loopback.start_node(client)
        _make_app(loopback, settings, tables)
        say(f"training for {rounds} rounds")
        loopback.submit(loopback.folder / "app")
        _follow(loopback, say)
        status = ("vault", "status", "--json", "--dir")
        return [json.loads(loopback.alidpfl(*status, loopback.vault_folder(client))) for client in range(nodes)]


def _settings(nodes: int, rounds: int, tables: Tables | None) -> list[str]:
    """Return the settings of the run that the demonstration chooses."""
    settings = {
        "privacy.epsilon": _EPSILON,
        "privacy.delta": _DELTA,
        "privacy.sample_rate": _SAMPLE_RATE,
        "privacy.noise_multiplier": _NOISE_MULTIPLIER,
        "federation.max_rounds": rounds,
        "run.evaluate_every": 1,
    }
    records = {"data.clients": nodes} if tables is None else {"data.name": "table"}
    schema = [] if tables is None else [f"data.schema_file={json.dumps(str(tables.schema))}"]
    return [*(f"{key}={value}" for key, value in {**records, **settings}.items()), *schema]


def _enrol(loopback: "Loopback", client: int, tables: Tables | None, config: "Config") -> None:
    """Enrol a node's data set on terms that fit the run, with the defaults of tables if it is one."""
    from alidpfl.runs.tables import enrolled_statistics_noise

    privacy, model = config.privacy, config.model
    has_statistics = config.data.standardise == "private"
    options = {
        "epsilon": privacy.epsilon,
        "delta": privacy.delta,
        "sample-rate": privacy.sample_rate,
        "min-noise-multiplier": privacy.noise_multiplier,
        "unit": privacy.unit,
        "max-records": config.max_records,
        "max-steps-per-round": _MOST_STEPS,
        "max-clip-norm": config.method.clip_norm,
        "statistics-noise": enrolled_statistics_noise(privacy.statistics_noise) if has_statistics else None,
        **{option: getattr(model, key) for key, option in _MODEL_OPTIONS.items() if key in model.model_fields_set},
    }
    if tables is None:
        options |= {"data": config.data.name, "client": client, "clients": loopback.nodes}
    else:
        options |= {"schema": tables.schema, "data": tables.clients[client]}
    where = ["--dir", str(loopback.vault_folder(client))]
    given = [part for name, value in options.items() if value is not None for part in (f"--{name}", str(value))]
    loopback.alidpfl("vault", "init", *where, *given)


def _make_app(loopback: "Loopback", settings: Sequence[str], tables: Tables | None) -> None:
    where: list[str | Path] = [loopback.folder / "app", "--out", loopback.folder / "run"]
    if tables is not None:
        where += ["--schema", tables.schema, "--nodes", str(loopback.nodes)]
        where += [part for path in tables.public for part in ("--test", path)]
    loopback.alidpfl("flower", "init", *where, *(part for one in settings for part in ("--set", one)))


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
