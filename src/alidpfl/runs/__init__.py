"""A run from its configuration to its directory: TOML, parts, rounds, checkpoints."""

from alidpfl.config.load import load_config
from alidpfl.config.schema import Config
from alidpfl.runs.execute import Outcome, execute, resume, simulated
from alidpfl.runs.trained import load_model

__all__ = ["Config", "Outcome", "execute", "load_config", "load_model", "resume", "simulated"]
