"""Stored answers: on the disk before they are sent, sent only for their own request, and pruned alone."""

import errno

import pytest

from alidpfl.errors import DataError
from alidpfl.vault import folder as answers_module
from alidpfl.vault.folder import ANSWERS
from alidpfl.vault.refusals import RefusalCode, VaultRefusedError, VaultTroubleError

from .disk import Disk
from .parts import CountingTrainer, body, made_vault, opened, spent


@pytest.mark.parametrize("name", ["copy of 00000001", "notes", "7", "000000007", "²", ""])
def test_other_files_among_the_answers_are_left_alone_and_stop_no_round(tmp_path, name):
    folder, trainer = made_vault(tmp_path, service__keep_answers=2), CountingTrainer()
    other = folder.path / ANSWERS / f"{name}.safetensors"
    other.write_bytes(b"the owner's")
    with opened(folder, trainer) as vault:
        answers = [vault.answer(body(round=k)) for k in range(4)]
        assert [vault.answer(body(round=k)) for k in (2, 3)] == answers[2:]
    assert other.read_bytes() == b"the owner's"
    assert len(list((folder.path / ANSWERS).iterdir())) == 3


def test_an_answer_that_may_not_be_on_the_disk_is_not_sent(tmp_path, monkeypatch):
    """After a power cut it could not be sent again. The second fsync is that of the answer itself."""
    folder = made_vault(tmp_path)
    with opened(folder, CountingTrainer()) as vault:
        monkeypatch.setattr(answers_module, "os", Disk("fsync", 2, errno.EIO))
        with pytest.raises(VaultTroubleError) as caught:
            vault.answer(body())
    assert caught.value.code is RefusalCode.DISK
    assert spent(folder) == 2
    assert list((folder.path / ANSWERS).glob("*.safetensors")) == []


class FailingOnce(CountingTrainer):
    def _train(self, start, plan):
        if plan.round == 1:
            raise RuntimeError
        return super()._train(start, plan)


def test_a_stored_answer_to_another_request_is_not_sent(tmp_path):
    """Such as one from a restored folder: without RELEASED, no hash in the ledger confirms it."""
    folder = made_vault(tmp_path)
    with opened(folder, FailingOnce()) as vault:
        vault.answer(body())
        with pytest.raises(VaultTroubleError):
            vault.answer(body(round=1))
        number = vault.ledger.book.find("a", 1)
        stored = folder.path / ANSWERS / f"{vault.ledger.book.find('a', 0):08d}.safetensors"
        stored.rename(stored.with_name(f"{number:08d}.safetensors"))
        with pytest.raises(VaultRefusedError) as caught:
            vault.answer(body(round=1))
    assert caught.value.code is RefusalCode.LOST


class NotReady:
    def job(self, asked):
        raise DataError("torch says 7")


def test_a_trial_that_fails_is_refused_in_our_words_counted_and_not_charged(tmp_path):
    folder = made_vault(tmp_path)
    with opened(folder, NotReady()) as vault:
        with pytest.raises(VaultTroubleError) as caught:
            vault.answer(body())
        assert caught.value.code is RefusalCode.FAILED
        assert "7" not in str(caught.value)
        assert vault.refusals.counts == {"failed": 1}
    assert spent(folder) == 0
