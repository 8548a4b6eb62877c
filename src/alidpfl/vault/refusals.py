"""Refusals: the reasons why a vault does not answer with an update.

A text holds public numbers and what the caller sent. No text depends on a record.
"""

from enum import StrEnum

from alidpfl.errors import AliDpflError

_LONGEST_TEXT = 600


class RefusalCode(StrEnum):
    """The reason for a refusal, for programs. The text beside it is for people."""

    MALFORMED = "malformed"
    TOO_LARGE = "too-large"
    MODEL = "model"
    SCHEMA = "schema"
    WEIGHTS = "weights"
    POLICY = "policy"
    BUDGET = "budget"
    CHANGED_REPLAY = "changed-replay"
    ROUND_ORDER = "round-order"
    PRUNED = "pruned"
    LOST = "lost"
    BUSY = "busy"
    DISK = "disk"
    LEDGER = "ledger"
    FAILED = "failed"


class VaultUnreachableError(AliDpflError):
    """No vault answered in time. The round may have been charged: send the same bytes again."""


class VaultRefusedError(AliDpflError):
    """The vault refused the request; `code` is the reason."""

    def __init__(self, code: RefusalCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class PlanRefusedError(VaultRefusedError):
    """The request is malformed or against the owner's policy. Another request may be served."""


class BudgetSpentError(VaultRefusedError):
    """The privacy budget does not pay for the request. Fewer steps or more noise may still be served."""


class ReplayRefusedError(VaultRefusedError):
    """The round was asked for before, and it changed, is out of order or lost its answer. Ask for a later round."""


class VaultBusyError(VaultRefusedError):
    """Another round is being trained and nothing was charged. Ask again."""


class VaultTroubleError(VaultRefusedError):
    """The disk, the ledger or the training failed. The owner has to repair it."""


_STATUS_BY_KIND: dict[type[VaultRefusedError], dict[str, int]] = {
    PlanRefusedError: {"malformed": 400, "too-large": 413, "model": 422, "schema": 422, "weights": 422, "policy": 403},
    BudgetSpentError: {"budget": 403},
    ReplayRefusedError: {"changed-replay": 409, "round-order": 409, "pruned": 410, "lost": 410},
    VaultBusyError: {"busy": 503},
    VaultTroubleError: {"disk": 507, "ledger": 500, "failed": 500},
}
_KINDS = {RefusalCode(code): kind for kind, codes in _STATUS_BY_KIND.items() for code in codes}
HTTP_STATUS = {RefusalCode(code): number for codes in _STATUS_BY_KIND.values() for code, number in codes.items()}


def refusal(code: RefusalCode, message: str) -> VaultRefusedError:
    """Return the error for a code. Its text is cut, because it may quote what a hostile caller sent."""
    return _KINDS[code](code, message[:_LONGEST_TEXT])
