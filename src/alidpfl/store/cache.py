"""Answers that take seconds, kept on disk. Whatever is wrong with the file, the answer is computed anew."""

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


def remembered(
    question: Mapping[str, Any], answer: Callable[[], dict[str, Any]], *, kind: str, packages: Iterable[str]
) -> dict[str, Any]:
    """The JSON object that answers `question`: from the user's cache, else computed and kept there.

    It is kept under the question and the source of `packages`, which compute it: new code answers anew.
    """
    path = user_cache() / kind / f"{_key(question, packages)}.json"
    with suppress(OSError, ValueError, RecursionError):
        known = json.loads(path.read_bytes(), parse_constant=_refuse)
        if isinstance(known, dict) and known.get("question") == _plain(question):
            found = known.get("answer")
            if isinstance(found, dict):
                return found
    computed = answer()
    with suppress(OSError, AliDpflError):  # no room, or no permission: then it is not kept
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps({"question": _plain(question), "answer": computed}).encode())
    return computed


def _refuse(constant: str) -> None:
    raise ValueError(constant)  # we write no NaN and no infinity


def _key(question: Mapping[str, Any], packages: Iterable[str]) -> str:
    digest = hashlib.sha256(json.dumps(question, sort_keys=True).encode())
    digest.update(version("dp-accounting").encode())
    for package in packages:
        for source in sorted((_PACKAGE / package).glob("*.py")):
            digest.update(source.name.encode() + source.read_bytes())
    return digest.hexdigest()[:32]


def _plain(question: Mapping[str, Any]) -> Any:
    return json.loads(json.dumps(question))
