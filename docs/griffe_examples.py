"""A griffe extension that prepares docstrings for Markdown: examples become code, and names of pages become links."""

import re
from typing import Any

from griffe import Extension, Object


class Examples(Extension):
    """Changes every docstring before it is read as Markdown."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Change the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            text = re.sub(r"\bdocs/([\w-]+)/([\w-]+)\.md", r"[\2](../\1/\2.md)", obj.docstring.value)
            obj.docstring.value = fenced(text) if ">>>" in text else text


def fenced(text: str) -> str:
    r"""Return the text with each block from `>>>` to the next empty line as code.

    Markdown would read `>>>` as three quotations.

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
