"""Small vaults for the tests: forty records, a linear model of 21 parameters."""

import os
import socket
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from alidpfl.types import ClientUpdate
from alidpfl.vault.client import VaultClient
from alidpfl.vault.enrolment import enrol
from alidpfl.vault.folder import ANSWERS, LEDGER, SOCKET, AnswerStore, VaultFolder
from alidpfl.vault.messages import RoundRequest, decode_answer, encode
from alidpfl.vault.policy import make_policy
from alidpfl.vault.rounds import Vault
from alidpfl.vault.slots import Cost, Slots, Timetable
from alidpfl.vault.sources import FileSource
from tests.runs.command import Forked, forked

NUM_RECORDS, NUM_FEATURES, NUM_CLASSES = 40, 6, 3
SAMPLE_RATE, NOISE, MOST_STEPS = 0.2, 2.0, 5

POLICY = {
    "budget": {"epsilon": 4.0, "delta": 1e-3},
    "accounting": {"kind": "planned", "accountant": "rdp"},
    "terms": {"sample_rate": SAMPLE_RATE, "min_noise_multiplier": NOISE},
    "model": {"name": "linear"},
    "limits": {"max_steps_per_round": MOST_STEPS, "max_clip_norm": 1.0},
    "service": {"seconds_per_round": 0.005, "seconds_per_step": 0.001},  # short, and nothing needs to be measured
}


def made_records(path: Path, seed: int = 0) -> Path:
    random = np.random.default_rng(seed)
    classes = random.integers(NUM_CLASSES, size=NUM_RECORDS)
    inputs = random.normal(size=(NUM_RECORDS, NUM_FEATURES)) + 2 * np.eye(NUM_FEATURES)[classes]
    np.savez(path, x=inputs.astype(np.float32), y=classes)
    return path


def policy_values(**changes) -> dict:
    """Return the policy with changes: `limits__on_excess="refuse"` for a section's key, `anchor=...` for others."""
    values = {key: dict(section) for key, section in POLICY.items()}
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            values.setdefault(section, {})[name] = value
        else:
            values[section] = value
    return values


def made_vault(tmp_path: Path, name: str = "vault", **changes) -> VaultFolder:
    """An enrolled folder."""
    records = tmp_path / f"{name}.npz"
    if not records.exists():
        made_records(records)
    anchor = changes.pop("anchor", None)
    source = FileSource(path=str(records), num_classes=changes.pop("num_classes", NUM_CLASSES))
    policy = make_policy(policy_values(**changes), "test")
    enrol(tmp_path / name, source, policy, anchor=None if anchor is None else Path(anchor))
    return VaultFolder(path=tmp_path / name)


@contextmanager
def machine(state: Path):
    """Run the block as on a machine with this state folder. A new folder stands for a machine that knows no vault."""
    before = os.environ["XDG_STATE_HOME"]
    os.environ["XDG_STATE_HOME"] = str(state)
    try:
        yield
    finally:
        os.environ["XDG_STATE_HOME"] = before


def weights(value: float = 0.0) -> dict[str, np.ndarray]:
    shapes = {"1.weight": (NUM_CLASSES, NUM_FEATURES), "1.bias": (NUM_CLASSES,)}
    return {name: np.full(shape, value, np.float32) for name, shape in shapes.items()}


def request(**changes) -> RoundRequest:
    defaults = {
        "run": "a",
        "round": 0,
        "steps": 2,
        "learning_rates": [0.5],
        "sample_rate": SAMPLE_RATE,
        "noise_multiplier": NOISE,
        "clip_norm": 1.0,
    }
    return RoundRequest(**{**defaults, **changes})


def body(value: float = 0.0, **changes) -> bytes:
    return encode(request(**changes), weights(value))


def steps_of(answer: bytes) -> int:
    return decode_answer(answer)[0].steps


@dataclass
class CountingTrainer:
    """Stands for the real trainer: it counts the trained steps, and never gives the same answer twice."""

    plans: list = field(default_factory=list)

    def job(self, asked):
        return self._train

    def _train(self, start, plan):
        self.plans.append(plan)
        return ClientUpdate(client=plan.client, params=start + np.float32(len(self.plans)))

    @property
    def steps(self) -> int:
        return sum(plan.steps for plan in self.plans)


@dataclass
class FakeClock:
    """A clock that stands still unless `pass_` moves it. Waiting takes no time; `waits` has its ends."""

    seconds: float = 1000.0
    waits: list = field(default_factory=list)

    def pass_(self, seconds: float) -> None:
        self.seconds += seconds

    def wait_until(self, moment: float) -> None:
        self.waits.append(moment)
        self.seconds = max(self.seconds, moment)


@contextmanager
def opened(folder: VaultFolder, trainer=None, known_head=None, anchor=None, clock=None):
    """Open the vault in this process, by default with the real trainer and a clock that stands still."""
    with folder.lock():
        vault = without_lock(folder, trainer, known_head, anchor, clock)
        try:
            yield vault
        finally:
            vault.ledger.close()


def without_lock(folder: VaultFolder, trainer=None, known_head=None, anchor=None, clock=None) -> Vault:
    """Open the vault as on a network disk without locks."""
    if trainer is None:
        from alidpfl.vault.training import load_trainer

    policy, clock = folder.policy(), clock or FakeClock()
    enrolment, ledger = folder.open(policy, known_head, anchor)
    try:
        trainer = load_trainer(enrolment, policy) if trainer is None else trainer
        measure = getattr(trainer, "cost", lambda _request: Cost(round=0.01, step=0.001))
        return Vault(
            policy=policy,
            enrolment=enrolment,
            ledger=ledger,
            answers=AnswerStore(folder.path / ANSWERS),
            refusals=folder.refusals(),
            trainer=trainer,
            slots=Slots(
                timetable=Timetable(policy, measure),
                log=folder.slots(),
                clock=lambda: clock.seconds,
                wait_until=clock.wait_until,
            ),
        )
    except BaseException:
        ledger.close()
        raise


def spent(folder: VaultFolder) -> int:
    """Units in the ledger, read from the disk and verified."""
    return folder.read(folder.policy())[1].account.units


def lines(folder: VaultFolder) -> list[bytes]:
    return (folder.path / LEDGER).read_bytes().splitlines(keepends=True)


@contextmanager
def served(folder: VaultFolder, *arguments):
    """Run `alidpfl vault serve` in its own process, and connect a client."""
    process = forked(folder.path.parent / "log", "vault", "serve", "--dir", folder.path, *arguments)
    try:
        client = connected(folder.path / SOCKET, process)
        with client:
            yield process, client
    finally:
        process.kill()


def not_served(folder: VaultFolder, *arguments, log: Path | None = None) -> str:
    """Return the refusal of `alidpfl vault serve`. It runs in its own process, because serving would never end."""
    process = forked(log or folder.path.parent / "refused.log", "vault", "serve", "--dir", folder.path, *arguments)
    assert process.wait(seconds=30) == 2, process.log.read_text()
    return process.log.read_text()


def connected(path: Path, process: Forked) -> VaultClient:
    """A client, once the vault answers."""
    end = time.monotonic() + 60
    while not answers_on(path):
        assert process.is_running(), process.log.read_text()
        assert time.monotonic() < end, process.log.read_text()
        time.sleep(0.01)
    return VaultClient(path, timeout=30)


def answers_on(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as caller:
        return caller.connect_ex(str(path)) == 0
