"""Cache results that take seconds to compute on disk. A damaged file is no error: the result is computed again."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

from alidpfl.data.directories import user_cache
from alidpfl.errors import AliDpflError
from alidpfl.store.files import write_atomically

_PACKAGE = Path(__file__).parent.parent


def cached(
    question: Mapping[str, Any], compute: Callable[[], dict[str, Any]], *, kind: str, packages: Iterable[str]
) -> dict[str, Any]:
    """Return the cached result for `question`, or compute it and put it into the user's cache.

    Args:
        question: what the result depends on, as JSON.
        compute: returns the result, a JSON object.
        kind: the folder in the cache.
        packages: the packages of alidpfl that compute the result. A change in their source makes the cache invalid.
    """
    path = user_cache() / kind / f"{_key(question, packages)}.json"
    plain = json.loads(json.dumps(question))
    with suppress(OSError, ValueError, RecursionError):
        known = json.loads(path.read_bytes(), parse_constant=_refuse)
        if isinstance(known, dict) and known.get("question") == plain and isinstance(known.get("answer"), dict):
            answer: dict[str, Any] = known["answer"]
            return answer
    answer = compute()
    with suppress(OSError, AliDpflError):  # no space or no permission: the result is not cached
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"question": plain, "answer": answer}).encode())
    return answer


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # `cached` writes no NaN and no infinity


def _key(question: Mapping[str, Any], packages: Iterable[str]) -> str:
    digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode())
    digest.update(version("dp-accounting").encode())
    for package in packages:
        for source in sorted((_PACKAGE / package).glob("*.py")):
            digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:32]
