"""Run a configuration to its end, with a checkpoint after every round. A killed run can be resumed."""

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from pydantic import TypeAdapter, ValidationError

from alidpfl.config.load import parse_config
from alidpfl.config.schema import Config
from alidpfl.errors import ConfigError, DataError
from alidpfl.metrics import CalibrationBin, Measures
from alidpfl.runs.data import secret_key
from alidpfl.runs.features import Statistics, digest
from alidpfl.runs.prepare import Prepared, prepare
from alidpfl.runs.tables import with_table_defaults
from alidpfl.simulation import Wrap
from alidpfl.store import Checkpoint, RoundTiming, RunDirectory, describe_environment
from alidpfl.store.tensorboard import TensorBoardWriter
from alidpfl.types import HeldOutFacts, OnProgress, OnShare, RoundRecord, StopReason, ignore_progress, protected

CODE = "model_code_sha256"
"""Key of a model's metadata: the hash of the package that builds it, if it does not ship with alidpfl."""
_FREE_TO_CHANGE = ("run.processes", "run.device")  # no result depends on them
_IN_FLIGHT = "in_flight"  # key of a checkpoint; it is False only after a clean interrupt, and true if it is missing


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended."""

    accuracy: float | None
    """In percent, on the data that the configuration evaluates on; None for numbers and labels."""
    loss: float | None
    epsilon: float
    """Largest ε of any client."""
    delta: float
    rounds: int
    steps: int
    """Sum of τ over all rounds."""
    stop_reason: str
    seconds: float
    out: str
    covers_everything: bool
    is_synthetic: bool
    noise_multiplier: float
    client_epsilon: dict[str, float]
    randomness: str = "unknown"
    uncovered: list[str] = field(default_factory=list)
    """What the ε of this run does not cover."""
    weakness: str | None = None
    """Why (ε, δ) hides little, if it does."""
    metrics: dict[str, float] = field(default_factory=dict)
    """All metrics of the task on that data, by name."""
    baselines: dict[str, float] = field(default_factory=dict)
    """The same metrics of a model that ignores the inputs."""
    intervals: dict[str, list[float]] = field(default_factory=dict)
    """95 % intervals of the metrics."""
    calibration: list[CalibrationBin] = field(default_factory=list)
    """Predicted and observed shares of a class task."""
    hidden: list[str] = field(default_factory=list)
    """Metrics that the noise of the last evaluation on held-out records hides."""
    training_epsilon: float | None = None
    """ε of the steps; None if `epsilon` is nothing else."""
    held_out: HeldOutFacts | None = None
    """Cost and noise of the evaluations on held-out records; None without them. `epsilon` is the larger of both."""
    unit: str = "record"
    """What ε protects: "record" or "person"."""
    max_records: int | None = None
    """k, for persons: the most records of a person in a step."""
    protects: str = protected("record")
    """What `unit` means, in words."""
    group_epsilon: dict[str, float] = field(default_factory=dict)
    """ε of several records of one person, by their number, once the whole budget is spent; see `Prepared`."""
    has_persons: bool = False
    """True if the data say which records are a person's."""

    @classmethod
    def from_json(cls, values: Mapping[str, Any], source: Path) -> "Outcome":
        """Read an outcome back from summary.json."""
        try:
            return TypeAdapter(cls).validate_json(json.dumps(values), strict=True)
        except ValidationError as error:
            key = ".".join(map(str, error.errors()[0]["loc"]))
            raise DataError(
                f"{source} is not the summary of a run (see {key}): it was edited, damaged, or written by another "
                "version of alidpfl; restore it from a copy"
            ) from None


@dataclass(frozen=True, kw_only=True)
class Listener:
    """Callbacks of a run."""

    on_loading: OnProgress = lambda _what, _share: None
    on_start: Callable[[Prepared, int], None] = lambda _prepared, _rounds_done: None
    on_share: OnShare = ignore_progress
    """Called after every client on this machine with the share of the round's training that is done."""
    on_round: Callable[[RoundRecord, float], None] = lambda _record, _seconds: None
    on_interrupt: Callable[[], None] = lambda: None
    """Called by the handler of the first Ctrl-C, possibly during another call."""


Preparation = Callable[[Config, RunDirectory, Listener], Prepared]
"""Prepares a run: on this machine, or over the nodes that the directory lists."""


def simulated(
    config: Config,
    directory: RunDirectory,
    listener: Listener,
    *,
    held_out_key: bytes | None = None,
    wrap: Wrap | None = None,
) -> Prepared:
    """Prepare a run on this machine.

    Args:
        config: settings of the run.
        directory: where a resumed run keeps its statistics.
        listener: callbacks.
        held_out_key: the secret key that a new run was planned with. A resumed run has its own.
        wrap: puts a wrapper around the engine.
    """
    return prepare(
        config,
        statistics=released_before(config, directory),
        held_out_key=_key_before(config, directory) or held_out_key,
        on_progress=listener.on_loading,
        on_share=listener.on_share,
        wrap=wrap,
    )


