"""What the experiments share: settings as `--set` takes them, runs that leave only a line, files of such lines."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alidpfl.runs import Config, Outcome, execute


def lines(path: Path) -> list[dict[str, Any]]:
    """The results in a file; none where it does not exist."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def append(path: Path, line: Mapping[str, Any]) -> None:
    """One result more, at once on the disk, and shown."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(line, flush=True)


def overrides(settings: Mapping[str, Any]) -> list[str]:
    """As for `alidpfl run --set`; a table stands for the settings of its section."""
    found = []
    for key, value in settings.items():
        if isinstance(value, dict):
            found += [f"{key}.{name}={json.dumps(setting)}" for name, setting in value.items()]
        else:
            found.append(f"{key}={json.dumps(value)}")
    return found


@contextmanager
def run(config: Config) -> Iterator[tuple[Outcome, Path]]:
    """Run it to its end; the folder is gone when the context is left."""
    with tempfile.TemporaryDirectory() as folder:
        yield execute(config, Path(folder) / "run"), Path(folder) / "run"
