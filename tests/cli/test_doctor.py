"""`alidpfl doctor`: what it sees in a whole installation, and in broken ones; what it then says to do."""

import json
import os
from types import SimpleNamespace

import pytest

from alidpfl.cli import doctor
from tests.runs.command import alidpfl


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
        "Flower's programs",
    } <= found.keys()
    assert all(finding["remedy"] for finding in found.values() if finding["state"] != "good")
    assert "doctor" in alidpfl("doctor").stdout


def test_what_is_missing_comes_with_a_remedy(monkeypatch, tmp_path):
    monkeypatch.setenv("ALIDPFL_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(doctor, "_is_installed", lambda _needed: False)
    monkeypatch.setattr("alidpfl.dpsgd.native.is_available", lambda: False)
    monkeypatch.setattr("alidpfl.dpsgd.native.library_file", lambda: None)
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


def seen_by(check):
    return {finding.what: finding for finding in check()}


def test_a_cache_that_cannot_be_written_is_broken(monkeypatch):
    """Root may, says os.access; the file system says no."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc")
    found = seen_by(doctor._cache)["cache"]
    assert (found.state, "/proc/alidpfl cannot be written" in found.seen) == (doctor.State.BROKEN, True)
    assert "XDG_CACHE_HOME" in found.remedy


def test_looking_at_the_cache_leaves_nothing(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert seen_by(doctor._cache)["cache"].state != doctor.State.BROKEN
    assert not list(tmp_path.iterdir())


def test_a_disk_that_is_nearly_full_is_told(monkeypatch):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: SimpleNamespace(free=5_000_000))
    found = seen_by(doctor._cache)["cache"]
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
    found = seen_by(doctor._data)["data: mnist"]
    assert found.state == doctor.State.BROKEN
    assert found.remedy


def test_a_step_that_is_not_finite_is_broken(monkeypatch):
    import torch

    nonsense = SimpleNamespace(noised_sum={"weight": torch.tensor([1.0, float("nan")])})
    monkeypatch.setattr("alidpfl.dpsgd.dp_sgd_step", lambda *_: nonsense)
    assert seen_by(doctor._step)["a private step"].state == doctor.State.BROKEN


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


@pytest.mark.parametrize(("kind", "state"), [("nothing", "advice"), ("file", "broken"), ("folder", "good")])
def test_a_data_directory_that_is_none_is_named(monkeypatch, tmp_path, kind, state):
    named = tmp_path / "nope"
    if kind == "file":
        named.write_text("")
    elif kind == "folder":
        named.mkdir()
    monkeypatch.setenv("ALIDPFL_DATA_DIR", str(named))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = seen_by(doctor._data)
    assert found["data directory"].state == state
    assert f"ALIDPFL_DATA_DIR={named}" in found["data directory"].seen
    assert ("ALIDPFL_DATA_DIR" in found["data directory"].remedy) == (kind != "folder")
    assert ("ALIDPFL_DATA_DIR" in found["data: mnist"].remedy) == (kind != "folder")
    assert "alidpfl data get mnist" in found["data: mnist"].remedy


def test_a_data_directory_that_cannot_be_read(monkeypatch, tmp_path):
    monkeypatch.setenv("ALIDPFL_DATA_DIR", str(tmp_path))
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)  # root may read everything
    found = seen_by(doctor._data)
    assert (found["data directory"].state, "cannot be read" in found["data directory"].seen) == ("broken", True)
    assert found.keys() == {"data directory"}


def test_kernels_that_do_not_load_are_told_from_kernels_that_were_not_built(monkeypatch, tmp_path):
    from alidpfl.dpsgd import native

    damaged = tmp_path / "_native.so"
    damaged.write_bytes(b"not a library")
    monkeypatch.setattr(native, "__file__", str(tmp_path / "native.py"))
    monkeypatch.setattr(native, "_library", native._library.__wrapped__)
    found = seen_by(doctor._kernels)["native kernels"]
    assert f"{damaged} does not load: " in found.seen
    assert "too short" in found.seen or "ELF" in found.seen  # the loader's words
    assert "compiler" not in found.remedy
    damaged.unlink()
    found = seen_by(doctor._kernels)["native kernels"]
    assert "not built" in found.seen
    assert "C compiler" in found.remedy


@pytest.mark.skipif(
    not hasattr(os, "confstr") or "glibc" not in (os.confstr("CS_GNU_LIBC_VERSION") or ""), reason="glibc"
)
@pytest.mark.parametrize(
    ("mmap", "trim", "state", "seen"),
    [
        ("1", "1", "advice", "MALLOC_MMAP_THRESHOLD_=1 MALLOC_TRIM_THRESHOLD_=1"),
        (str(1 << 30), "x", "advice", "with MALLOC_TRIM_THRESHOLD_=x,"),
        ("131072", str(1 << 30), "advice", "with MALLOC_MMAP_THRESHOLD_=131072,"),
        (None, str(1 << 30), "advice", "default"),
        (str(1 << 30), "0x40000000", "good", "keeps large blocks"),
    ],
)
def test_what_malloc_is_told_is_read(monkeypatch, mmap, trim, state, seen):
    monkeypatch.setattr(doctor, "_OTHER_MALLOCS", ())
    for name, value in zip(doctor._MALLOC_VARIABLES, (mmap, trim), strict=True):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    found = seen_by(doctor._malloc)["malloc"]
    assert (found.state, seen in found.seen) == (state, True), found
    assert (str(1 << 30) in found.remedy) == (state == "advice")


def test_flower_that_does_not_import_is_broken(monkeypatch, tmp_path):
    """Its version is still noted as installed."""
    (tmp_path / "flwr").mkdir()
    (tmp_path / "flwr" / "__init__.py").write_text("raise ImportError('grpc is of another age')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    found = seen_by(doctor._extras)["extra: flower"]
    assert (found.state, "grpc is of another age" in found.seen) == (doctor.State.BROKEN, True)
    assert "--force-reinstall" in found.remedy


def test_a_module_in_the_folder_one_is_in_breaks_nothing(monkeypatch, tmp_path):
    (tmp_path / "uvicorn.py").write_text("raise ImportError('somebody else')")
    monkeypatch.chdir(tmp_path)
    assert seen_by(doctor._extras)["extra: vault"].state == doctor.State.GOOD


@pytest.mark.parametrize("has_own", [True, False])
def test_flowers_programs_must_be_on_the_path(monkeypatch, tmp_path, has_own):
    monkeypatch.setenv("PATH", "/nowhere")
    if not has_own:
        monkeypatch.setattr(doctor.sys, "executable", str(tmp_path / "python"))
    found = seen_by(doctor._flower_programs)["Flower's programs"]
    assert found.state == doctor.State.ADVICE  # simulations work without
    assert ("export PATH=" if has_own else "--force-reinstall") in found.remedy
