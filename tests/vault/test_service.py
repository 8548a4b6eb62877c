"""The service over its socket, in its own process: hostile callers, limits, waiting, signals, permissions."""

import asyncio
import grp
import os
import re
import resource
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
import uvicorn

from alidpfl.errors import ConfigError
from alidpfl.vault import service as service_module
from alidpfl.vault.client import VaultClient
from alidpfl.vault.folder import REFUSALS, SOCKET, status
from alidpfl.vault.messages import decode_answer
from alidpfl.vault.refusals import (
    BudgetSpentError,
    PlanRefusedError,
    RefusalCode,
    ReplayRefusedError,
    VaultBusyError,
    VaultRefusedError,
    VaultUnreachableError,
)
from alidpfl.vault.service import Service, listening
from tests.runs.command import forked

from .hostile import HostileServer
from .parts import (
    MOST_STEPS,
    NOISE,
    SAMPLE_RATE,
    body,
    connected,
    made_vault,
    opened,
    request,
    served,
    spent,
    steps_of,
    weights,
)


def test_a_training_over_the_socket(tmp_path):
    folder = made_vault(tmp_path)
    with served(folder) as (process, client):
        info = client.info()
        assert (info["num_records"], info["terms"]["sample_rate"]) == (40, SAMPLE_RATE)
        answer = client.train(request(), weights())
        assert client.train(request(), weights()) == answer
        after = decode_answer(answer)[1]
        client.train(request(round=1), after)
        told = status(folder.path)  # the owner can read it while the vault is being served
        assert (told["units_spent"], told["rounds_released"]) == (4, 2)
        with pytest.raises(ReplayRefusedError):
            client.train(request(), after)
        with pytest.raises(PlanRefusedError, match=r"noise_multiplier=1 .*\b2\b"):
            client.train(request(round=2, noise_multiplier=1.0), weights())
        for k in range(2, 100):
            try:
                client.train(request(round=k, steps=10**6), weights())
            except BudgetSpentError:
                break
        assert status(folder.path)["units_left"] == 0
        assert process.is_running()


def test_a_thousand_hostile_instructions(tmp_path):
    folder = made_vault(tmp_path, budget__epsilon=6.0)
    with opened(folder, object()) as vault:
        affordable = vault.ledger.book.account.affordable(SAMPLE_RATE, NOISE)
    server, received, refused = HostileServer(seed=0), {}, []
    with served(folder) as (process, client):
        for _ in range(1000):
            try:
                content = client.train_bytes(server.next_request())
            except VaultRefusedError as error:
                refused.append(error.code)
                continue
            answer, _ = decode_answer(content)
            assert received.setdefault((answer.run, answer.round), content) == content
            assert (answer.raw, answer.unsafe) == (None, [])
        told = status(folder.path)
        assert process.is_running()
    steps = [steps_of(content) for content in received.values()]
    assert max(steps) <= MOST_STEPS
    assert sum(steps) <= affordable
    assert len(received) > 30
    assert len(refused) > 500
    assert set(refused) >= set(RefusalCode) - {
        "too-large",
        "pruned",
        "lost",
        "busy",
        "disk",
        "ledger",
        "failed",
        "budget",
    }
    assert not set(refused) & {RefusalCode.FAILED, RefusalCode.LEDGER, RefusalCode.DISK}
    assert sum(told["refusals"].values()) == len(refused)
    assert told["units_spent"] == sum(steps)
    assert told["epsilon_spent"] <= 6.0
    for reservation in folder.read(folder.policy())[1].reservations.values():
        assert reservation.noise_multiplier >= NOISE
        assert reservation.sample_rate <= SAMPLE_RATE
        assert 1e-3 <= reservation.clip_norm <= 1.0
        assert reservation.units == reservation.steps <= MOST_STEPS


