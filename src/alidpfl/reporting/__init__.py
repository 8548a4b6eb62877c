"""Show runs as curves, tables, figures and HTML pages. Nothing here changes a run."""

from alidpfl.reporting.curves import Series, plot, supports_unicode
from alidpfl.reporting.snapshot import RunSnapshot

__all__ = ["RunSnapshot", "Series", "plot", "supports_unicode"]
