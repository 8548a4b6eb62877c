"""Worker processes fail loudly and cleanly, and never outlive their parent."""

import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from alidpfl.errors import AliDpflError, DataError
from alidpfl.simulation.workers import SharedWeights, WorkerError, WorkerPool

from .parts import federation, is_gone, made_data, open_files, plan, simulation, wait_until, zeros

_SECRET = 731
_LONG = 100_000  # steps: minutes


def _workers() -> list[int]:
    return [child.pid for child in multiprocessing.active_children()]


def test_an_error_in_a_client_quotes_no_data_and_spares_the_pool():
    data, shares = made_data(), []
    with simulation(2, data=data, on_share=shares.append) as engine:
        data.targets[data.clients[2]] = _SECRET  # after enrolment, which would refuse it
        plans = [plan(client, steps=30 if client == 2 else 1) for client in range(5)]
        with pytest.raises(AliDpflError) as caught:
            engine.train(zeros(), plans)
        assert all(share < 0.5 for share in shares)  # what failed is not told as done
        assert str(_SECRET) not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__context__ is None
        assert "IndexError" in str(caught.value)
        # The pool goes on, and no answer of the failed round is left in a pipe.
        after = engine.train(zeros(), [plans[4], plans[1]])
        assert [update.client for update in after] == [4, 1]
        assert engine.evaluate(zeros(), "test") is not None


def test_our_own_errors_come_through_as_they_are():
    for processes in (1, 2):
        data = made_data()
        with simulation(processes, data=data) as engine:
            data.clients[1].resize_(0)  # after enrolment, which would refuse it
            with pytest.raises(DataError, match="client 1"):
                engine.train(zeros(), [plan(0), plan(1)])


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_killed_worker_is_an_error_and_not_a_hang(victim):
    files = open_files()
    with simulation(3) as engine:
        plans = [plan(client) for client in range(5)]
        first = engine.train(zeros(), plans)[0].params.clone()
        os.kill(engine._pool._processes[victim].pid, signal.SIGKILL)
        with pytest.raises(WorkerError, match=r"-9.*run\.processes"):
            engine.train(zeros(), plans)
        # New workers take over, and nothing of the broken round is taken for an answer.
        assert torch.equal(engine.train(zeros(), [plan(0)])[0].params, first)
    assert open_files() == files
    assert not _workers()


def test_a_worker_killed_at_work_is_an_error_and_not_a_hang():
    with simulation(2) as engine:
        engine.train(zeros(), [plan(0), plan(1)])
        victim = engine._pool._processes[0].pid
        killer = multiprocessing.get_context("fork").Process(target=_kill_later, args=(victim,))
        killer.start()
        with pytest.raises(WorkerError, match="-9"):
            engine.train(zeros(), [plan(0, steps=_LONG), plan(1, steps=_LONG)])
        killer.join()
        started = time.monotonic()
    assert time.monotonic() - started < 4  # the other is at work for minutes yet, and is not waited for
    assert not _workers()


def _kill_later(pid: int) -> None:
    time.sleep(0.3)
    os.kill(pid, signal.SIGKILL)


def test_ctrl_c_in_a_round_leaves_no_answers_for_the_next():
    """A notebook's cell is interrupted and run again: the second must not read what the first had asked for."""

    def interrupt(_number, _frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with simulation(2) as engine:
            expected = [u.params.clone() for u in engine.train(zeros(), [plan(0), plan(1)])]
            signal.setitimer(signal.ITIMER_REAL, 0.2)
            with pytest.raises(KeyboardInterrupt):
                engine.train(zeros(), [plan(3, steps=_LONG), plan(4, steps=_LONG)])
            found = engine.train(zeros(), [plan(0), plan(1)])
            assert [u.client for u in found] == [0, 1]
            assert all(torch.equal(u.params, e) for u, e in zip(found, expected, strict=True))
    finally:
        signal.signal(signal.SIGALRM, before)


def test_two_federations_at_once_close_at_once():
    """Workers of the second inherit the pipes of the first: unless closed, the first would wait for the second."""
    with federation(processes=2) as first, federation(processes=2) as second:
        first.step()
        second.step()
        first.close()
        assert len(_workers()) == 2
        assert second.step() is not None
        assert first.step() is not None  # starts new ones


def test_workers_let_go_of_the_locks_of_their_parent(tmp_path):
    """A lock lives as long as any process that holds it open: after a kill, a run must be free to be resumed."""
    with (tmp_path / "lock").open("w") as file, simulation(2) as engine:
        fcntl.flock(file, fcntl.LOCK_EX)
        engine.train(zeros(), [plan(0), plan(1)])
        assert len(_workers()) == 2
        for worker in _workers():
            links = [os.readlink(f"/proc/{worker}/fd/{name}") for name in os.listdir(f"/proc/{worker}/fd")]
            assert str(tmp_path / "lock") not in links


def test_a_pool_closes_twice_and_after_its_workers():
    pool = WorkerPool(simulation(1)._runner, SharedWeights(1, 3), 2)
    for process in pool._processes:
        process.kill()
    pool.close()
    pool.close()
    assert not _workers()


_PARENT = """
import multiprocessing, sys
from tests.simulation.parts import plan, simulation, zeros
engine = simulation(2)
engine.train(zeros(), [plan(0), plan(1)])
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
while True:
    engine.train(zeros(), [plan(client, steps=20) for client in range(5)])
"""


def test_workers_end_with_a_parent_that_is_killed():
    parent = subprocess.Popen([sys.executable, "-c", _PARENT], stdout=subprocess.PIPE, text=True)
    try:
        workers = [int(pid) for pid in parent.stdout.readline().split()]
        assert len(workers) == 2
        assert not any(is_gone(pid) for pid in workers)
    finally:
        parent.kill()
        parent.communicate()
    assert wait_until(lambda: all(is_gone(pid) for pid in workers), seconds=10)
