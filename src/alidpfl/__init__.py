"""alidpfl: federated learning with differential privacy."""

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

_NAMES = {
    "alidpfl.api": ("Privacy", "federate"),
    "alidpfl.config": ("load_config",),
    "alidpfl.data": ("load_dataset",),
    "alidpfl.policies": ("Decision", "Policy", "Situation"),
    "alidpfl.privacy": ("PrivacyBudget", "epsilon", "max_steps", "noise_multiplier_for"),
    "alidpfl.runs": ("execute", "load_model", "resume"),
    "alidpfl.store": ("RunDirectory",),
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
    for module, names in _NAMES.items():
        if name in names:
            return getattr(importlib.import_module(module), "load" if name == "load_dataset" else name)
    raise AttributeError(f"module 'alidpfl' has no attribute {name!r}; it has {', '.join(__all__)}")


def __dir__() -> list[str]:
    return __all__
