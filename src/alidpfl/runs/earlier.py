"""Statistics that were released before a run, and count against its budget."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from alidpfl.config.schema import Config
from alidpfl.errors import ConfigError
from alidpfl.store.files import disk_errors
from alidpfl.tables.schema import read_schema


def with_earlier_releases(config: Config, files: Sequence[Path]) -> Config:
    """Return the configuration with the noise of statistics that `alidpfl statistics --out` wrote.

    A client that was not among those of a file is charged all the same: its ε is then too high, never too low.

    Args:
        config: settings of a run on tables.
        files: the statistics, each one release of every client.

    Raises:
        ConfigError: a file has no statistics, or is about another schema or another unit of privacy.
    """
    if not files:
        return config
    if config.data.name != "table" or config.data.schema_file is None:
        raise ConfigError(f'--after {files[0]} is for tables, and data.name="{config.data.name}"; leave it out')
    if len(set(map(Path.resolve, files))) < len(files):
        raise ConfigError(f"--after {files[0]} is given twice; name each release once")
    schema = read_schema(config.data.schema_file).sha256
    noise = [_noise(file, schema, config) for file in files]
    privacy = config.privacy.model_copy(update={"earlier_noise": (*config.privacy.earlier_noise, *noise)})
    return config.model_copy(update={"privacy": privacy})


def _noise(file: Path, schema: str, config: Config) -> float:
    """Return the least noise of any client's release."""
    with disk_errors("read", file):
        content = file.read_bytes()
    try:
        values: dict[str, Any] = json.loads(content)
        found = {key: values[key] for key in ("unit", "schema_sha256")}
        noise = [float(client["noise_multiplier"]) for client in values["clients"].values()]
        if values["format"] != "alidpfl-statistics-1" or not noise or min(noise) <= 0:
            raise ValueError(values["format"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ConfigError(f"--after {file} has no statistics that alidpfl wrote; give another file") from None
    if found["schema_sha256"] != schema:
        raise ConfigError(f"--after {file} is about a table of another schema; give statistics of the same data")
    of_run = "row" if config.privacy.unit == "record" else "person"
    if found["unit"] != of_run:
        raise ConfigError(
            f"--after {file} protects each {found['unit']}, and this run each {of_run}; their costs do not add up. "
            "Release the statistics again for the same unit, or set privacy.unit"
        )
    return min(noise)
