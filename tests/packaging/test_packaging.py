"""What is built installs and runs where there is no source tree, with a compiler and without one."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from alidpfl._version import __version__

ROOT = Path(__file__).parents[2]
SITE_PACKAGES = Path(pytest.__file__).parents[1]
LARGEST_WHEEL = 760_000  # 560 kB when the paper's parts left it; tables, tasks, evaluations and persons came after
QUICK_RUN = ("data.name=synthetic", "model.name=linear", "federation.max_rounds=2", "privacy.accountant=rdp")


def checked(command, **options):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def environment(**changes):
    """Nothing of ours is on the path."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return {**kept, **changes}


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """Made of what is in version control alone, as whoever clones it has it."""
    clone = tmp_path_factory.mktemp("clone")
    for name in checked(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard"]).splitlines():
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
    checked([sys.executable, "-m", "build", "--no-isolation", "--sdist", clone], env=environment())
    (found,) = (clone / "dist").glob("*.tar.gz")
    return found


def wheel_of(sdist, folder, **changes):
    """Built from the sdist, so that nothing may be missing in it."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    checked([sys.executable, "-m", "build", "--no-isolation", "--wheel", source], env=environment(**changes))
    (found,) = (source / "dist").glob("*.whl")
    return found


class Installed:
    """A new environment with the wheel in it. What it needs is borrowed from ours; alidpfl itself is not."""

    def __init__(self, wheel, folder):
        venv.create(folder, with_pip=False)
        (site,) = folder.glob("lib/python*/site-packages")
        (site / "borrowed.pth").write_text(f"{SITE_PACKAGES}\n")  # a plain path: its own .pth files are not read
        checked([sys.executable, "-m", "pip", "--python", folder, "install", "--no-deps", "--no-index", "-q", wheel])
        self.bin, self.site = folder / "bin", site

    def run(self, *command, cwd):
        return checked([self.bin / command[0], *command[1:]], cwd=cwd, env=environment(XDG_CACHE_HOME=str(cwd)))


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    return wheel_of(sdist, tmp_path_factory.mktemp("built"))


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    return Installed(wheel, tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="module")
def without_compiler(sdist, tmp_path_factory):
    wheel = wheel_of(sdist, tmp_path_factory.mktemp("bare"), CC="/no/compiler", CXX="/no/compiler")
    return Installed(wheel, tmp_path_factory.mktemp("installed-bare"))


def test_the_wheel_has_all_that_the_package_reads_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tracked = checked(["git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard", "src/alidpfl"])
    wanted = {name.removeprefix("src/") for name in tracked.splitlines() if not name.endswith((".c", ".h"))}
    found = {name for name in names if name.startswith("alidpfl/")}
    assert wanted <= found
    assert all("_native" in name for name in found - wanted)
    assert {name.split("/")[0] for name in names} == {"alidpfl", f"alidpfl-{__version__}.dist-info"}
    assert not [name for name in names if name.endswith(".safetensors")]
    assert wheel.stat().st_size <= LARGEST_WHEEL


def test_the_sdist_has_what_its_readme_refers_to(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    referred = {"constraints.txt", "CITATION.cff", "CHANGELOG.md", "LICENSE"}
    links = re.findall(r"\]\(([^)#:]+)", (ROOT / "README.md").read_text())
    referred |= {link for link in links if (ROOT / link).is_file() and not link.startswith("tests/")}
    assert {"docs/how-to/vault.md", "docs/pictures/accuracy.svg"} <= referred
    assert referred <= names, sorted(referred - names)
    assert not [name for name in names if name.startswith("tests/")]  # all or none: some alone cannot run


def test_it_runs_without_the_source_tree(installed, tmp_path):
    where = installed.run("python", "-c", "import alidpfl; print(alidpfl.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(installed.site)
    assert installed.run("alidpfl", "--version", cwd=tmp_path) == f"alidpfl {__version__}\n"
    settings = [part for one in QUICK_RUN for part in ("--set", one)]
    told = json.loads(installed.run("alidpfl", "run", *settings, "--json", "--out", "run", cwd=tmp_path))
    assert told["rounds"] == 2
    assert (tmp_path / "run" / "model.safetensors").exists()
    installed.run("alidpfl", "report", "run", "-o", "page.html", cwd=tmp_path)


@pytest.mark.parametrize("words", [["reproduce", "small"], ["tables", "small"], ["tables", "--format", "csv", "small"]])
def test_an_installed_wheel_says_where_the_papers_tables_are(installed, tmp_path, words):
    done = subprocess.run(
        [installed.bin / "alidpfl", *words],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "python -m reproduction" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert words[0] in installed.run("alidpfl", words[0], "--help", cwd=tmp_path)


def native_kernels(place, cwd):
    found = json.loads(place.run("alidpfl", "doctor", "--json", cwd=cwd))
    return {finding["what"]: finding for finding in found}["native kernels"]


def test_kernels_are_built_where_there_is_a_compiler(installed, tmp_path):
    if shutil.which("gcc") is None:
        pytest.skip("no compiler here")
    assert native_kernels(installed, tmp_path)["state"] == "good"


@pytest.mark.slow
def test_without_a_compiler_it_works_too(without_compiler, tmp_path):
    assert not list(without_compiler.site.rglob("_native*.so"))
    assert "C compiler" in native_kernels(without_compiler, tmp_path)["remedy"]
    settings = [part for one in QUICK_RUN for part in ("--set", one)]
    told = json.loads(without_compiler.run("alidpfl", "run", *settings, "--json", "--out", "run", cwd=tmp_path))
    assert told["rounds"] == 2


def test_the_version_comes_from_one_place():
    """Numbers like it elsewhere would be forgotten; the citation cannot import it, and is compared."""
    cited = re.search(r"^version: (\S+)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert cited[1].strip("\"'") == __version__
    settings = (ROOT / "pyproject.toml").read_text()
    assert 'dynamic = ["version"]' in settings
    assert not re.search(r"^version\s*=\s*\"", settings, re.MULTILINE)


def needed_without_extras():
    """Return the distributions that alidpfl needs without its extras, and those that they need."""
    waiting = list(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    found = {}
    while waiting:
        needed = Requirement(waiting.pop())
        if needed.name not in found and (needed.marker is None or needed.marker.evaluate({"extra": ""})):
            found[needed.name] = metadata.distribution(needed.name)
            waiting += found[needed.name].requires or []
    return found.values()


def link_into(site, distributions):
    """Install distributions by links to their files, which pip may remove: copies would be a gigabyte."""
    for one in distributions:
        for file in one.files:
            here, there = Path(one.locate_file(file)), site / file
            if here.exists() and ".." not in file.parts:
                there.parent.mkdir(parents=True, exist_ok=True)
                try:
                    there.hardlink_to(here)
                except FileExistsError:  # two distributions share a file
                    continue
                except OSError:  # on another disk
                    shutil.copy(here, there)


@pytest.mark.slow
def test_extras_install_what_they_are_for(wheel, tmp_path):
    """With pip, in an environment that has what alidpfl itself needs, and nothing of an extra."""
    venv.create(tmp_path / "new", with_pip=False)
    (site,) = (tmp_path / "new").glob("lib/python*/site-packages")
    link_into(site, needed_without_extras())
    pip = [sys.executable, "-m", "pip", "--python", tmp_path / "new", "install", "-q", "--no-compile"]
    new = tmp_path / "new" / "bin"

    def run(*command):
        return checked(command, cwd=tmp_path, env=environment(MPLBACKEND="Agg"))

    def install(extra):
        run(*pip, "-c", ROOT / "constraints.txt", f"{wheel}[{extra}]")

    def extras():
        told = json.loads(run(new / "alidpfl", "doctor", "--json"))
        states = {finding["what"]: finding["state"] for finding in told}
        return {what.removeprefix("extra: "): state for what, state in states.items() if what.startswith("extra: ")}

    def imports(module):
        command = [new / "python", "-c", f"import {module}"]
        done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
        assert done.returncode == 0 or "ModuleNotFoundError" in done.stderr, done.stderr
        return done.returncode == 0

    install("report")
    assert extras() == {"report": "good", "vault": "advice", "flower": "advice", "tensorboard": "advice"}
    run(new / "alidpfl", *["plan", "--epsilon", "2", "--samples", "1000", "--max-rounds", "5", "--plot", "plan.svg"])
    assert (tmp_path / "plan.svg").stat().st_size > 1000

    assert not imports("alidpfl.vault.service")
    install("vault")
    assert imports("alidpfl.vault.service")

    assert not imports("pandas")
    install("examples")
    assert "local steps of every round" in run(new / "python", ROOT / "examples" / "read_runs.py")

    install("flower")
    assert extras() == {"report": "good", "vault": "good", "flower": "good", "tensorboard": "advice"}
    run(new / "alidpfl", "flower", "certs", "keys")
    assert "SuperLink" in run(new / "flower-superlink", "--help")
