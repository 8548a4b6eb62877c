"""Render HTML pages. Each page is one file with style, script and data inside, and needs no network.

The texts and the markup are in the templates of `assets/`. The templates escape every value.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

_MAX_ROWS = 1000  # in the table of a chart: nobody reads more, and the page stays small
_MAX_INTEGER = 1e6  # larger whole numbers are rounded like other numbers
_LINE_LENGTH = 90  # characters that a line of a printed table holds
_MAX_WORD = 24  # longer words may be broken in print
_LOADER = PackageLoader("alidpfl.reporting", "assets")
_TEMPLATES = Environment(
    loader=_LOADER, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined
)
_TEMPLATES.policies["json.dumps_kwargs"] = {"allow_nan": False, "separators": (",", ":")}


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """A table of text. The first cell of each row is its heading."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    """Shown below the table."""
    highlighted: int | None = None
    """Index of a row that stands out."""

    @property
    def widths(self) -> list[int]:
        """Return the number of characters of each column that print must not break.

        Paper does not scroll. If the longest words of all columns do not fit, every column gets a smaller share.
        """
        columns = zip(self.head, *self.rows, strict=True)
        longest = [max(len(word) for cell in column for word in [*cell.split(), ""]) for column in columns]
        wanted = [min(length, _MAX_WORD) for length in longest]
        share = min(1.0, (_LINE_LENGTH - 2 * len(wanted)) / max(sum(wanted), 1))  # two characters of padding each
        return [max(0, math.floor(share * width)) for width in wanted]


@dataclass(frozen=True, kw_only=True)
class ResultChart:
    """A line chart. assets/charts.js describes the keys of `chart`."""

    name: str
    title: str
    caption: str
    chart: Mapping[str, Any]

    @property
    def table(self) -> ResultTable:
        """Return the points as a table, for readers without scripts: a row for each x, a column for each series."""
        series = [line for line in self.chart["series"] if line["points"]]
        if len(series) == 1:  # keep every point: x may come twice
            rows = [(point[0], [point[1]]) for point in series[0]["points"]]
        else:
            lines = [{point[0]: point[1] for point in line["points"]} for line in series]
            rows = [(x, [line.get(x) for line in lines]) for x in sorted({x for line in lines for x in line})]
        step = math.ceil(len(rows) / _MAX_ROWS)
        kept = [*rows[:-1:step], rows[-1]] if rows else []
        thinned = f"; one row in {step}, and the last" if step > 1 else ""
        return ResultTable(
            title=f"{self.chart['label']}: {self.chart['y']}{thinned}",
            head=[self.chart["x"], *(line["name"] for line in series)],
            rows=[[_number(x), *map(_number, values)] for x, values in kept],
        )


def render(template: str, charts: Sequence[ResultChart], **values: Any) -> str:
    """Return the page that a template of `assets/`, such as "plan.html", makes from its charts and other values."""
    drawn = {made.name: made.chart for made in charts}
    return _TEMPLATES.get_template(template).render(charts=drawn, asset=_asset, **values)


def _asset(name: str) -> Markup:
    """Return a style or a script unescaped."""
    return Markup(_LOADER.get_source(_TEMPLATES, name)[0])  # noqa: S704 - our own file


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value == round(value) and abs(value) < _MAX_INTEGER else f"{value:.6g}"
