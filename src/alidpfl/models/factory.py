"""Models of the user's own: functions that a configuration names as `package.module:function`."""

import copy
import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from alidpfl.errors import AliDpflError, ConfigError
from alidpfl.inputs.imports import imported
from alidpfl.inputs.names import nearest


def make_from_factory(
    name: str,
    input_shape: tuple[int, ...],
    num_outputs: int,
    *,
    options: Mapping[str, Any],
    seed: int,
    from_here: bool = True,
) -> nn.Module:
    """Build a model by a function of the user's own, with seeded initial weights.

    Args:
        name: `package.module:function`. It is called as `function(input_shape, num_outputs, **options)`.
        input_shape: shape of one input, without the batch.
        num_outputs: number of outputs.
        options: what else the function takes, by name.
        seed: of torch's random numbers. The global random state of torch stays as it is.
        from_here: whether modules in the current folder are found too.

    Raises:
        ConfigError: the function does not exist, does not take these options, fails, or makes no torch module.
    """
    setting = f'model.factory="{name}"'
    if name.partition(":")[0].partition(".")[0] in sys.stdlib_module_names:  # a run directory may come from elsewhere
        raise ConfigError(f"{setting} is in Python's standard library, which makes no models; name a function of yours")
    with torch.random.fork_rng(devices=[]):  # importing may draw random numbers too
        make = imported(name, "model.factory=", from_here=from_here)
    if isinstance(make, nn.Module) or not callable(make):
        raise ConfigError(
            f"{setting} is a {type(make).__name__}, not a function; it must take (input_shape, num_outputs) and "
            "return a torch module"
        )
    _check_options(make, setting, (input_shape, num_outputs), options)
    own = copy.deepcopy(dict(options))  # the function may change them
    return made(lambda: make(input_shape, num_outputs, **own), setting, seed)


def made(make: Callable[[], object], what: str, seed: int) -> nn.Module:
    """Return the torch module that `make` returns, with seeded random numbers. `what` names it in errors."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            model = make()
        except AliDpflError:
            raise
        except Exception as error:  # any fault of the user's code, in its own words
            raise ConfigError(
                f"{what} made no model ({type(error).__name__}: {error}); correct the function or its options"
            ) from error
    if not isinstance(model, nn.Module):
        raise ConfigError(f"{what} returned a {type(model).__name__}; it must return a torch module")
    return model


def _check_options(
    make: Callable[..., object], setting: str, arguments: tuple[object, ...], options: Mapping[str, Any]
) -> None:
    """Refuse options that the function does not take, before it runs."""
    try:
        signature = inspect.signature(make)
    except ValueError:  # written in C
        return
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        names = [name for name in options if name not in signature.parameters]
        meant = nearest(names[0], signature.parameters) if names else None
        hint = "" if meant is None else f"; did you mean {meant!r}?"
        raise ConfigError(
            f"{setting} cannot be called with (input_shape, num_outputs) and model.options={dict(options)}: {error}"
            f"{hint} It is defined as {getattr(make, '__name__', 'function')}{signature}"
        ) from None
