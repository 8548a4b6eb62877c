"""Settings for the tests of DP-SGD."""

import contextlib

import pytest

from alidpfl.dpsgd import native

_PATHS = {"native": contextlib.nullcontext, "torch": native.disabled}


@pytest.fixture(params=_PATHS)
def path(request):
    """Run a test with the native kernels and without them."""
    if request.param == "native" and not native.is_available():
        pytest.skip("the native kernels are not built on this machine")
    with _PATHS[request.param]():
        yield request.param
