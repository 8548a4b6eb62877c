"""The command `doctor`: check the installation. Each check looks at one thing and says what to do about it."""

import ctypes
import importlib.metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from alidpfl._version import __version__
from alidpfl.cli.options import AsJson
from alidpfl.cli.progress import wide_console
from alidpfl.data.directories import user_cache

_STYLES = {"good": "green", "advice": "yellow", "broken": "bold red"}
_EXTRAS = {
    "vault": ("owners' records and ledgers (`alidpfl vault`)", "httpx, starlette.applications, uvicorn"),
    "flower": ("deployments (`alidpfl flower`)", "flwr.app, flwr.clientapp, flwr.serverapp"),
    "report": ("figures (`--plot`)", "matplotlib.figure"),
    "tensorboard": ("`alidpfl run --tensorboard`", "tensorboard.summary.writer.event_file_writer"),
}
"""Purpose and modules of each extra. They must import: another package may have replaced something they need."""
_FLOWER_PROGRAMS = ("flwr", "flower-superlink", "flower-supernode")
_IMPORT_TIMEOUT = 120.0
_MALLOC_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
_OTHER_MALLOCS = ("jemalloc", "tcmalloc", "mimalloc")
_LEAST_THRESHOLD = 32 << 20  # malloc's thresholds in workers
_LEAST_FREE_BYTES = 1 << 30
_WITHOUT_KERNELS = "without them PyTorch computes the same, in up to 1.4 times the time"


class State(StrEnum):
    """The result of a check."""

    GOOD = "good"
    ADVICE = "advice"
    """It works, but could be better."""
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    """A check's finding, and what to do about it."""

    what: str
    state: State
    seen: str
    remedy: str = ""


def doctor(as_json: AsJson = False) -> None:
    """Check the installation, and say what to do about problems.

    Exit status 0: it works, perhaps with advice; 1: something is broken.

    Example:
      alidpfl doctor
    """
    with Console(stderr=True).status("checking the installation"):
        findings = list(examine())
    if as_json:
        typer.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        table = Table("what", "state", "finding, and what to do", title="alidpfl doctor")
        for finding in findings:
            seen = f"{finding.seen}\n-> {finding.remedy}" if finding.remedy else finding.seen
            table.add_row(finding.what, Text(finding.state, style=_STYLES[finding.state]), Text(seen))
        wide_console().print(table)
    if any(finding.state is State.BROKEN for finding in findings):
        raise typer.Exit(1)


def examine() -> Iterator[Finding]:
    """Run every check. A check that fails unexpectedly is a finding too."""
    for check in (_versions, _torch, _kernels, _malloc, _step, _cache, _data, _extras, _flower_programs):
        try:
            yield from check()
        except Exception as error:
            name = check.__name__.strip("_")
            yield Finding(name, State.BROKEN, f"{type(error).__name__}: {error}", "reinstall alidpfl")


def _versions() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    seen = f"{__version__}, Python {platform.python_version()}, {cores} cores, in {Path(__file__).parents[1]}"
    yield Finding("alidpfl", State.GOOD, seen)


def _torch() -> Iterator[Finding]:
    import torch

    seen = f"{torch.__version__}, {torch.get_num_threads()} threads"
    if torch.version.cuda is None:
        yield Finding("PyTorch", State.GOOD, f"{seen}, CPU build")
    elif torch.cuda.is_available():
        yield Finding("PyTorch", State.GOOD, f"{seen}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name()}")
    else:
        remedy = "optional: install torch from PyTorch's CPU index, which is gigabytes smaller"
        yield Finding("PyTorch", State.ADVICE, f"{seen}, CUDA {torch.version.cuda}, without a GPU", remedy)


def _kernels() -> Iterator[Finding]:
    from alidpfl.dpsgd import native

    if native.is_available():
        yield Finding("native kernels", State.GOOD, native.instruction_set())
    elif os.environ.get("ALIDPFL_NATIVE") == "0":
        yield Finding("native kernels", State.ADVICE, "switched off by ALIDPFL_NATIVE=0", "unset it")
    elif (path := native.library_file()) is not None:
        remedy = f"it is damaged or for another machine: delete it and reinstall alidpfl; {_WITHOUT_KERNELS}"
        yield Finding("native kernels", State.ADVICE, f"{path} does not load: {_load_error(path)}", remedy)
    else:
        remedy = f"install a C compiler (gcc), then reinstall alidpfl; {_WITHOUT_KERNELS}"
        yield Finding("native kernels", State.ADVICE, "not built: PyTorch is used instead", remedy)


