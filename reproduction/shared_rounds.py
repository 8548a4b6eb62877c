"""Rounds that several runs of a grid have in common are trained once.

With a seed, a client's update is a function of the weights that it starts from and of its plan. Runs that differ in ε,
in the accountant or in the policy begin alike: τ = 3 at ε = 2 is the beginning of τ = 3 at ε = 2.75, and `ali`, where
it falls back to `ratio`, is `ratio`. Every run keeps its own accounts, records and claim; only arithmetic is not
repeated.
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
from alidpfl.federation.federation import ClosableEngine, EngineAround
from alidpfl.runs import Config
from alidpfl.store.checkpoint import decode_checkpoint, encode_checkpoint
from alidpfl.store.lock import exclusive_lock
from alidpfl.types import ClientPlan, ClientUpdate, RawSignals, SecantSums

_PREFIX, _LOCK, _SUFFIX = "rounds-", "lock", ".safetensors"
_MOST_BYTES = 12 * 2**30
_OF_THE_ACCOUNT = frozenset({"epsilon", "delta", "accountant", "unsafe"})  # a client's round does not see them
_SHARE_OF_DISK = 0.5  # of what is free when a grid begins


@contextmanager
def rounds_folder(work: Path) -> Iterator[Path]:
    """For the rounds of one call of `reproduce`; gone with it. What a killed one left in `work` is removed first.

    Never kept for the next call: the program may be another by then.
    """
    work.mkdir(parents=True, exist_ok=True)
    for left in work.glob(f"{_PREFIX}*"):
        with suppress(ConfigError), exclusive_lock(left / _LOCK, owner_of=left):  # one that somebody holds is in use
            shutil.rmtree(left, ignore_errors=True)
    folder = Path(mkdtemp(prefix=_PREFIX, dir=work))
    try:
        with exclusive_lock(folder / _LOCK, owner_of=folder):
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class SharedRounds(EngineAround):
    """An engine that asks its memory first. Its runs must be seeded."""

    def __init__(self, engine: ClosableEngine, config: Config, folder: Path) -> None:
        """`folder` is shared by runs on one machine and one version of the program, see `rounds_folder`."""
        if config.run.randomness != "seeded":
            raise ConfigError("rounds can be shared only where run.randomness is seeded: others never come again")
        super().__init__(engine)
        self._folder = folder
        self._limit = min(_MOST_BYTES, int(shutil.disk_usage(folder).free * _SHARE_OF_DISK))
        self._of_client = _what_plans_do_not_tell(config)

    def train(self, params: Tensor, plans: Sequence[ClientPlan]) -> list[ClientUpdate]:
        """As the engine would."""
        start = hashlib.sha256(params.contiguous().numpy().tobytes()).hexdigest()
        paths = [self._path(start, plan) for plan in plans]
        found = [_read(path) for path in paths]
        missing = [place for place, update in enumerate(found) if update is None]
        # Secants are computed from noised sums, without a draw: asked for always, so that all policies can share.
        asked = [replace(plans[place], signals=plans[place].signals | {"secants"}) for place in missing]
        for place, update in zip(missing, self._engine.train(params, asked) if asked else [], strict=True):
            _write(paths[place], update)
            found[place] = update
        self._forget_oldest()
        return [_as_asked(update, plan) for update, plan in zip(found, plans, strict=True) if update is not None]

    def _path(self, start: str, plan: ClientPlan) -> Path:
        told = asdict(plan) | {"signals": sorted(plan.signals - {"secants"})}
        text = json.dumps([self._of_client, start, told], sort_keys=True)
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()}{_SUFFIX}"

    def _forget_oldest(self) -> None:
        """Other jobs write and forget in the same folder: what was there a moment ago may be gone."""
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


def _what_plans_do_not_tell(config: Config) -> dict[str, object]:
    """All that an update depends on beside weights and plan: rather too much than too little."""
    values = config.to_dict()
    return {
        "data": values["data"],
        "model": values["model"],
        "method": [config.method.name, config.method.options],
        "seed": config.run.seed,
        "privacy": {key: value for key, value in values["privacy"].items() if key not in _OF_THE_ACCOUNT},
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
    with suppress(OSError, ValueError):  # no room, or not a number: then it is trained again
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
