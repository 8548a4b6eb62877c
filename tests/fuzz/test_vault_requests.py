"""Bytes over the real socket, hardly HTTP, or HTTP around hardly a request: the vault lives, and nothing is free."""

import json
import socket
import time

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

from alidpfl.vault.folder import SOCKET, status
from alidpfl.vault.messages import decode_answer
from alidpfl.vault.refusals import RefusalCode, VaultBusyError, VaultRefusedError
from tests.vault.parts import body, made_vault, opened, request, served, weights
from tests.vault.test_queries import asked, evaluating

from .damage import damaged, edited
from .harness import check_text, examples

_SECONDS = 10
_PATIENCE = 1.0  # for the first byte of an answer: a request that was cut off gets none


@pytest.fixture(scope="module")
def vault(tmp_path_factory):
    """One vault for all of it, and the answers it gave by round."""
    folder = made_vault(tmp_path_factory.mktemp("served"), budget__epsilon=500.0, service__keep_answers=10_000)
    with served(folder) as (process, client):
        yield folder, process, client, {}


def _sent(folder, content: bytes, patience: float = _PATIENCE) -> bytes:
    """What comes back over a connection of its own, until the vault closes it. Both ways stay open: it answers so."""
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(_SECONDS)
        caller.connect(str(folder.path / SOCKET))
        received = b""
        try:
            caller.sendall(content)
            caller.settimeout(patience)
            while piece := caller.recv(1 << 16):
                received += piece
        except (BrokenPipeError, ConnectionResetError, TimeoutError):  # it has hung up, or waits for more
            pass
        return received


def _http(content: bytes, *headers: str) -> bytes:
    head = ("POST /v1/train HTTP/1.1", "Host: vault", "Connection: close", f"Content-Length: {len(content)}", *headers)
    return "\r\n".join((*head, "", "")).encode() + content


def _check(vault, received: bytes) -> None:
    folder, process, client, answers = vault
    head, _, content = received.partition(b"\r\n\r\n")
    if b" 200 " in head.partition(b"\r\n")[0] and b"octet-stream" in head:
        if b"alidpfl-vault-released-1" in content:  # to a query; its account is looked at below
            return
        told, _ = decode_answer(content)
        assert answers.setdefault((told.run, told.round), (content, told.steps))[0] == content
    elif content.startswith(b"{"):
        values = json.loads(content)
        check_text(values.get("message", "it is /v1/info"))
    assert b"Traceback" not in received
    assert process.is_running()
    assert "Traceback" not in process.log.read_text()
    charged = status(folder.path)
    assert charged["units_spent"] >= sum(steps for _, steps in answers.values())
    assert _asked_until_free(client)["num_records"] == 40


def _asked_until_free(client):
    """A request that was cut off may hold its place until the vault has waited long enough for the rest."""
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            return client.info()
        except VaultBusyError:
            assert time.monotonic() < deadline, "the vault stays busy"
            time.sleep(0.1)


def test_what_comes_back_is_looked_at(vault):
    """Of this file: an honest request is answered and charged, its replay is the same, garbage is refused in words."""
    folder, _, _, answers = vault
    asked, before = _http(body(run="honest", round=0, steps=1)), status(folder.path)["units_spent"]
    for _ in range(2):
        received = _sent(folder, asked, _SECONDS)
        assert received.startswith(b"HTTP/1.1 200 ")
        _check(vault, received)
    assert ("honest", 0) in answers
    assert status(folder.path)["units_spent"] == before + 1
    refused = _sent(folder, _http(b"garbage"), _SECONDS)
    assert json.loads(refused.partition(b"\r\n\r\n")[2])["message"]
    _check(vault, refused)


# Every request is of a run of its own: of one run, rounds only grow, and most would be refused for that alone.
@examples(12)
@given(data=st.data(), number=st.integers(0, 10_000))
def test_damaged_http(vault, data, number):
    _check(vault, _sent(vault[0], data.draw(damaged(_http(body(run=f"r{number}", steps=1))))))


@examples(12)
@given(data=st.data(), number=st.integers(0, 10_000))
def test_damaged_bodies(vault, data, number):
    _check(vault, _sent(vault[0], _http(data.draw(damaged(body(run=f"r{number}", steps=1))))))


@examples(12)
@given(data=st.data(), number=st.integers(0, 10_000))
def test_edited_requests(vault, data, number):
    values = data.draw(edited(request(run=f"r{number}", steps=1).model_dump()))
    content = safetensors.numpy.save(weights(), {"alidpfl": json.dumps(values)})
    _check(vault, _sent(vault[0], _http(content)))


@pytest.fixture(scope="module")
def evaluating_vault(tmp_path_factory):
    """A vault of a table that answers queries, in this process."""
    folder = evaluating(tmp_path_factory.mktemp("queries"), limits__max_queries=10_000, budget__epsilon=50.0)
    with opened(folder) as found:
        yield found


@examples(40)
@given(data=st.data(), number=st.integers(0, 1_000_000))
def test_damaged_and_edited_queries(evaluating_vault, data, number):
    """An answer is charged to the held-out rows. A refusal has a code and a text, and costs nothing."""
    vault = evaluating_vault
    content = asked(vault, run=f"r{number}", noise_multiplier=50.0)
    end = 8 + int.from_bytes(content[:8], "little")
    values = json.loads(json.loads(content[8:end])["__metadata__"]["alidpfl"])
    if data.draw(st.booleans()):
        content = data.draw(damaged(content))
    else:
        named = {name: np.zeros(shape, np.float32) for name, shape in vault.enrolment.shapes.items()}
        content = safetensors.numpy.save(named, {"alidpfl": json.dumps(data.draw(edited(values)))})
    before, code = len(vault.ledger.book.charged("held_out")), None
    try:
        vault.answer(content)
    except VaultRefusedError as error:
        check_text(str(error))
        code = error.code
    assert code is not RefusalCode.FAILED
    charged = len(vault.ledger.book.charged("held_out")) - before
    assert charged in ((0, 1) if code is None else (0,))  # a replay costs nothing
    assert vault.ledger.book.account.units == 0
    assert vault.ledger.book.filters["held_out"].spent <= vault.ledger.book.filters["held_out"].limit


@pytest.mark.parametrize(
    "headers",
    [
        ("Content-Length: 99999999999999999999",),
        ("Content-Length: -1",),
        ("Content-Length: 5\r\nContent-Length: 900",),
        ("Transfer-Encoding: chunked",),
        ("Transfer-Encoding: gzip, chunked", "Content-Length: 5"),
        ("X: " + "y" * 100_000,),
        (*(f"X{number}: y" for number in range(5000)),),
        ("Expect: 100-continue",),
        ("Upgrade: websocket", "Connection: Upgrade"),
    ],
)
def test_headers_that_lie(vault, headers):
    _check(vault, _sent(vault[0], _http(body(run="headers", steps=1), *headers)))
    lying = "\r\n".join(("POST /v1/train HTTP/1.1", "Host: v", *headers, "", "")).encode() + b"5\r\nabc"
    _check(vault, _sent(vault[0], lying))
