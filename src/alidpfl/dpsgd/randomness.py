"""Where every random number of DP-SGD comes from: one AES-256-CTR keystream, keyed by the system or by a seed.

The guarantee needs noise and batches that nobody can predict. `RandomStream.secure()` takes a fresh 256-bit key from
the operating system; it is the one to deploy. `RandomStream.seeded(...)` derives the key from a seed, so that a
simulation can be repeated; whoever knows the seed can subtract the noise, so its output is private from nobody.
Both give the same distribution from the same code.

What is not covered: Gaussian samples are float32, and floating-point noise has gaps that an attacker who sees exact
outputs may exploit (Mironov 2012). `rounded_gaussian` draws whole numbers instead, exactly: docs/explanation/floating-point.md.
"""

import hashlib
import math
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
_CHUNK_PAIRS = 1 << 16  # so that words and numbers stay in the second-level cache
_ZEROS = memoryview(bytes(12 * _CHUNK_PAIRS))  # the plain text whose encryption is the keystream


def _keystream(key: bytes) -> CipherContext:
    # A key is used for one stream only, so that the counter may start at zero.
    return Cipher(algorithms.AES(key), modes.CTR(bytes(_BLOCK_BYTES))).encryptor()


class RandomStream:
    """A stream of uniform and Gaussian numbers. Make one with `secure()` or `seeded()`."""

    def __init__(self, key: bytes, *, secure: bool) -> None:
        self.is_secure = secure
        self._stream = _keystream(key)
        self._owner = os.getpid()
        self._buffer = bytearray()
        self._lock = threading.Lock()  # two threads in one buffer would give both the same noise

    @classmethod
    def secure(cls) -> "RandomStream":
        """Key from the operating system's entropy, kept nowhere: unpredictable and unrepeatable."""
        return cls(os.urandom(_KEY_BYTES), secure=True)

    @classmethod
    def seeded(cls, seed: int, *path: int) -> "RandomStream":
        """Key from a seed and a path such as (round, client, step): for simulation only, NOT private.

        Different paths give independent streams, without the collisions of adding numbers to a 32-bit seed.

        >>> a, b = RandomStream.seeded(7, 0, 1), RandomStream.seeded(7, 0, 1)
        >>> bool((a.normal(5) == b.normal(5)).all())
        True
        """
        for number in (seed, *path):
            if isinstance(number, bool) or not isinstance(number, int):
                raise ConfigError(f"seed and path must be integers, got {number!r}")
        key = hashlib.sha256(repr((seed, *path)).encode()).digest()
        return cls(key, secure=False)

    def uniform(self, count: int) -> Tensor:
        """Float64 numbers in [0, 1), multiples of 2^-53."""
        with self._lock:
            words = self._words(2 * count).view(torch.int64)
            return words.bitwise_and_((1 << 53) - 1).to(torch.float64).mul_(2.0**-53)

    def normal(self, count: int) -> Tensor:
        """Float32 standard normal numbers by the Box-Muller transform.

        The radius takes 63 bits, so that the tail reaches 9.4 standard deviations (32 bits would cut it at 6.7).
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
        """A number in [0, 2^63): seeds torch's own generator for the randomness inside a model (dropout)."""
        with self._lock:
            return int(self._words(2).view(torch.int64).item()) & ((1 << 63) - 1)

    def words(self, count: int) -> NDArray[np.uint64]:
        """Uniform 64-bit words, as the keystream gives them."""
        with self._lock:
            return self._words(2 * count).numpy().view(np.uint64).copy()

    def _words(self, count: int) -> Tensor:
        """The next 32-bit words of the keystream, in a buffer that the next call overwrites."""
        self._take_a_new_key_after_fork()
        size = 4 * count
        if len(self._buffer) < size + _BLOCK_BYTES:  # update_into asks for a block more than it writes
            self._buffer = bytearray(size + _BLOCK_BYTES)
        self._stream.update_into(_ZEROS[:size] if size <= len(_ZEROS) else bytes(size), self._buffer)
        return torch.frombuffer(self._buffer, dtype=torch.int32)[:count]

    def _take_a_new_key_after_fork(self) -> None:
        # Two processes with one keystream would add the same noise to different data: their difference is noiseless.
        if self.is_secure and os.getpid() != self._owner:
            self._stream, self._owner = _keystream(os.urandom(_KEY_BYTES)), os.getpid()

    def __reduce__(self) -> NoReturn:
        # Also refuses copy and deepcopy: a second reader of the stream repeats its noise.
        raise TypeError("a RandomStream cannot be copied or stored; make a new one")


def check_stream(random: object) -> None:
    """Refuse other generators: their noise would not be what the guarantee needs."""
    if not isinstance(random, RandomStream):
        raise ConfigError(f"random must be a RandomStream, not {type(random).__name__}: pass RandomStream.secure()")


def _box_muller(radius: Tensor, angle: Tensor, *, out: Tensor) -> None:
    """Two standard normals for each 64-bit and 32-bit random word (Box & Muller 1958).

    In NumPy, whose operations on small arrays start several times faster than PyTorch's.
    """
    integer = radius.numpy() & ((1 << 63) - 1)
    distance = integer.astype(np.float32)
    distance *= np.float32(2.0**-63)
    distance += np.float32(2.0**-64)  # now uniform in (0, 1]: the logarithm is finite
    np.log(distance, out=distance)
    distance *= np.float32(-2)
    np.sqrt(distance, out=distance)
    turn = angle.numpy().astype(np.float32)
    turn *= np.float32(math.pi * 2.0**-31)  # in [-pi, pi]
    cosines, sines = out.numpy().reshape(2, -1)
    np.multiply(distance, np.cos(turn), out=cosines)
    np.multiply(distance, np.sin(turn, out=turn), out=sines)