def test_bodies_have_a_size(tmp_path):
    with served(made_vault(tmp_path)) as (process, client):
        most = 4 * 21 + (1 << 20)
        for size in (most + 1, 40 * most):
            with pytest.raises(VaultRefusedError) as caught:
                client.train_bytes(bytes(size))
            assert caught.value.code is RefusalCode.TOO_LARGE
        with pytest.raises(VaultRefusedError) as caught:
            client.train_bytes(bytes(most))
        assert caught.value.code is RefusalCode.MALFORMED
        transport = httpx.HTTPTransport(uds=str(tmp_path / "vault" / SOCKET))
        with httpx.Client(transport=transport, base_url="http://vault") as http:
            assert http.get("/v1/train").status_code == 405
            assert http.get("/v1/status").status_code == 404  # not for callers
            assert http.get("/policy.toml").status_code == 404
            pieces = (bytes(1 << 16) for _ in range(64))
            assert http.post("/v1/train", content=pieces).json()["code"] == "too-large"  # sent without a length
        assert process.is_running()


def test_a_caller_that_hangs_up_costs_nothing_and_stops_nobody(tmp_path):
    folder = made_vault(tmp_path)
    with served(folder) as (_, client):
        for _ in range(3):
            with socket.socket(socket.AF_UNIX) as caller:
                caller.connect(str(folder.path / SOCKET))
                caller.send(b"POST /v1/train HTTP/1.1\r\nHost: v\r\nContent-Length: 900\r\n\r\nabc")
        assert steps_of(client.train_bytes(body())) == 2
    assert spent(folder) == 2


@pytest.fixture
def slow(tmp_path):
    """A vault whose rounds can take seconds."""
    return made_vault(
        tmp_path,
        terms__min_noise_multiplier=1000.0,
        limits__max_steps_per_round=20_000,
        service__max_wait_seconds=0.0,
    )


def wait_until_spent(folder, steps: int) -> None:
    end = time.monotonic() + 30
    while spent(folder) < steps:
        assert time.monotonic() < end
        time.sleep(0.01)


def slow_body(**changes) -> bytes:
    return body(noise_multiplier=1000.0, **changes)


def test_one_round_at_a_time_and_no_endless_waiting(slow):
    with served(slow) as (_, client):
        client.train_bytes(slow_body())
        answers = []
        with VaultClient(slow.path / SOCKET) as other:
            long = threading.Thread(target=lambda: answers.append(other.train_bytes(slow_body(round=1, steps=1500))))
            long.start()
            wait_until_spent(slow, 1500)  # it has begun
            with pytest.raises(VaultBusyError):
                client.train_bytes(slow_body(round=2))
            assert client.info()["num_records"] == 40  # this needs no turn
            assert status(slow.path)["rounds_lost"] == 1  # reserved, not released yet
            assert long.is_alive()
            long.join()
        assert steps_of(answers[0]) == 1500
        assert steps_of(client.train_bytes(slow_body(round=2))) == 2
    assert spent(slow) == 1504


def test_sigterm_lets_the_round_at_work_finish_and_store_its_answer(slow):
    with served(slow) as (process, client):
        with VaultClient(slow.path / SOCKET) as other:
            long = threading.Thread(target=lambda: _quietly(other, slow_body(steps=1000)))
            long.start()
            wait_until_spent(slow, 1000)
            os.kill(process.pid, signal.SIGTERM)
            assert process.wait() == 0
            long.join()
        with pytest.raises(VaultUnreachableError):
            client.info()
    assert not (slow.path / SOCKET).exists()
    with opened(slow) as vault:
        assert steps_of(vault.answer(slow_body(steps=1000))) == 1000
        assert vault.ledger.book.account.units == 1000


def _quietly(client: VaultClient, content: bytes) -> None:
    with suppress(VaultUnreachableError):
        client.train_bytes(content)


def test_only_the_owner_may_connect_unless_a_group_is_named(tmp_path):
    folder = made_vault(tmp_path)
    with served(folder):
        found = (folder.path / SOCKET).stat()
        assert stat.S_IMODE(found.st_mode) == 0o600
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    group = grp.getgrgid(os.getgid()).gr_name
    where = tmp_path / "public.sock"
    process = forked(tmp_path / "log", "vault", "serve", "--dir", folder.path, "--socket", where, "--group", group)
    try:
        with connected(where, process) as client:
            assert client.info()["num_records"] == 40
        assert stat.S_IMODE(where.stat().st_mode) == 0o660
        assert where.stat().st_gid == os.getgid()
    finally:
        process.kill()


