"""A vault's folder that was damaged or edited: refused, or no less is spent and no round has a second answer."""

import json
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from alidpfl.errors import AliDpflError
from alidpfl.store.files import to_toml
from alidpfl.vault.folder import HEAD, LEDGER, LOCK, POLICY, REFUSALS, VaultFolder
from alidpfl.vault.messages import decode_answer
from alidpfl.vault.refusals import VaultRefusedError
from tests.vault.parts import CountingTrainer, body, machine, made_vault, opened, policy_values, spent

from .damage import damaged, edited
from .harness import check_text, command, examples, fine_or_refused

ROUNDS, STEPS = 3, 2
ANSWER = "answers/00000003.safetensors"
FILES = (LEDGER, HEAD, "../anchor", POLICY, "enrolment.json", REFUSALS, LOCK, ANSWER)


@pytest.fixture(scope="module")
def memory():
    """A folder where syncing takes no time."""
    shared = Path("/dev/shm")  # noqa: S108
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture(scope="module")
def template(memory):
    """A vault with an anchor that has served three rounds and refused one."""
    home = memory / "copy"  # where copies lie: the ledger names the anchor by its path
    home.mkdir()
    with machine(home / "state"):
        folder = made_vault(home, anchor=str(home / "anchor"))
        with opened(folder, CountingTrainer()) as vault:
            for number in range(ROUNDS):
                vault.answer(body(round=number, steps=STEPS))
            with pytest.raises(VaultRefusedError):
                vault.answer(b"garbage")
    (folder.path / LOCK).write_text("process 7 on host\n")
    return home.rename(memory / "template")


@pytest.fixture(autouse=True)
def _own_machine(memory):
    """Every copy brings its own state folder."""
    with machine(memory / "copy" / "state"):
        yield


def _copied(memory, template):
    home = memory / "copy"
    shutil.rmtree(home, ignore_errors=True)
    shutil.copytree(template, home)
    return home / "vault"


def _checked(path, name, template):
    status, told = command("vault", "status", "--dir", path, "--json")
    if status == 2:
        assert name not in (REFUSALS, LOCK, ANSWER), told  # no budget depends on these
    else:
        assert json.loads(told)["units_spent"] == ROUNDS * STEPS
    folder = fine_or_refused(lambda: VaultFolder(path=path))
    if folder is not None:
        fine_or_refused(lambda: _asked(folder, template))


def _asked(folder, template):
    """The last round again, then the next: what is answered was paid for, and no round is trained twice."""
    trainer = CountingTrainer()
    given = (template / "vault" / ANSWER).read_bytes()  # before anybody laid hands on it
    with opened(folder, trainer) as vault:
        try:
            again = vault.answer(body(round=1, steps=STEPS))
        except AliDpflError as error:
            check_text(str(error))
        else:
            assert again == given
        assert trainer.steps == 0
        told, _ = decode_answer(vault.answer(body(round=ROUNDS, steps=STEPS)))
    assert trainer.steps == told.steps <= STEPS  # fewer where an edited policy says so
    assert spent(folder) == ROUNDS * STEPS + told.steps
    return told.steps


def test_a_whole_folder_gives_the_same_answer_again(memory, template):
    """What the others are measured by: else they could pass because every folder is refused."""
    folder = VaultFolder(path=_copied(memory, template))
    with opened(folder, CountingTrainer()) as vault:
        assert vault.answer(body(round=1, steps=STEPS)) == (template / "vault" / ANSWER).read_bytes()
    assert _asked(folder, template) == STEPS


@examples(12)
@given(data=st.data(), name=st.sampled_from(FILES))
def test_a_damaged_folder(memory, template, data, name):
    path = _copied(memory, template)
    (path / name).write_bytes(data.draw(damaged((path / name).read_bytes())))
    _checked(path, name, template)


@examples(8)
@given(data=st.data(), name=st.sampled_from((HEAD, "../anchor", REFUSALS, "enrolment.json", LEDGER)))
def test_an_edited_folder(memory, template, data, name):
    path = _copied(memory, template)
    if name == LEDGER:
        lines = (path / name).read_bytes().splitlines()
        number = data.draw(st.integers(0, len(lines) - 1))
        lines[number] = json.dumps(data.draw(edited(json.loads(lines[number])))).encode()
        (path / name).write_bytes(b"\n".join(lines) + b"\n")
    else:
        document = json.loads((path / name).read_bytes())
        (path / name).write_text(json.dumps(data.draw(edited(document))))
    _checked(path, name, template)


@examples(8)
@given(values=edited(policy_values(service__keep_answers=3)))
def test_an_edited_policy(memory, template, values):
    path = _copied(memory, template)
    try:
        (path / POLICY).write_text(to_toml(values))
    except (AliDpflError, AttributeError):  # what no TOML can say
        return
    fine_or_refused(lambda: _asked(VaultFolder(path=path), template))
    command("vault", "status", "--dir", path)
