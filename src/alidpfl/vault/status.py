"""What the owner sees, and what a server may know."""

from collections import Counter
from pathlib import Path
from typing import Any

from alidpfl.vault.accounts import budget_of, charged_rate
from alidpfl.vault.enrolment import Enrolment
from alidpfl.vault.folder import RefusalLog, VaultFolder
from alidpfl.vault.ledger import Book
from alidpfl.vault.policy import Policy


def public_info(enrolment: Enrolment, policy: Policy) -> dict[str, Any]:
    """What a server needs to plan: sizes, shapes and limits. Neither the source nor the hash of the records."""
    return {
        "format": "alidpfl-vault-info-1",
        "vault": enrolment.vault,
        "alidpfl": enrolment.alidpfl,
        "num_records": enrolment.num_records,
        "num_classes": enrolment.num_classes,
        "input_shape": enrolment.input_shape,
        "parameters": [[name, shape] for name, shape in enrolment.parameters],
        **policy.pinned(),
        "limits": policy.limits.model_dump(),
        "unsafe": list(policy.unsafe),
    }


def _described(enrolment: Enrolment, policy: Policy, book: Book, head: str, refusals: RefusalLog) -> dict[str, Any]:
    """ε spent and left, rounds, refusals."""
    reservations = book.reservations
    spent = book.account.epsilon()
    uncovered = Counter(use for reservation in reservations.values() for use in reservation.unsafe)
    return {
        "format": "alidpfl-vault-status-1",
        "vault": enrolment.vault,
        "num_records": enrolment.num_records,
        "epsilon": policy.budget.epsilon,
        "delta": policy.budget.delta,
        "weakness": budget_of(policy).weakness(enrolment.num_records),
        "epsilon_spent": spent,
        "epsilon_left": max(0.0, policy.budget.epsilon - spent),
        "accounting": policy.accounting.kind,
        "charged": "rounds" if policy.terms.release == "update" else "steps",
        "units_spent": book.account.units,
        "units_left": book.account.affordable(charged_rate(policy), policy.terms.min_noise_multiplier),
        "runs": book.num_runs,
        "rounds_charged": len(reservations),
        "rounds_released": len(book.answers),
        "rounds_lost": len(reservations.keys() - book.answers.keys()),
        "refusals": dict(sorted(refusals.counts.items())),
        "last_refusals": refusals.last,
        "unsafe": list(policy.unsafe),
        "covers_everything": not uncovered,
        "rounds_not_covered": dict(sorted(uncovered.items())),
        "head": head,
    }


def status(path: Path) -> dict[str, Any]:
    """Of the vault in a folder, whether it is being served or not. Verifies everything and changes nothing."""
    folder = VaultFolder(path=path)
    policy = folder.policy()
    enrolment, book, head = folder.read(policy)
    told = _described(enrolment, policy, book, head, folder.refusals())
    return {**told, "served_by": folder.served_by(), "anchor": policy.anchor}
