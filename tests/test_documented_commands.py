"""Every command that README, docs and help texts show is run, document by document, in the order of the document.

Commands that would take minutes are shortened (`SHORTER`). Folders of the system are replaced by folders of the test.
Commands that need root, other machines or hours are listed with the test that runs them instead (`ELSEWHERE`); their
words must exist. The words of commands in running text must exist too, and the complete and cheap ones are run. A line
that is not understood is an error (tests/documents.py), so no command is missed.
"""

import glob
import os
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
from tests import command_words, documents
from tests.command_words import missing_of
from tests.runs.command import alidpfl
from tests.tables.test_page import write_tables

ROOT = Path(__file__).parent.parent
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md"))
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "examples/README.md", *PAGES]
SHORTER = {
    "run": ["federation.max_rounds=2", "run.evaluate_every=2", "privacy.accountant=rdp", "run.processes=1"],
    "audit": ["privacy.max_steps=3", "privacy.accountant=rdp", "--draws", "100", "--canaries", "50"],
}
SHORTER_BY_OPTION = {"reproduce": ["--limit", "1s"], "plan": ["--accountant", "rdp"]}
OWN_MODEL = re.compile(r"model|\.toml|--schema|--loss")  # the command says what it trains
REAL_DATA = ("reproduction/experiments/mnist.toml", "reproduction/recipes/best-mnist.toml", "reproduce small")
CLONE = "test_make_run_in_a_new_clone"
EXTRAS = "test_extras_install_what_they_are_for"
DEPLOYMENT = "test_a_deployment_trains_what_the_simulation_trains_and_vaults_book_it"
ELSEWHERE = {  # commands that begin like this are run by this test
    "alidpfl data get": "test_get_puts_the_files_where_load_finds_them",
    "alidpfl audit --model": "test_the_command_refutes_a_model_of_ones_own",
    "alidpfl vault anchor": "test_add_and_move_by_the_command",
    "alidpfl vault serve": "test_init_status_serve",
    "alidpfl flower demo": "test_the_demo_trains_books_what_it_spent_and_leaves_no_process",
    "flwr supernode register": "test_who_should_not_be_in_is_not_let_in",
    "flwr run trial local": "test_flowers_own_simulator_trains_the_same",
    "flwr run": DEPLOYMENT,
    "flower-superlink": "test_a_superlink_on_all_addresses_can_call_itself",
    "flower-supernode": DEPLOYMENT,
    "pip install": EXTRAS,
    "/opt/alidpfl/bin/pip install": EXTRAS,
    "python3 -m venv": EXTRAS,
    "git clone": CLONE,
    "source ": CLONE,
    "jupyter ": "test_a_notebook_runs",
    "export ": "",  # nothing to run: the names are looked up
    "useradd ": "",  # needs root
}
CHEAP = re.compile(r"alidpfl (account|data show|plan|tables|report|doctor|--help|--version)\b")
NAMES = "|".join({path[0] for path, _ in all_commands()})
LOOKS_LIKE_ONE = re.compile(rf"^[\s>]*(?:\$ )?(?:sudo .*?)?(?:\S*/)?alidpfl (?:{NAMES})\b", re.MULTILINE)


def found_in(document):
    try:
        return documents.commands((ROOT / document).read_text())
    except documents.NotUnderstoodError as error:
        raise documents.NotUnderstoodError(f"{document}, {error}") from None


def examples_in_help():
    """Return the examples of `alidpfl COMMAND --help`, after the runs that they need."""
    split = [part for _, command in all_commands() for part in help_of(command)[1].split(" && ")]
    tables = "alidpfl run --schema schema.toml --data hospitals/*.csv --out runs/hospitals"
    return [*(f"alidpfl run --out runs/{name}" for name in ("first", "second")), tables, *split]


def spans(document):
    """Return the code in running text, each piece in one line."""
    text = documents.running_text((ROOT / document).read_text())
    return [" ".join(one.split()).removeprefix(".venv/bin/") for one in re.findall(r"`([^`]+)`", text)]


FOUND = {document: found for document in DOCUMENTS if (found := found_in(document))}
FOUND["--help"] = examples_in_help()
COMPLETE = dict.fromkeys(
    one
    for document in DOCUMENTS
    for one in spans(document)
    if CHEAP.match(one) and not any(map(command_words.PLACEHOLDER.fullmatch, one.split()))
)


def needs_real_data(command):
    return any(words in command for words in REAL_DATA)


def test_there_are_commands_to_run():
    assert len(FOUND["README.md"]) >= 2
    assert sum(map(len, FOUND.values())) >= 90
    every = [command.split() for found in FOUND.values() for command in found]
    named = {words[1] for words in every if words[0] == "alidpfl"}
    assert named >= {"run", "show", "compare", "plan", "audit", "reproduce", "tables", "report", "vault", "flower"}


@pytest.mark.parametrize("document", DOCUMENTS)
def test_no_line_that_looks_like_a_command_is_lost(document):
    """Count them without looking for fences, so that a command in an indented block is found too."""
    lines = LOOKS_LIKE_ONE.findall((ROOT / document).read_text())
    assert len(lines) <= sum("alidpfl " in command for command in FOUND.get(document, []))


