"""A package of networks of the user's own."""

import pytest

from .own import own_package


@pytest.fixture
def own(tmp_path):
    with own_package(tmp_path / "own") as package:
        yield package
