"""A run's configuration as Flower carries it, a flat table of scalars; and the app folder that holds it.

Keys with a point are the settings of `alidpfl run`, such as "privacy.epsilon". The others concern nodes and waiting.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from alidpfl._version import __version__
from alidpfl.config.load import parse_config
from alidpfl.config.schema import Config
from alidpfl.errors import ConfigError
from alidpfl.store import to_toml
from alidpfl.store.files import disk_errors

Scalar = bool | int | float | str

_APPS = {"serverapp": "alidpfl.flower.apps:server", "clientapp": "alidpfl.flower.apps:client"}
_HEADER = """\
# Made by `alidpfl flower init`. docs/how-to/deploy.md and docs/reference/configuration.md explain the keys below
# [tool.flwr.app.config].
# Change one for a single run with: flwr run . <superlink> --run-config 'privacy.epsilon=1'
# Flower accepts only keys that stand below. Add others here, or write a new folder with `alidpfl flower init --set`.
"""


class FlowerOptions(BaseModel):
    """The settings that only a run over nodes has."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
    )

    out: str = Field(description="Run directory on the server, an absolute path. Submitting again continues the run.")
    nodes: int = Field(
        ge=1, description="Nodes to wait for. `alidpfl flower init` writes `--nodes` here, or else `data.clients`."
    )
    min_nodes: int = Field(
        0, ge=0, description="After the wait, the run starts if at least this many nodes are there; 0: all of them."
    )
    wait_for_nodes: float = Field(300.0, gt=0, le=86_400, description="Seconds to wait for nodes, before every round.")
    round_timeout: float = Field(600.0, gt=0, le=86_400, description="Seconds to wait for a round's answers.")
    evaluate: bool = Field(
        True, description="Evaluate on the test set of data.name at the server. Set false if the server has none."
    )
    simulation: bool = Field(False, description="Flower's simulator: nodes without vaults train on data.name, seeded.")

    statistics: bool = Field(False, description="Ask for statistics of the tables alone, and train nothing.")
    bins: int = Field(20, ge=0, le=1000, description="Bins of each number in these statistics.")

    @property
    def least_nodes(self) -> int:
        """Least number of nodes to begin with."""
        return self.min_nodes or self.nodes


def to_run_config(config: Config, options: FlowerOptions) -> dict[str, Scalar]:
    """Return the flat table. Flower has no lists and tables, so they become JSON texts."""
    flat: dict[str, Scalar] = dict(options.model_dump(by_alias=True))
    for section, values in config.to_dict().items():
        for key, value in values.items():
            flat[f"{section}.{key}"] = value if isinstance(value, bool | int | float | str) else json.dumps(value)
    return flat


def from_run_config(values: Mapping[str, Scalar]) -> tuple[Config, FlowerOptions]:
    """Return the checked configuration in a flat table. This is the inverse of `to_run_config`."""
    own, sections = _split(values)
    try:
        options = FlowerOptions.model_validate(own)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, p['loc']))}={p['input']!r}: {p['msg']}" for p in error.errors()]
        raise ConfigError(f"run config: {'; '.join(problems)[:500]}") from None
    if not Path(options.out).is_absolute():
        raise ConfigError(f"out={options.out!r} must be an absolute path: Flower chooses where the ServerApp starts")
    return parse_config({name: {k: _value(v) for k, v in keys.items()} for name, keys in sections.items()}), options


def _split(values: Mapping[str, Scalar]) -> tuple[dict[str, Scalar], dict[str, dict[str, Scalar]]]:
    """Return the keys without a point, and the others by section."""
    own: dict[str, Scalar] = {}
    sections: dict[str, dict[str, Scalar]] = {}
    for name, value in values.items():
        section, point, key = name.partition(".")
        if point:
            sections.setdefault(section, {})[key] = value
        else:
            own[name] = value
    return own, sections


def _value(value: Scalar) -> Any:
    with suppress(ValueError):
        if isinstance(value, str) and value.startswith(("[", "{")):
            return json.loads(value)
    return value


def write_app_folder(folder: Path, config: Config, options: FlowerOptions) -> Path:
    """Write the `pyproject.toml` of a run and return its path. A folder that has one is refused."""
    path = folder / "pyproject.toml"
    own, sections = _split(to_run_config(config, options))
    project = {
        "name": "alidpfl-run",
        "version": __version__,
        "description": "Differentially private federated training, by alidpfl",
        "license": "Apache-2.0",
        "dependencies": [],
    }
    app = {"publisher": "alidpfl", "components": _APPS, "config": {**own, **sections}}
    with disk_errors("create", folder):
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            raise ConfigError(f"{path} exists: edit it, or give another folder")
        path.write_text(_HEADER + to_toml({"project": project, "tool": {"flwr": {"app": app}}}), encoding="utf-8")
    return path
