"""The holder of a lock is known, and asking for it blocks no writer. Two processes: test_run_directory.py."""

import fcntl
import os
import threading

from alidpfl.store.lock import exclusive_lock, lock_holder


def test_the_holder_is_known_while_it_holds(tmp_path):
    path = tmp_path / ".lock"
    assert lock_holder(path) is None
    with exclusive_lock(path, owner_of=tmp_path):
        assert lock_holder(path).startswith(f"process {os.getpid()} on ")
    assert lock_holder(path) is None
    path.write_text("process 1 on host\n")  # as one leaves it that is killed
    assert lock_holder(path) is None


def test_who_looks_keeps_no_writer_out(tmp_path):
    path = tmp_path / ".lock"
    with path.open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        ends = threading.Timer(0.05, lambda: fcntl.flock(looking, fcntl.LOCK_UN))
        ends.start()
        with exclusive_lock(path, owner_of=tmp_path):
            assert lock_holder(path) is not None
        ends.join()
