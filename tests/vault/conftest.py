"""Imports typer with its own warning silenced, and the service once, so that forked vaults start at once."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import typer.testing  # noqa: F401

import alidpfl.vault.service  # noqa: F401
