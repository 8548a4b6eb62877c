"""A disk that fills up at any moment: said in one line, and once there is room everything goes on, nothing lost."""

import json

import pytest

from alidpfl.errors import DataError
from alidpfl.runs import execute, resume
from alidpfl.vault.folder import LEDGER
from alidpfl.vault.refusals import RefusalCode, VaultTroubleError
from reproduction.grid import cells, load_grid
from reproduction.results import Results
from tests.reproduction.made import made_result
from tests.runs.command import alidpfl, config, run_arguments
from tests.vault.parts import CountingTrainer, body, made_records, made_vault, opened, spent

from .disks import small_disk

ROUNDS = 3


@pytest.fixture
def disk(tmp_path):
    with small_disk(tmp_path / "disk") as made:
        yield made


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("whole") / "run"
    execute(_config(), out)
    return out


def _config():
    return config(federation__max_rounds=ROUNDS, run__evaluate_every=1)


def _assert_same(out, whole):
    for name in ("metrics.jsonl", "model.safetensors", "config.toml"):
        assert (out / name).read_bytes() == (whole / name).read_bytes(), name


@pytest.mark.parametrize("room", range(10))
def test_a_run_stops_and_goes_on(disk, whole, room):
    """With so many pages left: from the lock file over the checkpoint to the last summary."""
    out = disk.path / "run"
    disk.fill(but=room)
    with pytest.raises(DataError, match="the disk is full"):
        execute(_config(), out)
    assert not list(out.glob(".*.tmp")) if out.exists() else True  # half a file would only be in the way
    disk.free()
    if (out / "config.toml").exists():
        resume(out)
    else:  # it never began: the same command begins it
        execute(_config(), out)
    _assert_same(out, whole)


def test_the_command_says_it_in_one_line(disk):
    disk.fill(but=3)
    refused = alidpfl(*run_arguments(disk.path / "run", federation__max_rounds=ROUNDS))
    assert refused.exit_code == 2
    (line,) = refused.stderr.splitlines()
    assert line.startswith("alidpfl: cannot ")
    assert "the disk is full" in line
    assert "Traceback" not in refused.stdout


@pytest.mark.parametrize("room", range(8))
def test_a_vault_charges_nothing_it_cannot_keep(disk, room):
    folder = made_vault(disk.path)
    trainer = CountingTrainer()
    with opened(folder, trainer) as vault:
        first = vault.answer(body(steps=2))
        before = (folder.path / LEDGER).read_bytes()
        disk.fill(but=room)
        with pytest.raises(VaultTroubleError, match="nothing was charged or trained") as caught:
            vault.answer(body(round=1, steps=2))
        assert caught.value.code is RefusalCode.DISK
        assert (folder.path / LEDGER).read_bytes() == before
        assert trainer.steps == 2
        assert vault.answer(body(steps=2)) == first  # what is stored is still sent
        disk.free()
        second = vault.answer(body(round=1, steps=2))
        assert vault.answer(body(round=1, steps=2)) == second
    assert trainer.steps == spent(folder) == 4


def test_enrolment_is_whole_or_not_at_all(disk, tmp_path):
    records, anchor = made_records(tmp_path / "records.npz"), disk.path / "anchor"
    arguments = [
        "--epsilon",
        2,
        "--delta",
        1e-3,
        "--sample-rate",
        0.2,
        "--min-noise-multiplier",
        2,
        "--max-clip-norm",
        1,
    ]
    arguments += ["--max-steps-per-round", 5, "--num-classes", 3, "--model", "linear", "--accountant", "rdp"]
    arguments += ["--data", records, "--dir", disk.path / "vault", "--anchor", anchor]
    for room in range(4):
        disk.free()
        disk.fill(but=room)
        refused = alidpfl("vault", "init", *arguments)
        assert refused.exit_code == 2, refused.stdout
        assert len(refused.stderr.splitlines()) == 1
        assert [path.name for path in disk.path.iterdir()] == ["filler"]
    disk.free()
    assert alidpfl("vault", "init", *arguments).exit_code == 0


def _add(results, listed):
    for cell in listed:
        results.add(made_result(cell, 91.0))


def test_results_that_do_not_fit_are_told_and_the_others_stay(disk):
    listed = list(cells(load_grid("small"), seeds=5, datasets=["mnist"], accountants=["pld"]))
    results, lines = Results(disk.path / "results.sqlite"), disk.path / "small.jsonl"
    results.add(made_result(listed[0], 90.0))
    results.write_lines(lines, {listed[0].key})
    kept = lines.read_bytes()
    disk.fill()
    with pytest.raises(DataError, match=r"results\.sqlite"):
        _add(results, listed[1:])
    there = results.keys()
    assert listed[0].key in there
    with pytest.raises(DataError, match="the disk is full"):
        results.write_lines(lines, there | {"x"})
    assert lines.read_bytes() == kept
    disk.free()
    _add(results, listed[1:])
    assert results.keys() == {cell.key for cell in listed}
    assert all(json.dumps(result.settings) for result in results.all().values())
