"""A deployment of real processes on loopback for tests: small vaults with seeded noise, and what they booked."""

import os
import time
from contextlib import contextmanager
from pathlib import Path

from alidpfl.engines.loopback import Loopback, tail
from alidpfl.runs.flower_config import FlowerOptions
from alidpfl.runs.flower_folder import write_app_folder
from alidpfl.store import RunDirectory
from alidpfl.vault.enrolment import enrol
from alidpfl.vault.policy import make_policy
from alidpfl.vault.source import SplitSource
from alidpfl.vault.status import status

from .fakes import CLIENTS, config

SECONDS = 240  # for a run, on cores that others use as well


def enrolled(settings, folder: Path, client: int, **changes) -> None:
    """The vault of a client of `settings`: the same rows, budget and terms, and noise from the run's seed."""
    values = {
        "unsafe": ["seeded-noise"],
        "seed": settings.run.seed,
        "budget": {"epsilon": settings.privacy.epsilon, "delta": settings.privacy.delta},
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
def deployed(folder: Path, settings=None, nodes: int = CLIENTS, only_vaults: bool = False):
    """SuperLink, vaults and SuperNodes, all running."""
    settings = settings or config()
    folder.mkdir(parents=True, exist_ok=True)
    with Loopback(folder, nodes=nodes) as loopback:
        loopback.start_superlink()
        for client in range(nodes):
            enrolled(settings, loopback.vault_folder(client), client)
        for client in range(nodes):
            loopback.start_vault(client)
        loopback.register_nodes()
        if not only_vaults:
            for client in range(nodes):
                loopback.start_node(client)
        yield loopback


def app_folder(loopback: Loopback, settings=None, name: str = "app", **options) -> Path:
    options = {"out": str(loopback.folder / "out"), "nodes": loopback.nodes, "round_timeout": 120.0, **options}
    folder = loopback.folder / name
    write_app_folder(folder, settings or config(), FlowerOptions(**options))
    return folder


def finished(loopback: Loopback, out: Path | None = None, seconds: float = SECONDS) -> RunDirectory:
    """The run's directory, once it is over."""
    out, end = out or loopback.folder / "out", time.monotonic() + seconds
    while not (out / "summary.json").exists():
        assert loopback.is_running("run"), tail(loopback.log("run"), 4000)
        assert time.monotonic() < end, tail(loopback.log("run"), 4000) + tail(loopback.log("superlink"), 4000)
        time.sleep(0.1)
    return RunDirectory.open(out)


def rounds_done(out: Path) -> int:
    return len((out / "metrics.jsonl").read_bytes().splitlines()) if (out / "metrics.jsonl").exists() else 0


def children(pid: int) -> dict[int, str]:
    """Every process below this one, with its command line."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = (
                    int(stat[1]),
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(),
                )
            except (OSError, ValueError):
                continue
    found, wave = {}, {pid}
    while wave:
        wave = {child for child, (parent, _) in parents.items() if parent in wave}
        found |= {child: parents[child][1] for child in wave}
    return found


def server_app_pid(loopback: Loopback) -> int | None:
    """The ServerApp, which the SuperLink started."""
    below = children(loopback.pid("superlink"))
    return next((pid for pid, command in below.items() if "flwr-serverapp" in command), None)


def kill(pid: int) -> None:
    os.kill(pid, 9)


def spent(loopback: Loopback, client: int) -> dict:
    return status(loopback.vault_folder(client))
