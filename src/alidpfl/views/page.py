"""Pages that open from disk without a network: one file, with style, script and data inside."""

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any


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


def figure(chart: str, caption: str) -> str:
    """Where a chart goes; without scripts the caption and the tables remain."""
    return (
        f'<figure><div class="plot" data-chart="{escape(chart)}"></div>'
        f"<noscript>This drawing needs JavaScript; the tables hold its figures.</noscript>"
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def facts(pairs: Mapping[str, str]) -> str:
    """Headline figures."""
    cells = (f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs.items())
    return f'<dl class="facts">{"".join(cells)}</dl>'


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[str]], chosen: int | None = None) -> str:
    """A table that scrolls by itself on a narrow screen; row `chosen` stands out."""
    cells = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    lines = []
    for number, row in enumerate(rows):
        mark = ' class="chosen"' if number == chosen else ""
        first, *rest = row
        others = "".join(f"<td>{escape(cell)}</td>" for cell in rest)
        lines.append(f'<tr{mark}><th scope="row">{escape(first)}</th>{others}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{cells}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _asset(name: str) -> str:
    return (files("alidpfl.views") / "assets" / name).read_text(encoding="utf-8")


def _inside_script(value: Any) -> str:
    """JSON that cannot end the script element it stands in."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")
