"""kill -9 of vaults, SuperNodes and the ServerApp at random moments: what was trained is booked, and the run ends.

The few kills here are real processes of a real deployment. Hundreds more, at every line of the vault's code, are in
tests/vault/test_kills.py; `make nightly` raises the number here to 200.
"""

import os
import random
import sys
import time
from pathlib import Path

import pytest

from alidpfl.engines.loopback import Loopback

from .deployment import app_folder, enrolled, finished, kill, rounds_done, server_app_pid, spent
from .fakes import CLIENTS, config

KILLS = int(os.environ.get("ALIDPFL_KILLS", "12"))
_NODE_REST = 65.0  # the SuperLink refuses a node that comes back sooner


class Battered:
    """A deployment whose processes are killed and started again."""

    def __init__(self, loopback: Loopback, settings, seed: int) -> None:
        self.loopback, self.app = loopback, app_folder(loopback, settings)
        self.random = random.Random(seed)  # noqa: S311 - when to kill
        self.kills = {"vault": 0, "server": 0, "node": 0}
        self._returning: dict[int, float] = {}

    def start(self) -> None:
        for client in range(CLIENTS):
            self.start_vault(client)
            self.loopback.start_node(client)
        self.loopback.submit(self.app)

    def start_vault(self, client: int) -> None:
        command = [sys.executable, Path(__file__).with_name("logging_vault.py")]
        self.loopback.start(f"serve-{client}", [*command, self.loopback.vault_folder(client), self.log(client)])

    def log(self, client: int) -> Path:
        return self.loopback.folder / f"trained-{client}"

    def kill_vault(self) -> None:
        client = self.random.randrange(CLIENTS)
        self.loopback.kill(f"serve-{client}")
        self.start_vault(client)
        self.kills["vault"] += 1

    def kill_server(self) -> None:
        pid = server_app_pid(self.loopback)
        if pid is not None:
            kill(pid)
            self.kills["server"] += 1
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
        """What a supervisor does: start nodes again after their rest, and the run if its ServerApp gave up."""
        for client, when in list(self._returning.items()):
            if time.monotonic() >= when:
                self.loopback.start_node(client)
                del self._returning[client]
        if not self.loopback.is_running("run") and not self.is_over:
            self.loopback.submit(self.app)

    @property
    def is_over(self) -> bool:
        return (self.loopback.folder / "out" / "summary.json").exists()

    def check(self, steps_asked: int) -> None:
        """Recorded >= trained, no round trained twice, nobody charged twice by the server's own count."""
        for client in range(CLIENTS):
            trained = [tuple(map(int, line.split())) for line in self.log(client).read_text().splitlines()]
            told = spent(self.loopback, client)  # verifies the ledger's chain as well
            assert sum(steps for _, steps in trained) <= told["units_spent"] <= steps_asked
            assert len({round_number for round_number, _ in trained}) == len(trained)


def battered(folder: Path, settings, seed: int) -> Battered:
    loopback = Loopback(folder, nodes=CLIENTS)
    loopback.__enter__()
    try:
        loopback.start_superlink()
        for client in range(CLIENTS):
            enrolled(settings, loopback.vault_folder(client), client)
        loopback.register_nodes()
    except BaseException:
        loopback.stop()
        raise
    return Battered(loopback, settings, seed)


def test_a_run_survives_kills_of_vaults_and_of_the_server(tmp_path):
    settings = config(federation__max_rounds=5, method__policy="fixed", method__local_steps=2)
    it = battered(tmp_path, settings, seed=1)
    try:
        it.start()
        it.loopback.wait_until("run", lambda: rounds_done(tmp_path / "out") >= 1)
        it.kill_vault()
        time.sleep(it.random.uniform(0, 4))
        it.kill_server()
        it.loopback.wait_until("run", lambda: rounds_done(tmp_path / "out") >= 2)
        it.kill_vault()
        directory = finished(it.loopback)
        assert len(directory.records()) == 5
        assert it.kills == {"vault": 2, "server": 1, "node": 0}
        it.check(steps_asked=10)
    finally:
        it.loopback.stop()


@pytest.mark.slow
def test_a_run_survives_many_kills(tmp_path):
    """Every second or so something dies, until the number is reached; then the run ends in peace."""
    settings = config(
        federation__max_rounds=max(8, KILLS // 4),
        method__policy="fixed",
        method__local_steps=1,
        privacy__epsilon=8.0,
        federation__quorum=0.3,
    )
    it = battered(tmp_path, settings, seed=2)
    try:
        it.start()
        while sum(it.kills.values()) < KILLS and not it.is_over:
            time.sleep(it.random.uniform(0.5, 8.0))
            it.random.choices([it.kill_vault, it.kill_server, it.kill_node], [6, 2, 1])[0]()
            it.tend()
        end = time.monotonic() + 900
        while not it.is_over and time.monotonic() < end:
            it.tend()
            time.sleep(1)
        assert it.is_over
        it.check(steps_asked=max(8, KILLS // 4))
        print(it.kills)
    finally:
        it.loopback.stop()
