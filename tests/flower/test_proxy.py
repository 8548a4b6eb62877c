"""The proxy of docs/how-to/deploy.md, a real nginx: nodes train through it, and nothing else gets in."""

import http.client
import shutil
import ssl
from pathlib import Path

import pytest

from alidpfl.flower.demo.loopback import CONNECTION, Loopback, LoopbackError, accepts, free_port
from tests.documents import fences

from .deployment import app_folder, finished, start_clients
from .fakes import CLIENTS, config

DEPLOY = Path(__file__).parents[2] / "docs" / "how-to" / "deploy.md"
INSIDE, OUTSIDE, KEYS = "127.0.0.1:8444", "listen 8443", "/etc/alidpfl"
SETTINGS = config(federation__max_rounds=2)

pytestmark = pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")


def documented_server(loopback: Loopback, port: int) -> str:
    """Return the page's nginx block with the ports and keys of this test."""
    (fence,) = (fence for fence in fences(DEPLOY.read_text(encoding="utf-8")) if fence.language == "nginx")
    text = "\n".join(fence.lines)
    for old, new in ((INSIDE, loopback.address), (OUTSIDE, f"listen {at(port)}"), (KEYS, str(loopback.keys))):
        assert old in text
        text = text.replace(old, new)
    return text


def start_proxy(loopback: Loopback) -> int:
    """Its port."""
    folder, port = loopback.folder / "nginx", free_port()
    folder.mkdir()
    bodies = "".join(
        f"{kind}_temp_path {folder}/{kind}; " for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; pid {folder}/pid; error_log stderr; events {{}}\n"
        f"http {{ access_log {folder}/access.log; {bodies}\n{documented_server(loopback, port)}\n}}\n"
    )
    loopback.start("proxy", ["nginx", "-e", "stderr", "-p", folder, "-c", folder / "nginx.conf"])
    loopback.wait_until("proxy", lambda: accepts(port))
    return port


def at(port: int) -> str:
    return f"127.0.0.1:{port}"


def answer(loopback: Loopback, port: int, path: str) -> int:
    """Return the status of a request. Its path is sent unchanged."""
    trust = ssl.create_default_context(cafile=loopback.keys / "ca.crt")
    connection = http.client.HTTPSConnection("127.0.0.1", port, context=trust, timeout=30)
    try:
        connection.request("POST", path, body=b"")
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.fixture(scope="module")
def behind(tmp_path_factory):
    """A deployment, its nodes in front of the proxy; and the proxy's port."""
    with Loopback(tmp_path_factory.mktemp("proxy"), nodes=CLIENTS) as loopback:
        loopback.start_superlink()
        port = start_proxy(loopback)
        start_clients(loopback, SETTINGS, superlink=at(port))
        yield loopback, port


def test_nodes_train_through_it(behind):
    loopback, _ = behind
    app = app_folder(loopback, SETTINGS)
    loopback.submit(app)
    records = finished(loopback, app).records()
    assert [len(record.client_epsilon) for record in records] == [CLIENTS, CLIENTS]
    assert not any(record.dropped or record.rejected for record in records)
    assert "/v1/fleet/push-messages" in (loopback.folder / "nginx" / "access.log").read_text()


def test_flowers_command_does_not_get_through_it(behind):
    loopback, port = behind
    file = Path(loopback.environment["FLWR_HOME"], "config.toml")
    inside = file.read_text()
    outside = inside.replace(f"[superlink.{CONNECTION}]", "[superlink.outside]").replace(loopback.address, at(port))
    file.write_text(inside + outside)
    assert loopback.flwr("supernode", "list", CONNECTION)
    with pytest.raises(LoopbackError, match="404"):
        loopback.flwr("supernode", "list", "outside")


@pytest.mark.parametrize("path", ["/v1/control/list-runs", "/v1/runtime/acquire-task"])
def test_no_spelling_of_a_path_gets_through_it(behind, path):
    loopback, port = behind
    assert answer(loopback, loopback.port, path) != 404  # otherwise the test would prove nothing
    name = path.removeprefix("/v1/")
    tricks = [
        path,
        f"/v1/fleet/../{name}",
        f"/v1/fleet/%2e%2e/{name}",
        f"/v1/fleet/..%2f{name}",
        f"/v1/fleet//../{name}",
        f"{path}/../../fleet/x",
        f"{path}%3f/../../fleet/x",
        f"{path}#/../../fleet/x",
        f"{path}%00/../../fleet/x",
        f"https://127.0.0.1:{loopback.port}{path}",
        path.upper(),
    ]
    answers = {trick: answer(loopback, port, trick) for trick in tricks}
    assert {trick: status for trick, status in answers.items() if status not in (400, 404)} == {}
