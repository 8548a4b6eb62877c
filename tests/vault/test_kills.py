"""kill -9 at every line and at random moments: the ledger records all that was spent, and no round has two answers."""

import os
import random
import shutil
import signal
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from alidpfl.types import ClientUpdate
from alidpfl.vault import chain as chain_module
from alidpfl.vault import folder as answers_module
from alidpfl.vault import ledger, rounds
from alidpfl.vault.folder import LEDGER, VaultFolder, status
from alidpfl.vault.messages import decode_answer
from alidpfl.vault.refusals import RefusalCode, VaultRefusedError, VaultUnreachableError

from .parts import MOST_STEPS, body, machine, made_vault, opened, served, spent
from .test_queries import SERVICE, asked, evaluating

STEPS = 2  # of every round here
EFFECTS = tuple(module.__file__ for module in (answers_module, chain_module, rounds, ledger))
"""The code with side effects; all other code is pure."""


class LoggingTrainer:
    """Logs the moment when it would begin to draw. No two trainings give the same result."""

    def __init__(self, log: Path) -> None:
        self._file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def job(self, asked):
        return self._train

    def _train(self, start, plan):
        os.write(self._file, b"x" * plan.steps)
        return ClientUpdate(client=plan.client, params=start + _random(len(start)))

    def release_job(self, asked):
        def job(start):
            os.write(self._file, b"x" * STEPS)
            return _random(asked.query.layout.size)

        return job


def _random(size: int) -> np.ndarray:
    return np.frombuffer(os.urandom(4 * size), np.uint32).astype(np.float32)


def kill_at(line: int | None, effects=EFFECTS) -> dict:
    """Kill this process at the given line of the code with side effects; None only counts the lines."""
    seen = {"lines": 0}

    def trace(frame, event, argument):
        if frame.f_code.co_filename not in effects:
            return None
        if event == "line":
            seen["lines"] += 1
            if seen["lines"] == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    return seen


def in_child(work) -> int:
    """Exit status of a fork that does the work; negative if it was killed."""
    pid = os.fork()
    if pid == 0:
        status_code = 1
        try:
            work()
            status_code = 0
        except BaseException:  # shown by pytest's captured output
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status_code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """A vault that has served one round."""
    root = tmp_path_factory.mktemp("template")
    with machine(root / "state"):
        folder = made_vault(root, service__keep_answers=1)
        with opened(folder, LoggingTrainer(root / "unseen")) as vault:
            vault.answer(body(steps=STEPS))
    return folder


@pytest.fixture(autouse=True)
def _own_machine(tmp_path):
    """Every copy brings its own state folder."""
    with machine(tmp_path):
        yield


class Copy:
    """A copy of the template, its training log, and the answer that a child may have received."""

    def content(self, vault, number: int) -> bytes:
        """The request of a round of training."""
        return body(round=number, steps=STEPS)

    def charged(self) -> int:
        """Steps that the ledger on the disk has booked."""
        return spent(self.folder)

    def __init__(self, template: VaultFolder, tmp_path: Path) -> None:
        root = tmp_path / "copy"
        shutil.rmtree(root, ignore_errors=True)
        root.mkdir()
        for name in ("vault", "state"):
            shutil.copytree(template.path.with_name(name), root / name)
        os.environ["XDG_STATE_HOME"] = str(root / "state")
        self.folder, self.log, self.seen = VaultFolder(path=root / "vault"), root / "log", root / "seen"

    @property
    def trained(self) -> int:
        return len(self.log.read_bytes()) if self.log.exists() else 0

    def ask(self) -> bytes:
        """Ask for round 1, and keep the answer like a server."""
        with opened(self.folder, LoggingTrainer(self.log)) as vault:
            answer = vault.answer(self.content(vault, 1))
            self.seen.write_bytes(answer)
            return answer

    def check(self) -> str:
        """Check what must hold after a kill, and return what happened to the round."""
        assert self.charged() - STEPS >= self.trained
        outcome = "answered before the kill" if self.seen.exists() else "answered after it"
        before = self.seen.read_bytes() if self.seen.exists() else None
        trained = self.trained
        try:
            answer = self.ask()
        except VaultRefusedError as error:
            outcome, code = "lost", error.code
        else:
            code = None
            assert before in (None, answer)
            assert self.trained == STEPS  # once, before or after the kill
        if outcome == "lost":
            assert code is RefusalCode.LOST
            assert before is None
            assert self.trained == trained  # not trained again under the same charge
        assert self.charged() == 2 * STEPS  # nothing is charged twice either
        with opened(self.folder, LoggingTrainer(self.log)) as vault:  # and the next round is served
            vault.answer(self.content(vault, 2))
        assert self.charged() - STEPS >= self.trained
        return outcome


class QueryCopy(Copy):
    """The same for a query of held-out records. Each counts as `STEPS` here."""

    def content(self, vault, number: int) -> bytes:
        return asked(vault, round=number)

    def charged(self) -> int:
        return STEPS * len(self.folder.read(self.folder.policy())[1].charged("held_out"))


