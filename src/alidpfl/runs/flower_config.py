"""A run's configuration as Flower carries it: a flat table of texts, numbers and truth values.

Keys with a point are those of `alidpfl run` ("privacy.epsilon"); those without are about nodes and waiting.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from alidpfl.errors import ConfigError
from alidpfl.runs.config import Config
from alidpfl.runs.config_file import parse_config

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
