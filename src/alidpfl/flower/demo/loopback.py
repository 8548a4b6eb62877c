"""A whole deployment on one machine: SuperLink, SuperNodes, vaults, each in a process. For trying out and tests."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from alidpfl.errors import AliDpflError
from alidpfl.flower.demo.certificates import AUTHORITY, CERTIFICATE, KEY, make_certificates
from alidpfl.flower.demo.processes import Process, descendants
from alidpfl.vault.folder import SOCKET

CONNECTION = "loopback"
ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
}
"""Nothing is reported, looked up or installed, and a process that waits for work looks for it often."""

_HOST = "127.0.0.1"
_SECONDS_TO_START = 120.0
_SECONDS_TO_STOP = 5.0
_POLL = 0.1


class LoopbackError(AliDpflError):
    """A process did not do what it was started for; its log is named."""


class Loopback:
    """Starts processes and ends every one that it started. A context manager."""

    def __init__(self, folder: Path, *, nodes: int = 3, insecure: bool = False, simulation: bool = False) -> None:
        """Nothing is started yet. `folder` gets keys, logs and Flower's own state; `insecure`: no TLS, no keys."""
        self.folder, self.nodes = folder.absolute(), nodes
        self._insecure, self._simulation = insecure or simulation, simulation
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.port = free_port()
        self.keys, self._home = self.folder / "keys", self.folder / "flwr"
        bin_folder = str(Path(sys.executable).parent)
        self.environment = {
            **os.environ,
            **ENVIRONMENT,
            "FLWR_HOME": str(self._home),
            "PATH": os.pathsep.join([bin_folder, os.environ.get("PATH", os.defpath)]),
        }

    def __enter__(self) -> "Loopback":
        self._home.mkdir(parents=True)
        self.folder.chmod(0o700)
        if not self._insecure:
            make_certificates(self.keys, hosts=[_HOST, "localhost"], nodes=self.nodes)
        address = f'[superlink.{CONNECTION}]\naddress = "{self.address}"\n'
        trust = "insecure = true\n" if self._insecure else f'root-certificates = "{self.keys / AUTHORITY}"\n'
        (self._home / "config.toml").write_text(address + trust, encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def address(self) -> str:
        """Of the SuperLink."""
        return f"{_HOST}:{self.port}"

    # ------------------------------------------------------------------------------------------------- processes

    def start(self, name: str, command: Sequence[str | Path], environment: Mapping[str, str] | None = None) -> int:
        """Run a command in a process group of its own, with its output in `name`.log; its pid."""
        with open(self.log(name), "ab") as log:
            self._processes[name] = subprocess.Popen(  # noqa: S603 - our own commands
                [str(part) for part in command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**self.environment, **(environment or {})},
                cwd=self.folder,
                start_new_session=True,
            )
        return self._processes[name].pid

    def log(self, name: str) -> Path:
        """Where a process writes."""
        return self.folder / f"{name}.log"

    def is_running(self, name: str) -> bool:
        """True until the process has ended."""
        return name in self._processes and self._processes[name].poll() is None

    def pid(self, name: str) -> int:
        """Of a process that was started."""
        return self._processes[name].pid

    def kill(self, name: str) -> None:
        """By SIGKILL, the process and what it started."""
        self._end(self._processes.pop(name), signal.SIGKILL)

    def below(self, name: str) -> list[Process]:
        """What a process started, and what that started."""
        return descendants(self._processes[name].pid)

    def stop(self) -> None:
        """End all that were started, the last one first."""
        below = [process for name in self._processes for process in self.below(name)]
        for running in reversed(self._processes.values()):
            _signal(running, signal.SIGTERM)
        while self._processes:
            self._end(self._processes.popitem()[1], None)
        for process in below:
            process.kill()

    def _end(self, process: subprocess.Popen[bytes], number: signal.Signals | None) -> None:
        below = descendants(process.pid)  # some have groups of their own, and notice only later that it is gone
        if number is not None:
            _signal(process, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_SECONDS_TO_STOP)
        _signal(process, signal.SIGKILL)
        process.wait()
        for left in below:
            left.kill()

    def wait_until(self, name: str, is_ready: Callable[[], bool], seconds: float = _SECONDS_TO_START) -> None:
        """Until the process is ready; an error with the end of its log if it dies or takes too long."""
        end = time.monotonic() + seconds
        while not is_ready():
            has_ended = not self.is_running(name)
            if (has_ended and not is_ready()) or time.monotonic() > end:
                what = "has ended" if has_ended else "takes too long"
                raise LoopbackError(f"{name} {what}; the end of {self.log(name)}:\n{tail(self.log(name))}")
            time.sleep(_POLL)

    # ---------------------------------------------------------------------------------------------------- roles

    def start_superlink(self) -> None:
        """With TLS, where nodes are known by their keys, unless it was to be insecure."""
        keys = self.keys
        tls = ["--ssl-ca-certfile", keys / AUTHORITY, "--ssl-certfile", keys / CERTIFICATE, "--ssl-keyfile", keys / KEY]
        trust = ["--insecure"] if self._insecure else [*tls, "--enable-supernode-auth"]
        mode = ["--simulation"] if self._simulation else ["--database", self.folder / "superlink.db"]
        command = ["flower-superlink", "--host", _HOST, "--port", str(self.port), *trust, *mode]
        self.start("superlink", [*command, "--disable-runtime-dependency-installation"])
        self.wait_until("superlink", lambda: accepts(self.port))

    def register_nodes(self) -> None:
        """Tell the SuperLink the nodes' public keys."""
        for number in range(1, self.nodes + 1):
            self.flwr("supernode", "register", self.keys / f"node_{number}.pub", CONNECTION)

    def vault_folder(self, client: int) -> Path:
        """Where a client's vault is enrolled."""
        return self.folder / f"vault-{client}"

    def start_vault(self, client: int) -> None:
        """Serve the vault in `vault_folder`, which must be enrolled; it needs a while to load."""
        folder = self.vault_folder(client)
        self.start(f"serve-{client}", [*_alidpfl(), "vault", "serve", "--dir", folder])

    def wait_for_vault(self, client: int) -> None:
        """Until it answers."""
        self.wait_until(f"serve-{client}", lambda: _listens(self.vault_folder(client) / SOCKET))

    def start_node(
        self, client: int, *, trust: Sequence[str | Path] | None = None, superlink: str | None = None
    ) -> None:
        """A SuperNode in front of a client's vault; it calls the SuperLink, or what stands at another address."""
        tls = ["--root-certificates", self.keys / AUTHORITY]
        safe = [*tls, "--auth-supernode-private-key", self.keys / f"node_{client + 1}"]
        settings = f'partition-id={client} vault-socket="{self.vault_folder(client) / SOCKET}"'
        command = ["flower-supernode", "--superlink", superlink or self.address, "--port", str(free_port())]
        how = trust if trust is not None else (["--insecure"] if self._insecure else safe)
        self.start(f"node-{client}", [*command, *how, "--node-config", settings])

    # ------------------------------------------------------------------------------------------------ commands

    def alidpfl(self, *arguments: str | Path) -> str:
        """Output of our own command."""
        return self._output([*_alidpfl(), *arguments])

    def flwr(self, *arguments: str | Path) -> str:
        """Output of Flower's command."""
        return self._output(["flwr", *arguments])

    def submit(self, app: Path) -> None:
        """Start a run, and follow its log as the process "run"; one that is followed already goes on by itself."""
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
    """The end of a log."""
    return path.read_bytes()[-num_bytes:].decode(errors="replace") if path.exists() else ""


def _alidpfl() -> list[str]:
    return [sys.executable, "-c", "from alidpfl.cli import main; main()"]


def _signal(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):  # the group is gone
        os.killpg(process.pid, number)


def free_port() -> int:
    """A port of this machine that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def accepts(port: int) -> bool:
    """Whether somebody listens there."""
    with socket.socket() as probe:
        return probe.connect_ex((_HOST, port)) == 0


def _listens(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0