@pytest.mark.parametrize("document", [*DOCUMENTS, "CHANGELOG.md", "ARCHITECTURE.md"])
def test_commands_in_running_text_exist(document):
    for span in spans(document):
        for one in alternatives(span):
            assert not missing_of(one), f"{document}: `{one}`: {missing_of(one)}"


def alternatives(span):
    """Return the three commands of `alidpfl data list | get | show`."""
    words = span.replace(" | ", "|").split()
    if words[:1] != ["alidpfl"] or "|" not in span:
        return [span]
    return [" ".join([*words[:2], name]) for name in words[2].split("|")]


@pytest.mark.parametrize(
    ("command", "missing"),
    [
        ("alidpfl run --nonsense=3", {"--nonsense"}),
        ("alidpfl vault burn --dir x", {"vault", "burn"}),
        ("alidpfl paint", {"paint"}),
        ("alidpfl vault serve --head", set()),
        ("alidpfl vault anchor add x --dir y", set()),
        ("alidpfl vault anchor burn", {"vault", "anchor", "burn"}),
        ("alidpfl vault anchor", set()),
        ("alidpfl tables smal", {"smal"}),
        ("alidpfl reproduce NAME", set()),
        ("alidpfl data get minst", {"minst"}),
        ("alidpfl tables small --format word", {"word"}),
        ("alidpfl run --set privacy.epsilom=4", {"privacy.epsilom=4"}),
        ("alidpfl run --set method.policy=ration", {"method.policy=ration"}),
        ("alidpfl run x.toml --set seed=N", set()),
        ("--set method.optoins.key=value", {"method.optoins.key=value"}),
        ("--set method.options.key=value", set()),
        ("make tset", {"tset"}),
        ("make fuzz FUZZ=500", set()),
        ("pip install -c constraints.txt '.[flowers]'", {"flowers"}),
        ("pip install -c constraint.txt '.[vault]'", {"constraint.txt"}),
        ("pip install flwr[simulatoin]", {"flwr[simulatoin]"}),
        ("python reproduction/experiments/none.py", {"reproduction/experiments/none.py"}),
        ("python -m reproduction.experiments.none", {"reproduction.experiments.none"}),
        ("flower-superlink --enable-supernode-auth --ssl-keyfyle x", {"--ssl-keyfyle"}),
        ("flwr run x --streem", {"--streem"}),
        ("useradd --sistem x", {"--sistem"}),
        ("export PATH=/x FLWR_TELEMETRIE=0 FLWR_TELEMETRY_ENABLED=0", {"FLWR_TELEMETRIE"}),
        ("jupyter lab exampels", {"exampels"}),
    ],
)
def test_what_does_not_exist_is_found(command, missing):
    assert missing_of(command) == missing


def test_recipes_that_would_run_in_vain_are_found(monkeypatch, tmp_path):
    (tmp_path / "Makefile").write_text("bench: x ## a = b\n\tpython -m benchmarks.none\n\t$(BIN)/alidpfl rum $(ARGS)\n")
    monkeypatch.setattr(command_words, "ROOT", tmp_path)
    assert missing_of("make bench") == {"benchmarks.none", "rum"}


def test_options_of_systemd_units_exist():
    units = [
        fence
        for document in DOCUMENTS
        for fence in documents.fences((ROOT / document).read_text())
        if fence.language == "ini"
    ]
    assert len(units) == 3
    for unit in units:
        text = "\n".join(unit.lines).replace("\\\n", " ")
        (started,) = re.findall(r"^ExecStart=(\S+/(?:alidpfl|flower-\w+) .*)$", text, re.MULTILINE)
        assert not missing_of(started), missing_of(started)
        for settings in re.findall(r"^Environment=(.*)$", text, re.MULTILINE):
            assert not missing_of(f"export {settings}"), settings


def test_commands_that_are_run_elsewhere_have_a_test():
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for start, name in ELSEWHERE.items():
        assert not name or re.search(rf"^def {name}\(", tests, re.MULTILINE), start


