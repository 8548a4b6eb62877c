"""Run a configuration to its end, with a checkpoint after every round: killed at any moment, it can be resumed."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from alidpfl.engines.federation import Federation
from alidpfl.runs.build import Prepared, prepare
from alidpfl.runs.config import Config
from alidpfl.runs.config_file import parse_config
from alidpfl.store import RoundTiming, RunDirectory, describe_environment
from alidpfl.store.tensorboard import TensorBoardWriter
from alidpfl.types import RoundRecord, StopReason


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended."""

    accuracy: float | None
    """%, on the part that the configuration evaluates on."""
    loss: float | None
    epsilon: float
    """Largest ε of any client."""
    delta: float
    rounds: int
    steps: int
    """Σ τ."""
    stop_reason: str
    seconds: float
    out: str
    covers_everything: bool
    is_synthetic: bool
    noise_multiplier: float
    client_epsilon: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Listener:
    """What a caller wants to be told while a run goes on."""

    on_loading: Callable[[str, float], None] = lambda _what, _share: None
    on_start: Callable[[Prepared, int], None] = lambda _prepared, _rounds_done: None
    on_round: Callable[[RoundRecord, float], None] = lambda _record, _seconds: None


def execute(config: Config, out: str | Path, *, listener: Listener | None = None, tensorboard: bool = False) -> Outcome:
    """A new run into the directory `out`, which must not hold one already."""
    listener = listener or Listener()
    directory = RunDirectory.create(out)  # first: a folder that cannot be used is known before the data are loaded
    with directory.lock():
        prepared = prepare(config, on_progress=listener.on_loading)
        directory.write_environment(describe_environment(seed=config.run.seed))
        directory.write_config(config.to_dict())  # last: with it the directory is a run that can be resumed
        return _train(config, prepared, directory, listener, tensorboard)


def resume(out: str | Path, *, listener: Listener | None = None, tensorboard: bool = False) -> Outcome:
    """Go on with a run that was killed or interrupted; of one that is done, only the outcome.

    The end is the same as if it had never stopped: the checkpoint holds all that the next round depends on, and a round
    that was lost is run again with the same randomness. With secure randomness it cannot be: the lost round may have
    shown something, so that it stays charged, and the next has noise of its own.
    """
    listener = listener or Listener()
    directory = RunDirectory.open(out)
    config = parse_config(directory.config())
    with directory.lock():
        if (summary := directory.summary()) is not None:
            return Outcome(**summary)
        prepared = prepare(config, on_progress=listener.on_loading)
        checkpoint = directory.read_checkpoint()
        directory.truncate_to(checkpoint.state if checkpoint else None)
        if checkpoint is not None:
            prepared.federation.training.restore(checkpoint.tensors, checkpoint.state)
        if config.run.randomness == "secure":
            prepared.federation.training.forfeit_round()
            directory.write_checkpoint(*prepared.federation.training.state())  # the next attempt may be lost as well
        return _train(config, prepared, directory, listener, tensorboard)


def _train(
    config: Config, prepared: Prepared, directory: RunDirectory, listener: Listener, tensorboard: bool
) -> Outcome:
    training = prepared.federation.training
    done = training.progress.round
    listener.on_start(prepared, done)
    events = TensorBoardWriter(directory.path / "tensorboard", first_round=done) if tensorboard else nullcontext()
    with prepared.federation, events as writer, _ctrl_c_ends_the_round() as interrupted:
        record, started = None, time.monotonic()
        for record in prepared.federation:
            seconds = time.monotonic() - started
            _keep(directory, prepared.federation, record, seconds)
            if writer is not None:
                writer.add(record)
            listener.on_round(record, seconds)
            if interrupted.is_set():
                break
            started = time.monotonic()
        outcome = _outcome(config, prepared, directory, record)
    if outcome.stop_reason != StopReason.INTERRUPTED:
        directory.write_model(prepared.federation.named_params(), _metadata(config, outcome))
        directory.write_summary(asdict(outcome))
    return outcome


def _keep(directory: RunDirectory, federation: Federation, record: RoundRecord, seconds: float) -> None:
    total = federation.training.progress.seconds
    directory.append_record(record)
    directory.append_timing(RoundTiming(round=record.round, seconds=seconds, seconds_total=total))
    directory.write_checkpoint(*federation.training.state())


def _outcome(config: Config, prepared: Prepared, directory: RunDirectory, last: RoundRecord | None) -> Outcome:
    training = prepared.federation.training
    is_evaluated = last is not None and last.accuracy is not None
    found = last if is_evaluated else prepared.federation.evaluate("test")
    epsilons = training.epsilons()
    return Outcome(
        accuracy=found.accuracy if found else None,
        loss=found.loss if found else None,
        epsilon=max(epsilons.values()),
        delta=config.privacy.delta,
        rounds=training.progress.round,
        steps=training.progress.local_steps,
        stop_reason=str(training.stop_reason or StopReason.INTERRUPTED),
        seconds=training.progress.seconds,
        out=str(directory.path),
        covers_everything=training.covers_everything,
        is_synthetic=prepared.dataset.is_synthetic,
        noise_multiplier=prepared.noise_multiplier,
        client_epsilon={str(client): value for client, value in epsilons.items()},
    )


def _metadata(config: Config, outcome: Outcome) -> dict[str, str]:
    """The claim that travels with the model."""
    covered = "yes" if outcome.covers_everything else "NO: un-noised signals were used"
    return {
        "model": config.model.name,
        "data": config.data.name,
        "epsilon": repr(outcome.epsilon),
        "delta": repr(outcome.delta),
        "epsilon_covers_everything": covered,
        "neighbouring": "add or remove one record of one client",
    }


@contextmanager
def _ctrl_c_ends_the_round() -> Iterator[threading.Event]:
    """The first Ctrl-C lets the round finish; a second one stops at once. Outside the main thread nothing changes."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def remember(_number: int, _frame: FrameType | None) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    before: Any = signal.signal(signal.SIGINT, remember)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
