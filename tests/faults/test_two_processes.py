"""Two processes at one store of results, or at one lock. Runs and vaults: test_kill_and_resume.py, test_trouble.py."""

import os

import pytest

from alidpfl.errors import ConfigError
from alidpfl.store.lock import exclusive_lock, lock_holder
from reproduction.grid import cells, load_grid
from reproduction.results import Results
from tests.reproduction.made import made_result

PROCESSES, EACH = 3, 8


def _in_children(work) -> None:
    children = []
    for number in range(PROCESSES):
        if (pid := os.fork()) == 0:
            status = 1
            try:
                work(number)
                status = 0
            except BaseException:  # shown by pytest's captured output
                import traceback

                traceback.print_exc()
            finally:
                os._exit(status)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0] * PROCESSES


def test_nobodys_results_are_lost_and_no_file_is_spoilt(tmp_path):
    """Each adds its own and writes all to the same file, as several `reproduce` on one store do."""
    store, lines = tmp_path / "results.sqlite", tmp_path / "small.jsonl"
    listed = list(cells(load_grid("small"), seeds=5))[: PROCESSES * EACH]
    keys = {cell.key for cell in listed}
    assert len(keys) == PROCESSES * EACH
    Results(store)

    def work(number):
        for cell in listed[number::PROCESSES]:
            results = Results(store)
            results.add(made_result(cell, 90.0))
            results.write_lines(lines, keys)
            assert Results(tmp_path / f"own{number}.sqlite").read_lines(lines) >= 0  # every line is whole

    _in_children(work)
    assert Results(store).keys() == keys
    assert Results(tmp_path / "anew.sqlite").read_lines(lines) == len(keys)  # the last to write knew of all
    assert not list(tmp_path.glob(".*.tmp"))


def test_a_lock_whose_file_is_garbage_still_locks(tmp_path):
    path = tmp_path / "lock"
    path.write_bytes(b"\xff\xfe\x00 nobody")
    assert lock_holder(path) is None
    with exclusive_lock(path, owner_of=tmp_path):
        path.write_bytes(b"\xff\xfe")  # by somebody who does not lock
        with (
            pytest.raises(ConfigError, match=str(tmp_path)),
            exclusive_lock(path, owner_of=tmp_path),
        ):
            pass
        assert lock_holder(path)