@pytest.fixture
def scene(tmp_path, monkeypatch):
    """A folder that looks like a clone, with the files that the documents name."""
    (tmp_path / "reproduction").mkdir()
    for name in ("reproduction/experiments", "reproduction/recipes", "constraints.txt"):
        (tmp_path / name).symlink_to(ROOT / name)
    stored = shutil.ignore_patterns("runs", "*.sqlite*")
    shutil.copytree(ROOT / "reproduction" / "results", tmp_path / "reproduction" / "results", ignore=stored)
    monkeypatch.setattr("reproduction.results.RESULTS", tmp_path / "reproduction" / "results")
    random = np.random.default_rng(0)
    for path in ("patients.npz", *(f"my-data/{name}.npz" for name in ("north", "south", "test"))):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        np.savez(tmp_path / path, x=random.normal(size=(300, 6)).astype("float32"), y=random.integers(2, size=300))
    visits = {"x": random.normal(size=(300, 6)), "y": random.integers(3, size=300), "person": np.arange(300) % 120}
    np.savez(tmp_path / "visits.npz", **visits)
    (grid,) = (
        fence for fence in documents.fences((ROOT / "docs/how-to/reproduce.md").read_text()) if fence.language == "toml"
    )
    (tmp_path / "mine.toml").write_text("\n".join(grid.lines))
    write_tables(tmp_path)
    write_tables(tmp_path, ROOT / "docs/how-to/persons.md", "persons.toml")
    (tmp_path / "examples").symlink_to(ROOT / "examples")  # as in a clone
    (tmp_path / "patients.csv").write_text("age,sex,kappa,lambda,creatinine,mgus\n92,F,3.1,4.2,1.4,no\n")
    (tmp_path / "run.toml").write_text('[model]\nname = "linear"\n')
    _write_own_model(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # a configuration adds the current folder
    monkeypatch.delitem(sys.modules, "networks", raising=False)
    for folder in ("var/lib/alidpfl", "mnt/other-disk/alidpfl", "root", "etc"):
        (tmp_path / folder).mkdir(parents=True)
    for name in ("ca.crt", "node_1"):
        (tmp_path / name).write_text("made up\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def _write_own_model(folder):
    """Write the module and the configuration that the page on models shows."""
    fences = documents.fences((ROOT / "docs/how-to/own-model.md").read_text())
    for name, language, start in (
        ("networks.py", "python", "def two_layers"),
        ("own.toml", "toml", "factory ="),
        ("network.toml", "toml", "[[model.layers]]"),
    ):
        (text,) = (text for f in fences if f.language == language and start in (text := "\n".join(f.lines)))
        (folder / name).write_text(text)


LONG = {f"docs/{page}.md" for page in ("tutorials/clinical", "how-to/reproduce", "how-to/persons", "how-to/planner")}
"""Pages with commands that take longest. Their commands run among the slow tests."""


@pytest.mark.parametrize(
    "document", [pytest.param(one, marks=pytest.mark.slow if one in LONG else ()) for one in FOUND]
)
def test_the_commands_of(document, scene):
    for command in FOUND[document]:
        assert not missing_of(command), f"{command}: {missing_of(command)}"
        if command.startswith("make "):  # looked at only: most targets take minutes, some hours
            checked(["make", "-C", ROOT, "-n", *shlex.split(command)[1:]])
        elif not any(map(command.startswith, ELSEWHERE)) and not needs_real_data(command):
            run(scene, command)


@pytest.mark.parametrize("command", COMPLETE)
def test_complete_commands_in_running_text_run(command, scene):
    run(scene, command)


def test_there_are_complete_commands_in_running_text():
    assert {
        "alidpfl data show npz --data-dir my-data",
        "alidpfl account --sample-rate 0.04 --noise-multiplier 1.1 --delta 5e-6 --steps 20",
        "alidpfl doctor",
    } <= COMPLETE.keys()


@pytest.mark.real_data
@pytest.mark.usefixtures("data_dir")
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(one, marks=pytest.mark.slow if re.search("alidpfl (audit|run)", one) else ())
        for one in dict.fromkeys(one for found in FOUND.values() for one in found if needs_real_data(one))
    ],
)
def test_the_commands_on_real_data(command, scene):
    run(scene, command)


def run(scene, command):
    here = re.sub(r"(?<=[ =])/(?=(my|var|mnt|root|etc)/)", f"{scene}/", command)
    if command.startswith("install "):
        here = re.sub(r" -[og] \w+", "", here)  # only root can set the owner
    words = shlex.split(re.sub(r"^sudo (-H )?-u \w+ ", "", here))  # and only root can run as others
    words = [path for word in words for path in (sorted(glob.glob(word)) or [word])]  # as a shell does
    if words[0] == "cd":
        os.chdir(scene / words[1])  # the fixture returns to the old folder
        return
    if words[0].rsplit("/", 1)[-1] != "alidpfl":
        checked([sys.executable, *words[1:]] if words[0].startswith("python") else words)
        return
    done = alidpfl(*words[1:], *shorter(words[1], command))
    assert done.exit_code == 0, f"{command}\n{done.stdout[-1500:]}{done.stderr[-1500:]}"


def shorter(name, command):
    if name in SHORTER_BY_OPTION:
        return SHORTER_BY_OPTION[name]  # an option that is given twice has its last value
    if name == "run" and "--resume" in command:
        return []
    parts = SHORTER.get(name, [])
    if parts and not OWN_MODEL.search(command):
        parts = [*parts, "model.name=linear"]
    if "--max-epochs" in command:
        parts = [*parts, "--max-epochs", "0.5"]
    if "privacy.max_steps" in command:
        parts = ["privacy.max_steps=4", *parts]
    if needs_real_data(command):  # a recipe spends two rounds before it trains
        parts = ["federation.max_rounds=3", "privacy.epsilon=1", *parts[1:]]
    if name == "audit" and "--draws" in command:
        parts = parts[:2]
    settings = [part for one in parts if "=" in one for part in ("--set", one)]
    return [*settings, *(one for one in parts if "=" not in one)]


def checked(words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
