"""`alidpfl flower init` and `certs`."""

import ssl
import stat
import tomllib
from contextlib import suppress

import pytest
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

from alidpfl.flower.config import from_run_config
from tests.runs.command import alidpfl


def flat(table, prefix=""):
    found = {}
    for key, value in table.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


def test_init_writes_settings_that_read_back(tmp_path):
    (tmp_path / "run.toml").write_text('[data]\nname = "synthetic"\nclients = 4\n[privacy]\nepsilon = 3.0\n')
    made = alidpfl("flower", "init", tmp_path / "app", "--config", tmp_path / "run.toml", "--set", "seed=9")
    assert made.exit_code == 0, made.stderr
    app = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    config, options = from_run_config(flat(app["config"]))
    assert (config.privacy.epsilon, config.run.seed, config.data.clients, options.nodes) == (3.0, 9, 4, 4)
    assert app["components"] == {"serverapp": "alidpfl.flower.apps:server", "clientapp": "alidpfl.flower.apps:client"}


@pytest.mark.parametrize(
    ("arguments", "weight", "ratio"),
    [
        ((), 0.5, 3.0),
        (("--set", "federation.max_client_weight=0.9"), 0.9, 3.0),
        (("--set", "federation.max_size_ratio=7"), 0.5, 7.0),
        (("--simulation",), None, None),
    ],
)
def test_init_caps_the_weight_of_a_node_whose_size_nobody_can_check(tmp_path, arguments, weight, ratio):
    assert alidpfl("flower", "init", tmp_path / "app", *arguments).exit_code == 0
    app = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    federation = from_run_config(flat(app["config"]))[0].federation
    assert (federation.max_client_weight, federation.max_size_ratio) == (weight, ratio)


def test_init_writes_over_nothing(tmp_path):
    assert alidpfl("flower", "init", tmp_path / "app").exit_code == 0
    again = alidpfl("flower", "init", tmp_path / "app")
    assert again.exit_code == 2
    assert str(tmp_path / "app" / "pyproject.toml") in again.stderr


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Flower's own
def test_flower_builds_the_folder(tmp_path):
    from flwr.cli.build import build_fab_from_disk
    from flwr.common.config import get_fused_config_from_dir, validate_config

    alidpfl("flower", "init", tmp_path / "app")
    text = (tmp_path / "app" / "pyproject.toml").read_text()
    assert build_fab_from_disk(tmp_path / "app")
    assert validate_config(tomllib.loads(text)) == (True, [], [])  # nothing missing, nothing to warn of
    # As the file's header says, Flower lets a single run change only keys of the file.
    assert get_fused_config_from_dir(tmp_path / "app", {"privacy.epsilon": 1.0})["privacy.epsilon"] == 1.0
    with pytest.raises(ValueError, match=r"privacy\.noise_multiplier"):
        get_fused_config_from_dir(tmp_path / "app", {"privacy.noise_multiplier": 1.1})


def test_certs_are_a_chain_that_openssl_and_python_accept(tmp_path):
    made = alidpfl("flower", "certs", tmp_path / "keys", "--nodes", 2, "--host", "127.0.0.1", "--host", "link.example")
    assert made.exit_code == 0, made.stderr
    keys = tmp_path / "keys"
    context = ssl.create_default_context(cafile=str(keys / "ca.crt"))
    assert context.verify_mode == ssl.CERT_REQUIRED
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(keys / "server.pem", keys / "server.key")
    assert _handshake(server, context, "link.example") == "ok"
    assert "mismatch" in _handshake(server, context, "other.example")


@pytest.mark.parametrize("hosts", [[], ["--host", "link.example"]])
def test_certs_always_cover_the_machine_itself(tmp_path, hosts):
    """A SuperLink on 0.0.0.0 calls itself at 127.0.0.1, and on :: at ::1. If that fails, no run starts."""
    assert alidpfl("flower", "certs", tmp_path / "keys", "--nodes", 1, *hosts).exit_code == 0
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "keys" / "server.pem", tmp_path / "keys" / "server.key")
    context = ssl.create_default_context(cafile=str(tmp_path / "keys" / "ca.crt"))
    for host in ("127.0.0.1", "::1", "localhost", *hosts[1:]):
        assert _handshake(server, context, host) == "ok"


def _handshake(server, context, host) -> str:
    """TLS between two memory buffers."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    ours = context.wrap_bio(to_client, to_server, server_hostname=host)
    for _ in range(5):
        try:
            ours.do_handshake()
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLCertVerificationError as error:
            return str(error)
        else:
            return "ok"
        with suppress(ssl.SSLWantReadError):
            theirs.do_handshake()
    return "no end"


def test_private_keys_are_the_owners_alone(tmp_path):
    alidpfl("flower", "certs", tmp_path / "keys", "--nodes", 1)
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o700
    for name in ("ca.key", "server.key", "node_1"):
        assert stat.S_IMODE((tmp_path / "keys" / name).stat().st_mode) == 0o600
    private = load_ssh_private_key((tmp_path / "keys" / "node_1").read_bytes(), None)
    public = load_ssh_public_key((tmp_path / "keys" / "node_1.pub").read_bytes())
    assert private.public_key() == public
    assert private.curve.name == "secp384r1"


@pytest.mark.parametrize("arguments", [["--nodes", "0"], ["--host", "ünsinn.example"]])
def test_certs_refuses_what_makes_no_certificate(tmp_path, arguments):
    assert alidpfl("flower", "certs", tmp_path / "keys", *arguments).exit_code == 2


def test_certs_writes_over_nothing(tmp_path):
    alidpfl("flower", "certs", tmp_path / "keys")
    before = (tmp_path / "keys" / "ca.key").read_bytes()
    assert alidpfl("flower", "certs", tmp_path / "keys").exit_code == 2
    assert (tmp_path / "keys" / "ca.key").read_bytes() == before


def test_what_nodes_cannot_run_is_refused_before_it_is_submitted(tmp_path):
    for arguments, why in (
        (["--nodes", "0"], "--nodes=0 "),
        (["--set", "model.name=scatter_linear"], "scatter_linear"),
        (["--set", "federation.dropout_rate=0.5"], "federation.dropout_rate"),
    ):
        done = alidpfl("flower", "init", tmp_path / "app", *arguments)
        assert (done.exit_code, why in done.stderr) == (2, True), done.stderr
        assert not (tmp_path / "app").exists()


def test_a_guessed_heterogeneity_is_told(tmp_path):
    assert "method.heterogeneity=5" in alidpfl("flower", "init", tmp_path / "a", "--nodes", "3").stderr
    told = alidpfl("flower", "init", tmp_path / "b", "--nodes", "3", "--set", "method.heterogeneity=1")
    assert (told.exit_code, told.stderr) == (0, "")
