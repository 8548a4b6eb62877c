"""Is it as private as it claims? Real steps and real training with canaries, and what they prove from below.

An audit can refute a claim, never prove one: the proof is the accounting's. It finds what proofs do not cover, such as
too little noise, a gradient that is not clipped, or noise that was left out.
"""

from alidpfl.audit.configured import audit_config, subject_of
from alidpfl.audit.findings import Audit
from alidpfl.audit.one_run import RunAudit, audit_run
from alidpfl.audit.one_step import StepAudit, audit_step
from alidpfl.audit.subject import Subject

__all__ = ["Audit", "RunAudit", "StepAudit", "Subject", "audit_config", "audit_run", "audit_step", "subject_of"]
