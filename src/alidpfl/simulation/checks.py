"""Checks before the first round: can every client's records be trained on? Errors quote no data.

Found only while sampling, a mistake would show when a particular record is drawn, and after budget was spent.
"""

import torch
from torch import Tensor, nn

from alidpfl.dpsgd.model_check import made_up, made_up_targets, trial
from alidpfl.errors import ConfigError, DataError
from alidpfl.federation.settings import Part
from alidpfl.methods import Loss
from alidpfl.simulation.runner import SimulationData

_SCORES = 2  # dimensions of (B, classes)
_ROUNDING = 1e-4
_PARTS: dict[Part, str] = {"test": "the test data", "validation": "the public data"}


def check_device(device: str) -> None:
    """Refuse a device that torch cannot use here."""
    if device not in ("cpu", "cuda"):
        raise ConfigError(f'device={device!r} must be "cpu" or "cuda"')
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError('device="cuda": this machine or this build of torch has no CUDA; use "cpu"')


def check_enrolment(model: nn.Module, data: SimulationData, loss: Loss) -> None:
    """Refuse clients without records, inputs or targets that the model cannot take, and classes without an output."""
    for number, rows in enumerate(data.clients):
        if len(rows) == 0:
            raise DataError(f"client {number} has no records; leave it out, or give each client some (min_samples)")
    outputs = _outputs(model, data)
    if data.targets.is_floating_point():
        with torch.no_grad(), trial(model, data.inputs, data.targets):
            loss(outputs, made_up_targets(data.targets, 0).to(outputs.device))
        return
    if outputs.ndim != _SCORES:
        return
    classes = outputs.shape[1]
    is_beyond = data.targets >= classes
    held_by = data.clients if bool(is_beyond.any()) else ()  # only if needed: there may be a million clients
    found = [number for number, rows in enumerate(held_by) if bool(is_beyond[rows].any())]
    if found:
        others = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise _beyond(f"client {found[0]}{others} has", classes)
    for part, (_, targets) in data.evaluation.items():
        if bool((targets >= classes).any()):
            raise _beyond(f"{_PARTS[part]} have", classes)


def _beyond(who_has: str, classes: int) -> DataError:
    return DataError(
        f"{who_has} labels beyond the model's {classes} outputs; number the classes from 0, or give the model an "
        "output for each"
    )


def gives_probabilities(model: nn.Module, data: SimulationData) -> bool:
    """Return whether the model ends in a softmax, which the loss would apply a second time."""
    outputs = _outputs(model, data)
    if outputs.ndim != _SCORES or data.targets.is_floating_point():
        return False
    sums = outputs.sum(1)
    return bool((outputs >= 0).all()) and torch.allclose(sums, torch.ones_like(sums), atol=_ROUNDING)


@torch.no_grad()
def _outputs(model: nn.Module, data: SimulationData) -> Tensor:
    """Return the outputs of a trial on made-up samples."""
    device = next(model.parameters()).device
    with trial(model, data.inputs, data.targets):
        outputs: Tensor = model(made_up(data.inputs, 0).to(device))
    return outputs
