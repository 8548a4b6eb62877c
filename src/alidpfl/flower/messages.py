"""How our bytes travel in Flower's messages, and which numbers a vault's refusals have there. Imports no torch."""

import secrets

from flwr.app import ConfigRecord, Error, Message, MessageType, RecordDict

from alidpfl.flower.nodes import Question
from alidpfl.vault.refusals import RefusalCode

_RECORD, _CONTENT, _NONCE = "alidpfl", "content", "nonce"

MESSAGE_TYPES: dict[Question, str] = {"info": MessageType.QUERY, "train": MessageType.TRAIN}

# Flower's own codes are below 1000. Never renumbered: server and nodes may have different versions.
_CODES = {
    1001: RefusalCode.MALFORMED.value,
    1002: RefusalCode.TOO_LARGE.value,
    1003: RefusalCode.MODEL.value,
    1004: RefusalCode.WEIGHTS.value,
    1005: RefusalCode.POLICY.value,
    1006: RefusalCode.BUDGET.value,
    1007: RefusalCode.CHANGED_REPLAY.value,
    1008: RefusalCode.ROUND_ORDER.value,
    1009: RefusalCode.PRUNED.value,
    1010: RefusalCode.LOST.value,
    1011: RefusalCode.BUSY.value,
    1012: RefusalCode.DISK.value,
    1013: RefusalCode.LEDGER.value,
    1014: RefusalCode.FAILED.value,
    1100: "unreachable",
    1101: "no-vault",
}
_NUMBERS = {name: number for number, name in _CODES.items()}


def packed(content: bytes) -> RecordDict:
    """What a message holds.

    Flower names a message by a hash of it, and takes an answer to that name from any registered node, in whatever
    node's name. So the hash must not be guessed by those who get nearly the same message.
    """
    return RecordDict({_RECORD: ConfigRecord({_CONTENT: content, _NONCE: secrets.token_bytes(16)})})


def unpacked(message: Message) -> bytes | None:
    """Back from `packed`; None if there is no such thing in the message."""
    record = message.content.get(_RECORD) if message.has_content() else None
    content = record.get(_CONTENT) if isinstance(record, ConfigRecord) else None
    return content if isinstance(content, bytes) else None


def refused(code: str, reason: str) -> Error:
    """As an error of Flower's; a code that is new to this version becomes the general one."""
    return Error(code=_NUMBERS.get(code, _NUMBERS[RefusalCode.FAILED]), reason=reason)


def code_of(error: Error) -> str:
    """Back from `refused`; "flower-5" and the like for Flower's own.

    >>> code_of(refused("budget", "nothing left")), code_of(Error(code=5))
    ('budget', 'flower-5')
    """
    return _CODES.get(error.code, f"flower-{error.code}")
