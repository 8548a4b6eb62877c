"""The first thing that a new user asks: the help, on one screen and with examples; and completion."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from alidpfl.cli import commands, help_of
from tests.runs.command import alidpfl

SCREEN = (80, 24)


ALL = dict(commands())


def test_the_help_fits_a_screen_and_names_every_command():
    lines = alidpfl("--help").stdout.splitlines()
    assert len(lines) <= SCREEN[1]
    assert max(map(len, lines)) <= SCREEN[0]
    named = {words[-1] for line in lines if (words := line[:18].split())}
    assert {path[0] for path in ALL} <= named
    assert [line.split()[0] for line in lines if re.match(r"\S+ +(run|plan|audit) ", line)] == [
        "Train",
        "Plan",
        "Prove",
    ]


def test_no_command_at_all_shows_the_help_too():
    bare = alidpfl()
    assert bare.exit_code == 2
    assert bare.stdout.strip() == alidpfl("--help").stdout.strip()


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_has_an_example_of_itself(path):
    assert f"alidpfl {' '.join(path)}" in help_of(ALL[path])[1]


@pytest.mark.parametrize("group", sorted({path[0] for path in ALL if len(path) > 1}))
def test_every_group_has_an_example_that_is_a_command(group):
    example = re.search(rf"Example: alidpfl {group} (\w+)", alidpfl(group, "--help").stdout)
    assert (group, example[1]) in ALL


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_argument_is_explained(path):
    """As people see it: with some versions of typer and click the text of arguments is lost."""
    for parameter in ALL[path].params:
        if parameter.param_type_name == "argument":
            assert parameter.help, parameter.name
            told = " ".join(alidpfl(*path, "--help").stdout.replace("│", " ").split())
            assert " ".join(parameter.help.split())[:20] in told


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_can_complete_commands(shell):
    asked = {"_ALIDPFL_COMPLETE": f"complete_{shell}", "COMP_WORDS": "alidpfl re", "COMP_CWORD": "1"}
    asked |= {"_TYPER_COMPLETE_ARGS": "alidpfl re", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = subprocess.run(
        [Path(sys.executable).with_name("alidpfl")],  # the name that shells know
        env={"PATH": "/usr/bin:/bin", **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert {"report", "reproduce"} <= set(re.findall(r"\w+", done.stdout)), done
    assert "audit" not in done.stdout
