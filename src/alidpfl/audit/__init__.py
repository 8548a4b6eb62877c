"""Audit a claimed (ε, δ): run the real training code with canaries, and bound ε from below.

An audit can refute a claim but never prove it; the accounting proves it. An audit finds bugs that proofs do not see,
such as too little noise, a gradient that is not clipped, or noise that is missing. `audit_model` searches for batches
in which a model of your own mixes records.
"""

from alidpfl.audit.findings import Audit, audit_config
from alidpfl.audit.mixing import ModelAudit, SearchOptions, audit_model
from alidpfl.audit.one_run import RunAudit, audit_run
from alidpfl.audit.one_step import StepAudit, audit_step
from alidpfl.audit.own_model import audit_named_model
from alidpfl.audit.subject import Subject, subject_of

__all__ = ["Audit", "ModelAudit", "RunAudit", "SearchOptions", "StepAudit", "Subject", "audit_config", "audit_model"]
__all__ += ["audit_named_model", "audit_run", "audit_step", "subject_of"]
