"""A deployment of real processes on loopback, for tests: small vaults with seeded noise."""

import os
import random
import re
import signal
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from alidpfl.flower.config import FlowerOptions, write_app_folder
from alidpfl.flower.demo.loopback import CONNECTION, Loopback, LoopbackError, tail
from alidpfl.store import RunDirectory
from alidpfl.vault.enrolment import enrol
from alidpfl.vault.folder import status
from alidpfl.vault.policy import make_policy
from alidpfl.vault.sources import SplitSource
from tests.vault.parts import machine

from .fakes import CLIENTS, config

SECONDS = 240  # for a run, on cores that others use as well


def enrolled(settings, folder: Path, client: int, **changes) -> None:
    """Enrol a client of `settings`: its rows, budget and terms, and noise from the run's seed."""
    values = {
        "unsafe": ["seeded-noise"],
        "seed": settings.run.seed,
        "budget": {"epsilon": 4 * settings.privacy.epsilon, "delta": settings.privacy.delta},  # for several runs
        "accounting": {"kind": "planned", "accountant": settings.privacy.accountant},
        "terms": {
            "sample_rate": settings.privacy.sample_rate,
            "min_noise_multiplier": settings.privacy.noise_multiplier,
        },
        "model": {"name": settings.model.name},
        "limits": {"max_steps_per_round": 100, "max_clip_norm": 1.0},
    }
    source = SplitSource(
        name=settings.data.name,
        client=client,
        clients=settings.data.clients,
        partition=settings.partition,
        seed=settings.run.seed,
    )
    enrol(folder, source, make_policy({**values, **changes}, "test"))


@contextmanager
def deployed(folder: Path, settings=None):
    """SuperLink, vaults that note what they train, and SuperNodes, all started."""
    settings = settings or config()
    folder.mkdir(parents=True, exist_ok=True)
    with Loopback(folder, nodes=CLIENTS) as loopback:
        loopback.start_superlink()
        start_clients(loopback, settings)
        yield loopback


def start_clients(loopback: Loopback, settings, superlink: str | None = None) -> None:
    """Start vaults, register keys, and start SuperNodes that call the SuperLink or another address."""
    for client in range(CLIENTS):
        with machine(Path(loopback.environment["XDG_STATE_HOME"])):
            enrolled(settings, loopback.vault_folder(client), client)
        start_vault(loopback, client)
    loopback.register_nodes()
    for client in range(CLIENTS):
        loopback.start_node(client, superlink=superlink)


def start_vault(loopback: Loopback, client: int, *more: str) -> None:
    command = [sys.executable, Path(__file__).with_name("logging_vault.py")]
    loopback.start(f"serve-{client}", [*command, loopback.vault_folder(client), training_log(loopback, client), *more])


def training_log(loopback: Loopback, client: int) -> Path:
    return loopback.folder / f"trained-{client}"


def trained(loopback: Loopback, client: int) -> list[tuple[int, int]]:
    """(round, steps) of every training that was begun."""
    lines = training_log(loopback, client).read_text().splitlines()
    return [tuple(map(int, line.split())) for line in lines]


def app_folder(loopback: Loopback, settings=None, name: str = "app", **options) -> Path:
    options = {"out": str(loopback.folder / f"out-{name}"), "nodes": loopback.nodes, "round_timeout": 120.0, **options}
    folder = loopback.folder / name
    write_app_folder(folder, settings or config(), FlowerOptions(**options))
    return folder


def finished(loopback: Loopback, app: Path, seconds: float = SECONDS) -> RunDirectory:
    """The run's directory, once it is over."""
    out, end = out_of(app), time.monotonic() + seconds
    while not (out / "summary.json").exists():
        assert loopback.is_running("run"), tail(loopback.log("run"), 4000)
        assert time.monotonic() < end, tail(loopback.log("run"), 4000) + tail(loopback.log("superlink"), 4000)
        time.sleep(0.1)
    return RunDirectory.open(out)


def out_of(app: Path) -> Path:
    return app.with_name(f"out-{app.name}")


def rounds_done(app: Path) -> int:
    metrics = out_of(app) / "metrics.jsonl"
    return len(metrics.read_bytes().splitlines()) if metrics.exists() else 0


def server_apps(loopback: Loopback) -> list[int]:
    """The processes of ServerApps, which the SuperLink started."""
    return [process.pid for process in loopback.below("superlink") if "flwr-serverapp" in command_of(process)]


def command_of(process: psutil.Process) -> str:
    """The command line; nothing if the process has ended."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def spent(loopback: Loopback, client: int) -> dict:
    return status(loopback.vault_folder(client))


_NODE_REST = 65.0  # the SuperLink refuses a node that comes back sooner


class Reaper:
    """Kills processes of a deployment during a run, and restarts them as a supervisor would."""

    def __init__(self, loopback: Loopback, app: Path, seed: int) -> None:
        self.loopback, self.app = loopback, app
        self.random = random.Random(seed)  # noqa: S311 - when to kill
        self.kills = {"vault": 0, "server": 0, "node": 0}
        self._returning: dict[int, float] = {}
        self._before = [self._booked(client) for client in range(CLIENTS)]

    def kill_vault(self) -> None:
        client = self.random.randrange(CLIENTS)
        self.loopback.kill(f"serve-{client}")
        start_vault(self.loopback, client)
        self.kills["vault"] += 1

    def kill_server(self) -> None:
        """Kill the ServerApp and submit the run again. One that is still to start is left."""
        if not (pids := server_apps(self.loopback)):
            return
        for pid in pids:
            with suppress(ProcessLookupError):  # ends with another of them
                os.kill(pid, signal.SIGKILL)
        self.kills["server"] += 1
        self._submit_again()

    def _submit_again(self) -> None:
        """End the run at the SuperLink, and submit it anew.

        If a ServerApp does not report within 30 seconds, because it was killed or is slow, Flower 1.41 starts another
        one for that run. On a busy machine, runs that nobody stopped soon have dozens of them.
        """
        started = re.findall(r"Successfully started run (\d+)", self.loopback.log("run").read_text())
        with suppress(LoopbackError):  # the run has ended
            self.loopback.flwr("stop", started[-1], CONNECTION)
        self.loopback.submit(self.app)

    def kill_node(self) -> None:
        """One at a time, so that a quorum is left."""
        if self._returning:
            return
        client = self.random.randrange(CLIENTS)
        self.loopback.kill(f"node-{client}")
        self._returning[client] = time.monotonic() + _NODE_REST
        self.kills["node"] += 1

    def tend(self) -> None:
        """Restart nodes after their rest, and the run if its ServerApp ended."""
        for client, when in list(self._returning.items()):
            if time.monotonic() >= when:
                self.loopback.start_node(client)
                del self._returning[client]
        if not (self.loopback.is_running("run") or server_apps(self.loopback) or self.is_over):
            self._submit_again()

    @property
    def is_over(self) -> bool:
        return (out_of(self.app) / "summary.json").exists()

    def check(self, steps_asked: int) -> None:
        """Recorded >= trained, no round is trained twice, and no client is charged for more than was asked."""
        for client, (units, count) in enumerate(self._before):
            mine = trained(self.loopback, client)[count:]
            booked = self._booked(client)[0] - units  # reading it verifies the ledger's chain as well
            assert sum(steps for _, steps in mine) <= booked <= steps_asked
            assert len({round_number for round_number, _ in mine}) == len(mine)

    def _booked(self, client: int) -> tuple[int, int]:
        is_new = not training_log(self.loopback, client).exists()
        return spent(self.loopback, client)["units_spent"], 0 if is_new else len(trained(self.loopback, client))