def _key_before(config: Config, directory: RunDirectory) -> bytes | None:
    """Return the secret key by which a resumed run holds rows out; None for a new run, and for one without."""
    if not directory.config_path.exists() or secret_key(config) is None:
        return None
    if (found := directory.held_out_key()) is None:
        raise DataError(
            f"{directory.path} has lost held-out.key, so nobody knows which rows were held out; put the file back, or "
            "start a new run and count this one's epsilon as spent"
        )
    return found


def released_before(config: Config, directory: RunDirectory) -> Statistics | None:
    """Return the statistics that a resumed run has released; None for a new run.

    What a killed start left behind is not reused. With seeded noise the same values are made again. With secure noise
    they would be a second release, so the run is refused.
    """
    if not config.has_statistics:
        return None
    found = directory.statistics()
    if not directory.config_path.exists():
        if found is not None and config.run.randomness == "secure":
            raise DataError(
                f"{directory.path} holds statistics.safetensors of a start that was killed: they are released, and a "
                "second release is not paid for; count that start's epsilon as spent, and begin in another folder"
            )
        return None
    if found is None:
        raise DataError(
            f"{directory.path} has lost statistics.safetensors, and a second release of them is not paid for; put the "
            "file back, or start a new run and count this one's epsilon as spent"
        )
    if (checkpoint := directory.read_checkpoint()) is not None:  # before features are made of them
        kept = _part(checkpoint, "identity", directory)
        expected = {key: value for key, value in kept.items() if key.startswith("statistics.")}
        if any(tensor.ndim != 1 for tensor in found.values()) or _digests(found) != expected:
            raise DataError(
                f"{directory.path} has a statistics.safetensors that is not what its checkpoint was written with; put "
                "the file back from a copy: a second release is not paid for"
            )
    return found


def execute(
    config: Config,
    out: str | Path,
    *,
    listener: Listener | None = None,
    tensorboard: bool = False,
    preparation: Preparation = simulated,
) -> Outcome:
    """Run a configuration in the new directory `out`. Return how the run ended.

    Args:
        config: settings of the run.
        out: a directory that holds no run yet.
        listener: callbacks.
        tensorboard: also write TensorBoard event files.
        preparation: prepares the run: `simulated`, or over nodes.

    Raises:
        ConfigError: settings that cannot work; the directory is removed again.
        DataError: data that cannot be used, or a directory that holds a run.
    """
    listener, config = listener or Listener(), with_table_defaults(config)
    directory = RunDirectory.create(out)  # first: a folder that cannot be used is known before the data are loaded
    with directory.lock():
        try:
            prepared = preparation(config, directory, listener)
            prepared.federation.check_time_limit()
        except BaseException:  # refused before it began
            directory.discard()
            raise
        directory.write_environment(_environment(config, prepared))
        if prepared.statistics:
            directory.write_statistics(prepared.statistics)
        if prepared.held_out_key is not None:
            directory.write_held_out_key(prepared.held_out_key)
        _checkpoint(directory, config, prepared)  # of round 0: a kill in the first round must not look like a lost file
        directory.write_config(config.to_dict())  # last: with it the directory is a run that can be resumed
        return _train(config, prepared, directory, listener, tensorboard)


def resume(
    out: str | Path,
    *,
    listener: Listener | None = None,
    tensorboard: bool = False,
    preparation: Preparation = simulated,
) -> Outcome:
    """Resume a run that was killed or interrupted, and return how it ended. A finished run only returns its outcome.

    The end is the same as without the interruption. The checkpoint holds everything that the next round depends on. A
    lost round is run again with the same randomness, or answered by vaults as before. With secure randomness on this
    machine that is impossible: the lost round may have shown something, so it stays charged, and the next round has
    fresh noise. After a clean interrupt (a first Ctrl-C) no round was lost, and none is charged.

    Args:
        out: the directory of the run.
        listener: callbacks.
        tensorboard: also write TensorBoard event files.
        preparation: prepares the run: `simulated`, or over nodes.

    Raises:
        ConfigError: settings or data have changed.
        DataError: a file of the run is missing or damaged.
    """
    listener = listener or Listener()
    directory = RunDirectory.open(out)
    config = parse_config(directory.config())
    with directory.lock():
        if (summary := directory.summary()) is not None:
            return Outcome.from_json(summary, directory.summary_path)
        prepared = preparation(config, directory, listener)
        checkpoint = directory.read_checkpoint()
        _check_resumable(config, prepared, directory, checkpoint)
        directory.truncate_to(checkpoint.state if checkpoint else None)
        if checkpoint is not None:
            prepared.federation.restore(checkpoint.tensors, checkpoint.state)
        if not prepared.repeats_rounds:
            if checkpoint is None or checkpoint.state.get(_IN_FLIGHT) is not False:
                prepared.federation.forfeit_round()
            _checkpoint(directory, config, prepared)  # before anything is charged or drawn: a round is in flight now
        return _train(config, prepared, directory, listener, tensorboard)


