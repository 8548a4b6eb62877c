"""`alidpfl vault serve` that logs when it begins to train, and is slow: python logging_vault.py DIR LOG [lie].

With "lie" it answers with NaN in the first round, then with huge weights: a hostile node of a real deployment.
"""

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from alidpfl.vault import training
from alidpfl.vault.service import serve

LINGER = 0.3  # seconds in training, so that a kill may fall into it


def main(folder: Path, log: Path, *, lies: bool) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    honest = training.RecordTrainer._trained

    def logged(self, trainer, run, weights, plan):
        os.write(descriptor, f"{plan.round} {plan.steps}\n".encode())
        time.sleep(LINGER)
        return honest(self, trainer, run, weights, plan)

    def lying(self, trainer, run, weights, plan):
        update = logged(self, trainer, run, weights, plan)
        return replace(update, params=torch.full_like(update.params, torch.nan if plan.round == 0 else 1e30))

    training.RecordTrainer._trained = lying if lies else logged
    serve(folder, on_ready=lambda _vault, _where: None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), lies="lie" in sys.argv[3:])
