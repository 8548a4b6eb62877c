"""The first thing that a new user asks: the help, on one screen and with examples; and completion."""

import os
import re
import subprocess
import sys
from itertools import pairwise
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
        "Check",
    ]


def test_no_command_at_all_shows_the_help_too():
    bare = alidpfl()
    assert bare.exit_code == 2
    assert bare.stdout.strip() == alidpfl("--help").stdout.strip()


@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_every_command_has_an_example_of_itself(path):
    assert f"alidpfl {' '.join(path)}" in help_of(ALL[path])[1]


@pytest.fixture
def eighty_columns(monkeypatch):
    import typer.rich_utils

    monkeypatch.setattr(typer.rich_utils, "MAX_WIDTH", SCREEN[0])


def prose(path):
    """The help's paragraphs, above its tables, as they stand on the screen."""
    above = alidpfl(*path, "--help").stdout.partition("╭")[0]
    return [[line.rstrip() for line in part] for part in paragraphs(above.splitlines()[1:])]


def paragraphs(lines):
    found = [[]]
    for line in lines:
        if line.strip():
            found[-1].append(line)
        else:
            found.append([])
    return [part for part in found if part]


@pytest.mark.usefixtures("eighty_columns")
@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_an_example_can_be_pasted_from_a_narrow_screen(path):
    """Its lines are whole: where one ends before the command does, it ends with a backslash."""
    head, *lines = prose(path)[-1]
    assert head.strip() == "Example:"
    assert all(line.endswith("\\") for line in lines[:-1])
    pasted = " ".join(" ".join(lines).replace("\\ ", " ").split())
    assert pasted == help_of(ALL[path])[1]
    assert not pasted.endswith("\\")


@pytest.mark.usefixtures("eighty_columns")
@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_no_sentence_is_broken_where_there_was_room(path):
    for part in prose(path)[1:-1]:
        for line, following in pairwise(part):
            assert len(line) + 1 + len(following.split()[0]) > SCREEN[0] - 6, line


@pytest.mark.usefixtures("eighty_columns")
@pytest.mark.parametrize("path", ALL, ids=" ".join)
def test_no_option_is_cut_short(path):
    shown = alidpfl(*path, "--help").stdout
    assert "…" not in shown
    assert max(map(len, shown.splitlines())) <= SCREEN[0]
    for parameter in ALL[path].params:
        assert parameter.param_type_name == "argument" or parameter.opts[0] in shown.split()


@pytest.mark.parametrize("group", sorted({path[0] for path in ALL if len(path) > 1}))
def test_every_group_has_an_example_that_is_a_command(group):
    example = re.search(rf"Example: +\n +alidpfl {group} (\w+)", alidpfl(group, "--help").stdout)
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
        env={**os.environ, **asked},
        capture_output=True,
        text=True,
        check=False,
    )
    assert {"report", "reproduce"} <= set(re.findall(r"\w+", done.stdout)), done
    assert "audit" not in done.stdout


def offered(*words):
    """What Tab gives after the last word, which may be empty."""
    import typer.main
    from click.shell_completion import ShellComplete

    from alidpfl.cli import app

    asked = ShellComplete(typer.main.get_command(app), {}, "alidpfl", "_ALIDPFL_COMPLETE")
    return [item.value for item in asked.get_completions(list(words[:-1]), words[-1])]


@pytest.mark.parametrize(
    ("words", "values"),
    [
        ("plan --accountant ", "rdp-paper rdp pld"),
        ("plan --model c", "cnn compact_cnn"),
        ("run --plan ", "auto"),
        ("run --set method.p", "method.policy= method.policy_options="),
        ("audit --set run.s", "run.seed="),
        ("flower init x --set data.na", "data.name="),
        ("data get ", "mnist fashion_mnist cifar10"),
        ("data show s", "strokes synthetic"),
        ("reproduce ", "small medium large heterogeneity tuning"),
        ("tables m", "medium"),
        ("tables small --format ", "markdown latex csv"),
        ("reproduce small --datasets f", "fashion_mnist"),
        ("tables small --datasets mnist,", "mnist,fashion_mnist mnist,cifar10"),
        ("reproduce small --accountants rdp,p", "rdp,pld"),
        ("vault init --model ", "cnn compact_cnn linear mlp"),
        ("vault init --accounting ", "planned filter"),
        ("vault init --data s", "strokes synthetic"),
        ("vault init --partition ", "iid dirichlet natural"),
    ],
)
def test_values_are_offered(words, values):
    assert offered(*words.split(" ")) == values.split()


def test_bash_completes_a_value(tmp_path):
    """By the script that `--install-completion` installs, as bash calls it."""
    script = """
        eval "$(_ALIDPFL_COMPLETE=source_bash alidpfl)"
        COMP_WORDS=(alidpfl run --set privacy.e) COMP_CWORD=3
        _alidpfl_completion alidpfl privacy.e --set
        echo "offered: ${COMPREPLY[*]}"
    """
    places = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    told = {**os.environ, "PATH": places, "PYTHONPROFILEIMPORTTIME": "1"}
    done = subprocess.run(["bash", "-c", script], env=told, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "offered: privacy.epsilon=" in done.stdout, done
    assert "alidpfl.cli.completion" in done.stderr  # what was imported
    assert not re.search(r"\| +(torch|numpy|scipy)$", done.stderr, re.MULTILINE)


@pytest.mark.parametrize(
    "arguments", [["--help"], ["data", "list"], ["run", "--set", "privacy.epsilom=2"]], ids=" ".join
)
def test_help_lists_and_errors_do_not_wait_for_torch(arguments, tmp_path):
    command = [sys.executable, "-X", "importtime", "-m", "alidpfl", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert "alidpfl.cli" in done.stderr  # what was imported
    assert not re.search(r"\| +(torch|scipy)$", done.stderr, re.MULTILINE)
