"""What surrounds every run of a model on private data: precision, its own randomness, and errors that quote nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from alidpfl.errors import AliDpflError, DataError


@contextmanager
def model_randomness(seed: int, device: torch.device) -> Iterator[None]:
    """Seed what the model draws from torch's global generator (dropout), and leave the generator as it was.

    As `torch.random.fork_rng` with `torch.manual_seed`; for the CPU alone, a millisecond faster.
    """
    if device.type == "cuda":
        with torch.random.fork_rng(devices=[device]):
            torch.manual_seed(seed)
            yield
        return
    before = torch.default_generator.get_state()
    torch.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        torch.default_generator.set_state(before)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Products in float32, whatever the process was told: neither autocast nor TensorFloat32, bfloat16 and the like.

    With fewer digits a sample's gradient depends on who else is in the batch, and a clipped sum may exceed its bound.
    """
    changed = [(switch, found) for switch in _precisions(device) if (found := switch.fp32_precision) not in _FULL]
    try:
        for switch, _ in changed:
            switch.fp32_precision = "ieee"
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        for switch, found in changed:
            switch.fp32_precision = found


_FULL = ("ieee", "none")  # "none": as torch is by default, which is in full


def _precisions(device: torch.device) -> list[Any]:
    backends: Any = torch.backends
    if device.type == "cuda":
        return [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
    return [backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn]


@contextmanager
def details_withheld() -> Iterator[None]:
    """Turn an error of the model or the loss into one without details: torch's message may quote a value."""
    try:
        yield
    except (RuntimeError, IndexError, ValueError) as error:
        if isinstance(error, AliDpflError):
            raise
        raise DataError(
            f"the model or the loss failed on this batch with {type(error).__name__}; the details may quote data "
            "and are withheld: check that labels are below the number of outputs and tokens below the number of "
            "embeddings, or run model and loss by hand on the batch"
        ) from None
