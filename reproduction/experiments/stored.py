"""Helpers of the experiments: settings in the form of `--set`, and runs that leave one line in a file."""

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alidpfl.runs import Config, Outcome, execute


def append(path: Path, line: Mapping[str, Any]) -> None:
    """Append a result to a file, and print it."""
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(line, flush=True)


def overrides(settings: Mapping[str, Any]) -> list[str]:
    """Return settings in the form that `alidpfl run --set` takes. A nested table stands for a section."""
    found = []
    for key, value in settings.items():
        if isinstance(value, dict):
            found += [f"{key}.{name}={json.dumps(setting)}" for name, setting in value.items()]
        else:
            found.append(f"{key}={json.dumps(value)}")
    return found


@contextmanager
def run(config: Config) -> Iterator[tuple[Outcome, Path]]:
    """Run a configuration to its end in a temporary directory; yield the outcome and the directory."""
    with tempfile.TemporaryDirectory() as folder:
        yield execute(config, Path(folder) / "run"), Path(folder) / "run"
