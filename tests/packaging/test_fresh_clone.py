"""The first five minutes: a clone in a new folder, and what README says there, typed as it stands."""

import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_make_run_in_a_new_clone(tmp_path):
    """A new virtual environment too: minutes, and what the package index gives."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}

    def typed(*words):
        return subprocess.run(words, cwd=clone, env=environment, capture_output=True, text=True, check=False)

    done = typed("make", "run")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    told = re.search(r"accuracy \d\d\.\d\d % .+ at ε = (\d\.\d{4}), δ = 1e-05; kept in (runs/\S+)", done.stdout)
    assert told, done.stdout[-3000:]
    assert float(told[1]) <= 2
    assert (clone / told[2] / "summary.json").exists()
    assert typed(".venv/bin/alidpfl", "doctor").returncode == 0
    assert typed("git", "status", "--porcelain").stdout == ""  # everything that it made is ignored
