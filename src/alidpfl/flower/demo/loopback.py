"""A deployment on one machine, for trials and tests: SuperLink, SuperNodes and vaults, each in its own process."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from alidpfl.errors import AliDpflError
from alidpfl.flower.demo.certificates import AUTHORITY, CERTIFICATE, KEY, make_certificates
from alidpfl.vault.folder import SOCKET

CONNECTION = "loopback"

# Flower reports nothing, looks nothing up, installs nothing, and looks for work often.
_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
}
_ALIDPFL = (sys.executable, "-c", "from alidpfl.cli import main; main()")
_HOST = "127.0.0.1"
_SECONDS_TO_START, _SECONDS_TO_STOP, _POLL = 120.0, 5.0, 0.1


class LoopbackError(AliDpflError):
    """A process failed; the text names its log."""


class Loopback:
    """Starts processes. A context manager: leaving it ends every process that it started.

    Args:
        folder: gets keys, logs and Flower's own state.
        nodes: number of nodes that get a key.
        insecure: use no TLS and no node keys.
        simulation: start Flower's simulator in the SuperLink.
    """

    def __init__(self, folder: Path, *, nodes: int = 3, insecure: bool = False, simulation: bool = False) -> None:
        """Choose ports and folders; nothing starts yet.

        Args:
            folder: gets keys, logs and Flower's own state.
            nodes: number of nodes.
            insecure: True for no TLS and no node keys.
            simulation: True for Flower's simulator in place of nodes.
        """
        self.folder, self.nodes = folder.absolute(), nodes
        self._insecure, self._simulation = insecure or simulation, simulation
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port = free_port()
        self.keys, self._home = self.folder / "keys", self.folder / "flwr"
        programs = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
        own = {"FLWR_HOME": str(self._home), "XDG_STATE_HOME": str(self.folder / "state"), "PATH": programs}
        self.environment = {**os.environ, **_ENVIRONMENT, **own}  # a trial leaves nothing outside its folder

    def __enter__(self) -> "Loopback":
        self._home.mkdir(parents=True)
        self.folder.chmod(0o700)
        if not self._insecure:
            make_certificates(self.keys, hosts=[_HOST, "localhost"], nodes=self.nodes)
        address = f'[superlink.{CONNECTION}]\naddress = "{self.address}"\n'
        trust = "insecure = true\n" if self._insecure else f'root-certificates = "{self.keys / AUTHORITY}"\n'
        (self._home / "config.toml").write_text(address + trust, encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """Address of the SuperLink."""
        return f"{_HOST}:{self.port}"

    def start(self, name: str, command: Sequence[str | Path]) -> None:
        """Run a command in its own process group, with its output in `name`.log."""
        with open(self.log(name), "ab") as log:
            self._processes[name] = subprocess.Popen(  # noqa: S603 - our own commands
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self.environment,
                cwd=self.folder,
                start_new_session=True,
            )

    def log(self, name: str) -> Path:
        """Return the log file of a process."""
        return self.folder / f"{name}.log"

    def is_running(self, name: str) -> bool:
        """Return whether the process has not ended yet."""
        return name in self._processes and self._processes[name].poll() is None

    def kill(self, name: str) -> None:
        """Kill a process and its descendants by SIGKILL."""
        self._end(self._processes.pop(name), signal.SIGKILL)

    def below(self, name: str) -> list[psutil.Process]:
        """Return the descendants of a process."""
        return _descendants(self._processes[name].pid)

    def stop(self) -> None:
        """End all processes, the last one first."""
        below = [process for name in self._processes for process in self.below(name)]
        for running in reversed(self._processes.values()):
            _signal(running, signal.SIGTERM)
        while self._processes:
            self._end(self._processes.popitem()[1], None)
        _kill(below)

    def _end(self, process: subprocess.Popen[bytes], number: signal.Signals | None) -> None:
        below = _descendants(process.pid)  # some have their own groups, and notice its end only later
        if number is not None:
            _signal(process, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_STOP)
        _signal(process, signal.SIGKILL)
        process.wait()
        _kill(below)

    def wait_until(self, name: str, is_ready: Callable[[], bool], seconds: float = _SECONDS_TO_START) -> None:
        """Wait until a process is ready. Raise LoopbackError if it ends before, or takes too long."""
        end = time.monotonic() + seconds
        while not is_ready():
            has_ended = not self.is_running(name)
            if (has_ended and not is_ready()) or time.monotonic() > end:
                raise self.failure(name, "has ended" if has_ended else "takes too long")
            time.sleep(_POLL)

    def failure(self, name: str, what: str) -> LoopbackError:
        """Return the error for a process, with the end of its log."""
        return LoopbackError(f"{name} {what}; the end of {self.log(name)}:\n{tail(self.log(name))}")

    def start_superlink(self) -> None:
        """Start the SuperLink, with TLS and node keys unless the deployment is insecure."""
        keys = self.keys
        tls = ["--ssl-ca-certfile", keys / AUTHORITY, "--ssl-certfile", keys / CERTIFICATE, "--ssl-keyfile", keys / KEY]
        trust = ["--insecure"] if self._insecure else [*tls, "--enable-supernode-auth"]
        mode = ["--simulation"] if self._simulation else ["--database", self.folder / "superlink.db"]
        command = ["flower-superlink", "--host", _HOST, "--port", str(self.port), *trust, *mode]
        self.start("superlink", [*command, "--disable-runtime-dependency-installation"])
        self.wait_until("superlink", lambda: accepts(self.port))

    def register_nodes(self) -> None:
        """Register the nodes' public keys with the SuperLink."""
        for number in range(1, self.nodes + 1):
            self.flwr("supernode", "register", self.keys / f"node_{number}.pub", CONNECTION)

    def vault_folder(self, client: int) -> Path:
        """Return the folder of a client's vault."""
        return self.folder / f"vault-{client}"

    def start_vault(self, client: int) -> None:
        """Start to serve the vault in `vault_folder`, which must be enrolled. It takes a while to load."""
        self.start(f"serve-{client}", [*_ALIDPFL, "vault", "serve", "--dir", self.vault_folder(client)])

    def start_node(
        self, client: int, *, trust: Sequence[str | Path] | None = None, superlink: str | None = None
    ) -> None:
        """Start a SuperNode for a client's vault. It calls the SuperLink, or another address."""
        tls = ["--root-certificates", self.keys / AUTHORITY]
        safe = [*tls, "--auth-supernode-private-key", self.keys / f"node_{client + 1}"]
        settings = f'partition-id={client} vault-socket="{self.vault_folder(client) / SOCKET}"'
        command = ["flower-supernode", "--superlink", superlink or self.address, "--port", str(free_port())]
        how = trust if trust is not None else (["--insecure"] if self._insecure else safe)
        self.start(f"node-{client}", [*command, *how, "--node-config", settings])

    def alidpfl(self, *arguments: str | Path) -> str:
        """Return the output of our own command."""
        return self._output([*_ALIDPFL, *arguments])

    def flwr(self, *arguments: str | Path) -> str:
        """Return the output of Flower's command."""
        return self._output(["flwr", *arguments])

    def submit(self, app: Path) -> None:
        """Submit a run, and follow its log as the process "run". A run that was followed before goes on by itself."""
        if "run" in self._processes:
            self.kill("run")
        size = ["--federation-config", f"num-supernodes={self.nodes}"] if self._simulation else []
        self.start("run", ["flwr", "run", app, CONNECTION, "--stream", *size])

    def _output(self, command: Sequence[str | Path]) -> str:
        parts = [str(part) for part in command]
        done = subprocess.run(  # noqa: S603 - our own commands
            parts, env=self.environment, cwd=self.folder, capture_output=True, text=True, check=False
        )
        if done.returncode:
            told = (done.stdout + done.stderr)[-2000:]
            raise LoopbackError(f"{' '.join(parts)[:200]} ended with status {done.returncode}:\n{told}")
        return done.stdout


def tail(path: Path, num_bytes: int = 2000) -> str:
    """Return the end of a log."""
    return path.read_bytes()[-num_bytes:].decode(errors="replace") if path.exists() else ""


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # the group has ended
        os.killpg(process.pid, number)


def _descendants(pid: int) -> list[psutil.Process]:
    """Return children, their children, and so on, also those in their own sessions."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _kill(processes: Sequence[psutil.Process]) -> None:
    """Kill processes by SIGKILL. psutil skips a pid that another process has by now."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def free_port() -> int:
    """Return a port of this machine that is free now."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def accepts(port: int) -> bool:
    """Return whether a process listens on a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex((_HOST, port)) == 0
