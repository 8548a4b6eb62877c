"""What surrounds every run of a model on private data: its own randomness, and errors that quote nothing."""

from collections.abc import Iterator
from contextlib import contextmanager

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
