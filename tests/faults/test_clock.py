"""A clock that goes backwards, stands still or jumps: nothing is charged, ordered or chained by it."""

import ast
import itertools
import time
from pathlib import Path

import pytest

import alidpfl
from alidpfl.runs import execute
from alidpfl.vault.folder import status
from alidpfl.vault.refusals import RefusalCode, VaultRefusedError
from tests.runs.command import config
from tests.vault.parts import CountingTrainer, body, made_vault, opened

SOURCE = Path(alidpfl.__file__).parent
WALL_CLOCKS = {
    "cli/run.py": "strftime: the name of a new folder, which must not exist yet",
    "flower/demo/certificates.py": "now: from when to when a certificate is valid",
    "vault/rounds.py": "time: written into the ledger for its owner, read by nobody",
    "vault/enrolment.py": "time: as above",
    "vault/folder.py": "time: of a refusal, for the owner",
    "vault/anchor.py": "time: written into the ledger for its owner, read by nobody",
    "vault/slots.py": "time: of an overrun, for the owner",
}
"""Where the time of day is asked for at all. Limits and waits go by `time.monotonic`, which never goes back."""


def test_the_time_of_day_is_asked_for_nowhere_else():
    found = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            name = node.attr if isinstance(node, ast.Attribute) else ""
            of = node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""
            if (of, name) in {("time", "time"), ("time", "time_ns"), ("time", "strftime")} or name in {"now", "today"}:
                found[path.relative_to(SOURCE).as_posix()] = name
    assert found == {name: why.partition(":")[0] for name, why in WALL_CLOCKS.items()}


def _clock(kind: str):
    times = {
        "backwards": (1e9 - 1e6 * number for number in itertools.count()),
        "still": itertools.repeat(5.0),
        "before 1970": itertools.repeat(-1e9),
        "to and fro": itertools.cycle((4e9, 0.0, 1e9)),
    }[kind]
    return lambda: next(times)


@pytest.mark.parametrize("kind", ["backwards", "still", "before 1970", "to and fro"])
def test_a_vaults_ledger_goes_by_its_own_counter(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(time, "time", _clock(kind))
    folder, trainer = made_vault(tmp_path), CountingTrainer()
    answers = []
    for number in range(3):
        with opened(folder, trainer) as vault:  # read, verified and written on each time
            vault.clock = time.time
            answers.append(vault.answer(body(round=number)))
            assert vault.answer(body(round=number)) == answers[-1]
            for content, code in ((b"no", RefusalCode.MALFORMED), (body(1.0, round=0), RefusalCode.CHANGED_REPLAY)):
                with pytest.raises(VaultRefusedError) as caught:
                    vault.answer(content)
                assert caught.value.code is code
    told = status(folder.path)
    assert told["units_spent"] == trainer.steps == 6
    assert (told["rounds_released"], told["rounds_lost"]) == (3, 0)


def test_a_run_is_the_same_whatever_the_time_of_day(tmp_path, monkeypatch):
    settings = config(federation__max_rounds=3, federation__time_limit=1e6)
    execute(settings, tmp_path / "usual")
    monkeypatch.setattr(time, "time", _clock("backwards"))
    execute(settings, tmp_path / "backwards")
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (tmp_path / "usual" / name).read_bytes() == (tmp_path / "backwards" / name).read_bytes()
