"""Real processes on loopback, with TLS and node keys: the same training, and no stranger gets in."""

import time

import pytest
import torch

from alidpfl.flower.demo.certificates import make_certificates
from alidpfl.flower.demo.loopback import Loopback, tail
from alidpfl.runs import execute
from alidpfl.store import RunDirectory

from .deployment import Reaper, app_folder, command_of, deployed, finished, rounds_done, spent, start_vault, trained
from .fakes import CLIENTS, config

SETTINGS = config(federation__max_rounds=3, run__name="compared")  # vaults key seeded noise by it


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    out = tmp_path_factory.mktemp("simulated") / "out"
    execute(SETTINGS, out)
    return RunDirectory.open(out)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    with deployed(tmp_path_factory.mktemp("deployment")) as loopback:
        yield loopback


def same_training(found: RunDirectory, expected: RunDirectory) -> None:
    assert [record.local_steps for record in found.records()] == [r.local_steps for r in expected.records()]
    assert found.records() == expected.records()
    ours, theirs = found.read_model()[0], expected.read_model()[0]
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_deployment_trains_what_the_simulation_trains_and_vaults_book_it(deployment, simulated):
    app = app_folder(deployment, settings=SETTINGS)
    deployment.submit(app)
    same_training(finished(deployment, app), simulated)
    steps = [record.local_steps for record in simulated.records()]
    for client in range(CLIENTS):
        told = spent(deployment, client)
        assert (told["units_spent"], told["rounds_released"], told["rounds_lost"]) == (sum(steps), len(steps), 0)
        assert told["epsilon_spent"] == pytest.approx(simulated.summary()["epsilon"])
        assert trained(deployment, client) == list(enumerate(steps))


def test_who_should_not_be_in_is_not_let_in(deployment, tmp_path):
    """A node with an unregistered key, without TLS, or with another authority is not let in."""
    strangers = tmp_path / "strangers"
    make_certificates(strangers, hosts=["127.0.0.1"], nodes=1)
    own = deployment.keys
    attempts = {
        90: ["--root-certificates", own / "ca.crt", "--auth-supernode-private-key", strangers / "node_1"],
        91: ["--insecure"],
        92: ["--root-certificates", strangers / "ca.crt", "--auth-supernode-private-key", own / "node_1"],
    }
    for number, trust in attempts.items():
        deployment.start_node(number, trust=[*trust, "--max-retries", "1"])
    for number in attempts:
        name = f"node-{number}"
        deployment.wait_until(name, lambda name=name: has_failed(deployment, name))
        assert "SuperNode ID" not in deployment.log(name).read_text()


def has_failed(deployment: Loopback, name: str) -> bool:
    """It has ended, or its log says that it cannot get in."""
    told = tail(deployment.log(name), 20_000).lower()
    return any(sign in told for sign in ("exit code", "certificate_verify_failed", "not registered", "unauthenticated"))


def test_a_run_survives_kills_of_vaults_and_of_the_server(deployment):
    settings = config(federation__max_rounds=4, method__policy="fixed", method__local_steps=2)
    reaper = Reaper(deployment, app_folder(deployment, settings, name="killed"), seed=1)
    deployment.submit(reaper.app)
    deployment.wait_until("run", lambda: rounds_done(reaper.app) >= 1)
    reaper.kill_vault()
    time.sleep(reaper.random.uniform(0, 4))
    reaper.kill_server()
    deployment.wait_until("run", lambda: rounds_done(reaper.app) >= 2)
    reaper.kill_vault()
    assert len(finished(deployment, reaper.app).records()) == 4
    assert reaper.kills == {"vault": 2, "server": 1, "node": 0}
    reaper.check(steps_asked=8)


@pytest.mark.slow
def test_a_hostile_node_is_refused_and_the_others_train_on(deployment):
    deployment.kill("serve-1")
    start_vault(deployment, 1, "lie")
    app = app_folder(deployment, config(federation__max_rounds=2), name="lied")
    deployment.submit(app)
    directory = finished(deployment, app)
    reasons = [record.rejected[1] for record in directory.records()]
    assert "not finite" in reasons[0]
    assert "longer" in reasons[1]
    assert all(record.aggregated for record in directory.records())
    assert all(torch.isfinite(values).all() for values in directory.read_model()[0].values())


@pytest.mark.slow
def test_flowers_own_simulator_trains_the_same(tmp_path, simulated):
    pytest.importorskip("ray", reason="Flower's simulator is not installed")
    with Loopback(tmp_path, nodes=CLIENTS, simulation=True) as loopback:
        loopback.start_superlink()
        app = app_folder(loopback, settings=SETTINGS, simulation=True)
        loopback.submit(app)
        same_training(finished(loopback, app), simulated)


def test_a_superlink_on_all_addresses_can_call_itself(tmp_path):
    """docs/how-to/deploy.md starts it so. If it cannot, its SuperExec ends at once, and no run ever starts."""
    keys = tmp_path / "named"
    make_certificates(keys, hosts=["superlink.example"], nodes=1)
    tls = [
        "--ssl-ca-certfile",
        keys / "ca.crt",
        "--ssl-certfile",
        keys / "server.pem",
        "--ssl-keyfile",
        keys / "server.key",
    ]
    with Loopback(tmp_path / "loopback", nodes=1) as loopback:
        address = ["--host", "0.0.0.0", "--port", str(loopback.port)]  # noqa: S104 - as deployed
        loopback.start("superlink", ["flower-superlink", *address, *tls, "--enable-supernode-auth"])
        loopback.wait_until("superlink", lambda: "Starting Flower SuperExec" in tail(loopback.log("superlink")))
        time.sleep(4)
        assert "CERTIFICATE_VERIFY_FAILED" not in loopback.log("superlink").read_text()
        assert any("flower-superexec" in command_of(process) for process in loopback.below("superlink"))


def test_nothing_of_it_is_left_when_it_is_stopped(tmp_path):
    with Loopback(tmp_path, nodes=1) as loopback:
        loopback.start_superlink()
        loopback.start("deep", ["bash", "-c", "setsid sleep 600 & sleep 600"])  # a group of its own, as Flower's have
        loopback.wait_until("deep", lambda: len(loopback.below("deep")) == 2)
        pids = [loopback._processes["superlink"].pid]
        pids += [process.pid for name in ("superlink", "deep") for process in loopback.below(name)]
    end = time.monotonic() + 20  # a killed process takes a moment to be gone, on busy cores a long one
    while (left := [pid for pid in pids if _is_alive(pid)]) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left


def _is_alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
