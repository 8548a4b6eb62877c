"""The mutants fit the code, cover the known bugs, and a hunt reports what it finds."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation import __main__ as command
from tests.mutation import runner
from tests.mutation.catalogue import Mutant, MutantError, load_mutants
from tests.mutation.runner import Progress, check_baseline, choose, find_killer, known_killers

ROOT = Path(__file__).parents[2]
MUTANTS = load_mutants()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_the_code_and_names_its_tests(mutant):
    text = (ROOT / mutant.file).read_text()
    changed = mutant.applied(text)
    assert changed != text
    if mutant.file.endswith(".py"):
        compile(changed, mutant.file, "exec")  # a bug that does not compile proves nothing about the tests
    assert all((ROOT / test.partition("::")[0]).exists() for test in mutant.tests.split())


def test_no_mutant_reads_a_name_that_is_not_there(tmp_path):
    """The code under test withholds errors. A mutant that dies of a NameError would look like one that was noticed."""
    names = {}
    for number, mutant in enumerate(MUTANTS):
        if mutant.file.endswith(".py"):
            text = (ROOT / mutant.file).read_text()
            names[f"of {mutant.file}".replace("/", " ")] = text
            names[f"mutant {number}.py"] = mutant.applied(text)
    for name, text in names.items():
        (tmp_path / name).write_text(text)
    ruff = [str(Path(sys.executable).parent / "ruff"), "check", "--isolated", "--select", "F821", "--no-cache"]
    done = subprocess.run([*ruff, "--output-format", "json", tmp_path], capture_output=True, text=True, check=False)
    found = {Path(one["filename"]).name for one in json.loads(done.stdout)}
    assert found == set(), [MUTANTS[int(name[7:-3])].name for name in found if name.startswith("mutant ")]


def test_every_known_bug_is_a_mutant():
    """The bugs that docs/explanation/privacy.md lists, and enough mutants where privacy is made."""
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
    known = {mutant.known_bug for mutant in MUTANTS if mutant.known_bug}
    assert len(known) == 11
    page = " ".join((ROOT / "docs" / "explanation" / "privacy.md").read_text().split())
    assert all(bug in page for bug in known)
    for part in ("privacy/", "dpsgd/", "federation/loop.py", "ledger.py"):
        assert len(choose(MUTANTS, part, None)) >= 3, part


CODE = """
def one():
    return 42


def other():
    return 42


class Thing:
    def method(self):
        return 6 * 9
"""


def _mutant(within: str, old: str = "42", new: str = "43") -> Mutant:
    return Mutant(name="m", file="src/code.py", within=within, old=old, new=new, tests="tests/test_it.py")


def test_a_mutant_changes_its_function_alone():
    assert _mutant("other").applied(CODE) == CODE.replace("other():\n    return 42", "other():\n    return 43")
    assert "6 * 7" in _mutant("Thing.method", "6 * 9", "6 * 7").applied(CODE)


@pytest.mark.parametrize(("within", "old"), [("", "42"), ("one", "41"), ("gone", "42"), ("Thing.gone", "42")])
def test_a_mutant_that_no_longer_fits_is_refused(within, old):
    with pytest.raises(MutantError):
        _mutant(within, old).applied(CODE)


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A project of two lines and one test, which looks at the first line only."""
    for name in ("src", "tests", "docs", "benchmarks", "reproduction"):
        (tmp_path / name).mkdir()
    for name in ("setup.py", "README.md", "LICENSE"):
        (tmp_path / name).touch()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "src" / "code.py").write_text("ANSWER = 42\nQUESTION = 6 * 9\n")
    look = 'assert "ANSWER = 42" in Path("src/code.py").read_text()'
    (tmp_path / "tests" / "test_it.py").write_text(f"from pathlib import Path\ndef test_it():\n    {look}\n")
    monkeypatch.setattr(runner, "ROOT", tmp_path)
    monkeypatch.setattr(runner, "_KILLERS", tmp_path / "killers.json")
    return tmp_path


SEEN = Mutant(name="seen", file="src/code.py", old="42", new="43", tests="tests/test_it.py")
UNSEEN = Mutant(name="unseen", file="src/code.py", old="6 * 9", new="6 * 7", tests="tests/test_it.py")


def test_mutants_count_for_nothing_where_tests_are_red_anyway(toy):
    (toy / "src" / "code.py").write_text("")
    with pytest.raises(SystemExit):
        check_baseline([SEEN])


def test_a_hunt_names_the_killers_fails_by_a_survivor_and_continues(toy, capsys, monkeypatch):
    with pytest.raises(SystemExit, match=r"1 of 2 .*unseen"):
        command.hunt([SEEN, UNSEEN], Progress(toy / "progress"), jobs=2)
    printed = capsys.readouterr().out
    assert "seen: killed by tests/test_it.py::test_it" in printed
    assert "unseen: SURVIVED" in printed
    monkeypatch.setattr(runner, "_pytest", lambda *_: pytest.fail("ran again"))
    monkeypatch.setattr(command, "forget_missing_killers", lambda _: None)
    command.hunt([SEEN], Progress(toy / "progress"), jobs=1)
    assert "all 1 killed" in capsys.readouterr().out
    (toy / "tests" / "test_it.py").touch()
    assert Progress(toy / "progress").killed
    (toy / "tests" / "test_it.py").write_text("")  # other tests, other results
    assert not Progress(toy / "progress").killed


def test_the_test_that_killed_a_mutant_last_is_tried_first(toy, monkeypatch):
    command.hunt([SEEN], Progress(toy / "progress"), jobs=1)
    assert known_killers() == {"seen": "tests/test_it.py::test_it"}
    ran, real = [], runner._pytest
    monkeypatch.setattr(runner, "_pytest", lambda folder, tests, *options: ran.append(tests) or real(folder, tests))
    assert find_killer(SEEN, "tests/test_it.py::test_it") == "tests/test_it.py::test_it"
    assert ran == [["tests/test_it.py::test_it"]]
    for useless in ("tests/test_it.py::test_gone", "tests/test_it.py::test_it"):  # the others have their turn too
        assert find_killer(UNSEEN, useless) is None
    assert find_killer(SEEN, "tests/test_it.py::test_gone") == "tests/test_it.py::test_it"


def test_mutants_are_chosen_by_name_and_by_place():
    by_name, by_place = (choose(MUTANTS, text, None) for text in ("seed reused", "privacy/client_ledger.py"))
    assert [mutant.name for mutant in by_name] == ["seed reused: the same noise every step"]
    assert {mutant.file for mutant in by_place} == {"src/alidpfl/privacy/client_ledger.py"}


def test_mutants_are_chosen_by_what_changed(monkeypatch):
    monkeypatch.setattr(runner, "_changed_files", lambda _: {"src/alidpfl/dpsgd/step.py", "README.md"})
    assert {mutant.file for mutant in choose(MUTANTS, "", "HEAD~1")} == {"src/alidpfl/dpsgd/step.py"}
