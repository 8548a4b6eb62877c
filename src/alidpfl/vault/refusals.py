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


class VaultError(AliDpflError):
    """Base class of the errors between a caller and a vault."""


class VaultUnreachableError(VaultError):
    """No vault answered in time. The round may have been charged: send the same bytes again."""


class VaultRefusedError(VaultError):
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


_REFUSALS: dict[RefusalCode, tuple[int, type[VaultRefusedError]]] = {
    RefusalCode.MALFORMED: (400, PlanRefusedError),
    RefusalCode.TOO_LARGE: (413, PlanRefusedError),
    RefusalCode.MODEL: (422, PlanRefusedError),
    RefusalCode.WEIGHTS: (422, PlanRefusedError),
    RefusalCode.POLICY: (403, PlanRefusedError),
    RefusalCode.BUDGET: (403, BudgetSpentError),
    RefusalCode.CHANGED_REPLAY: (409, ReplayRefusedError),
    RefusalCode.ROUND_ORDER: (409, ReplayRefusedError),
    RefusalCode.PRUNED: (410, ReplayRefusedError),
    RefusalCode.LOST: (410, ReplayRefusedError),
    RefusalCode.BUSY: (503, VaultBusyError),
    RefusalCode.DISK: (507, VaultTroubleError),
    RefusalCode.LEDGER: (500, VaultTroubleError),
    RefusalCode.FAILED: (500, VaultTroubleError),
}


HTTP_STATUS = {code: status for code, (status, _) in _REFUSALS.items()}


def refusal(code: RefusalCode, message: str) -> VaultRefusedError:
    """Return the error for a code. Its text is cut, because it may quote what a hostile caller sent.

    >>> type(refusal(RefusalCode.BUDGET, "nothing left")).__name__
    'BudgetSpentError'
    """
    return _REFUSALS[code][1](code, message[:_LONGEST_TEXT])
