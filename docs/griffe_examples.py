"""Docstrings as Markdown: examples as code, since a `>>>` would be three quotations, and pages of docs/ as links."""

import re
from typing import Any

from griffe import Extension, Object


class Examples(Extension):
    """Changes every docstring before it is read as Markdown."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Of a module, class, function or attribute."""
        if obj.docstring is not None:
            text = re.sub(r"\bdocs/([\w-]+)\.md", r"[\1](\1.md)", obj.docstring.value)
            obj.docstring.value = fenced(text) if ">>>" in text else text


def fenced(text: str) -> str:
    r"""Blocks from `>>>` to the next empty line, as code.

    >>> fenced("Adds.\n\n>>> 1 + 1\n2").splitlines()
    ['Adds.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    lines, inside = [], False
    for line in text.splitlines():
        if not inside and line.lstrip().startswith(">>>"):
            lines.append("```pycon")
            inside = True
        elif inside and not line.strip():
            lines.append("```")
            inside = False
        lines.append(line)
    return "\n".join([*lines, "```"] if inside else lines)