def _load_error(path: Path) -> str:
    try:
        ctypes.CDLL(str(path))
    except OSError as error:
        return str(error).removeprefix(f"{path}: ")
    return "it was replaced"  # it loads now


def _malloc() -> Iterator[Finding]:
    maps = Path("/proc/self/maps")
    loaded = maps.read_text(errors="replace") if maps.exists() else ""
    if other := [name for name in _OTHER_MALLOCS if name in loaded]:
        yield Finding("malloc", State.GOOD, other[0])
    elif "libc.so" not in loaded:
        yield Finding("malloc", State.GOOD, "not that of glibc")
    elif small := [name for name in _MALLOC_VARIABLES if _number_in(name) < _LEAST_THRESHOLD]:
        given = " ".join(f"{name}={os.environ[name]}" for name in small if name in os.environ)
        settings = " ".join(f"{name}={1 << 30}" for name in _MALLOC_VARIABLES)
        remedy = f"steps in one process may take a third less time with {settings}; workers and vaults set it"
        seen = f"glibc's {f'with {given}' if given else 'default'}, which gives large blocks back"
        yield Finding("malloc", State.ADVICE, seen, remedy)
    else:
        yield Finding("malloc", State.GOOD, "glibc's, which keeps large blocks")


def _number_in(variable: str) -> int:
    """Return the number, or 0 for other text, which glibc ignores too."""
    try:
        return int(os.environ.get(variable, "0"), 0)
    except ValueError:
        return 0


def _step() -> Iterator[Finding]:
    """Make a private step, with the kernels if there are any. The clipper compares itself with plain autograd."""
    import torch

    from alidpfl.dpsgd import PerSampleClipper, RandomStream, StepSettings, dp_sgd_step
    from alidpfl.models import make_model

    model = make_model("compact_cnn", (1, 28, 28), 10, hidden=8, seed=0)
    settings = StepSettings(clip_norm=1.0, noise_multiplier=1.0, learning_rate=0.1, expected_batch_size=4.0)
    inputs, targets = torch.zeros(4, 1, 28, 28), torch.arange(4)
    found = dp_sgd_step(PerSampleClipper(model), inputs, targets, settings, RandomStream.secure())
    is_finite = all(bool(part.isfinite().all()) for part in found.noised_sum.values())
    result = (State.GOOD, "") if is_finite else (State.BROKEN, "try ALIDPFL_NATIVE=0, and report it")
    yield Finding("a private step", result[0], "sampled, clipped, noised with secure randomness", result[1])


def _cache() -> Iterator[Finding]:
    folder = user_cache()
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    remedy = "set XDG_CACHE_HOME to a writable folder on a disk with space"
    free = shutil.disk_usage(there).free
    try:  # to write a file: root has the permissions on a read-only disk too
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"x")
    except OSError as error:
        yield Finding("cache", State.BROKEN, f"{folder} cannot be written: {error.strerror or error}", remedy)
        return
    if free < _LEAST_FREE_BYTES:
        yield Finding("cache", State.ADVICE, f"{folder}: {free / 1e6:.0f} MB free", remedy)
    else:
        yield Finding("cache", State.GOOD, f"{folder}, {free / 1e9:.0f} GB free")


def _data() -> Iterator[Finding]:
    from alidpfl.data.directories import DATA_DIR_VARIABLE, inventory

    first = ""
    if named := os.environ.get(DATA_DIR_VARIABLE):
        wrong = _problem_with(Path(named))
        remedy = f"set {DATA_DIR_VARIABLE} to the folder of the data sets, or unset it" if wrong else ""
        state = State.GOOD if not wrong else State.BROKEN if Path(named).exists() else State.ADVICE
        yield Finding("data directory", state, f"{DATA_DIR_VARIABLE}={named}{wrong}", remedy)
        if wrong and Path(named).is_dir():  # it cannot be read
            return
        first = f"first correct {DATA_DIR_VARIABLE}; then " if wrong else ""
    states = {"missing": State.ADVICE, "corrupt": State.BROKEN}
    for entry in inventory():
        if entry.kind == "real":
            state, remedy = states.get(entry.state, State.GOOD), first + entry.note if entry.note else ""
            yield Finding(f"data: {entry.name}", state, entry.folder or entry.state, remedy)


