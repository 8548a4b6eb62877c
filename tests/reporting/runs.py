"""Made-up run directories."""

from pathlib import Path

from alidpfl.store import RoundTiming, RunDirectory
from tests.store.samples import record

CONFIG = {
    "data": {"name": "mnist", "partition": "dirichlet", "dirichlet_beta": 0.05, "clients": 10},
    "model": {"name": "paper_cnn"},
    "privacy": {"epsilon": 2.0, "delta": 1e-5, "accountant": "pld", "sample_rate": 0.015, "noise_multiplier": 1.1},
    "method": {"name": "ali_dpfl", "policy": "corrected", "clip_norm": 1.0, "learning_rate": 0.5, "schedule": "fixed"},
    "federation": {"max_rounds": 158},
    "run": {"seed": 7},
}
SUMMARY = {
    "accuracy": 63.21,
    "epsilon": 1.98765,
    "delta": 1e-5,
    "rounds": 5,
    "steps": 15,
    "stop_reason": "privacy_budget",
    "seconds": 12.34,
    "client_epsilon": {"0": 1.98765},
    "covers_everything": True,
    "is_synthetic": False,
}


def make_run(path: Path, *, config=CONFIG, summary=None, rounds=5, **changes) -> Path:
    run = RunDirectory.create(path)
    run.write_config(config)
    for number in range(rounds):
        run.append_record(record(number, **changes))
        run.append_timing(RoundTiming(round=number, seconds=2.0, seconds_total=2.0 * (number + 1)))
    if summary is not None:
        run.write_summary(summary)
    return path
