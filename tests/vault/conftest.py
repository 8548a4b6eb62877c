"""Imports typer with its own warning silenced: it asks click 8.3 for a name that click deprecates."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import typer.testing  # noqa: F401
