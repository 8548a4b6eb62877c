"""All randomness of DP-SGD: one AES-256-CTR keystream, with a key from the operating system or from a seed.

The guarantee needs noise and batches that nobody can predict. Deploy `RandomStream.secure()`: it takes a fresh 256-bit
key from the operating system. `RandomStream.seeded(...)` derives the key from a seed, so that a simulation can be
repeated. Its output is not private: anyone who knows the seed can subtract the noise. Both run the same code.

Gaussian numbers are float32. Floating-point noise has gaps, which an attacker who sees exact outputs may exploit
(Mironov 2012). `rounded_gaussian` draws exact whole numbers instead: docs/explanation/floating-point.md.

Two processes with one keystream would add the same noise to different data, and subtracting would remove it. So a
secure stream takes a new key in a forked process. Three signs tell of a fork, and one is enough:

- a page of memory that Linux clears in every child, also after a fork from C code and in a new PID namespace;
- Python's own hook after `os.fork` and `multiprocessing`;
- another process number.

A copy of a whole virtual machine, or a process restored from a file, shows none of them and repeats its noise.
"""

import hashlib
import math
import mmap
import os
import threading
from typing import NoReturn

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray
from torch import Tensor

from alidpfl.dpsgd import native
from alidpfl.errors import ConfigError

_KEY_BYTES = 32
_BLOCK_BYTES = 16
_CHUNK_PAIRS = 1 << 16  # keeps words and numbers in the second-level cache
_ZEROS = memoryview(bytes(12 * _CHUNK_PAIRS))  # encrypting zeros gives the keystream
_MADV_WIPEONFORK = 18  # since Linux 4.14; the module mmap has no name for it


class _Forks:
    """Tells one process from those that it was forked from: `generation` is another object in each."""

    def __init__(self) -> None:
        self._page = _page_wiped_on_fork()
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        """Begin a generation."""
        self._generation, self._process = object(), os.getpid()
        if self._page is not None:
            self._page[0] = 1

    def generation(self) -> object:
        """Return the generation of this process."""
        is_wiped = self._page is not None and self._page[0] == 0
        if is_wiped or os.getpid() != self._process:
            self.renew()
        return self._generation


def _page_wiped_on_fork() -> mmap.mmap | None:
    """Return a page that the kernel fills with zeros in every forked process, or None if it cannot."""
    try:
        page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        page.madvise(_MADV_WIPEONFORK)
    except (AttributeError, OSError, ValueError):  # an older Linux, or another system
        return None
    return page


_FORKS = _Forks()


def _keystream(key: bytes) -> CipherContext:
    # The counter may start at zero because each key serves one stream only.
    return Cipher(algorithms.AES(key), modes.CTR(bytes(_BLOCK_BYTES))).encryptor()