def _environment(config: Config, prepared: Prepared) -> dict[str, Any]:
    """Return facts that stay with the run directory. The names of the owners' files are here, not in the summary."""
    seed = config.run.seed if config.run.randomness == "seeded" else None
    names = prepared.dataset.client_names if prepared.dataset is not None and config.has_private_data else ()
    clients = {str(number): name for number, name in enumerate(names)}
    found = describe_environment(seed=seed) | {"uncovered": list(prepared.uncovered), "clients": clients}
    if (code := prepared.code) is not None:
        found["model_code"] = {"package": code.package, "sha256": code.sha256, "files": dict(code.files)}
    return found


def _train(
    config: Config, prepared: Prepared, directory: RunDirectory, listener: Listener, tensorboard: bool
) -> Outcome:
    federation, done = prepared.federation, prepared.federation.progress.round
    listener.on_start(prepared, done)
    events = TensorBoardWriter(directory.path / "tensorboard", first_round=done) if tensorboard else nullcontext()
    with federation, events as writer, _ctrl_c_ends_the_round(listener) as interrupted:
        started = time.monotonic()
        for record in federation:
            seconds, total = time.monotonic() - started, federation.progress.seconds
            directory.append_record(record)
            directory.append_timing(RoundTiming(round=record.round, seconds=seconds, seconds_total=total))
            _checkpoint(directory, config, prepared)
            if writer is not None:
                writer.add(record)
            listener.on_round(record, seconds)
            if interrupted.is_set():
                _checkpoint(directory, config, prepared, in_flight=False)  # from here on nothing is charged or drawn
                break
            started = time.monotonic()
        outcome = _outcome(config, prepared, directory)
    if outcome.stop_reason != StopReason.INTERRUPTED:
        released = {f"features.{name}": tensor for name, tensor in prepared.statistics.items()}
        directory.write_model({**federation.named_params(), **released}, _metadata(config, outcome, prepared))
        directory.write_summary(asdict(outcome))
    return outcome


def _checkpoint(directory: RunDirectory, config: Config, prepared: Prepared, *, in_flight: bool = True) -> None:
    """Write a checkpoint. While a run goes on, each says that the next round is in flight: it may begin at any time."""
    tensors, state = prepared.federation.state()
    directory.write_checkpoint(tensors, state | {"identity": _identity(config, prepared), _IN_FLIGHT: in_flight})


def _identity(config: Config, prepared: Prepared) -> dict[str, Any]:
    """Return what must not change between a kill and a resume: the budget was spent on these terms."""
    settings = {
        f"{section}.{key}": value
        for section, table in config.to_dict().items()
        for key, value in table.items()
        if f"{section}.{key}" not in _FREE_TO_CHANGE
    }
    if "model.learned" in settings:  # the hash decides: the file may move
        settings["model.learned"] = [text.rpartition("#")[2] for text in settings["model.learned"]]
    statistics = _digests(prepared.statistics)
    if (encoder := prepared.encoder) is not None:
        statistics["data.schema"] = encoder.schema.sha256
    if prepared.code is not None:
        statistics["model.code"] = prepared.code.sha256
    return {**settings, **statistics, "noise_multiplier": prepared.noise_multiplier, "clients": prepared.clients}


def _digests(statistics: Statistics) -> dict[str, str]:
    return {f"statistics.{name}": digest(tensor) for name, tensor in statistics.items()}


def _part(checkpoint: Checkpoint, name: str, directory: RunDirectory) -> dict[str, Any]:
    """Return a table of the checkpoint's state, which must have it."""
    found = checkpoint.state.get(name)
    if not isinstance(found, dict):
        raise DataError(
            f"{directory.checkpoint_path} is whole, but not of a run of this version of alidpfl; use the version that "
            "wrote it, or put the run's own checkpoint back"
        )
    return found


