"""Invented rounds and tensors for tests of the store and of reports."""

import torch

from alidpfl.types import RoundRecord


def record(round_number: int, **changes) -> RoundRecord:
    values = {
        "round": round_number,
        "local_steps": 2 + round_number % 3,
        "steps": 3 * (round_number + 1),
        "why": "bound (B): τ* = 2.4",
        "learning_rate": 0.5,
        "clip_norm": 1.0,
        "noise_multiplier": 1.1,
        "epsilon": 0.5 + 0.01 * round_number,
        "client_epsilon": {0: 0.5 + 0.01 * round_number, 11: 0.25},
        "covers_everything": True,
        "dropped": (4,),
        "rejected": {7: "NaN in its update"},
        "accuracy": 60.0 + round_number if round_number % 2 == 0 else None,
        "loss": 1.0 / (round_number + 1),
    }
    return RoundRecord(**{**values, **changes})


def tensors(fill: float = 1.0) -> dict[str, torch.Tensor]:
    flat = torch.full((6,), fill)
    return {"params": flat, "view": flat[2:], "counter": torch.tensor(3), "empty": torch.zeros(0, 2), "on": flat > 0}
