"""A run's configuration as Flower carries it: a flat table of texts, numbers and truth values.

Keys with a point are those of `alidpfl run` ("privacy.epsilon"); those without are about nodes and waiting.
"""

import json
from collections.abc import Mapping
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


class FlowerOptions(BaseModel):
    """What a run over nodes needs beside its configuration."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        alias_generator=lambda name: name.replace("_", "-"),
        populate_by_name=True,
    )

    out: str = Field(description="Folder of the run on the server, a full path; submitted again, the run goes on.")
    nodes: int = Field(ge=1, description="Nodes to wait for; `alidpfl flower init` takes data.clients.")
    min_nodes: int = Field(0, ge=0, description="Nodes to begin with when the wait is over; 0: all of them.")
    wait_for_nodes: float = Field(300.0, gt=0, le=86_400, description="Seconds to wait for nodes, before every round.")
    round_timeout: float = Field(600.0, gt=0, le=86_400, description="Seconds to wait for a round's answers.")
    evaluate: bool = Field(True, description="Look at the test set of data.name on the server; false: it has none.")
    simulation: bool = Field(False, description="Flower's simulator: nodes without vaults train on data.name, seeded.")

    @property
    def least_nodes(self) -> int:
        """Nodes to begin with."""
        return self.min_nodes or self.nodes


def to_run_config(config: Config, options: FlowerOptions) -> dict[str, Scalar]:
    """The flat table. What Flower's has no form for, lists and tables, becomes a text of JSON."""
    flat: dict[str, Scalar] = dict(options.model_dump(by_alias=True))
    for section, values in config.to_dict().items():
        for key, value in values.items():
            flat[f"{section}.{key}"] = value if isinstance(value, bool | int | float | str) else json.dumps(value)
    return flat


def from_run_config(values: Mapping[str, Scalar]) -> tuple[Config, FlowerOptions]:
    """Back from `to_run_config`, checked."""
    sections: dict[str, dict[str, Any]] = {}
    own: dict[str, Scalar] = {}
    for name, value in values.items():
        section, point, key = name.partition(".")
        if point:
            sections.setdefault(section, {})[key] = _value(value)
        else:
            own[name] = value
    options = _options(own)
    if not Path(options.out).is_absolute():
        raise ConfigError(f"out={options.out!r} must be a full path: where the ServerApp starts is Flower's to decide")
    return parse_config(sections), options


def _options(values: Mapping[str, Scalar]) -> FlowerOptions:
    try:
        return FlowerOptions.model_validate(values)
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, p['loc']))}={p['input']!r}: {p['msg']}" for p in error.errors()]
        raise ConfigError(f"run config: {'; '.join(problems)[:500]}") from None


def _value(value: Scalar) -> Any:
    if not isinstance(value, str) or not value.startswith(("[", "{")):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value


_HEADER = """\
# Made by `alidpfl flower init`; docs/how-to/deploy.md and docs/reference/configuration.md explain the keys below [tool.flwr.app.config].
# Change one for a single run with: flwr run . <superlink> --run-config 'privacy.epsilon=1'
# Flower takes only keys that stand below. Add any other here, or write another folder with `alidpfl flower init --set`.
"""


def write_app_folder(folder: Path, config: Config, options: FlowerOptions) -> Path:
    """Write `pyproject.toml` into a folder that has none yet."""
    path = folder / "pyproject.toml"
    with disk_errors("create", folder):
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists():
            raise ConfigError(f"{path} exists: edit it, or give another folder")
        path.write_text(_HEADER + to_toml(_project(config, options)), encoding="utf-8")
    return path


def _project(config: Config, options: FlowerOptions) -> dict[str, object]:
    settings: dict[str, object] = {}
    for name, value in to_run_config(config, options).items():
        section, point, key = name.partition(".")
        if point:
            table = settings.setdefault(section, {})
            assert isinstance(table, dict)  # noqa: S101 - for the type checker
            table[key] = value
        else:
            settings[name] = value
    apps = {"serverapp": "alidpfl.flower.apps:server", "clientapp": "alidpfl.flower.apps:client"}
    return {
        "project": {
            "name": "alidpfl-run",
            "version": __version__,
            "description": "Differentially private federated training, by alidpfl",
            "license": "Apache-2.0",
            "dependencies": [],
        },
        "tool": {"flwr": {"app": {"publisher": "alidpfl", "components": apps, "config": settings}}},
    }
