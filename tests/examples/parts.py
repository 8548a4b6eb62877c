"""What is not on the path of imports."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def load_script(path):
    """A script of the project as a module."""
    found = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module
