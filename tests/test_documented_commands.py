"""Every command that README, docs and help texts show is run, document by document, in the order of the document.

Shortened where it would take minutes (`SHORTER`), in folders of the test's own where it names the system's. What needs
root, other machines or hours is named with what covers it instead, so that a new command cannot slip through. Commands
in running text are looked at only: they and their options must exist.
"""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from alidpfl.cli import commands as all_commands
from alidpfl.cli import help_of
from tests.runs.command import alidpfl

ROOT = Path(__file__).parent.parent
PAGES = sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "examples/README.md", *PAGES]
PROGRAMS = ("alidpfl", "make", "pip", "python", "python3", "flwr", "install", "useradd", "sudo", "export")
SHORTER = {
    "run": ["federation.max_rounds=2", "run.evaluate_every=2", "privacy.accountant=rdp"],
    "audit": ["privacy.max_steps=3", "privacy.accountant=rdp", "--draws", "100", "--canaries", "50"],
}
REAL_DATA = ("experiments/mnist.toml", "recipes/best-mnist.toml", "reproduce small")
ELSEWHERE = {
    "alidpfl data get": "tests/data/test_download.py",  # from a server of the test's own
    "alidpfl vault serve": "tests/vault/test_service.py",
    "alidpfl flower demo": "tests/flower/test_demo.py",
    "flwr ": "tests/flower/test_deployment.py",
    "pip install": "tests/packaging/test_packaging.py",
    "/opt/alidpfl/bin/pip install": "tests/packaging/test_packaging.py",
    "python3 -m venv": "tests/packaging/test_packaging.py",
    "python experiments/": "tests/reproduction/test_grids.py",
    "export ": "tests/flower/test_deployment.py",
    "useradd ": "root's",
    "sudo ": "root's",
}


