"""Find words of documented commands that do not exist: commands, options, settings, names, files, extras, targets."""

import functools
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from alidpfl.cli import commands as all_commands
from alidpfl.data import SOURCES
from alidpfl.errors import ConfigError
from alidpfl.registry import DATASETS
from alidpfl.runs import Config, load_config
from reproduction.grid import NAMES as GRIDS
from reproduction.tables import FORMATS

ROOT = Path(__file__).parent.parent
COMMANDS = {path: {name for one in command.params for name in one.opts} for path, command in all_commands()}
GROUPS = {path[:length] for path in COMMANDS for length in range(1, len(path))}
OF_THE_PROGRAM = {"--help", "--version", "--install-completion", "--show-completion"}
FIRST_WORDS = {("reproduce",): GRIDS, ("tables",): GRIDS, ("data", "get"): SOURCES, ("data", "show"): DATASETS}
PLACEHOLDER = re.compile(r"[A-Z]+|<.*>|\.\.\.")
STRANGERS = {"jupyterlab", "pandas"}
"""Packages that the documents install beside alidpfl."""


def missing_of(command: str) -> set[str]:
    """Return the words of a command that do not exist. Commands of unknown programs have none."""
    program, _, rest = command.partition(" ")
    name = program.rsplit("/", 1)[-1]
    if name == "alidpfl":
        return unknown_words(command)
    return CHECKS[name](shlex.split(command)) if name in CHECKS and rest else set()


def unknown_words(command: str) -> set[str]:
    """Return the words of an `alidpfl` command that do not exist. It may be incomplete, or have NAMES to fill in."""
    words = shlex.split(command)[1:]
    options = {word.partition("=")[0] for word in words if word.startswith("-")}
    path = tuple(words[:1])
    while path in GROUPS and len(path) < len(words):
        path = tuple(words[: len(path) + 1])
    if path in (*GROUPS, ()) or path[0].startswith("-") or path == ("COMMAND",):
        return options - OF_THE_PROGRAM
    if path not in COMMANDS:
        return set(path)
    first, names = words[len(path) :][:1], FIRST_WORDS.get(path)
    is_known = names is None or not first or first[0] in names or first[0].startswith("-")
    wrong = set() if is_known or PLACEHOLDER.fullmatch(first[0]) or first[0].endswith(".toml") else set(first)
    form = {following(words, "--format")} - {None, *FORMATS}
    return (options - COMMANDS[path] - OF_THE_PROGRAM) | wrong | form | unknown_settings(words)


def following(words: list[str], option: str) -> str | None:
    return words[words.index(option) + 1] if option in words[:-1] else None


_OF_PERSONS = ("data.name=table", "privacy.unit=person")  # what the settings of persons need beside them


def unknown_settings(words: list[str]) -> set[str]:
    """Return each `--set KEY=VALUE` that no configuration takes. The words `key` and `value` stand for others."""
    given = {following(words[at:], "--set") for at, word in enumerate(words) if word == "--set"} - {None}
    return {one for one in given if not _is_setting(one)}


def _is_setting(given: str) -> bool:
    key, _, value = given.partition("=")
    if value == "value" and key.rpartition(".")[2] == "key":
        return key == "section.key" or _is_setting(f"{key.removesuffix('.key')}={{}}")
    if not _is_key(key):
        return False
    wanted = f"{key}=1" if PLACEHOLDER.fullmatch(value) else given
    return any(_is_taken(key, [*beside, wanted]) for beside in ((), _OF_PERSONS))


def _is_taken(key: str, overrides: list[str]) -> bool:
    try:
        load_config(overrides=overrides)
    except ConfigError as error:  # a setting may need others beside it, which only a whole command has
        return f"{key}=" not in str(error)
    return True


def _is_key(key: str) -> bool:
    """Return whether a setting has this name: `section.key`, or `key` alone."""
    sections = {name: field.annotation.model_fields for name, field in Config.model_fields.items()}
    section, _, rest = key.partition(".")
    if not rest:
        return any(section in keys for keys in sections.values())
    return rest.partition(".")[0] in sections.get(section, {})