def _problem_with(folder: Path) -> str:
    if not folder.exists():
        return " does not exist"
    if not folder.is_dir():
        return " is a file, not a folder"
    return "" if os.access(folder, os.R_OK | os.X_OK) else " cannot be read"


def _extras() -> Iterator[Finding]:
    for extra, (purpose, modules) in _EXTRAS.items():
        install = f"for {purpose}, in a clone of alidpfl: pip install -c constraints.txt '.[{extra}]'"
        missing = [needed for needed in _needed_by(extra) if not _is_installed(needed)]
        if missing:
            yield Finding(f"extra: {extra}", State.ADVICE, f"without {', '.join(missing)}", install)
        elif (error := _import_error(modules)) is not None:
            remedy = f"{install} --force-reinstall"
            yield Finding(f"extra: {extra}", State.BROKEN, f"installed, but does not import: {error}", remedy)
        else:
            yield Finding(f"extra: {extra}", State.GOOD, f"for {purpose}")


def _import_error(modules: str) -> str | None:
    """Return the error of importing modules in another process. -P keeps modules of the current folder out."""
    quiet = {**os.environ, "FLWR_TELEMETRY_ENABLED": "0", "PYTHONWARNINGS": "ignore"}
    command = [sys.executable, "-P", "-c", f"import {modules}"]
    try:
        done = subprocess.run(  # noqa: S603 - our own words
            command, env=quiet, capture_output=True, text=True, errors="replace", timeout=_IMPORT_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it takes more than {_IMPORT_TIMEOUT:g} s"
    lines = done.stderr.strip().splitlines() or [f"Python ended with status {done.returncode}"]
    return None if done.returncode == 0 else lines[-1]


def _flower_programs() -> Iterator[Finding]:
    """Look for Flower's programs on PATH, as shells, systemd and Flower itself do."""
    if any(not _is_installed(needed) for needed in _needed_by("flower")):
        return  # `_extras` says so
    absent = [name for name in _FLOWER_PROGRAMS if shutil.which(name) is None]
    own = Path(sys.executable).parent
    if not absent:
        yield Finding("Flower's programs", State.GOOD, str(shutil.which(_FLOWER_PROGRAMS[1])))
    elif all(shutil.which(name, path=str(own)) for name in absent):
        remedy = f"for deployments: export PATH={own}:$PATH; `alidpfl flower demo` does not need it"
        yield Finding("Flower's programs", State.ADVICE, f"in {own}, which is not on PATH", remedy)
    else:
        remedy = "for deployments, in a clone of alidpfl: pip install -c constraints.txt '.[flower]' --force-reinstall"
        yield Finding("Flower's programs", State.ADVICE, f"flwr is installed without {', '.join(absent)}", remedy)


def _needed_by(extra: str) -> list[str]:
    """Return the requirements of an extra, such as `flwr<1.43,>=1.41`, and of the extras that it names."""
    found: list[str] = []
    for text in importlib.metadata.requires("alidpfl") or []:
        needed, _, marker = (part.strip() for part in text.partition(";"))
        if not re.search(rf"extra == ['\"]{extra}['\"]", marker):
            continue
        inner = re.match(r"alidpfl\[(.*)\]", needed)
        found += [one for name in inner[1].split(",") for one in _needed_by(name)] if inner else [needed]
    return found


def _is_installed(needed: str) -> bool:
    """Return whether a requirement is met. It may use >= and < only."""
    name = re.match(r"[\w.-]+", needed)
    try:
        version = _numbers(importlib.metadata.version(name[0] if name else needed))
    except importlib.metadata.PackageNotFoundError:
        return False
    bounds = re.findall(r"(>=|<)([\d.]+)", needed)
    return all(version >= _numbers(bound) if sign == ">=" else version < _numbers(bound) for sign, bound in bounds)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
