"""Is this installation whole? Each check looks at one thing and says what to do about it."""

import importlib.metadata
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from alidpfl._version import __version__
from alidpfl.user_cache import user_cache

_EXTRAS = {
    "flower": "deployments (`alidpfl flower`, `alidpfl vault`)",
    "report": "pictures (`--plot`)",
    "tensorboard": "`alidpfl run --tensorboard`",
}
_MALLOC_VARIABLES = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
_OTHER_MALLOCS = ("jemalloc", "tcmalloc", "mimalloc")
_LEAST_FREE_BYTES = 1 << 30


class State(StrEnum):
    """Of one finding."""

    GOOD = "good"
    ADVICE = "advice"
    """It works; something could be better."""
    BROKEN = "broken"


@dataclass(frozen=True)
class Finding:
    """What a check saw, and what to do."""

    what: str
    state: State
    seen: str
    remedy: str = ""


def examine() -> Iterator[Finding]:
    """Every check in turn; one that fails in a way nobody foresaw is a finding too."""
    for check in (_versions, _torch, _kernels, _malloc, _step, _cache, _data, _extras):
        try:
            yield from check()
        except Exception as error:
            name = check.__name__.strip("_")
            yield Finding(name, State.BROKEN, f"{type(error).__name__}: {error}", "install alidpfl anew")


def _versions() -> Iterator[Finding]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    python = ".".join(map(str, sys.version_info[:3]))
    yield Finding("alidpfl", State.GOOD, f"{__version__}, Python {python}, {cores} cores, in {Path(__file__).parent}")


def _torch() -> Iterator[Finding]:
    import torch

    seen = f"{torch.__version__}, {torch.get_num_threads()} threads"
    if torch.version.cuda is None:
        yield Finding("PyTorch", State.GOOD, f"{seen}, CPU build")
    elif torch.cuda.is_available():
        yield Finding("PyTorch", State.GOOD, f"{seen}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name()}")
    else:
        remedy = "a CPU build is gigabytes smaller: install torch from PyTorch's CPU index, or leave it"
        yield Finding("PyTorch", State.ADVICE, f"{seen}, CUDA {torch.version.cuda}, and no GPU", remedy)


def _kernels() -> Iterator[Finding]:
    from alidpfl.dpsgd import native

    if native.is_available():
        yield Finding("native kernels", State.GOOD, native.instruction_set())
    elif os.environ.get("ALIDPFL_NATIVE") == "0":
        yield Finding("native kernels", State.ADVICE, "switched off by ALIDPFL_NATIVE=0", "unset it")
    else:
        remedy = "install a C compiler (gcc), then alidpfl anew; without, the same in PyTorch, up to 1.4 times as long"
        yield Finding("native kernels", State.ADVICE, "none: PyTorch serves", remedy)


def _malloc() -> Iterator[Finding]:
    maps = Path("/proc/self/maps")
    loaded = maps.read_text(errors="replace") if maps.exists() else ""
    other = next((name for name in _OTHER_MALLOCS if name in loaded), None)
    if other is not None:
        yield Finding("malloc", State.GOOD, other)
    elif all(name in os.environ for name in _MALLOC_VARIABLES):
        yield Finding("malloc", State.GOOD, "glibc's, which keeps large blocks")
    elif "libc.so" in loaded:
        settings = " ".join(f"{name}={1 << 30}" for name in _MALLOC_VARIABLES)
        remedy = f"in one process, steps may take a third less time with {settings}; workers and vaults set it"
        yield Finding("malloc", State.ADVICE, "glibc's default, which gives large blocks back", remedy)
    else:
        yield Finding("malloc", State.GOOD, "not glibc's")


def _step() -> Iterator[Finding]:
    """A whole private step, by the kernels where they serve; the clipper itself compares it with plain autograd."""
    import torch

    from alidpfl.dpsgd import PerSampleClipper, RandomStream, StepSettings, dp_sgd_step
    from alidpfl.models import make_model

    model = make_model("compact_cnn", (1, 28, 28), 10, hidden=8, seed=0)
    settings = StepSettings(clip_norm=1.0, noise_multiplier=1.0, learning_rate=0.1, expected_batch_size=4.0)
    inputs, targets = torch.zeros(4, 1, 28, 28), torch.arange(4)
    found = dp_sgd_step(PerSampleClipper(model), inputs, targets, settings, RandomStream.secure())
    is_finite = all(bool(part.isfinite().all()) for part in found.noised_sum.values())
    state = State.GOOD if is_finite else State.BROKEN
    remedy = "" if is_finite else "try ALIDPFL_NATIVE=0, and tell us"
    yield Finding("a private step", state, "sampled, clipped, noised with secure randomness", remedy)


def _cache() -> Iterator[Finding]:
    folder = user_cache()
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    remedy = "set XDG_CACHE_HOME to a folder of yours on a disk with room"
    free = shutil.disk_usage(there).free
    if not os.access(there, os.W_OK):
        yield Finding("cache", State.BROKEN, f"{folder} cannot be written", remedy)
    elif free < _LEAST_FREE_BYTES:
        yield Finding("cache", State.ADVICE, f"{folder}: {free / 1e6:.0f} MB free", remedy)
    else:
        yield Finding("cache", State.GOOD, f"{folder}, {free / 1e9:.0f} GB free")


def _data() -> Iterator[Finding]:
    from alidpfl.data.inventory import inventory

    states = {"missing": State.ADVICE, "corrupt": State.BROKEN}
    for entry in inventory():
        if entry.kind == "real":
            state = states.get(entry.state, State.GOOD)
            yield Finding(f"data: {entry.name}", state, entry.folder or entry.state, entry.note)


def _extras() -> Iterator[Finding]:
    for extra, purpose in _EXTRAS.items():
        missing = [needed for needed in _needed_by(extra) if not _is_installed(needed)]
        if missing:
            remedy = f"for {purpose}, in a clone of alidpfl: pip install -c constraints.txt '.[{extra}]'"
            yield Finding(f"extra: {extra}", State.ADVICE, f"without {', '.join(missing)}", remedy)
        else:
            yield Finding(f"extra: {extra}", State.GOOD, f"for {purpose}")


def _needed_by(extra: str) -> list[str]:
    """Such as `flwr<1.43,>=1.41`; an extra that names another one takes what that one needs."""
    found: list[str] = []
    for text in importlib.metadata.requires("alidpfl") or []:
        needed, _, marker = (part.strip() for part in text.partition(";"))
        if not re.search(rf"extra == ['\"]{extra}['\"]", marker):
            continue
        inner = re.match(r"alidpfl\[(.*)\]", needed)
        found += [one for name in inner[1].split(",") for one in _needed_by(name)] if inner else [needed]
    return found


def _is_installed(needed: str) -> bool:
    """In a version within the bounds, of which we use only >= and <."""
    name = re.match(r"[\w.-]+", needed)
    try:
        version = _numbers(importlib.metadata.version(name[0] if name else needed))
    except importlib.metadata.PackageNotFoundError:
        return False
    bounds = re.findall(r"(>=|<)([\d.]+)", needed)
    return all(version >= _numbers(bound) if sign == ">=" else version < _numbers(bound) for sign, bound in bounds)


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version)[:3])
