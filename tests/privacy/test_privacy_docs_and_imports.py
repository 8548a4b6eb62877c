import doctest
import importlib
import pkgutil
import subprocess
import sys

import pytest

import alidpfl.privacy

MODULES = [f"alidpfl.privacy.{m.name}" for m in pkgutil.iter_modules(alidpfl.privacy.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings_run(name):
    module = importlib.import_module(name)
    assert doctest.testmod(module, extraglobs=vars(alidpfl.privacy)).failed == 0


def test_there_are_examples_to_run():
    finder = doctest.DocTestFinder()
    examples = [t for name in MODULES for t in finder.find(importlib.import_module(name)) if t.examples]
    assert len(examples) >= 8


@pytest.mark.parametrize(
    ("module", "absent"), [("alidpfl.privacy", ["torch"]), ("alidpfl.cli", ["torch", "dp_accounting", "scipy"])]
)
def test_importing_stays_light(module, absent):
    code = f"import sys, {module}; print([m for m in {absent!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_exist():
    assert all(hasattr(alidpfl.privacy, name) for name in alidpfl.privacy.__all__)
