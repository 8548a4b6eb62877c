"""`alidpfl vault anchor`: add and move, killed at every line, refused with a remedy, and never undone."""

import json
import os
import shutil
import signal
from pathlib import Path

import pytest

from alidpfl.errors import AliDpflError, ConfigError, DataError
from alidpfl.store import files as files_module
from alidpfl.vault import chain as chain_module
from alidpfl.vault.anchor import add_anchor, move_anchor
from alidpfl.vault.folder import HEAD, LEDGER, POLICY, VaultFolder, status
from alidpfl.vault.heads import Head, state_head
from tests.runs.command import alidpfl

from .parts import CountingTrainer, body, lines, machine, made_vault, not_served, opened, served, spent
from .test_kills import in_child

CHANGES = ("open", "write", "fsync", "replace", "unlink", "ftruncate")


@pytest.fixture
def folder(tmp_path):
    """A vault without an anchor that has served a round."""
    made = made_vault(tmp_path)
    with opened(made, CountingTrainer()) as vault:
        vault.answer(body())
    return made


@pytest.fixture
def anchored(folder, disk):
    add_anchor(folder, disk / "a")
    return folder


def serve_round(folder, number: int, **parts) -> None:
    with opened(folder, CountingTrainer(), **parts) as vault:
        vault.answer(body(round=number))


# ------------------------------------------------------------------------------------------------------- the command


def test_add_and_move_by_the_command(folder, disk):
    where = ("--dir", folder.path)
    done = alidpfl("vault", "anchor", "add", disk / "a", *where)
    assert (done.exit_code, str(disk / "a") in done.stdout) == (0, True), done.stderr
    assert status(folder.path)["anchor"] == str(disk / "a")
    with served(folder, "--anchor", disk / "a") as (_, client):
        client.train_bytes(body(round=1))
        refused = alidpfl("vault", "anchor", "move", disk / "b", *where)
        assert (refused.exit_code, len(refused.stderr.splitlines())) == (2, 1)
        assert not (disk / "b").exists()
    done = alidpfl("vault", "anchor", "move", disk / "b", *where)
    assert (done.exit_code, str(disk / "b") in done.stdout) == (0, True), done.stderr
    assert (disk / "b").read_bytes() == (folder.path / HEAD).read_bytes()
    assert Head.read(disk / "a").moved_to == str(disk / "b")
    with served(folder) as (_, client):
        client.train_bytes(body(round=2))
    assert str(disk / "b") in not_served(folder, "--anchor", disk / "a")
    assert spent(folder) == 6


def test_a_command_that_is_repeated_changes_nothing_more(anchored, disk):
    for change, name in ((add_anchor, "a"), (move_anchor, "b"), (move_anchor, "b")):
        before = len(lines(anchored))
        change(anchored, disk / name)
        assert len(lines(anchored)) - before == (name == "b" and before == 4)
    serve_round(anchored, 1)


def test_an_anchor_may_move_back(anchored, disk):
    for number, name in enumerate("bab", start=1):
        move_anchor(anchored, disk / name)
        serve_round(anchored, number)
    assert Head.read(disk / "a").moved_to == str(disk / "b")
    assert Head.read(disk / "b").moved_to is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder, disk: add_anchor(folder, disk / "b"), "move"),
        (lambda folder, disk: add_anchor(folder, folder.path / "b"), "own folder"),
        (lambda folder, disk: move_anchor(folder, disk / "no" / "b"), "not a folder"),
        (lambda folder, disk: move_anchor(folder, Path(__file__)), "not a ledger's head"),
        (lambda folder, disk: move_anchor(made_vault(disk, "new"), disk / "b"), "add"),
        (lambda folder, disk: add_anchor(made_vault(disk, "new"), disk / "a"), "another vault"),
    ],
    ids=["added twice", "in the folder", "no folder", "no head", "nothing to move", "of another vault"],
)
def test_what_cannot_be_an_anchor_is_refused_and_changes_nothing(anchored, disk, change, message):
    before = (anchored.path / LEDGER).read_bytes(), (disk / "a").read_bytes()
    with pytest.raises(AliDpflError, match=message):
        change(anchored, disk)
    assert ((anchored.path / LEDGER).read_bytes(), (disk / "a").read_bytes()) == before
    assert not (disk / "b").exists()
    serve_round(anchored, 1)


def test_an_anchor_that_is_missing_cannot_be_moved(anchored, disk):
    """Its disk may come back, and with it a copy of the folder that agrees with it."""
    (disk / "a").rename(disk / "unmounted")
    with pytest.raises(DataError, match=str(disk / "a")):
        move_anchor(anchored, disk / "b")
    assert sorted(path.name for path in disk.iterdir() if path.name[0] != ".") == ["unmounted"]


# ------------------------------------------------------------------------------------------------- what the owner gives


