"""kill -9 of vaults, SuperNodes and the ServerApp, many times: all that was trained is charged, and the run ends.

A few such kills are in test_deployment.py, hundreds, at every line of the vault's code, in tests/vault/test_kills.py;
`make nightly` raises the number here to 200.
"""

import os
import time

import pytest

from .deployment import Reaper, app_folder, deployed
from .fakes import config

KILLS = int(os.environ.get("ALIDPFL_KILLS", "12"))
ROUNDS = max(8, KILLS // 4)


@pytest.mark.slow
def test_a_run_survives_many_kills(tmp_path):
    """Every few seconds a process is killed. After the last kill the run ends by itself."""
    settings = config(
        federation__max_rounds=ROUNDS,
        federation__quorum=0.3,
        method__policy="fixed",
        method__local_steps=1,
        privacy__epsilon=8.0,
    )
    with deployed(tmp_path, settings) as loopback:
        reaper = Reaper(loopback, app_folder(loopback, settings), seed=2)
        loopback.submit(reaper.app)
        while sum(reaper.kills.values()) < KILLS and not reaper.is_over:
            time.sleep(reaper.random.uniform(0.5, 8.0))
            reaper.random.choices([reaper.kill_vault, reaper.kill_server, reaper.kill_node], [6, 2, 1])[0]()
            reaper.tend()
        end = time.monotonic() + 900
        while not reaper.is_over and time.monotonic() < end:
            reaper.tend()
            time.sleep(1)
        assert reaper.is_over
        assert sum(reaper.kills.values()) >= KILLS
        reaper.check(steps_asked=ROUNDS)
