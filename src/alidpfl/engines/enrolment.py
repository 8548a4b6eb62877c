"""Before the first round: can every client's records be trained on? Errors name the client and quote none of its data.

Found while sampling, such a mistake would show when a particular record is drawn, after budget was spent.
"""

import torch
from torch import nn

from alidpfl.dpsgd.probe import made_up, trial
from alidpfl.engines.runner import SimulationData
from alidpfl.errors import DataError

_SCORES = 2  # dimensions of (B, classes)


def check_enrolment(model: nn.Module, data: SimulationData) -> None:
    """Refuse clients without records, inputs that the model cannot take, and labels that it has no output for."""
    for number, rows in enumerate(data.clients):
        if len(rows) == 0:
            raise DataError(f"client {number} has no records; leave it out, or give each client some (min_samples)")
    classes = _num_outputs(model, data)
    if classes is None:
        return
    is_beyond = data.targets >= classes
    if not bool(is_beyond.any()):
        return
    found = [number for number, rows in enumerate(data.clients) if bool(is_beyond[rows].any())]
    if found:
        others = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise DataError(
            f"client {found[0]}{others} has labels beyond the model's {classes} outputs; number the classes from 0, or "
            "give the model an output for each"
        )


@torch.no_grad()
def _num_outputs(model: nn.Module, data: SimulationData) -> int | None:
    """Classes that the model tells apart, by a trial on made-up samples; None where it gives something else."""
    device = next(model.parameters()).device
    with trial(model, data.inputs, data.targets):
        outputs = model(made_up(data.inputs, 0).to(device))
    return outputs.shape[1] if outputs.ndim == _SCORES else None
