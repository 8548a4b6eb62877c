"""alidpfl: federated learning that is private by proof and frugal by design."""

import importlib
from typing import TYPE_CHECKING, Any

from alidpfl._version import __version__

if TYPE_CHECKING:
    from alidpfl.api import Privacy, federate
    from alidpfl.config import load_config
    from alidpfl.data import load as load_dataset
    from alidpfl.policies import Decision, Policy, Situation
    from alidpfl.privacy import PrivacyBudget, epsilon, max_steps, noise_multiplier_for
    from alidpfl.runs import execute, load_model, resume
    from alidpfl.store import RunDirectory

_HOMES = {
    "Decision": "alidpfl.policies",
    "Policy": "alidpfl.policies",
    "Privacy": "alidpfl.api",
    "PrivacyBudget": "alidpfl.privacy",
    "RunDirectory": "alidpfl.store",
    "Situation": "alidpfl.policies",
    "epsilon": "alidpfl.privacy",
    "execute": "alidpfl.runs",
    "federate": "alidpfl.api",
    "load_config": "alidpfl.config",
    "load_dataset": "alidpfl.data",
    "load_model": "alidpfl.runs",
    "max_steps": "alidpfl.privacy",
    "noise_multiplier_for": "alidpfl.privacy",
    "resume": "alidpfl.runs",
}

__all__ = [
    "Decision",
    "Policy",
    "Privacy",
    "PrivacyBudget",
    "RunDirectory",
    "Situation",
    "__version__",
    "epsilon",
    "execute",
    "federate",
    "load_config",
    "load_dataset",
    "load_model",
    "max_steps",
    "noise_multiplier_for",
    "resume",
]


def __getattr__(name: str) -> Any:
    # Imported on first use: `alidpfl --help` must not wait for torch.
    if name not in _HOMES:
        raise AttributeError(f"module 'alidpfl' has no attribute {name!r}; it has {', '.join(__all__)}")
    module = importlib.import_module(_HOMES[name])
    return getattr(module, "load" if name == "load_dataset" else name)


def __dir__() -> list[str]:
    return __all__
