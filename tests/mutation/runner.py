"""Run tests against copies of the code, each with one bug in it."""

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from tests.mutation.catalogue import FOLDER, ROOT, Mutant

_KILLERS = FOLDER / "killers.json"
_COPIED = (
    *("src", "tests", "docs", "benchmarks", "reproduction"),
    *("setup.py", "pyproject.toml", "README.md", "LICENSE"),
)
_NO_PROGRAM = re.compile(r"^E +((?:Name|UnboundLocal|Import|Syntax)Error.*)$", re.MULTILINE)
_FAILED = re.compile(r"^FAILED (.+?)(?: - .*)?$", re.MULTILINE)


class Progress:
    """Results for the present code and tests, so that a run of hours can be stopped and continued.

    Every line of the file starts with a hash of all that is copied. Lines of other code are ignored.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._tree = path, _tree_hash()
        lines = path.read_text().splitlines() if path.exists() else []
        entries = [entry for entry in map(json.loads, lines) if entry["tree"] == self._tree]
        self.green = {entry["green"] for entry in entries if "green" in entry}
        """Tests that pass without a mutant."""
        self.killed = {entry["mutant"]: entry["test"] for entry in entries if "mutant" in entry}
        """The test that failed on each mutant."""

    def note_green(self, test: str) -> None:
        self._append({"green": test})

    def note_killed(self, mutant: Mutant, test: str) -> None:
        self._append({"mutant": mutant.name, "test": test})

    def _append(self, entry: dict) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({"tree": self._tree, **entry}) + "\n")


def choose(mutants: Iterable[Mutant], only: str, since: str | None) -> list[Mutant]:
    """Return the mutants with `only` in their name or file, and with files that changed since a commit."""
    changed = None if since is None else _changed_files(since)
    return [
        mutant
        for mutant in mutants
        if (only in mutant.name or only in mutant.file)
        and (changed is None or changed & {mutant.file, *(test.partition("::")[0] for test in mutant.tests.split())})
    ]


def known_killers() -> dict[str, str]:
    """Return the test that killed each mutant last. It is tried first: seconds instead of a whole file of tests."""
    return json.loads(_KILLERS.read_text()) if _KILLERS.exists() else {}


def keep_killers(killers: dict[str, str]) -> None:
    """Write the killers for the next run."""
    _KILLERS.write_text(json.dumps(dict(sorted(killers.items())), indent=1, ensure_ascii=False) + "\n")


def forget_missing_killers(mutants: Iterable[Mutant]) -> None:
    """Forget killers that no test has the name of any more."""
    known = known_killers()
    named = {mutant.name: known[mutant.name] for mutant in mutants if mutant.name in known}
    if not named:
        return
    files = sorted({test.partition("::")[0] for test in named.values()} & {str(p) for p in _test_files()})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    found = set(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines())
    keep_killers({name: test for name, test in known.items() if name not in named or test in found})


def check_baseline(mutants: Iterable[Mutant], progress: Progress | None = None) -> None:
    """Run the tests without a mutant. A test that is red anyway would prove nothing."""
    green, killed_by = progress.green if progress else set(), known_killers()
    mutants = [mutant for mutant in mutants if not (progress and mutant.name in progress.killed)]
    known = {killed_by[mutant.name] for mutant in mutants if mutant.name in killed_by}
    others = {test for mutant in mutants if mutant.name not in killed_by for test in mutant.tests.split()}
    with tempfile.TemporaryDirectory() as folder:
        _copy(Path(folder))
        for tests in [sorted(known - green), *([test] for test in sorted(others - green))]:
            done = _pytest(Path(folder), tests) if tests else None
            if done is not None and done.returncode != 0:
                sys.exit(
                    f"the tests fail without a mutant; mend them first:\n{done.stdout[-3000:]}{done.stderr[-2000:]}"
                )
            for test in tests if progress else ():
                progress.note_green(test)


def find_killers(mutants: Iterable[Mutant], jobs: int) -> Iterator[tuple[Mutant, str | None]]:
    """Yield each mutant with its killer, or None if it survived, as they are found."""
    killed_by = known_killers()
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(find_killer, mutant, killed_by.get(mutant.name)): mutant for mutant in mutants}
        try:
            for done in as_completed(running):
                yield running[done], done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def find_killer(mutant: Mutant, known: str | None = None) -> str | None:
    """Return the first test that fails on the mutant, or None if it survives. The known killer is tried first."""
    with tempfile.TemporaryDirectory() as folder:
        _copy(Path(folder))
        _mutate(mutant, Path(folder))
        for tests in [*([[known]] if known else []), mutant.tests.split()]:
            done = _pytest(Path(folder), tests, "-x")
            if broken := _NO_PROGRAM.search(done.stdout):
                sys.exit(f"mutant {mutant.name!r} is no program that runs ({broken[1]}): mend the mutant")
            if found := _FAILED.search(done.stdout):  # an ERROR is no test that noticed anything
                return found[1]
    if done.returncode != 0:
        sys.exit(f"mutant {mutant.name!r}: the tests could not run:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return None


def _copy(target: Path) -> None:
    for name in _COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, target / name, ignore=shutil.ignore_patterns("__pycache__", "results"))
        else:
            shutil.copy(source, target / name)


def _mutate(mutant: Mutant, target: Path) -> None:
    path = target / mutant.file
    path.write_text(mutant.applied(path.read_text()))
    if path.suffix == ".h":
        build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"]
        subprocess.run(build, cwd=target, check=True, capture_output=True)


def _pytest(folder: Path, tests: Iterable[str], *options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not real_data"]
    return subprocess.run(
        [*command, *options, *tests], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def _test_files() -> Iterator[Path]:
    return (path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py"))


def _tree_hash() -> str:
    """Return a hash of every file that a mutant or its tests could meet, but for the killers."""
    found = hashlib.sha256()
    for name in _COPIED:
        top = ROOT / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and "__pycache__" not in path.parts and path != _KILLERS:
                found.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return found.hexdigest()


def _changed_files(commit: str) -> set[str]:
    command = ["git", "-C", str(ROOT), "diff", "--name-only", commit, "--"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"--since {commit}: {done.stderr.strip()}")
    return set(done.stdout.split())
