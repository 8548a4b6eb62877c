"""The project's own machinery: CI notices a skipped test of real data; the package builds without a compiler."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


def _pytest(folder: Path, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "-c",
            str(ROOT / "pyproject.toml"),
            str(folder),
        ],
        env={**{k: v for k, v in os.environ.items() if not k.startswith("ALIDPFL_")}, **environment},
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )


@pytest.mark.slow
def test_a_skipped_test_of_real_data_fails_where_the_data_must_be(tmp_path):
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path)
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.mark.real_data\ndef test_it(data_dir):\n    assert (data_dir / 'MNIST').name\n"
        "def test_other():\n    pass\n"
    )
    lenient = _pytest(tmp_path)
    assert lenient.returncode == 0, lenient.stdout
    assert "1 passed, 1 skipped" in lenient.stdout
    strict = _pytest(tmp_path, ALIDPFL_REQUIRE_REAL_DATA="1")
    assert strict.returncode == 1
    assert "test_it.py::test_it" in strict.stdout
    gone = _pytest(tmp_path, ALIDPFL_REQUIRE_REAL_DATA="1", ALIDPFL_DATA_DIR=str(tmp_path / "nowhere"))
    assert gone.returncode == 1
    found = _pytest(tmp_path, ALIDPFL_REQUIRE_REAL_DATA="1", ALIDPFL_DATA_DIR=str(tmp_path))
    assert found.returncode == 0, found.stdout


def test_the_native_library_is_optional_at_build_time(tmp_path):
    """With a compiler that fails, the extension is skipped and the build goes on."""
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    done = subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--inplace"],
        cwd=tmp_path,
        env={**os.environ, "CC": "false"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.rglob("*.so"))
    code = (
        "from alidpfl.dpsgd import RandomStream, native\n"
        "print(native.instruction_set(), RandomStream.seeded(0).normal(3).shape)"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "src")}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "none torch.Size([3])"


@pytest.mark.parametrize("status", [0, 3])
def test_ci_ends_as_the_tests_end_whatever_the_audit_says(tmp_path, status):
    make = tmp_path / "make"
    make.write_text(f'#!/bin/sh\necho "$@"\ncase "$*" in *audit*) exit 1;; *) exit {status};; esac\n')
    make.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([ROOT / ".ci" / "run"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status
    assert done.stdout.splitlines() == ["test", "--no-print-directory audit-dependencies"]