def _check_resumable(
    config: Config, prepared: Prepared, directory: RunDirectory, checkpoint: Checkpoint | None
) -> None:
    written = len(directory.records())
    if checkpoint is None:  # the first is written before config.toml: it was there
        raise DataError(
            f"{directory.path} has {written} rounds but no checkpoint: what was spent is unknown; put "
            "checkpoint.safetensors back, or start a new run and count this one's epsilon as spent"
        )
    if not prepared.repeats_rounds and written > _part(checkpoint, "progress", directory).get("round", 0) + 1:
        raise DataError(
            f"{directory.path} has {written} rounds, its checkpoint is older: they would be released again with other "
            "noise; put the newest checkpoint back"
        )
    kept, now = _part(checkpoint, "identity", directory), json.loads(json.dumps(_identity(config, prepared)))
    changed = sorted(key for key in kept.keys() | now.keys() if kept.get(key) != now.get(key))
    if changed:
        told = ", ".join(f"{key} was {kept.get(key)!r} and is {now.get(key)!r}" for key in changed)
        raise ConfigError(f"{directory.path} cannot go on with other settings or data: {told}; put them back")


def _outcome(config: Config, prepared: Prepared, directory: RunDirectory) -> Outcome:
    federation, epsilons = prepared.federation, prepared.federation.epsilons
    found = federation.last_evaluation or federation.evaluate("test")
    measures, private = found.measures if found else Measures(), federation.private_evaluation
    held_out = private.facts() if private is not None else None
    own, training = (held_out.epsilon if held_out else 0.0), max(epsilons.values())
    return Outcome(
        accuracy=found.accuracy if found else None,
        loss=found.loss if found else None,
        epsilon=max(training, own),
        delta=config.privacy.delta,
        rounds=federation.progress.round,
        steps=federation.progress.local_steps,
        stop_reason=str(federation.stop_reason or StopReason.INTERRUPTED),
        seconds=federation.progress.seconds,
        out=str(directory.path),
        covers_everything=federation.covers_everything,
        is_synthetic=prepared.dataset is not None and prepared.dataset.is_synthetic,
        noise_multiplier=prepared.noise_multiplier,
        client_epsilon={str(client): max(value, own) for client, value in epsilons.items()},
        randomness=prepared.randomness,
        uncovered=list(prepared.uncovered),
        weakness=prepared.weakness,
        metrics=dict(measures.values),
        baselines=dict(measures.baseline),
        intervals={name: list(ends) for name, ends in measures.intervals.items()},
        calibration=list(measures.calibration),
        hidden=list(measures.hidden),
        training_epsilon=training if held_out else None,
        held_out=held_out,
        unit=config.privacy.unit,
        max_records=config.max_records,
        protects=protected(config.privacy.unit),
        group_epsilon=prepared.group_epsilon,
        has_persons=prepared.has_persons,
    )


def _metadata(config: Config, outcome: Outcome, prepared: Prepared) -> dict[str, str]:
    """Return the privacy claim and the task, which travel with the model."""
    input_shape, num_classes = prepared.task
    covered = "yes" if outcome.covers_everything else f"NO: {'; '.join(outcome.uncovered)}"
    noise = "secure" if outcome.randomness == "secure" else "SEEDED: whoever knows the seed can subtract it"
    changed = "one record of one client, whose number of records is public"
    if config.privacy.unit == "person":
        changed = "one person, with all her records, of one client, whose number of persons is public"
    encoder = prepared.encoder
    table = {} if encoder is None else {"schema": encoder.schema.canonical(), "schema_sha256": encoder.schema.sha256}
    network = {} if prepared.code is None else {CODE: prepared.code.sha256}
    if config.model.layers:
        network["layers"] = json.dumps([layer.plain() for layer in config.model.declared])
    return {
        "model": config.model.called,
        **network,
        "input_shape": json.dumps(input_shape),
        "num_classes": str(num_classes),
        "data": prepared.records,
        # The budget is what holds whatever the outputs led to; a smaller value spent is chosen by them in part.
        "epsilon": repr(config.privacy.epsilon),
        "epsilon_spent": repr(outcome.epsilon),
        "delta": repr(outcome.delta),
        "epsilon_covers_everything": covered,
        "noise": noise,
        # Over vaults it is each owner's choice, which nobody else is told.
        "noise_kind": "each owner's choice" if prepared.records == "in vaults" else config.privacy.noise,
        "unit": config.privacy.unit,
        **({} if config.max_records is None else {"max_records": str(config.max_records)}),
        "protects": outcome.protects,
        "neighbouring": f"add or remove {changed}; this run alone",
        **table,
    }


@contextmanager
def _ctrl_c_ends_the_round(listener: Listener) -> Iterator[threading.Event]:
    """Let the round finish on the first Ctrl-C, stop at once on the second. Does nothing outside the main thread."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def remember(_number: int, _frame: FrameType | None) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()
        listener.on_interrupt()

    before: Any = signal.signal(signal.SIGINT, remember)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