def test_the_given_anchor_decides(tmp_path, folder, disk):
    """A copy from before the anchor knows nothing of it, and here nothing else is left that does."""
    shutil.copytree(folder.path, tmp_path / "before")
    add_anchor(folder, disk / "a")
    shutil.copytree(folder.path, tmp_path / "between")
    move_anchor(folder, disk / "b")
    serve_round(folder, 1)
    for number, name in enumerate(("before", "between")):
        copy = VaultFolder(path=tmp_path / name)
        with machine(tmp_path / f"machine {number}"), pytest.raises(DataError, match="older copy"):
            serve_round(copy, 1, anchor=disk / "b", known_head=status(copy.path)["head"] if name == "before" else None)
    with pytest.raises(ConfigError, match=str(disk / "b")):
        serve_round(folder, 2, anchor=disk / "a")
    serve_round(folder, 2, anchor=disk / "b")


def test_a_given_anchor_that_was_never_added_is_refused(folder, disk):
    for exists in (False, True):
        if exists:
            shutil.copy(folder.path / HEAD, disk / "a")
        with pytest.raises(ConfigError, match="anchor add"):
            serve_round(folder, 1, anchor=disk / "a")


def test_an_anchor_written_into_the_policy_by_hand_is_refused(folder, disk):
    policy = folder.path / POLICY
    policy.write_text(f'anchor = "{disk / "a"}"\n{policy.read_text()}')
    with pytest.raises(ConfigError, match="alidpfl vault anchor"):
        serve_round(folder, 1)


# ------------------------------------------------------------------------------------------- kill before every change


class KilledBefore:
    """Stands for `os`: the process dies before its n-th change of a file."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __getattr__(self, name):
        real = getattr(os, name)
        if name not in CHANGES:
            return real

        def counted(*arguments, **options):
            self.left -= 1
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return counted


@pytest.mark.parametrize(("change", "name"), [(add_anchor, "a"), (move_anchor, "b")])
def test_killed_before_every_change_of_a_file(memory, change, name):
    """After a kill the vault is served or refused. The repeated command completes, and older copies stay out."""
    world, template = memory / "world", memory / "template"
    with machine(world / "state"):
        (world / "disk").mkdir(parents=True)
        folder, disk = made_vault(world), world / "disk"
        serve_round(folder, 0)
        if name == "b":
            add_anchor(folder, disk / "a")
        shutil.copytree(world, template)
        number, outcomes, status_code = 0, set(), -signal.SIGKILL
        while status_code == -signal.SIGKILL:
            number += 1
            shutil.rmtree(world)
            shutil.copytree(template, world)

            def killed(number=number):
                chain_module.os = files_module.os = KilledBefore(number)
                change(folder, disk / name)

            status_code = in_child(killed)
            outcomes.add(after_a_kill(folder, lambda: change(folder, disk / name)))
            restored(template, world)
            refused_everywhere(folder, disk / name, [disk / name] if name == "a" else [disk / name, None])
    assert status_code == 0
    assert number > 40
    assert outcomes == ({"served"} if name == "a" else {"served", "refused"})


def after_a_kill(folder, command) -> str:
    """Serve a round if the vault allows it, repeat the command, and serve another round."""
    try:
        serve_round(folder, 1)
        outcome = "served"
    except DataError:
        outcome = "refused"
    command()
    serve_round(folder, 2)
    assert spent(folder) == {"served": 6, "refused": 4}[outcome]
    return outcome


def restored(template: Path, world: Path) -> None:
    """The machine's disk is as before the command. The anchors' disk is not."""
    for name in ("vault", "state"):
        shutil.rmtree(world / name)
        shutil.copytree(template / name, world / name)


def refused_everywhere(folder, anchor: Path, given: list[Path | None]) -> None:
    """Before the first anchor, only the unit's --anchor can know of it. After that, the copy itself names one."""
    for command in (add_anchor, move_anchor):
        with pytest.raises(AliDpflError):
            command(folder, anchor)
    for each in given:
        with pytest.raises(AliDpflError):
            serve_round(folder, 1, anchor=each)


# ------------------------------------------------------------------------------------------------------- state head


def test_the_state_head_follows_every_line_and_is_made_again_where_the_anchor_vouches(tmp_path, anchored):
    state = state_head(Head.read(anchored.path / HEAD).vault)
    serve_round(anchored, 1)
    assert state.read_bytes() == (anchored.path / HEAD).read_bytes()
    assert (state.parent.stat().st_mode & 0o777, state.stat().st_mode & 0o777) == (0o700, 0o600)
    state.unlink()
    serve_round(anchored, 2)
    assert state.read_bytes() == (anchored.path / HEAD).read_bytes()


@pytest.mark.parametrize("name", ["../../x", "", "0" * 15, "G" * 16])
def test_a_vaults_name_cannot_lead_out_of_the_state_folder(folder, name):
    values = json.loads((folder.path / HEAD).read_bytes()) | {"vault": name}
    (folder.path / HEAD).write_text(json.dumps(values))
    with pytest.raises(DataError, match="no vault's name"):
        serve_round(folder, 1)


def test_a_state_folder_that_cannot_be_made_is_named_with_its_remedy(folder, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with machine(tmp_path / "file"), pytest.raises(DataError, match="XDG_STATE_HOME"):
        serve_round(folder, 1)
    assert os.path.getsize(tmp_path / "file") == 0
