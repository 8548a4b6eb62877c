"""Files that other users can write or have planted: nothing is served from the former or written through the latter."""

import json

import pytest

from alidpfl.errors import ConfigError, DataError
from alidpfl.vault.anchor import add_anchor, move_anchor
from alidpfl.vault.folder import ANSWERS, ENROLMENT, HEAD, LEDGER, POLICY, REFUSALS, VaultFolder
from alidpfl.vault.heads import Head, state_head
from alidpfl.vault.refusals import VaultRefusedError
from tests.runs.command import alidpfl

from .parts import CountingTrainer, body, made_records, made_vault, not_served, opened, served


def test_enrolment_makes_files_for_the_owner_alone(tmp_path, folder, disk):
    assert folder.path.stat().st_mode & 0o777 == 0o700
    state = state_head(Head.read(folder.path / HEAD).vault)
    for path in (*folder.path.iterdir(), disk / "anchor", state):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("name", ["", POLICY, ENROLMENT, LEDGER, HEAD, ANSWERS, "../disk", "../disk/anchor"])
@pytest.mark.parametrize("mode", [0o020, 0o002])
def test_a_vault_that_others_can_write_is_refused(folder, name, mode):
    path = (folder.path / name).resolve()
    before = path.stat().st_mode
    path.chmod(before | mode)
    told = not_served(folder)
    assert f"chmod go-w {path}" in told
    commands = [("anchor", "move", folder.path.parent / "disk" / "b")]
    for command in (*commands, *([("status",)] if "disk" not in name else [])):  # status writes nothing there
        refused = alidpfl("vault", *command, "--dir", folder.path)
        assert (refused.exit_code, f"chmod go-w {path}" in refused.stderr) == (2, True)
    path.chmod(before)
    with opened(VaultFolder(path=folder.path), CountingTrainer()) as vault:
        vault.answer(body())


def test_records_that_others_can_write_are_refused_at_enrolment_and_at_every_start(tmp_path, folder):
    new = made_records(tmp_path / "new.npz")
    new.chmod(0o664)
    with pytest.raises(ConfigError, match=f"chmod go-w {new}"):
        made_vault(tmp_path, "new")
    enrolled = tmp_path / "vault.npz"
    enrolled.chmod(0o646)
    assert f"chmod go-w {enrolled}" in not_served(folder)
    enrolled.chmod(0o644)
    with served(folder):
        pass


def test_an_anchor_in_a_folder_for_everybody_needs_the_sticky_bit(folder, disk):
    """Without it, others can keep an old anchor and put it back. With it, they can only add files."""
    disk.chmod(0o777)
    with pytest.raises(ConfigError, match="chmod"):
        move_anchor(folder, disk / "b")
    disk.chmod(0o1777)
    move_anchor(folder, disk / "b")
    with opened(folder, CountingTrainer()) as vault:
        vault.answer(body())


@pytest.mark.parametrize("hard", [False, True])
def test_links_planted_beside_the_anchor_and_in_the_folder_lead_nowhere(tmp_path, folder, disk, hard):
    """Staged heads, the answer to come and the staged log. Each would overwrite the ledger."""
    ledger, precious = folder.path / LEDGER, tmp_path / "precious"
    precious.write_bytes(b"kept")
    places = (
        disk / ".anchor.next",
        folder.path / ".head.json.next",
        folder.path / f".{REFUSALS}.next",
        folder.path / ANSWERS / ".next",
    )
    for place in places:
        place.hardlink_to(precious) if hard else place.symlink_to(precious)
    with opened(folder, CountingTrainer()) as vault:
        vault.answer(body())
        with pytest.raises(VaultRefusedError):
            vault.answer(b"nonsense")
    assert precious.read_bytes() == b"kept"
    assert len(ledger.read_bytes().splitlines()) == 3
    assert json.loads((folder.path / REFUSALS).read_bytes())["counts"] == {"malformed": 1}
    assert (disk / "anchor").read_bytes() == (folder.path / HEAD).read_bytes()


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("place", [".anchor.lock", ".b.lock"])
def test_a_link_planted_as_the_lock_of_an_anchor_is_refused(tmp_path, folder, disk, place, hard):
    ledger = folder.path / LEDGER
    before = ledger.read_bytes()
    (disk / place).hardlink_to(ledger) if hard else (disk / place).symlink_to(ledger)
    with pytest.raises((ConfigError, DataError), match="planted"):
        move_anchor(folder, disk / "b")
    assert ledger.read_bytes() == before
    (disk / place).unlink()
    move_anchor(folder, disk / "b")


def test_a_link_planted_as_the_new_anchor_leads_to_no_other_file(tmp_path, disk):
    """The link is resolved. What it leads to is no head, so it is not replaced."""
    folder, precious = made_vault(tmp_path), tmp_path / "precious"
    precious.write_bytes(b"kept")
    (disk / "a").symlink_to(precious)
    with pytest.raises(DataError, match="not a ledger's head"):
        add_anchor(folder, disk / "a")
    assert precious.read_bytes() == b"kept"
