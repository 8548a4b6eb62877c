"""`reproduce` and `tables` work in a clone from any directory; an installed package says where to get them."""

import csv
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import alidpfl
from alidpfl.cli import app
from reproduction import __main__ as module

ROOT = Path(__file__).parents[2]
TABLE = ("tables", "small", "--datasets", "mnist", "--methods", "ours:ali", "--format", "csv")


def counts(text):
    return {int(row["n"]) for row in csv.DictReader(io.StringIO(text))}


def test_tables_reads_the_committed_results_from_any_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, TABLE)
    assert done.exit_code == 0
    assert counts(done.stdout) == {1, 3}


def test_python_m_reproduction():
    run = [sys.executable, "-m", "reproduction"]
    done = subprocess.run([*run, *TABLE], cwd=ROOT, capture_output=True, text=True, check=True)
    assert counts(done.stdout) == {1, 3}
    wrong = subprocess.run([*run, "tables", "smal"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (wrong.returncode, len(wrong.stderr.splitlines())) == (2, 1)
    assert "'small'" in wrong.stderr


@pytest.mark.parametrize("name", ["reproduce", "tables", "report"])
def test_help_needs_no_data(name):
    done = CliRunner().invoke(module.app, [name, "--help"])
    assert (done.exit_code, name in done.stdout) == (0, True)


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Run a copy of the package that is not in a clone."""
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(Path(alidpfl.__file__).parent, site / "alidpfl", ignore=shutil.ignore_patterns("__pycache__"))

    def run(*words):
        command = [sys.executable, "-m", "alidpfl", *words]
        env = {**os.environ, "PYTHONPATH": str(site)}
        return subprocess.run(command, cwd=site, env=env, capture_output=True, text=True, check=False)

    return run


@pytest.mark.parametrize(
    "words", [TABLE, ("reproduce", "small", "--jobs", "2"), ("report", ".")], ids=lambda words: words[0]
)
def test_an_installed_package_names_the_clone(installed, words):
    done = installed(*words)
    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.splitlines()
    assert "clone" in line


@pytest.mark.parametrize("name", ["reproduce", "tables"])
def test_help_of_an_installed_package_names_the_clone(installed, name):
    done = installed(name, "--help")
    assert done.returncode == 0
    assert "clone" in done.stdout
