"""Why a vault does not answer with an update. Every text is made of public numbers: none depends on a record."""

from enum import StrEnum

from alidpfl.errors import AliDpflError


class RefusalCode(StrEnum):
    """What a program can go by; the text beside it is for people."""

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


HTTP_STATUS = {
    RefusalCode.MALFORMED: 400,
    RefusalCode.TOO_LARGE: 413,
    RefusalCode.MODEL: 422,
    RefusalCode.WEIGHTS: 422,
    RefusalCode.POLICY: 403,
    RefusalCode.BUDGET: 403,
    RefusalCode.CHANGED_REPLAY: 409,
    RefusalCode.ROUND_ORDER: 409,
    RefusalCode.PRUNED: 410,
    RefusalCode.LOST: 410,
    RefusalCode.BUSY: 503,
    RefusalCode.DISK: 507,
    RefusalCode.LEDGER: 500,
    RefusalCode.FAILED: 500,
}


_LONGEST_TEXT = 600


class VaultError(AliDpflError):
    """Something between a caller and a vault did not work out."""


class VaultUnreachableError(VaultError):
    """Nobody answers on the socket, or not in time: the round may have been charged; ask again with the same bytes."""


class VaultRefusedError(VaultError):
    """The vault refused; `code` says why."""

    def __init__(self, code: RefusalCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class PlanRefusedError(VaultRefusedError):
    """The instruction is against the owner's policy, or no instruction at all: another one may be served."""


class BudgetSpentError(VaultRefusedError):
    """The data set's privacy budget does not pay for what was asked; less, or with more noise, it may still."""


class ReplayRefusedError(VaultRefusedError):
    """The round was asked for before: changed, out of order, or its answer is gone. Ask for a later round."""


class VaultBusyError(VaultRefusedError):
    """Another round is being trained; nothing was charged. Ask again."""


class VaultTroubleError(VaultRefusedError):
    """Disk, ledger or training failed: the owner has to look."""


_KINDS = {
    RefusalCode.BUDGET: BudgetSpentError,
    RefusalCode.CHANGED_REPLAY: ReplayRefusedError,
    RefusalCode.ROUND_ORDER: ReplayRefusedError,
    RefusalCode.PRUNED: ReplayRefusedError,
    RefusalCode.LOST: ReplayRefusedError,
    RefusalCode.BUSY: VaultBusyError,
    RefusalCode.DISK: VaultTroubleError,
    RefusalCode.LEDGER: VaultTroubleError,
    RefusalCode.FAILED: VaultTroubleError,
}


def refusal(code: RefusalCode, message: str) -> VaultRefusedError:
    """The error of the right type, its text of bounded length: it may quote what a hostile caller sent.

    >>> type(refusal(RefusalCode.BUDGET, "nothing left")).__name__
    'BudgetSpentError'
    """
    return _KINDS.get(code, PlanRefusedError)(code, message[:_LONGEST_TEXT])
