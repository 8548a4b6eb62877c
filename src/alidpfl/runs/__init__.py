"""A run from its configuration to its directory: TOML, parts, rounds, checkpoints."""

from alidpfl.runs.config import Config
from alidpfl.runs.config_file import load_config
from alidpfl.runs.execute import Outcome, execute, resume, simulated

__all__ = ["Config", "Outcome", "execute", "load_config", "resume", "simulated"]
