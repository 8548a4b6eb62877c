"""Many rounds: memory and open files of all processes, sampled on the way, must not grow. `make soak`."""

import argparse
import json
import multiprocessing
import os
import tempfile
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from alidpfl.runs import execute
from alidpfl.runs.execute import Listener
from tests.runs.command import config
from tests.vault.parts import MOST_STEPS, body, made_vault, served

SAMPLES = 100
MOST_GROWTH = {"vault": 3.0}
"""Megabytes in a thousand rounds over the second half. A vault keeps its ledger in memory, some 2 kB a round: how many
rounds there can be is up to its budget. All others keep nothing of a round."""
_MOST_OF_OTHERS = 1.5


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Of one process at one moment."""

    round: int
    process: str
    megabytes: float
    files: int


@dataclass(frozen=True, kw_only=True)
class Growth:
    """Of one process over the second half."""

    process: str
    first_megabytes: float
    last_megabytes: float
    megabytes_per_1000_rounds: float
    fewest_files: int
    most_files: int

    @property
    def is_flat(self) -> bool:
        """Files are opened and closed within a round; no more may be open at the end than at any time before."""
        most = MOST_GROWTH.get(self.process, _MOST_OF_OTHERS)
        return self.megabytes_per_1000_rounds < most and self.most_files - self.fewest_files <= 1


def sample(number: int, process: str, pid: int) -> Sample:
    """What the system says of a process: memory that is no file's, whether or not forked processes still share it.

    Private memory would grow by itself: with a library's pages, once no other program has them mapped, and with what a
    garbage collection touches for the first time after the fork.
    """
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kilobytes = sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:"))
    return Sample(round=number, process=process, megabytes=kilobytes / 1024, files=len(os.listdir(f"/proc/{pid}/fd")))


def growth(samples: list[Sample]) -> list[Growth]:
    """Of every process, by a line through the second half of its samples."""
    found = []
    for process in dict.fromkeys(one.process for one in samples):
        own = [one for one in samples if one.process == process]
        half = own[len(own) // 2 :]
        slope = np.polyfit([one.round for one in half], [one.megabytes for one in half], 1)[0]
        found.append(
            Growth(
                process=process,
                first_megabytes=round(half[0].megabytes, 2),
                last_megabytes=round(half[-1].megabytes, 2),
                megabytes_per_1000_rounds=round(1000 * float(slope), 3),
                fewest_files=min(one.files for one in half),
                most_files=max(one.files for one in half),
            )
        )
    return found


def simulated(rounds: int, clients: int, out: Path) -> list[Growth]:
    """A run on this machine: the parent and its two workers."""
    samples: list[Sample] = []

    def look(record, _seconds):
        if record.round % max(1, rounds // SAMPLES) == 0:
            samples.append(sample(record.round, "parent", os.getpid()))
            workers = sorted(child.pid for child in multiprocessing.active_children())
            samples.extend(sample(record.round, f"worker {place}", pid) for place, pid in enumerate(workers))

    settings = config(
        data__clients=clients,
        privacy__sample_rate=0.02,
        privacy__noise_multiplier=50.0,
        privacy__epsilon=100.0,
        method__name="fedavg_dp",
        federation__max_rounds=rounds,
        run__evaluate_every=rounds,
        run__processes=2,
    )
    outcome = execute(settings, out, listener=replace(Listener(), on_round=look))
    assert outcome.rounds == rounds
    return growth(samples)


def through_a_vault(rounds: int, folder: Path) -> list[Growth]:
    """A vault that is asked for so many rounds."""
    limits = {"limits__max_steps_per_round": MOST_STEPS, "budget__epsilon": 100.0}
    vault = made_vault(folder, terms__min_noise_multiplier=50.0, **limits)
    samples: list[Sample] = []
    with served(vault) as (process, client):
        for number in range(rounds):
            client.train_bytes(body(round=number, steps=1, noise_multiplier=50.0))
            if number % max(1, rounds // SAMPLES) == 0:
                samples.append(sample(number, "vault", process.pid))
    return growth(samples)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2000)
    parser.add_argument("--clients", type=int, default=100)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = simulated(asked.rounds, asked.clients, Path(folder) / "run")
        print(*(json.dumps(asdict(one)) for one in found), sep="\n", flush=True)
        found += through_a_vault(asked.rounds, Path(folder))
    print(json.dumps(asdict(found[-1])))
    if not all(one.is_flat for one in found):
        raise SystemExit("memory or open files grow")
    print(f"flat over {asked.rounds} rounds with {asked.clients} clients")


if __name__ == "__main__":
    main()
