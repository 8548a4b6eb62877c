"""Train rounds that several runs of a grid share only once.

In a seeded run a client's update depends only on the weights that it starts from and on its plan. Runs that differ in
ε, in the accountant or in the policy can therefore start with the same rounds. For example, τ = 3 at ε = 2 is the
beginning of τ = 3 at ε = 2.75. Every run keeps its own ledger and records; only the arithmetic is shared.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import mkdtemp

from torch import Tensor

from alidpfl.errors import AliDpflError, ConfigError
from alidpfl.federation.settings import Engine, EngineWrapper
from alidpfl.runs import Config
from alidpfl.store.checkpoint import decode_checkpoint, encode_checkpoint
from alidpfl.store.lock import exclusive_lock
from alidpfl.types import ClientPlan, ClientUpdate, RawSignals, SecantSums

_PREFIX, _LOCK, _SUFFIX = "rounds-", "lock", ".safetensors"
_MOST_BYTES = 12 * 2**30
_ACCOUNTING = frozenset({"epsilon", "delta", "accountant", "unsafe"})  # a client's update does not depend on them
_SHARE_OF_DISK = 0.5  # of the free disk space


@contextmanager
def rounds_folder(work: Path) -> Iterator[Path]:
    """Make a folder for the shared rounds of one call of `reproduce`, and delete it at the end.

    Folders of earlier calls that were killed are deleted first. They are never reused: the program may have changed.
    """
    work.mkdir(parents=True, exist_ok=True)
    for left in work.glob(f"{_PREFIX}*"):
        with suppress(ConfigError), exclusive_lock(left / _LOCK, owner_of=left):  # a locked folder is in use
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(mkdtemp(prefix=_PREFIX, dir=work))
    try:
        with exclusive_lock(folder / _LOCK, owner_of=folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class SharedRounds(EngineWrapper):
    """An engine wrapper that reuses updates of other runs. The runs must be seeded."""

    def __init__(self, engine: Engine, config: Config, folder: Path) -> None:
        """Wrap an engine.

        Args:
            engine: The engine that trains what is not stored yet.
            config: The configuration of the run.
            folder: The folder of `rounds_folder`, shared by runs of one machine and one version of the program.

        Raises:
            ConfigError: The run is not seeded.
        """
        if config.run.randomness != "seeded":
            raise ConfigError(f"run.randomness={config.run.randomness!r} must be 'seeded' to share rounds")
        super().__init__(engine)
        self._folder = folder
        self._limit = min(_MOST_BYTES, int(shutil.disk_usage(folder).free * _SHARE_OF_DISK))
        self._settings = _settings_of_client(config)

    def train(self, params: Tensor, plans: Sequence[ClientPlan]) -> list[ClientUpdate]:
        """Return the updates for these plans, trained by the engine or read from the folder."""
        start = hashlib.sha256(params.contiguous().numpy().tobytes()).hexdigest()
        paths = [self._path(start, plan) for plan in plans]
        found = [_read(path) for path in paths]
        missing = [place for place, update in enumerate(found) if update is None]
        # Secants come from noised sums and draw no random numbers. All plans ask for them, so that policies can share.
        asked = [replace(plans[place], signals=plans[place].signals | {"secants"}) for place in missing]
        for place, update in zip(missing, self._engine.train(params, asked) if asked else [], strict=True):
            _write(paths[place], update)
            found[place] = update
        self._delete_oldest()
        return [_as_asked(update, plan) for update, plan in zip(found, plans, strict=True) if update is not None]

    def _path(self, start: str, plan: ClientPlan) -> Path:
        fields = asdict(plan) | {"signals": sorted(plan.signals - {"secants"})}
        text = json.dumps([self._settings, start, fields], sort_keys=True)
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()}{_SUFFIX}"

    def _delete_oldest(self) -> None:
        """Delete the oldest files above the size limit. Other jobs may delete files of the folder at the same time."""
        files = []
        for entry in os.scandir(self._folder):
            with suppress(FileNotFoundError):
                if entry.name.endswith(_SUFFIX):
                    files.append((entry.stat().st_mtime, entry.stat().st_size, entry.path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files):
            if total <= self._limit:
                break
            with suppress(FileNotFoundError):
                os.unlink(path)
            total -= size


def _settings_of_client(config: Config) -> dict[str, object]:
    """Return all settings besides weights and plan that an update can depend on."""
    values = config.to_dict()
    return {
        "data": values["data"],
        "model": values["model"],
        "method": [config.method.name, config.method.options],
        "seed": config.run.seed,
        **({} if config.run.name is None else {"name": config.run.name}),  # earlier updates keep their keys
        "privacy": {key: value for key, value in values["privacy"].items() if key not in _ACCOUNTING},
        "evaluate_on": config.run.evaluate_on,
    }


def _write(path: Path, update: ClientUpdate) -> None:
    state = {
        "client": update.client,
        "secants": update.secants and asdict(update.secants),
        "gradient_norm": update.gradient_norm,
        "raw": update.raw and asdict(update.raw),
        "steps": update.steps,
    }
    with suppress(OSError, ValueError):  # a full disk, or a value that is not finite: train it again
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_bytes(encode_checkpoint({"params": update.params}, state))
        os.replace(temporary, path)


def _read(path: Path) -> ClientUpdate | None:
    try:
        tensors, state = decode_checkpoint(path.read_bytes(), path)
        os.utime(path)
    except (OSError, AliDpflError):
        return None
    secants, raw = state.pop("secants"), state.pop("raw")
    return ClientUpdate(
        params=tensors["params"],
        secants=None if secants is None else SecantSums(**secants),
        raw=None if raw is None else RawSignals(**raw),
        **state,
    )


def _as_asked(update: ClientUpdate, plan: ClientPlan) -> ClientUpdate:
    return update if "secants" in plan.signals else replace(update, secants=None)
