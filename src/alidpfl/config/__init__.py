"""Settings of a run: schema and loading. Never imports torch, so that completion and errors are instant."""

from alidpfl.config.load import load_config, parse_config
from alidpfl.config.schema import Config

__all__ = ["Config", "load_config", "parse_config"]
