"""The anchor: a head on another disk. Without it, nothing distinguishes a folder from its copy."""

import os
import shutil
from pathlib import Path

import pytest

from alidpfl.errors import ConfigError, DataError
from alidpfl.vault import enrolment as enrolment_module
from alidpfl.vault.anchor import add_anchor
from alidpfl.vault.folder import HEAD, VaultFolder
from alidpfl.vault.refusals import RefusalCode, VaultTroubleError

from .parts import CountingTrainer, body, lines, machine, made_vault, opened, spent, without_lock


def copied(folder) -> VaultFolder:
    """A copy, as in a snapshot or a clone of the machine."""
    shutil.copytree(folder.path, folder.path.with_name("copy"))
    return VaultFolder(path=folder.path.with_name("copy"))


def refused(vault, **changes) -> None:
    """Refused because of the anchor, and nothing is charged."""
    before = len(vault.ledger.book.reservations)
    with pytest.raises(VaultTroubleError) as caught:
        vault.answer(body(**changes))
    assert caught.value.code is RefusalCode.LEDGER
    assert len(vault.ledger.book.reservations) == before


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_folder_and_its_copy_are_not_served_at_the_same_time(folder, disk, elsewhere):
    """The anchor notices it from another machine too, and the state head on the same one."""
    copy, state = copied(folder), disk.with_name("other") if elsewhere else Path(os.environ["XDG_STATE_HOME"])
    with opened(folder, CountingTrainer()) as vault:
        with machine(state), pytest.raises(ConfigError, match=r"anchor .*process \d+"), opened(copy):
            pass
        vault.answer(body())
    with machine(state), pytest.raises(DataError, match="anchor"), opened(copy):  # nor one after the other
        pass


def test_without_an_anchor_the_state_head_keeps_a_copy_from_being_served_by_the_same_user(tmp_path):
    folder = made_vault(tmp_path)
    copy = copied(folder)
    with opened(folder, CountingTrainer()) as vault:
        with pytest.raises(ConfigError, match=r"\.head .*process \d+"), opened(copy):
            pass
        vault.answer(body())
    with pytest.raises(DataError, match=r"\.head"), opened(copy):
        pass


def test_where_locks_do_not_work_only_one_of_two_copies_spends(folder, disk):
    trainers = CountingTrainer(), CountingTrainer()
    one = without_lock(folder, trainers[0])
    with machine(disk.with_name("other machine")):
        two = without_lock(copied(folder), trainers[1])
    one.answer(body(run="a"))
    for number in range(3):
        refused(two, run="b", round=number)
    one.answer(body(run="a", round=1))
    refused(two, run="b", round=9)
    assert [trainer.steps for trainer in trainers] == [4, 0]
    for vault in (one, two):
        vault.ledger.close()


@pytest.mark.parametrize("name", ["anchor", "head"])
def test_a_head_deleted_while_it_is_served_is_not_made_again(folder, disk, name):
    path, trainer = {"anchor": disk / "anchor", "head": folder.path / HEAD}[name], CountingTrainer()
    with opened(folder, trainer) as vault:
        vault.answer(body())
        kept = path.read_bytes()
        path.unlink()
        refused(vault, round=1)
        assert not path.exists()
        path.write_bytes(kept)
        refused(vault, round=1)  # it was changed by hand, so the owner has to check
    assert (trainer.steps, len(lines(folder))) == (2, 3)
    with opened(folder, trainer) as vault:
        vault.answer(body(round=1))
    assert (trainer.steps, spent(folder)) == (4, 4)


def test_nothing_is_written_to_a_bare_mount_point(folder, disk):
    with opened(folder, CountingTrainer()) as vault:
        disk.rename(disk.with_name("unmounted"))
        disk.mkdir()
        refused(vault)
    with pytest.raises(DataError, match=str(disk / "anchor")), opened(folder):
        pass
    assert list(disk.iterdir()) == []
    disk.rmdir()
    disk.with_name("unmounted").rename(disk)
    with opened(folder, CountingTrainer()) as vault:
        vault.answer(body())


def test_an_anchor_lost_in_the_middle_of_a_round_delays_its_answer(folder, disk):
    class Unplugging(CountingTrainer):
        def _train(self, start, plan):
            (disk / "anchor").rename(disk / "away")
            return super()._train(start, plan)

    with opened(folder, Unplugging()) as vault, pytest.raises(VaultTroubleError) as caught:
        vault.answer(body())
    assert caught.value.code is RefusalCode.LEDGER
    (disk / "away").rename(disk / "anchor")
    trainer = CountingTrainer()
    with opened(folder, trainer) as vault:
        vault.answer(body())
    assert (trainer.steps, spent(folder)) == (0, 2)


# ------------------------------------------------------------------------------------------------------------- links


def test_an_anchor_behind_a_link_is_written_where_the_link_leads(tmp_path, disk):
    link = tmp_path / "link"
    link.symlink_to(disk / "anchor")
    folder = made_vault(tmp_path, anchor=str(link))
    assert folder.anchor() == disk / "anchor"
    with opened(folder, CountingTrainer()) as vault:
        vault.answer(body())
    assert link.is_symlink()
    assert (disk / "anchor").read_bytes() == (folder.path / HEAD).read_bytes()


def test_so_is_one_that_was_added_later(tmp_path, disk):
    folder = made_vault(tmp_path)
    (tmp_path / "link").symlink_to(disk / "anchor")
    add_anchor(folder, tmp_path / "link")
    with opened(folder, CountingTrainer()) as vault:
        vault.answer(body())
    assert (tmp_path / "link").is_symlink()
    assert (disk / "anchor").read_bytes() == (folder.path / HEAD).read_bytes()


# --------------------------------------------------------------------------------------------------------- enrolment


def enrolled_meanwhile(monkeypatch, other) -> None:
    """`other` enrols after the next enrolment has looked whether folder and anchor are free."""
    described = enrolment_module._described

    def late(*arguments):
        monkeypatch.setattr(enrolment_module, "_described", described)
        other()
        return described(*arguments)

    monkeypatch.setattr(enrolment_module, "_described", late)


def test_of_two_enrolments_at_once_one_gets_the_anchor_and_keeps_it(tmp_path, disk, monkeypatch):
    anchor = str(disk / "anchor")
    enrolled_meanwhile(monkeypatch, lambda: made_vault(tmp_path, "winner", anchor=anchor))
    with pytest.raises(ConfigError, match=anchor):
        made_vault(tmp_path, "loser", anchor=anchor)
    assert not (tmp_path / "loser").exists()
    with opened(VaultFolder(path=tmp_path / "winner"), CountingTrainer()) as vault:
        vault.answer(body())


def test_an_enrolment_that_fails_takes_its_own_anchor_back(tmp_path, disk, monkeypatch):
    enrolled_meanwhile(monkeypatch, lambda: made_vault(tmp_path, anchor=str(disk / "first")))
    with pytest.raises(DataError, match=str(tmp_path / "vault")):
        made_vault(tmp_path, anchor=str(disk / "second"))
    assert [path.name for path in disk.iterdir()] == ["first"]
    with opened(VaultFolder(path=tmp_path / "vault"), CountingTrainer()) as vault:
        vault.answer(body())
