"""Pages that open from disk without a network: one file, with style, script and data inside."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

_MOST_ROWS = 1000  # of a drawing's table: nobody reads more, and the page stays small
_WHOLE = 1e6  # up to which whole numbers are written out
_LETTERS = 90  # that a line of a printed table holds
_LONGEST_WORD = 24  # that print does not break, where there is room


def page(title: str, body: Iterable[str], charts: Mapping[str, Any]) -> str:
    """The whole document; `body` is HTML, `charts` what assets/charts.js draws."""
    style, script = (_asset(name) for name in ("page.css", "charts.js"))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>
{style}</style>
</head>
<body>
<main>
{chr(10).join(body)}
</main>
<script type="application/json" id="charts">{_inside_script(charts)}</script>
<script>
{script}</script>
</body>
</html>
"""


def figure(name: str, caption: str, chart: Mapping[str, Any]) -> str:
    """Where the chart of this name goes, and its figures as a table, which needs no scripts."""
    label = escape(chart["label"])
    return (
        f'<figure><div class="plot" data-chart="{escape(name)}"></div>'
        f"<noscript>This drawing needs JavaScript; the table below it does not.</noscript>"
        f"<figcaption>{escape(caption)}</figcaption>"
        f'<details><summary>Figures of this drawing<span class="unseen">: {label}</span></summary>'
        f"{_figures(chart)}</details></figure>"
    )


def _figures(chart: Mapping[str, Any]) -> str:
    """A line for each x, a column for each series; of very many every so-manieth, and the last."""
    series = [line for line in chart["series"] if line["points"]]
    if len(series) == 1:  # its points as they come: x may come twice
        rows = [(point[0], [point[1]]) for point in series[0]["points"]]
    else:
        lines = [{point[0]: point[1] for point in line["points"]} for line in series]
        rows = [(x, [line.get(x) for line in lines]) for x in sorted({x for line in lines for x in line})]
    step = math.ceil(len(rows) / _MOST_ROWS)
    kept = [*rows[:-1:step], rows[-1]] if rows else []
    thinned = f"; one of {step} lines, and the last" if step > 1 else ""
    head = [chart["x"], *(line["name"] for line in series)]
    caption = f"{chart['label']}: {chart['y']}{thinned}"
    return table(caption, head, ([_figure(x), *map(_figure, values)] for x, values in kept))


def _figure(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value == round(value) and abs(value) < _WHOLE else f"{value:.6g}"


def facts(pairs: Mapping[str, str]) -> str:
    """Headline figures."""
    cells = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs.items())
    return f'<dl class="facts">{"".join(cells)}</dl>'


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], chosen: int | None = None) -> str:
    """A table that scrolls by itself on a narrow screen; row `chosen` stands out."""
    listed = list(rows)
    widths = _widths([head, *listed])
    cells = "".join(
        f'<th scope="col" style="--word: {width}ch">{escape(name)}</th>'
        for name, width in zip(head, widths, strict=True)
    )
    lines = []
    for number, row in enumerate(listed):
        mark = ' class="chosen"' if number == chosen else ""
        first, *rest = row
        others = "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        lines.append(f'<tr{mark}><th scope="row">{escape(first)}</th>{others}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{cells}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    """Letters of each column's longest word. Paper does not scroll: where all do not fit, words are broken."""
    longest = [max(len(word) for cell in column for word in [*cell.split(), ""]) for column in zip(*rows, strict=True)]
    wished = [min(length, _LONGEST_WORD) for length in longest]
    share = min(1.0, (_LETTERS - 2 * len(wished)) / max(sum(wished), 1))  # two letters of padding each
    return [max(0, math.floor(share * width)) for width in wished]


def _asset(name: str) -> str:
    return (files("alidpfl.reporting") / "assets" / name).read_text(encoding="utf-8")


def _inside_script(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
