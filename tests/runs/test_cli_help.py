"""The first thing that a new user asks: the help, on one screen and with examples; and the doctor."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from alidpfl import doctor
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


def test_a_whole_installation():
    done = alidpfl("doctor", "--json")
    found = {finding["what"]: finding for finding in json.loads(done.stdout)}
    assert done.exit_code == 0
    assert {
        "alidpfl",
        "PyTorch",
        "native kernels",
        "malloc",
        "a private step",
        "cache",
        "extra: flower",
    } <= found.keys()
    assert all(finding["remedy"] for finding in found.values() if finding["state"] != "good")
    assert "doctor" in alidpfl("doctor").stdout


def test_what_is_missing_comes_with_a_remedy(monkeypatch, tmp_path):
    monkeypatch.setenv("ALIDPFL_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(doctor, "_is_installed", lambda _needed: False)
    monkeypatch.setattr("alidpfl.dpsgd.native.is_available", lambda: False)
    found = {finding.what: finding for finding in doctor.examine()}
    assert "alidpfl data get mnist" in found["data: mnist"].remedy
    assert "pip install -c constraints.txt '.[flower]'" in found["extra: flower"].remedy
    assert "flwr" in found["extra: flower"].seen
    assert "C compiler" in found["native kernels"].remedy


def test_what_is_broken_ends_with_status_1(monkeypatch, tmp_path):
    def broken():
        raise OSError("no kernels for this processor")

    monkeypatch.setattr("alidpfl.dpsgd.native.is_available", broken)
    done = alidpfl("doctor")
    assert done.exit_code == 1
    assert "no kernels for this processor" in done.stdout


def examined():
    return {finding.what: finding for finding in doctor.examine()}


def test_a_cache_that_cannot_be_written_is_broken(monkeypatch):
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    assert examined()["cache"].state == doctor.State.BROKEN


def test_a_disk_that_is_nearly_full_is_told(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=5_000_000))
    found = examined()["cache"]
    assert (found.state, "5 MB free" in found.seen) == (doctor.State.ADVICE, True)
    assert "XDG_CACHE_HOME" in found.remedy


def test_data_that_are_damaged_are_broken(monkeypatch, tmp_path):
    damaged = tmp_path / "MNIST" / "raw"
    damaged.mkdir(parents=True)
    for name in (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    ):
        (damaged / name).write_bytes(b"not images")
    monkeypatch.setenv("ALIDPFL_DATA_DIR", str(tmp_path))
    found = examined()["data: mnist"]
    assert found.state == doctor.State.BROKEN
    assert found.remedy


def test_a_step_that_is_not_finite_is_broken(monkeypatch):
    import torch

    nonsense = SimpleNamespace(noised_sum={"weight": torch.tensor([1.0, float("nan")])})
    monkeypatch.setattr("alidpfl.dpsgd.dp_sgd_step", lambda *_: nonsense)
    assert examined()["a private step"].state == doctor.State.BROKEN


@pytest.mark.parametrize(
    ("needed", "is_installed"),
    [("torch>=2.6", True), ("torch>=99", False), ("torch<2.0,>=1.0", False), ("no-such-thing", False), ("numpy", True)],
)
def test_versions_within_bounds(needed, is_installed):
    assert doctor._is_installed(needed) is is_installed


def test_what_an_extra_needs_by_another():
    needed = " ".join(doctor._needed_by("flower"))
    assert "flwr" in needed
    assert "uvicorn" in needed  # by way of `vault`
    assert "matplotlib" not in needed
