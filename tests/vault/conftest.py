"""Imports the service once, so that forked vaults start at once. Fixtures of several test files."""

import os
import tempfile
from pathlib import Path

import pytest

import alidpfl.vault.service  # noqa: F401

from .parts import made_vault


@pytest.fixture
def memory(tmp_path):
    """A folder in memory, where syncing takes no time. A killed process leaves the same there as on a disk."""
    shared = Path("/dev/shm")  # noqa: S108
    if not os.access(shared, os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        yield Path(folder)


@pytest.fixture
def disk(tmp_path):
    """The other disk."""
    (tmp_path / "disk").mkdir()
    return tmp_path / "disk"


@pytest.fixture
def folder(tmp_path, disk):
    """A vault with its anchor on the other disk."""
    return made_vault(tmp_path, anchor=str(disk / "anchor"))