def test_files_are_the_owners_alone(tmp_path):
    folder = made_vault(tmp_path)
    with opened(folder) as vault:
        vault.answer(body())
        with pytest.raises(VaultRefusedError):
            vault.answer(b"")
    for path in folder.path.rglob("*"):
        if path.name not in (".lock", "refusals.json"):  # these hold nothing private, and the folder protects them
            assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def test_a_served_vault_keeps_to_itself(tmp_path):
    """It writes no core file, which would hold records and the noise's key, and no file that others can read."""

    def careless():
        os.umask(0)
        hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
        resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))

    folder = made_vault(tmp_path)
    process = forked(tmp_path / "log", "vault", "serve", "--dir", folder.path, first=careless)
    try:
        with connected(folder.path / SOCKET, process) as client:
            assert resource.prlimit(process.pid, resource.RLIMIT_CORE) == (0, 0)
            assert re.search(r"^Umask:\s+0077$", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
            with pytest.raises(VaultRefusedError):
                client.train_bytes(b"")
            assert stat.S_IMODE((folder.path / REFUSALS).stat().st_mode) == 0o600
    finally:
        process.kill()


ASKED = b"GET / HTTP/1.1\r\nhost: vault\r\n\r\n"


def test_callers_that_do_not_ask_are_hung_up_on(tmp_path, monkeypatch):
    """Otherwise idle callers would take all connections. A caller that has asked is waited for."""
    monkeypatch.setattr(service_module, "_SECONDS_TO_SEND", 0.3)
    where = tmp_path / "s.sock"

    async def slow(_scope, receive, send):
        await asyncio.sleep(1.0)
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def called():
        server = uvicorn.Server(service_module._settings(slow))
        with listening(where, None) as ours:
            running = asyncio.create_task(server.serve(sockets=[ours]))
            while not server.started:
                await asyncio.sleep(0.01)
            callers = [await asyncio.open_unix_connection(where) for _ in range(3)]
            for (_, writer), said in zip(callers, (b"", b"GET / HTTP/1.1\r\n", ASKED), strict=True):
                writer.write(said)
            found = [await asyncio.wait_for(reader.read(12), 20) for reader, _ in callers]
            for _, writer in callers:
                writer.close()
                await writer.wait_closed()
            server.should_exit = True
            await running
            return found

    assert asyncio.run(called()) == [b"", b"", b"HTTP/1.1 204"]


def test_a_bug_of_ours_is_not_told(tmp_path, caplog):
    """The text of the error may quote a record."""

    def failing(content):
        raise RuntimeError("a record says 7")

    async def asked(app):
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://vault") as http:
            return await http.post("/v1/train", content=b"x")

    with opened(made_vault(tmp_path), object()) as vault:
        vault.answer = failing
        service = Service(vault)
        answer = asyncio.run(asked(service.app))
        service.stop()
    assert answer.status_code == 500
    told = answer.json()
    assert (set(told), told["code"]) == ({"code", "message"}, "failed")
    assert "7" not in told["message"]
    assert "RuntimeError" not in told["message"]
    assert "record says" not in caplog.text


def test_a_socket_is_not_taken_from_others(tmp_path):
    taken = tmp_path / "taken"
    taken.write_text("a file")
    with pytest.raises(ConfigError, match=str(taken)), listening(taken):
        pass
    assert taken.read_text() == "a file"
    with (
        listening(tmp_path / "s"),
        pytest.raises(ConfigError, match=f"--socket {tmp_path / 's'}"),
        listening(tmp_path / "s"),
    ):
        pass
    with pytest.raises(ConfigError, match="107"), listening(tmp_path / ("x" * 108)):
        pass
    with pytest.raises(ConfigError, match="no-such-group"), listening(tmp_path / "s", "no-such-group"):
        pass


def test_the_client_starts_without_torch():
    code = (
        "import sys; from alidpfl.vault.client import VaultClient; from alidpfl.vault import messages, refusals; "
        "print('torch' in sys.modules, 'dp_accounting' in sys.modules, 'starlette' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "False"]


def test_nobody_there(tmp_path):
    with VaultClient(tmp_path / "s") as client, pytest.raises(VaultUnreachableError, match=str(tmp_path / "s")):
        client.info()
