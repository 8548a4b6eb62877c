"""Describe the machine and the software of a run, to repeat it or to explain a difference."""

import os
import platform
import shutil
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

from alidpfl._version import __version__

_PACKAGES = ("torch", "numpy", "dp-accounting", "safetensors")
_GIT_SECONDS = 10


def describe_environment(*, seed: int | None) -> dict[str, Any]:
    """Return versions, source commit, platform, CPU, seed (None: secure randomness) and native kernels in use."""
    import torch

    from alidpfl.dpsgd import native

    versions = {"alidpfl": __version__, "python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in _PACKAGES}
    return {
        "versions": versions,
        "git": _git_state(Path(__file__).parents[3]),
        "platform": platform.platform(),
        "cpu": _cpu_name(),
        "cpu_count": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "native_kernel": native.instruction_set(),
        "seed": seed,
    }


def _git_state(root: Path) -> dict[str, Any] | None:
    """Return the commit of the checkout that runs, and whether it was changed since; None for an installed copy."""
    git = shutil.which("git")
    # An installed copy may lie inside another project's checkout (a .venv): only alidpfl's own layout counts.
    if git is None or not (root / ".git").exists() or not (root / "src" / "alidpfl").is_dir():
        return None
    found = []
    for arguments in (["rev-parse", "HEAD"], ["status", "--porcelain", "--untracked-files=no"]):
        # --no-optional-locks: do not block other git commands in this checkout.
        command = [git, "--no-optional-locks", "-C", str(root), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=_GIT_SECONDS)  # noqa: S603
        except (OSError, subprocess.SubprocessError):
            return None
        found.append(done.stdout.strip())
    return {"commit": found[0], "modified": bool(found[1])}


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
