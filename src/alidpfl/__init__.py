"""alidpfl: federated learning that is private by proof and frugal by design."""

from alidpfl._version import __version__

__all__ = ["__version__"]
