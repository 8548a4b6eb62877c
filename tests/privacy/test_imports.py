import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "absent"), [("alidpfl.privacy", ["torch"]), ("alidpfl.cli", ["torch", "dp_accounting", "scipy"])]
)
def test_importing_stays_light(module, absent):
    code = f"import sys, {module}; print([m for m in {absent!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
