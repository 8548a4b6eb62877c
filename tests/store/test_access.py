"""Who may write a file: others may not, and nothing is written through a link that somebody planted."""

import os

import pytest

from alidpfl.errors import AliDpflError, ConfigError
from alidpfl.store import access as access_module
from alidpfl.store.access import refuse_if_shared
from alidpfl.store.files import append_line, new_file, synced_size, truncate, write_atomically
from alidpfl.store.lock import exclusive_lock


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize("mode", [0o600, 0o644, 0o400, 0o755, 0o620, 0o602, 0o666, 0o777, 0o1777, 0o1770])
def test_what_others_can_write_is_refused(tmp_path, mode, is_folder):
    path = tmp_path / "it's here"
    path.mkdir() if is_folder else path.write_bytes(b"")
    path.chmod(mode)
    if mode & 0o022:
        with pytest.raises(ConfigError) as caught:
            refuse_if_shared(path)
        remedy = str(caught.value).split("`")[1]
        if is_folder and mode & 0o1000:
            refuse_if_shared(path, sticky=True)
        else:
            with pytest.raises(ConfigError):
                refuse_if_shared(path, sticky=True)
        assert os.system(remedy) == 0  # noqa: S605 - what it says can be done
    refuse_if_shared(path)


def test_what_belongs_to_others_is_refused_unless_root_asks_or_owns_it(tmp_path, monkeypatch):
    path, owner = tmp_path / "file", os.getuid()
    path.write_bytes(b"")

    class Stranger:
        """Stands for `os`: the caller is somebody else."""

        caller = owner + 1

        def __getattr__(self, name):
            return getattr(os, name) if name != "geteuid" else lambda: self.caller

    monkeypatch.setattr(access_module, "os", Stranger())
    if owner == 0:
        refuse_if_shared(path)  # what root owns
        os.chown(path, 7, -1)
    with pytest.raises(ConfigError, match="chown"):
        refuse_if_shared(path)
    refuse_if_shared(path, any_owner=True)
    Stranger.caller = 0
    refuse_if_shared(path)


def test_what_does_not_exist_is_for_others_to_refuse(tmp_path):
    refuse_if_shared(tmp_path / "nothing")


@pytest.mark.parametrize("hard", [False, True])
def test_nothing_is_written_through_a_planted_link(tmp_path, hard):
    """Neither through the staged file of an atomic write nor through a lock, which is emptied at the end."""
    precious, target = tmp_path / "ledger", tmp_path / "file"
    precious.write_bytes(b"lines\n")

    def plant(path):
        path.unlink(missing_ok=True)
        os.link(precious, path) if hard else path.symlink_to(precious)
        return path

    plant(tmp_path / ".file.tmp")
    write_atomically(target, b"new")
    assert target.read_bytes() == b"new"
    os.close(new_file(plant(tmp_path / "staged")))
    with pytest.raises(AliDpflError, match="planted"), exclusive_lock(plant(tmp_path / ".lock"), owner_of=tmp_path):
        pass
    assert precious.read_bytes() == b"lines\n"


def test_a_file_that_grows_is_not_a_link(tmp_path):
    (tmp_path / "ledger").write_bytes(b"lines\n")
    (tmp_path / "link").symlink_to(tmp_path / "ledger")
    link = tmp_path / "link"
    for write in (lambda: append_line(link, b"x\n"), lambda: truncate(link, 6), lambda: synced_size(link)):
        with pytest.raises(AliDpflError, match="symbolic link"):
            write()
    assert (tmp_path / "ledger").read_bytes() == b"lines\n"


def test_a_new_file_has_the_wanted_mode_and_replaces_the_old_one(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o666)
    os.close(new_file(path))
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"", 0o600)
