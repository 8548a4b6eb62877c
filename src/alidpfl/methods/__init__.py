"""Methods of the literature. A method sets C and σ of a client's plan, and the local loss.

A policy chooses how many local steps a round takes: see `alidpfl.policies`.
"""

import inspect
from collections.abc import Iterable
from typing import Any

from alidpfl.errors import ConfigError
from alidpfl.inputs.names import named
from alidpfl.methods.adap_dpfl import AdapDpfl
from alidpfl.methods.method import AliDpfl, ClipAndNoise, FedAvgDp, Loss, Method, Objective, State
from alidpfl.methods.pe_dpfl import PeDpfl
from alidpfl.registry import METHODS

__all__ = [
    "METHODS",
    "AdapDpfl",
    "AliDpfl",
    "ClipAndNoise",
    "FedAvgDp",
    "Loss",
    "Method",
    "Objective",
    "PeDpfl",
    "State",
    "check_method_options",
    "make_method",
    "method_options",
]

# Settings of their own, or fixed parts of a method. A configuration must not make clients send un-noised signals.
_NOT_OPTIONS = {"adapts_noise", "clip_norm", "name", "needs_public_loss", "noise_multiplier", "release", "signals"}


def method_options(name: str) -> dict[str, inspect.Parameter]:
    """Return the settings that only this method has, which `method.options` may hold.

    >>> list(method_options("pe_dpfl")), list(method_options("ali_dpfl"))
    (['regularisation', 'perturbation', 'draws', 'variant'], [])
    """
    parameters = inspect.signature(METHODS[name]).parameters
    return {option: parameter for option, parameter in parameters.items() if option not in _NOT_OPTIONS}


def check_method_options(name: str, options: Iterable[str]) -> None:
    """Refuse options that the method does not have; the ConfigError offers the nearest name."""
    for option in options:
        named(f"method.options of {name}: the option", option, method_options(name))


def make_method(name: str, *, clip_norm: float, noise_multiplier: float, **options: Any) -> Method:
    """Return the method of that name.

    Args:
        name: A name in `METHODS`.
        clip_norm: C.
        noise_multiplier: σ.
        options: Settings that only this method has; see `method_options`.

    Raises:
        ConfigError: No method or option has such a name, or a value is refused.

    >>> make_method("fedavg_dp", clip_norm=1.0, noise_multiplier=1.1).adapts_noise
    False
    """
    check_method_options(name, options)
    try:
        made: Method = METHODS[name](clip_norm=clip_norm, noise_multiplier=noise_multiplier, **options)
    except TypeError as error:
        raise ConfigError(f"method {name}: {error}") from None
    return made
