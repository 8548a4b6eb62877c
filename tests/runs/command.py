"""The command `alidpfl run` for tests: in this process, or in a forked one that can be killed."""

import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from alidpfl.runs import Config, load_config

BASE = {
    "data.name": "synthetic",
    "data.clients": 4,
    "model.name": "linear",
    "privacy.accountant": "rdp",
    "privacy.sample_rate": 0.1,
    "method.learning_rate": 1.0,
    "federation.max_rounds": 6,
    "run.evaluate_every": 3,
    "run.processes": 1,
}
ADAP = {"method.name": "adap_dpfl", "data.validation": 0.1, "method.local_steps": 2, "method.options.noise_decay": 0.9}


def overrides(**changes) -> list[str]:
    """As after --set; `data__clients` stands for data.clients."""
    named = {key.replace("__", "."): value for key, value in changes.items()}
    return [f"{key}={_toml(value)}" for key, value in {**BASE, **named}.items()]


def config(**changes) -> Config:
    return load_config(overrides=overrides(**changes))


def run_arguments(out: Path, **changes) -> list[str]:
    return ["run", *(part for one in overrides(**changes) for part in ("--set", one)), "--out", str(out)]


def alidpfl(*arguments):
    """The command in this process: exit_code, stdout, stderr."""
    from typer.testing import CliRunner

    from alidpfl.cli import app

    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    return result


@dataclass
class Forked:
    """The command in a process of its own, forked so that it need not import torch again."""

    pid: int
    log: Path
    status: int | None = None

    def wait(self, seconds: float = 60) -> int:
        """Its exit status; that of a kill is negative."""
        end = time.monotonic() + seconds
        while self.status is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            if found:
                self.status = os.waitstatus_to_exitcode(status)
            elif time.monotonic() > end:
                self.kill()
                raise TimeoutError(self.log.read_text())
            else:
                time.sleep(0.002)
        return self.status

    def is_running(self) -> bool:
        if self.status is None:
            found, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = os.waitstatus_to_exitcode(status) if found else None
        return self.status is None

    def kill(self) -> None:
        if self.is_running():
            os.kill(self.pid, signal.SIGKILL)
            self.wait()

    def wait_for_rounds(self, out: Path, rounds: int) -> None:
        """Until so many rounds are on the disk, or it has ended."""
        end = time.monotonic() + 60
        while self.is_running() and num_rounds(out) < rounds:
            assert time.monotonic() < end, self.log.read_text()
            time.sleep(0.001)


def forked(log: Path, *arguments, first=lambda: None) -> Forked:
    """The command, after `first()`, in a fork of this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        return Forked(pid, log)
    status = 1
    try:  # in the child, which must never return into pytest
        descriptor = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.argv = ["alidpfl", *map(str, arguments)]
        from alidpfl.cli import main

        first()
        main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # shown by the parent
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def num_rounds(out: Path) -> int:
    try:
        return (out / "metrics.jsonl").read_bytes().count(b"\n")
    except FileNotFoundError:
        return 0


def _toml(value) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)
