"""Find the line of a TOML file that declares a layer, for errors."""

import re

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\[\]]+?)\s*\]")


def line_of(text: str, place: tuple[tuple[str, int], ...], key: str | None) -> int | None:
    r"""Return the number of a line, from 1; None if it cannot be told, because the layers stand in one line.

    Args:
        text: the file's text, which is valid TOML.
        place: names of tables below `model`, with numbers from 1, such as (("layers", 3), ("shortcut", 1)).
        key: a key of that table. Without one, or if it has no line, the table's header counts.

    >>> line_of('[[model.layers]]\ntype = "tanh"\n[[model.layers]]\ntype = "thna"', (("layers", 2),), "type")
    4
    """
    wanted = ("model", *(name for name, _ in place))
    counts: dict[tuple[str, ...], int] = {}
    found, inside = None, False
    for number, line in enumerate(text.splitlines(), 1):
        if (header := _HEADER.match(line)) is not None:
            path = tuple(part.strip().strip("\"'") for part in header[2].split("."))
            if header[1] == "[[":
                counts = {
                    other: count for other, count in counts.items() if other[: len(path)] != path or other == path
                }
                counts[path] = counts.get(path, 0) + 1
            numbers = [counts.get(wanted[: depth + 2]) for depth in range(len(place))]
            inside = path == wanted and numbers == [count for _, count in place]
            found = number if inside else found
        elif inside and key is not None and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
            return number
    return found
