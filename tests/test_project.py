"""The project's own machinery: CI notices a skipped test of real data; the package builds without a compiler."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import mutants, mutation

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


def test_every_mutant_still_has_its_place():
    for mutant in mutants.MUTANTS:
        assert (ROOT / mutant.file).read_text().count(mutant.old) == 1, mutant.name
        assert all((ROOT / test.partition("::")[0]).exists() for test in mutant.tests.split()), mutant.name


def test_every_known_bug_is_a_mutant():
    """In the words of the threat model; fifteen at the least, where privacy is made."""
    names = {mutant.name for mutant in mutants.MUTANTS}
    assert len(names) == len(mutants.MUTANTS)
    assert len(mutants.KNOWN_BUGS) == 11
    assert {name for chosen in mutants.KNOWN_BUGS.values() for name in chosen} <= names
    page = " ".join((ROOT / "docs" / "explanation" / "privacy.md").read_text().split())
    assert all(bug in page for bug in mutants.KNOWN_BUGS)
    for folder in ("privacy/", "dpsgd/", "federation/loop.py", "ledger.py"):
        assert len(mutation.chosen(mutants.MUTANTS, folder, None)) >= 3, folder


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """A project of two lines and one test, which looks at the first line only."""
    for name in ("src", "tests", "docs", "benchmarks", "experiments"):
        (tmp_path / name).mkdir()
    for name in ("setup.py", "README.md", "LICENSE"):
        (tmp_path / name).touch()
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "src" / "code.py").write_text("ANSWER = 42\nQUESTION = 6 * 9\n")
    look = 'assert "ANSWER = 42" in Path("src/code.py").read_text()'
    (tmp_path / "tests" / "test_it.py").write_text(f"from pathlib import Path\ndef test_it():\n    {look}\n")
    monkeypatch.setattr(mutation, "ROOT", tmp_path)
    return tmp_path


SEEN = mutants.Mutant("seen", "src/code.py", "42", "43", "tests/test_it.py")
UNSEEN = mutants.Mutant("unseen", "src/code.py", "6 * 9", "6 * 7", "tests/test_it.py")


def test_mutants_count_for_nothing_where_tests_are_red_anyway(toy):
    (toy / "src" / "code.py").write_text("")
    with pytest.raises(SystemExit, match="fail without any mutant"):
        mutation.check_baseline([SEEN])


def test_a_hunt_names_the_killers_fails_by_a_survivor_and_goes_on_where_it_was(toy, capsys, monkeypatch):
    with pytest.raises(SystemExit, match="1 of 2 survived: unseen"):
        mutants.hunt([SEEN, UNSEEN], mutation.Progress(toy / "progress"), jobs=2)
    told = capsys.readouterr().out
    assert "seen: killed by tests/test_it.py::test_it" in told
    assert "unseen: SURVIVED" in told
    monkeypatch.setattr(mutation, "_pytest", lambda *_: pytest.fail("ran again"))
    mutants.hunt([SEEN], mutation.Progress(toy / "progress"), jobs=1)
    assert "seen: was killed by tests/test_it.py::test_it\nall 1 killed" in capsys.readouterr().out
    (toy / "tests" / "test_it.py").touch()
    assert mutation.Progress(toy / "progress").killed
    (toy / "tests" / "test_it.py").write_text("")  # other tests, other findings
    assert not mutation.Progress(toy / "progress").killed


def test_the_test_that_killed_a_mutant_last_is_tried_first(toy, monkeypatch):
    mutants.hunt([SEEN], mutation.Progress(toy / "progress"), jobs=1)
    assert mutation.known_killers() == {"seen": "tests/test_it.py::test_it"}
    ran, real = [], mutation._pytest
    monkeypatch.setattr(mutation, "_pytest", lambda folder, tests, *options: ran.append(tests) or real(folder, tests))
    assert mutation.killer(SEEN, "tests/test_it.py::test_it") == "tests/test_it.py::test_it"
    assert ran == [["tests/test_it.py::test_it"]]
    for useless in ("tests/test_it.py::test_gone", "tests/test_it.py::test_it"):  # the others have their turn too
        assert mutation.killer(UNSEEN, useless) is None
    assert mutation.killer(SEEN, "tests/test_it.py::test_gone") == "tests/test_it.py::test_it"


def test_killers_that_are_kept_are_tests_of_mutants():
    names = {mutant.name for mutant in mutants.MUTANTS}
    for name, test in mutation.known_killers().items():
        path, _, function = test.partition("::")
        assert name in names
        assert f"def {function.partition('[')[0].rsplit('::', 1)[-1]}(" in (ROOT / path).read_text()


def test_mutants_are_chosen_by_name_and_by_place():
    by_name, by_place = (mutation.chosen(mutants.MUTANTS, text, None) for text in ("seed reused", "privacy/ledger.py"))
    assert [mutant.name for mutant in by_name] == ["seed reused: the same noise every step"]
    assert {mutant.file for mutant in by_place} == {"src/alidpfl/privacy/client_ledger.py"}


def test_mutants_are_chosen_by_what_changed(monkeypatch):
    monkeypatch.setattr(mutation, "_changed_files", lambda _: {"src/alidpfl/dpsgd/step.py", "README.md"})
    files = {mutant.file for mutant in mutation.chosen(mutants.MUTANTS, "", "HEAD~1")}
    assert files == {"src/alidpfl/dpsgd/step.py"}
