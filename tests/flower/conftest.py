"""Imports Flower once, with its own warnings silenced."""

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("flwr.clientapp", reason="the extra 'flower' is not installed")
    pytest.importorskip("flwr.serverapp", reason="the extra 'flower' is not installed")