class RandomStream:
    """A stream of uniform and Gaussian numbers. Make one with `secure()` or `seeded()`."""

    def __init__(self, key: bytes, *, secure: bool) -> None:
        self.is_secure = secure
        self._stream = _keystream(key)
        self._generation = _FORKS.generation()
        self._buffer = bytearray()
        self._lock = threading.Lock()  # two threads in one buffer would get the same noise

    @classmethod
    def secure(cls) -> "RandomStream":
        """Make a stream with a key from the operating system. It is unpredictable and cannot be repeated."""
        return cls(os.urandom(_KEY_BYTES), secure=True)

    @classmethod
    def seeded(cls, seed: int, *path: int) -> "RandomStream":
        """Make a stream from a seed and a path such as (round, client, step). For simulation only: NOT private.

        Different paths give independent streams. Adding numbers to a 32-bit seed would cause collisions.

        >>> a, b = RandomStream.seeded(7, 0, 1), RandomStream.seeded(7, 0, 1)
        >>> bool((a.normal(5) == b.normal(5)).all())
        True
        """
        for number in (seed, *path):
            if isinstance(number, bool) or not isinstance(number, int):
                raise ConfigError(f"seed and path must be integers, not {number!r}")
        key = hashlib.sha256(repr((seed, *path)).encode()).digest()
        return cls(key, secure=False)

    def uniform(self, count: int) -> Tensor:
        """Return float64 numbers in [0, 1), all multiples of 2^-53."""
        with self._lock:
            words = self._words(2 * count).view(torch.int64)
            return words.bitwise_and_((1 << 53) - 1).to(torch.float64).mul_(2.0**-53)

    def normal(self, count: int) -> Tensor:
        """Return float32 standard normal numbers, by the Box-Muller transform.

        The radius takes 63 bits, so the tail reaches 9.4 standard deviations. With 32 bits it would end at 6.7.
        """
        transform = native.box_muller if native.is_available() else _box_muller
        out = torch.empty(count + count % 2, dtype=torch.float32, device="cpu")
        with self._lock:
            for chunk in out.split(2 * _CHUNK_PAIRS):
                pairs = len(chunk) // 2
                words = self._words(3 * pairs)
                transform(words[: 2 * pairs].view(torch.int64), words[2 * pairs :], out=chunk)
        return out[:count]

    def integer(self) -> int:
        """Return a number in [0, 2^63). It seeds torch's generator for randomness inside a model, such as dropout."""
        with self._lock:
            return int(self._words(2).view(torch.int64).item()) & ((1 << 63) - 1)

    def words(self, count: int) -> NDArray[np.uint64]:
        """Return uniform 64-bit words of the keystream."""
        with self._lock:
            return self._words(2 * count).numpy().view(np.uint64).copy()

    def _words(self, count: int) -> Tensor:
        """Return the next 32-bit words of the keystream, in a buffer that the next call overwrites."""
        self._rekey_after_fork()
        size = 4 * count
        if len(self._buffer) < size + _BLOCK_BYTES:  # update_into needs room for one block more
            self._buffer = bytearray(size + _BLOCK_BYTES)
        self._stream.update_into(_ZEROS[:size] if size <= len(_ZEROS) else bytes(size), self._buffer)
        return torch.frombuffer(self._buffer, dtype=torch.int32)[:count]

    def _rekey_after_fork(self) -> None:
        if self.is_secure and (now := _FORKS.generation()) is not self._generation:
            self._stream, self._generation = _keystream(os.urandom(_KEY_BYTES)), now

    def __reduce__(self) -> NoReturn:
        # This refuses copy and deepcopy too: a second reader of the stream would repeat its noise.
        raise TypeError("a RandomStream cannot be copied or stored: make a new one")


def check_stream(random: object) -> None:
    """Raise ConfigError unless `random` is a RandomStream. The guarantee does not cover other generators."""
    if not isinstance(random, RandomStream):
        raise ConfigError(f"random must be a RandomStream, not {type(random).__name__}: pass RandomStream.secure()")


def _box_muller(radius: Tensor, angle: Tensor, *, out: Tensor) -> None:
    """Write two standard normals for each pair of a 64-bit and a 32-bit random word (Box & Muller 1958).

    It uses NumPy, which starts operations on small arrays several times faster than PyTorch.
    """
    integer = radius.numpy() & ((1 << 63) - 1)
    distance = integer.astype(np.float32)
    distance *= np.float32(2.0**-63)
    distance += np.float32(2.0**-64)  # uniform in (0, 1], so the logarithm is finite
    np.log(distance, out=distance)
    distance *= np.float32(-2)
    np.sqrt(distance, out=distance)
    turn = angle.numpy().astype(np.float32)
    turn *= np.float32(math.pi * 2.0**-31)  # in [-pi, pi]
    cosines, sines = out.numpy().reshape(2, -1)
    np.multiply(distance, np.cos(turn), out=cosines)
    np.multiply(distance, np.sin(turn, out=turn), out=sines)
