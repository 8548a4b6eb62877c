"""Breaks a copy of the code and runs the tests that must notice; the bugs themselves are in mutants.py."""

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
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
_KILLERS = "reproduction/results/killers.json"
_COPIED = (
    *("src", "tests", "docs", "benchmarks", "reproduction"),
    *("setup.py", "pyproject.toml", "README.md", "LICENSE"),
)


@dataclass(frozen=True)
class Mutant:
    """In `file`, the text `old`, which stands there once, becomes `new`; one of `tests` must fail."""

    name: str
    file: str
    old: str
    new: str
    tests: str


class Progress:
    """What was found before in the same code and tests, so that a run of hours can be stopped and continued.

    A line of the file counts only while nothing has changed since: it begins with a hash of all that is copied.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._tree = path, _tree_hash()
        lines = path.read_text().splitlines() if path.exists() else []
        entries = [entry for entry in map(json.loads, lines) if entry["tree"] == self._tree]
        self.green = {entry["green"] for entry in entries if "green" in entry}
        """Test files that pass without any mutant."""
        self.killed = {entry["mutant"]: entry["test"] for entry in entries if "mutant" in entry}
        """The test that failed on each mutant."""

    def note_green(self, test: str) -> None:
        self._append({"green": test})

    def note_killed(self, mutant: Mutant, test: str) -> None:
        self._append({"mutant": mutant.name, "test": test})

    def _append(self, entry: dict) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps({"tree": self._tree, **entry}) + "\n")


def chosen(mutants: Iterable[Mutant], only: str, since: str | None) -> list[Mutant]:
    """Those with `only` in their name or in the path of their file, and of these such whose file or tests changed."""
    changed = None if since is None else _changed_files(since)
    return [
        mutant
        for mutant in mutants
        if (only in mutant.name or only in mutant.file)
        and (changed is None or changed & {mutant.file, *(test.partition("::")[0] for test in mutant.tests.split())})
    ]


def known_killers() -> dict[str, str]:
    """By mutant the test that killed it last, which is tried first: seconds in place of a whole file of tests."""
    path = ROOT / _KILLERS
    return json.loads(path.read_text()) if path.exists() else {}


def keep_killer(mutant: Mutant, test: str) -> None:
    """For the next time."""
    kept = dict(sorted({**known_killers(), mutant.name: test}.items()))
    (ROOT / _KILLERS).parent.mkdir(exist_ok=True)
    (ROOT / _KILLERS).write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


def forget_killers_that_are_gone(mutants: Iterable[Mutant]) -> None:
    """Tests that were renamed since: then a mutant's whole tests are run again."""
    known = known_killers()
    named = {name: known[name] for name in (mutant.name for mutant in mutants) if name in known}
    if not named:
        return
    files = sorted({test.partition("::")[0] for test in named.values()})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *files]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()
    gone = {name for name, test in named.items() if test not in found}
    if gone:
        kept = {name: test for name, test in known.items() if name not in gone}
        (ROOT / _KILLERS).write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n")


def check_baseline(mutants: Iterable[Mutant], progress: Progress | None = None) -> None:
    """Without a mutant every test must pass: one that is red anyway, \"killed\" by it, would prove nothing."""
    green, killed_by = progress.green if progress else set(), known_killers()
    mutants = [mutant for mutant in mutants if not (progress and mutant.name in progress.killed)]
    known = {killed_by[mutant.name] for mutant in mutants if mutant.name in killed_by}
    others = {test for mutant in mutants if mutant.name not in killed_by for test in mutant.tests.split()}
    with tempfile.TemporaryDirectory() as folder:
        _copy(Path(folder))
        for tests in [sorted(known - green), *([test] for test in sorted(others - green))]:
            done = _pytest(Path(folder), tests) if tests else None
            if done is not None and done.returncode != 0:
                said = f"{done.stdout[-3000:]}{done.stderr[-2000:]}"
                sys.exit(f"the tests fail without any mutant; mend them first:\n{said}")
            for test in tests if progress else ():
                progress.note_green(test)


def killers(mutants: Iterable[Mutant], jobs: int) -> Iterator[tuple[Mutant, str | None]]:
    """Each mutant with its killer, in the order in which they are found."""
    killed_by = known_killers()
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(killer, mutant, killed_by.get(mutant.name)): mutant for mutant in mutants}
        try:
            for done in as_completed(running):
                yield running[done], done.result()
        finally:
            pool.shutdown(cancel_futures=True)


def killer(mutant: Mutant, known: str | None = None) -> str | None:
    """The first test that fails on the mutant, or None if it survives; the one that is known to is tried first."""
    with tempfile.TemporaryDirectory() as folder:
        _copy(Path(folder))
        _mutate(mutant, Path(folder))
        for tests in [*([[known]] if known else []), mutant.tests.split()]:
            done = _pytest(Path(folder), tests, "-x")
            if broken := re.search(r"^E +((?:Name|UnboundLocal|Import|Syntax)Error.*)$", done.stdout, re.MULTILINE):
                sys.exit(f"mutant {mutant.name!r} is no program that runs ({broken[1]}): mend the mutant")
            # An ERROR is no test that noticed anything.
            if found := re.search(r"^FAILED (.+?)(?: - .*)?$", done.stdout, re.MULTILINE):
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
    text = path.read_text()
    if text.count(mutant.old) != 1:
        sys.exit(
            f"mutant {mutant.name!r}: its text stands {text.count(mutant.old)} times in {mutant.file}; mend the mutant"
        )
    path.write_text(text.replace(mutant.old, mutant.new))
    if path.suffix == ".h":
        build = [sys.executable, "setup.py", "-q", "build_ext", "--inplace", "--force"]
        subprocess.run(build, cwd=target, check=True, capture_output=True)


def _pytest(folder: Path, tests: Iterable[str], *options: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow and not real_data"]
    return subprocess.run(
        [*command, *options, *tests], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def _tree_hash() -> str:
    """Of every file that a mutant or its tests could meet."""
    found = hashlib.sha256()
    for name in _COPIED:
        top = ROOT / name
        for path in sorted(top.rglob("*")) if top.is_dir() else [top]:
            if path.is_file() and "__pycache__" not in path.parts:
                found.update(f"{path.relative_to(ROOT)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    return found.hexdigest()


def _changed_files(commit: str) -> set[str]:
    command = ["git", "-C", str(ROOT), "diff", "--name-only", commit, "--"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"--since {commit}: {done.stderr.strip()}")
    return set(done.stdout.split())
