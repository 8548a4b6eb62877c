"""A second process, a ledger that lost lines, a full or read-only disk: refused, and nothing is charged."""

import ctypes
import json
import resource

import pytest

from alidpfl.vault.folder import ANSWERS, LEDGER, SOCKET, status
from alidpfl.vault.refusals import RefusalCode, VaultTroubleError
from tests.runs.command import alidpfl, forked

from .parts import body, connected, made_vault, not_served, opened, served, spent, steps_of


def test_a_second_process_is_refused_and_status_is_not(tmp_path):
    folder = made_vault(tmp_path)
    with served(folder) as (process, client):
        client.train_bytes(body())
        assert f"process {process.pid}" in not_served(folder)
        assert json.loads(alidpfl("vault", "status", "--dir", folder.path, "--json").stdout)["units_spent"] == 2
        client.train_bytes(body(round=1))  # the first did not notice
        head = status(folder.path)["head"]
    again = json.loads(alidpfl("vault", "status", "--dir", folder.path, "--json").stdout)
    assert (again["units_spent"], again["head"]) == (4, head)


@pytest.mark.parametrize("damage", ["deleted", "shortened", "changed", "rolled back", "head deleted"])
def test_a_ledger_that_lost_something_is_not_served(tmp_path, damage):
    folder = made_vault(tmp_path, anchor=str(tmp_path / "anchor"))
    path, head = folder.path / LEDGER, folder.path / "head.json"
    with opened(folder) as vault:
        vault.answer(body())
        snapshot = path.read_bytes(), head.read_bytes()
        vault.answer(body(round=1))
    match damage:
        case "deleted":
            path.unlink()
        case "shortened":
            path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-2]))
        case "changed":
            path.write_bytes(path.read_bytes().replace(b'"units": 2', b'"units": 1'))
        case "rolled back":
            for file, content in zip((path, head), snapshot, strict=True):
                file.write_bytes(content)
        case "head deleted":
            head.unlink()
    before = {file.name: file.read_bytes() for file in folder.path.glob("*.json*")}
    told = alidpfl("vault", "status", "--dir", folder.path)
    assert told.exit_code == 2
    for refused in (not_served(folder), told.stderr):
        assert len(refused.splitlines()) == 1
        assert str(folder.path) in refused
    assert {file.name: file.read_bytes() for file in folder.path.glob("*.json*")} == before


def test_a_ledger_deleted_while_it_is_served_stops_the_service(tmp_path):
    folder = made_vault(tmp_path)
    with served(folder) as (_, client):
        client.train_bytes(body())
        (folder.path / LEDGER).unlink()
        with pytest.raises(VaultTroubleError) as caught:
            client.train_bytes(body(round=1))
        assert caught.value.code is RefusalCode.LEDGER


def test_a_full_disk_costs_nothing(tmp_path):
    folder = made_vault(tmp_path)
    with served(folder) as (process, client):
        client.train_bytes(body())
        limits = resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1 << 12, resource.RLIM_INFINITY))
        before = (folder.path / LEDGER).read_bytes()
        for _ in range(2):
            with pytest.raises(VaultTroubleError) as caught:
                client.train_bytes(body(round=1))
            assert caught.value.code is RefusalCode.DISK
        assert (folder.path / LEDGER).read_bytes() == before
        assert steps_of(client.train_bytes(body())) == 2  # what is stored is still sent
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, limits)
        assert steps_of(client.train_bytes(body(round=1))) == 2
    assert spent(folder) == 4


def bound_by_permissions() -> None:
    """Drop root's power to write everywhere, if this process has it."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    keep = 0xFFFFFFFF & ~0b110  # all but CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH
    libc = ctypes.CDLL(None, use_errno=True)
    data = (ctypes.c_uint32 * 6)()
    assert libc.capget(header, data) == 0
    data[0] &= keep
    data[1] &= keep
    assert libc.capset(header, data) == 0


def test_a_read_only_folder_costs_nothing(tmp_path):
    folder = made_vault(tmp_path)
    process = forked(tmp_path / "log", "vault", "serve", "--dir", folder.path, first=bound_by_permissions)
    try:
        with connected(folder.path / SOCKET, process) as client:
            client.train_bytes(body())
            for closed in (folder.path / ANSWERS, folder.path):
                closed.chmod(0o500)
                with pytest.raises(VaultTroubleError, match="Permission denied") as caught:
                    client.train_bytes(body(round=1))
                assert caught.value.code is RefusalCode.DISK
                closed.chmod(0o700)
            assert status(folder.path)["units_spent"] == 2
            client.train_bytes(body(round=1))
    finally:
        process.kill()
    (folder.path / ".lock").unlink()
    folder.path.chmod(0o500)
    try:
        refused = forked(tmp_path / "log", "vault", "serve", "--dir", folder.path, first=bound_by_permissions)
        assert refused.wait() == 2
        assert str(folder.path / ".lock") in refused.log.read_text()
    finally:
        folder.path.chmod(0o700)
    assert spent(folder) == 4
