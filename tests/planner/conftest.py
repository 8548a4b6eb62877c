"""A plan made once for all tests of this folder, with the command as a user would."""

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def alidpfl(cache):
    """Runs the command in this process, where everything is loaded, with a cache of its own."""
    from typer.testing import CliRunner

    from alidpfl.cli import app

    def run(*arguments):
        environment = {"XDG_CACHE_HOME": str(cache), "COLUMNS": "80"}
        done = CliRunner().invoke(app, [*map(str, arguments)], env=environment)
        return SimpleNamespace(returncode=done.exit_code, stdout=done.stdout, stderr=done.stderr)

    return run


@pytest.fixture(scope="session")
def process(cache):
    """Runs the command in a process of its own."""

    def run(*arguments, **variables):
        environment = os.environ | {"XDG_CACHE_HOME": str(cache)} | variables
        command = [sys.executable, "-m", "alidpfl", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=300)

    return run


@pytest.fixture(scope="session")
def searched(alidpfl):
    """The JSON document of a plan with the joint search."""
    done = alidpfl("plan", *SEARCH, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


SEARCH = (
    *("--epsilon", "4", "--clients", "5", "--samples", "5000", "--max-rounds", "40"),
    *("--max-epochs", "5", "--model", "linear", "--seconds-per-round", "13"),
)
