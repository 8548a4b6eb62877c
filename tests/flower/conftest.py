"""Imports typer and Flower once, with their own warnings silenced."""

import warnings

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import typer.testing  # noqa: F401

    pytest.importorskip("flwr.clientapp", reason="the extra 'flower' is not installed")
    pytest.importorskip("flwr.serverapp", reason="the extra 'flower' is not installed")
