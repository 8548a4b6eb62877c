"""The run directory on disk, which stays readable and resumable even after `kill -9`.

>>> import tempfile
>>> folder = tempfile.mkdtemp()
>>> run = RunDirectory.create(folder)
>>> with run.lock():
...     run.write_config({"run": {"seed": 7}})
>>> RunDirectory.open(folder).config()
{'run': {'seed': 7}}
"""

from alidpfl.store.checkpoint import Checkpoint
from alidpfl.store.environment import describe_environment
from alidpfl.store.files import RoundTiming, to_toml
from alidpfl.store.run_directory import RunDirectory

__all__ = ["Checkpoint", "RoundTiming", "RunDirectory", "describe_environment", "to_toml"]
