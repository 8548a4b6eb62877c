"""Stored answers: what was released is sent again as it was, never trained again."""

import os
from contextlib import suppress
from pathlib import Path

from alidpfl.store.files import sync_directory
from alidpfl.vault.refusals import RefusalCode, refusal

_STAGED = ".next"


class AnswerStore:
    """A folder with one file an answer, named by its reservation's number."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def take_room(self, num_bytes: int) -> None:
        """Take the space of the answer to come before the round is paid for: a full disk must not cost a round."""
        staged = self._folder / _STAGED
        try:
            descriptor = os.open(staged, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, num_bytes)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            with suppress(OSError):
                staged.unlink()
            raise refusal(
                RefusalCode.DISK,
                f"the answer could not be stored ({error.strerror}); nothing was charged or trained: the owner must "
                "see to the disk",
            ) from error

    def store(self, number: int, content: bytes) -> None:
        """Put the answer where it stays, whole or not at all, into the space that `take_room` took."""
        staged = self._folder / _STAGED
        try:
            descriptor = os.open(staged, os.O_RDWR)
            try:
                _write_all(descriptor, content)
                os.ftruncate(descriptor, len(content))
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            os.replace(staged, self._path(number))
            sync_directory(self._folder)
        except OSError as error:
            raise refusal(
                RefusalCode.DISK,
                f"the answer could not be stored ({error.strerror}): the round is charged, its answer is lost, and the "
                "owner must see to the disk",
            ) from error

    def load(self, number: int) -> bytes | None:
        """The answer of this reservation, if it is kept."""
        try:
            return self._path(number).read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise refusal(RefusalCode.DISK, f"the stored answer cannot be read ({error.strerror})") from error

    def prune(self, keep: int) -> None:
        """Delete all but the newest. A file that cannot be deleted does no harm, nor does one that is not ours."""
        names = [path.stem for path in self._folder.glob("*.safetensors")]
        numbers = sorted(int(name) for name in names if name.isdecimal() and self._path(int(name)).stem == name)
        for number in numbers[:-keep]:
            with suppress(OSError):
                self._path(number).unlink()

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:08d}.safetensors"


def _write_all(descriptor: int, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[os.write(descriptor, left) :]
