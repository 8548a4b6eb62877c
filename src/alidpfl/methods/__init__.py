"""Methods of the literature, one file a paper. A method sets C and σ of a client's plan, and the local loss.

How many local steps a round takes is a policy's business: `alidpfl.policies`.
"""

import inspect
from typing import Any

from alidpfl.errors import ConfigError
from alidpfl.inputs.names import named
from alidpfl.methods.adap_dpfl import AdapDpfl
from alidpfl.methods.fedavg_dp import AliDpfl, FedAvgDp
from alidpfl.methods.method import Loss, Method, Numbers, Objective, State
from alidpfl.methods.pe_dpfl import PeDpfl
from alidpfl.registry import METHODS

__all__ = [
    "METHODS",
    "AdapDpfl",
    "AliDpfl",
    "FedAvgDp",
    "Loss",
    "Method",
    "Numbers",
    "Objective",
    "PeDpfl",
    "State",
    "make_method",
    "method_options",
]

# Settings of their own, or fixed parts of a method: a configuration must not make clients send un-noised signals.
_NOT_OPTIONS = frozenset(
    {"adapts_noise", "clip_norm", "name", "needs_public_loss", "noise_multiplier", "release", "signals"}
)


def method_options(name: str) -> dict[str, inspect.Parameter]:
    """Return the settings that only this method has: what `method.options` may hold.

    >>> list(method_options("pe_dpfl")), list(method_options("ali_dpfl"))
    (['regularisation', 'perturbation', 'draws', 'variant'], [])
    """
    parameters = inspect.signature(METHODS[name]).parameters
    return {option: parameter for option, parameter in parameters.items() if option not in _NOT_OPTIONS}


def make_method(name: str, *, clip_norm: float, noise_multiplier: float, **options: Any) -> Method:
    """Return the method of that name.

    Raises:
        ConfigError: there is no such method or option, or an option has a wrong type.

    >>> make_method("fedavg_dp", clip_norm=1.0, noise_multiplier=1.1).adapts_noise
    False
    """
    method = METHODS[name]
    for option in options:
        named(f"method.options of {name}: the option", option, method_options(name))
    try:
        made: Method = method(clip_norm=clip_norm, noise_multiplier=noise_multiplier, **options)
    except TypeError as error:
        raise ConfigError(f"method {name}: {error}") from None
    return made