@pytest.fixture(scope="module")
def query_template(tmp_path_factory):
    """A vault that has answered one query."""
    root = tmp_path_factory.mktemp("queries")
    with machine(root / "state"):
        folder = evaluating(root, service={**SERVICE, "keep_answers": 1})
        with opened(folder, LoggingTrainer(root / "unseen")) as vault:
            vault.answer(asked(vault))
    return folder


@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_every_line_of_a_round(template, memory, every):
    check_every_line(Copy, template, memory, every)


@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_every_line_of_a_query(query_template, memory, every):
    check_every_line(QueryCopy, query_template, memory, every)


def check_every_line(kind, template, memory, every):
    """Kill a process at every such line of an answer, and check what it left."""
    copy = kind(template, memory)

    def counted():
        with opened(copy.folder, LoggingTrainer(copy.log)) as vault:
            content = copy.content(vault, 1)
            seen = kill_at(None)
            vault.answer(content)
            sys.settrace(None)
        (memory / "lines").write_text(str(seen["lines"]))

    assert in_child(counted) == 0
    total = int((memory / "lines").read_text())
    assert total > 100
    outcomes = set()
    for line in range(1, total + 1, every):
        copy = kind(template, memory)

        def killed(copy=copy, line=line):
            with opened(copy.folder, LoggingTrainer(copy.log)) as vault:
                content = copy.content(vault, 1)
                kill_at(line)
                vault.answer(content)

        assert in_child(killed) == -signal.SIGKILL, line
        outcomes.add(copy.check())
    assert outcomes == {"answered after it", "lost"}


def test_killed_at_every_line_of_the_start_after_a_crash(template, memory):
    """The start itself writes: it drops what a crash left, and updates the heads."""
    line, status_code = 0, -signal.SIGKILL
    while status_code == -signal.SIGKILL:
        line += 3
        copy = Copy(template, memory)
        with (copy.folder.path / LEDGER).open("ab") as file:
            file.write(b'{"counter": 3, "prev')

        def killed(copy=copy, line=line):
            policy = copy.folder.policy()
            kill_at(line)
            copy.folder.open(policy)
            sys.settrace(None)

        status_code = in_child(killed)
        assert spent(copy.folder) == STEPS
        copy.check()
    assert status_code == 0
    assert line > 60


class KillingWrites:
    """Stands for `os`: the n-th write puts only a part on the disk, and the process dies."""

    def __init__(self, call: int, share: float) -> None:
        self.calls, self.call, self.share = 0, call, share

    def __getattr__(self, name):
        return self.write if name == "write" else getattr(os, name)

    def write(self, descriptor, content):
        self.calls += 1
        if self.calls < self.call:
            return os.write(descriptor, content)
        os.write(descriptor, bytes(content)[: int(self.share * len(content))])
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.999, 1.0])
def test_killed_in_the_middle_of_every_write(template, memory, share):
    """Two heads at the start, two heads, RESERVED, the answer, two heads, RELEASED."""
    outcomes = []
    for call in range(1, 10):
        copy = Copy(template, memory)

        def killed(copy=copy, call=call):
            chain_module.os = answers_module.os = KillingWrites(call, share)
            copy.ask()

        assert in_child(killed) == -signal.SIGKILL
        outcomes.append(copy.check())
    later, reserved = "answered after it", "answered after it" if share < 1 else "lost"
    assert outcomes == [*[later] * 4, reserved, "lost", *[later] * 3]


# ---------------------------------------------------------------------------------------- the command, over its socket


@pytest.mark.parametrize("kills", [12, pytest.param(200, marks=pytest.mark.slow)])
def test_the_command_killed_at_random_moments(tmp_path, kills):
    """A server keeps asking. What it got was really spent, and the ledger never records less."""
    folder = made_vault(
        tmp_path, terms__min_noise_multiplier=20.0, budget__epsilon=50.0, limits__max_steps_per_round=40
    )
    moments, received, number = random.Random(0), {}, 0  # noqa: S311
    codes = set()
    for _ in range(kills):
        with served(folder) as (process, client):
            timer = threading.Timer(moments.uniform(0.0, 0.4), lambda: os.kill(process.pid, signal.SIGKILL))
            timer.start()
            try:
                while True:
                    steps = moments.choice((1, MOST_STEPS, 40))
                    sent = body(round=number, steps=steps, noise_multiplier=20.0)
                    answer = client.train_bytes(sent)
                    assert received.setdefault(number, (sent, answer)) == (sent, answer)
                    number += 1
            except VaultUnreachableError:
                timer.join()
            assert process.wait() == -signal.SIGKILL
        really = sum(decode_answer(answer)[0].steps for _, answer in received.values())
        told = status(folder.path)
        assert told["units_spent"] >= really
        assert told["rounds_charged"] >= len(received)
        with opened(folder) as vault:  # the interrupted round: an answer or a refusal, but never a second training
            before = vault.ledger.book.account.units
            asked_before = vault.ledger.book.find("a", number) is not None
            try:
                answer = vault.answer(sent)
                received[number] = (sent, answer)
                codes.add("answered")
            except VaultRefusedError as error:
                codes.add(error.code)
            assert not asked_before or vault.ledger.book.account.units == before
            for sent, answer in list(received.values())[-3:]:
                assert vault.answer(sent) == answer
        number += 1
    assert codes <= {"answered", RefusalCode.LOST}
    assert len(received) > kills / 2