def commands(document):
    """As they would be pasted: without prompt and comment, continued lines joined."""
    found = []
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE):
        if language not in ("", "bash", "sh", "shell", "console"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            command = re.sub(r"\s+#.*", "", line).removeprefix("$ ").strip().removeprefix(".venv/bin/")
            command = re.sub(r"^([A-Z_]+=\S+ )+", "", command)
            if re.match(rf"(\.?/\S+/)?({'|'.join(PROGRAMS)})( |$)", command):
                found.append(command)
    return found


def examples_in_help():
    """Those of `alidpfl COMMAND --help`, after what they take for granted: two runs."""
    split = [part for _, command in all_commands() for part in help_of(command)[1].split(" && ")]
    return [f"alidpfl run --out runs/{name}" for name in ("first", "second")] + split


FOUND = {document: commands(document) for document in DOCUMENTS if commands(document)}
FOUND["--help"] = examples_in_help()


def needs_real_data(command):
    return any(words in command for words in REAL_DATA)


def test_there_are_commands_to_run():
    assert len(FOUND["README.md"]) >= 2
    assert sum(map(len, FOUND.values())) >= 60
    every = [command.split() for found in FOUND.values() for command in found]
    named = {words[1] for words in every if words[0] == "alidpfl"}
    assert named >= {"run", "show", "compare", "plan", "audit", "reproduce", "tables", "report", "vault", "flower"}


COMMANDS = {path: {name for one in command.params for name in one.opts} for path, command in all_commands()}
GROUPS = {path[:1] for path in COMMANDS if len(path) > 1}
OF_THE_PROGRAM = {"--help", "--version", "--install-completion", "--show-completion"}


def unknown_words(command):
    """What of a command in running text does not exist; it may lack what it needs to run."""
    words = command.split()[1:]
    options = {word.partition("=")[0] for word in words if word.startswith("-")}
    path = tuple(words[:2]) if tuple(words[:1]) in GROUPS else tuple(words[:1])
    if path in (*GROUPS, ()) or path[0].startswith("-") or path == ("COMMAND",):
        return options - OF_THE_PROGRAM
    return options - COMMANDS[path] - OF_THE_PROGRAM if path in COMMANDS else set(path)


@pytest.mark.parametrize("document", [*DOCUMENTS, "CHANGELOG.md", "ARCHITECTURE.md"])
def test_commands_in_running_text_exist(document):
    text = re.sub(r"^ *```.*?^ *```", "", (ROOT / document).read_text(), flags=re.DOTALL | re.MULTILINE)
    for command in re.findall(r"`(alidpfl(?: [^`]+)?)`", text):
        alternatives = command.replace(" | ", "|").split()
        for name in alternatives[2].split("|") if "|" in command else [""]:  # `alidpfl data list | get | show`
            one = " ".join([*alternatives[:2], name]) if name else command
            assert not unknown_words(one), f"{document}: {one}"


def test_what_does_not_exist_is_found():
    assert unknown_words("alidpfl run --nonsense=3") == {"--nonsense"}
    assert unknown_words("alidpfl vault burn --dir x") == {"vault", "burn"}
    assert unknown_words("alidpfl paint") == {"paint"}
    assert not unknown_words("alidpfl vault serve --head")


@pytest.fixture
def scene(tmp_path, monkeypatch):
    """A folder that looks like a clone, with the files that the documents speak of."""
    for name in ("experiments", "recipes", "constraints.txt"):
        (tmp_path / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "results", tmp_path / "results", ignore=shutil.ignore_patterns("runs", "*.sqlite*"))
    random = np.random.default_rng(0)
    for path in ("patients.npz", *(f"my-data/{name}.npz" for name in ("north", "south", "test"))):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        np.savez(tmp_path / path, x=random.normal(size=(300, 6)).astype("float32"), y=random.integers(2, size=300))
    (tmp_path / "run.toml").write_text('[model]\nname = "linear"\n')
    for folder in ("var/lib/alidpfl", "mnt/other-disk/alidpfl", "root", "etc"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("ca.crt", "node_1"):
        (tmp_path / name).write_text("made up\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("document", FOUND)
def test_the_commands_of(document, scene):
    for command in FOUND[document]:
        covered = next((by for start, by in ELSEWHERE.items() if command.startswith(start)), None)
        if covered is not None:
            assert covered == "root's" or (ROOT / covered).exists()
            assert not command.startswith("alidpfl ") or not unknown_words(command), command
            script = re.match(r"python (\S+\.py)", command)
            assert script is None or (ROOT / script[1]).exists(), command
        elif command.startswith("make "):  # what it would do: the targets have tests of their own
            checked(["make", "-C", ROOT, "-n", *shlex.split(command)[1:]])
        elif not needs_real_data(command):
            run(scene, command)


@pytest.mark.real_data
@pytest.mark.usefixtures("data_dir")
@pytest.mark.parametrize(
    "command",
    dict.fromkeys(one for found in FOUND.values() for one in found if needs_real_data(one)),
)
def test_the_commands_on_real_data(command, scene):
    run(scene, command)


def run(scene, command):
    here = re.sub(r"(?<=[ =])/(?=(my|var|mnt|root|etc)/)", f"{scene}/", command)
    if command.startswith("install "):
        here = re.sub(r" -[og] \w+", "", here)  # whose it is, is root's to say
    words = shlex.split(here)
    if words[0].rsplit("/", 1)[-1] != "alidpfl":
        checked([sys.executable, *words[1:]] if words[0].startswith("python") else words)
        return
    done = alidpfl(*words[1:], *shorter(words[1], command))
    assert done.exit_code == 0, f"{command}\n{done.stdout[-1500:]}{done.stderr[-1500:]}"


def shorter(name, command):
    if name == "reproduce":
        return ["--limit", "1s"]
    if name == "run" and "--resume" in command:
        return []
    parts = SHORTER.get(name, [])
    if needs_real_data(command):  # two rounds are spent before the first of a recipe's training
        parts = ["federation.max_rounds=3", "privacy.epsilon=1", *parts[1:]]
    if name == "audit" and "--draws" in command:
        parts = parts[:2]
    settings = [part for one in parts if "=" in one for part in ("--set", one)]
    return [*settings, *(one for one in parts if "=" not in one)]


def checked(words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
