"""Flower's messages: how they carry our bytes, and which error numbers stand for a vault's refusals. No torch."""

import secrets

from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict

from alidpfl.flower.nodes import Question
from alidpfl.vault.refusals import RefusalCode

MESSAGE_TYPES: dict[Question, str] = {
    "info": MessageType.QUERY,
    "train": MessageType.TRAIN,
    "release": MessageType.EVALUATE,
}

_RECORD, _CONTENT, _NONCE = "alidpfl", "content", "nonce"

# Flower's own codes are below 1000. Only append: server and nodes may have different versions.
_REQUESTS = ("malformed", "too-large", "model", "weights", "policy", "budget", "changed-replay", "round-order")
_TROUBLE = ("pruned", "lost", "busy", "disk", "ledger", "failed")
_LATER = ("schema",)
_CODES = {**dict(enumerate(_REQUESTS + _TROUBLE + _LATER, start=1001)), 1100: "unreachable", 1101: "no-vault"}
_NUMBERS = {name: number for number, name in _CODES.items()}


def packed(content: bytes) -> RecordDict:
    """Return the content of a message with these bytes and a random nonce.

    Flower identifies a message by its hash, and accepts an answer to that hash from any registered node in any node's
    name. The nonce keeps the hash secret from nodes that get nearly the same message.
    """
    return RecordDict({_RECORD: ConfigRecord({_CONTENT: content, _NONCE: secrets.token_bytes(16)})})


def unpacked(message: Message) -> bytes | None:
    """Return the bytes in a message; None if it has none."""
    record = message.content.get(_RECORD) if message.has_content() else None
    content = record.get(_CONTENT) if isinstance(record, ConfigRecord) else None
    return content if isinstance(content, bytes) else None


def refused(code: str, reason: str) -> Error:
    """Return a refusal as Flower's error. A code that this version does not know becomes `failed`."""
    return Error(code=_NUMBERS.get(code, _NUMBERS[RefusalCode.FAILED]), reason=reason)


def code_of(error: Error) -> str:
    """Return the refusal's code. Flower's own errors get names such as "flower-5"."""
    return _CODES.get(error.code, f"flower-{error.code}")
