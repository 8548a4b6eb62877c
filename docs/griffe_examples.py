"""Examples in docstrings as code: a `>>>` in Markdown would be three quotations."""

from typing import Any

from griffe import Extension, Object


class Examples(Extension):
    """Puts a fence around every example before the docstring is read as Markdown."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        """Of a module, class, function or attribute."""
        if obj.docstring is not None and ">>>" in obj.docstring.value:
            obj.docstring.value = fenced(obj.docstring.value)


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
