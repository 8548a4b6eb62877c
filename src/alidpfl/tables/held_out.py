"""Choose the rows to hold out for testing: each by a keyed hash of its own content, or of its person.

So a row's part depends on that row and the key alone. Adding or removing another row moves nothing, and training and
evaluation are on disjoint records whatever the records are (parallel composition). A split by rank would not do: one
row more could move others between the parts.
"""

import hashlib
import secrets
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from alidpfl.tables.encode import Encoded

KEY_BYTES = 32
_HASH_BYTES = 8


def new_key() -> bytes:
    """Return a new secret key."""
    return secrets.token_bytes(KEY_BYTES)


def held_out_key(seed: int) -> bytes:
    """Return the key that belongs to a seed, for simulations with seeded noise.

    It is no secret: anyone who knows the seed can tell whether a row would be held out.
    """
    return hashlib.blake2b(f"alidpfl held-out rows, seed {seed}".encode(), digest_size=KEY_BYTES).digest()


def held_out_rows(encoded: Encoded, share: float, key: bytes) -> NDArray[np.bool_]:
    """Return which rows are held out: on average this share of them. Equal rows, and rows of a person, stay together.

    Args:
        encoded: the rows, with their targets.
        share: in [0, 1).
        key: a secret of the owner, or `held_out_key` in a seeded simulation.

    Returns:
        (n,) True for rows to test on.
    """
    if encoded.persons is not None:
        names = list(dict.fromkeys(encoded.persons))
        part = dict(zip(names, _below(share, key, (name.encode() for name in names)), strict=True))
        return np.array([part[person] for person in encoded.persons], bool)
    return _below(share, key, _contents(encoded))


def _contents(encoded: Encoded) -> Iterator[bytes]:
    """Yield the bytes of each row and its target."""
    arrays = [encoded.inputs] if encoded.targets is None else [encoded.inputs, encoded.targets]
    return map(b"".join, zip(*map(_row_bytes, arrays), strict=True))


def _row_bytes(array: NDArray[Any]) -> Iterator[memoryview]:
    """Return the bytes of each row of a contiguous array, without copying it."""
    view, size = array.reshape(-1).view(np.uint8).data, array.nbytes // len(array)
    return (view[start : start + size] for start in range(0, len(view), size))


def _below(share: float, key: bytes, contents: Iterable[bytes]) -> NDArray[np.bool_]:
    """Return which contents have a hash in the lowest `share` of all hashes."""
    digests = [hashlib.blake2b(content, digest_size=_HASH_BYTES, key=key).digest() for content in contents]
    return np.frombuffer(b"".join(digests), "<u8") < np.uint64(share * 2.0 ** (8 * _HASH_BYTES))