def unknown_to_make(words: list[str]) -> set[str]:
    """Return targets that the Makefile lacks, and files and modules that the targets run but that do not exist."""
    text = (ROOT / "Makefile").read_text()
    recipes = dict(re.findall(r"^([a-z-]+):(?!=).*\n((?:\t.*\n)*)", text, re.MULTILINE))
    targets = [word for word in words[1:] if "=" not in word and not word.startswith("-")]
    missing = {target for target in targets if target not in recipes}
    for recipe in (recipes[target] for target in targets if target in recipes):
        missing |= {
            name
            for name in re.findall(r"-m ((?:benchmarks|tests|alidpfl|docs|reproduction)\.[\w.]+)", recipe)
            if not _module(name)
        }
        missing |= {
            name for name in re.findall(r"\b(?:tests|docs|examples)/\S+\.(?:py|md)", recipe) if not _in_root(name)
        }
        missing |= {word for one in re.findall(r"\)/(alidpfl [^$\n]*)", recipe) for word in unknown_words(one)}
    return missing


def unknown_to_pip(words: list[str]) -> set[str]:
    """Return extras that pyproject.toml lacks, files that do not exist, and packages that we neither need nor pin."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    named = " ".join([*project["dependencies"], *(one for needed in extras.values() for one in needed)])
    pins = following(words, "-c")
    missing = {pins} if pins is not None and not _in_root(pins) else set()
    for word in words[2:]:
        if word.startswith("-") or word == pins:
            continue
        package, _, wanted = word.removesuffix("]").partition("[")
        if package == ".":
            missing |= set(filter(None, wanted.split(","))) - extras.keys()
        elif word not in named and package not in STRANGERS:
            missing.add(word)
    return missing


def unknown_to_python(words: list[str]) -> set[str]:
    """Return scripts, modules and files that do not exist."""
    if words[1] == "-m":
        return set() if _module(words[2]) else {words[2]}
    return {word for word in words if re.search(r"\.(py|toml)$", word) and not _in_root(word)}


def unknown_elsewhere(words: list[str]) -> set[str]:
    """Return options that the help of another program does not list."""
    program = words[0].rsplit("/", 1)[-1]
    subcommands = words[1:3] if words[1:2] == ["supernode"] else words[1:2] if program == "flwr" else []
    options = {word.partition("=")[0] for word in words if word.startswith("--")}
    return options - _options(program, *subcommands)


def unknown_variables(words: list[str]) -> set[str]:
    """Return the names in `export NAME=value ...` that neither alidpfl nor Flower reads."""
    names = {word.partition("=")[0] for word in words[1:]}
    return {name for name in names if name != "PATH" and name not in _sources()}


@functools.cache
def _sources() -> str:
    folders = [Path(importlib.util.find_spec(name).origin).parent for name in ("alidpfl", "flwr")]
    return "".join(path.read_text() for folder in folders for path in folder.rglob("*.py"))


@functools.cache
def _options(program: str, *subcommands: str) -> frozenset[str]:
    places = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"])
    path = shutil.which(program, path=places)
    assert path is not None, f"{program} is not installed"
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "COLUMNS": "200"}
    done = subprocess.run(
        [path, *subcommands, "--help"], env={**os.environ, **quiet}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{program} {' '.join(subcommands)}: {done.stdout}{done.stderr}"
    return frozenset(re.findall(r"(?<![\w-])--[a-z][\w-]*", done.stdout))


def _module(name: str) -> bool:
    in_root = ROOT / (name.replace(".", "/") + ".py")
    return (
        in_root.exists()
        or (ROOT / name.replace(".", "/") / "__main__.py").exists()
        or (name.partition(".")[0] in ("venv", "alidpfl") and bool(importlib.util.find_spec(name)))
    )


def _in_root(name: str) -> bool:
    return (ROOT / name).exists()


CHECKS = {
    "--set": unknown_settings,
    "export": unknown_variables,
    "flower-superlink": unknown_elsewhere,
    "flower-supernode": unknown_elsewhere,
    "flwr": unknown_elsewhere,
    "jupyter": lambda words: {folder for folder in words[2:] if not _in_root(folder)},
    "make": unknown_to_make,
    "pip": unknown_to_pip,
    "python": unknown_to_python,
    "python3": unknown_to_python,
    "useradd": unknown_elsewhere,
}
