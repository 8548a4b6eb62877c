"""One file, one paper. A method varies the clients' plans (C, σ) and the local loss; τ is a policy's business."""

from collections.abc import Callable
from typing import Any

from alidpfl.errors import ConfigError
from alidpfl.inputs.names import named
from alidpfl.methods.adap_dpfl import AdapDpfl
from alidpfl.methods.fedavg_dp import FedAvgDp, ali_dpfl
from alidpfl.methods.method import Method, Numbers, Objective, State
from alidpfl.methods.pe_dpfl import PeDpfl

METHODS: dict[str, Callable[..., Method]] = {
    "fedavg_dp": FedAvgDp,
    "ali_dpfl": ali_dpfl,
    "adap_dpfl": AdapDpfl,
    "pe_dpfl": PeDpfl,
}

DEFAULT_POLICIES = {"fedavg_dp": "fixed", "ali_dpfl": "ali", "adap_dpfl": "fixed", "pe_dpfl": "fixed"}
"""Whose τ is fixed takes `local_steps`; the ALI-DPFL paper runs the last two at τ = 3."""


def make_method(name: str, **settings: Any) -> Method:
    """The method of this name.

    >>> make_method("fedavg_dp", clip_norm=1.0, noise_multiplier=1.1).adapts_noise
    False
    """
    method = named("method", name, METHODS)
    try:
        return method(**settings)
    except TypeError as error:
        raise ConfigError(f"method {name}: {error}") from None


__all__ = [
    "DEFAULT_POLICIES",
    "METHODS",
    "AdapDpfl",
    "FedAvgDp",
    "Method",
    "Numbers",
    "Objective",
    "PeDpfl",
    "State",
    "ali_dpfl",
    "make_method",
]
