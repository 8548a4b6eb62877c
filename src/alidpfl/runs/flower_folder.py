"""The folder that `flwr run` takes: no code, only which apps of the installed package, and the run's settings."""

from pathlib import Path

from alidpfl._version import __version__
from alidpfl.errors import ConfigError
from alidpfl.runs.config import Config
from alidpfl.runs.flower_config import FlowerOptions, to_run_config
from alidpfl.store import to_toml
from alidpfl.store.files import disk_errors

_HEADER = """\
# Made by `alidpfl flower init`; docs/deploy.md and docs/configuration.md explain the keys below [tool.flwr.app.config].
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
    apps = {"serverapp": "alidpfl.flower_apps:server", "clientapp": "alidpfl.flower_apps:client"}
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
