"""Damage files as a bad disk, an editor or an attacker would."""

import json

from hypothesis import strategies as st

ODD_VALUES = (
    *(None, True, False, -1, 0, 1, 2**31, 2**63, -(2**63), 10**400, 0.5, -0.0, 1e-320, 1e308, float("nan")),
    *(float("inf"), "", "x", "x" * 5000, "\x1b[2J\n", "\ud800", "../../etc/passwd", [], [[]], [1, "a"], {}, {"a": {}}),
)
_DEEP = "[" * 20_000 + "]" * 20_000


@st.composite
def damaged(draw, content: bytes) -> bytes:
    """Draw `content` with bytes flipped, overwritten, inserted, deleted or doubled, cut off, or replaced."""
    for _ in range(draw(st.integers(1, 3))):
        content = draw(_once(content))
    return content


_OTHER = st.sampled_from((b"", b"\0" * 64, b"\xff" * 64, b"\n\n", _DEEP.encode(), b"{}", b"[]", b"null"))


@st.composite
def _once(draw, content: bytes) -> bytes:
    start = draw(st.integers(0, max(0, len(content) - 1)))
    end = min(len(content), start + draw(st.sampled_from((1, 2, 4, 8, 64))))
    before, touched, after = content[:start], content[start:end], content[end:]
    match draw(st.sampled_from(("flip", "flip", "overwrite", "insert", "remove", "double", "cut", "replace"))):
        case "flip":
            flipped = bytes([touched[0] ^ 1 << draw(st.integers(0, 7))]) if touched else b"\0"
            content = before + flipped + touched[1:] + after
        case "overwrite":
            content = before + draw(_pieces)[: end - start] + after
        case "insert":
            content = before + draw(_pieces) + touched + after
        case "remove":
            content = before + after
        case "double":
            content = before + touched + touched + after
        case "cut":
            content = before
        case _:
            content = draw(_OTHER)
    return content


_pieces = st.one_of(
    st.binary(min_size=1, max_size=16),
    st.sampled_from((b"\0" * 8, b"\xff" * 8, b"\n", b"9" * 5000, b"NaN", b"1e999", b"-", b"PK\x05\x06", b"\x1b[2J")),
)


@st.composite
def edited(draw, document):
    """Draw the JSON document with one value changed to an odd one, deleted, or copied to a new key."""
    document = json.loads(json.dumps(document))
    path = draw(st.sampled_from(list(_paths(document))))
    if not path:
        return draw(st.sampled_from(ODD_VALUES))
    holder = document
    for step in path[:-1]:
        holder = holder[step]
    match draw(st.sampled_from(("change", "change", "change", "remove", "add"))):
        case "change":
            holder[path[-1]] = draw(st.sampled_from(ODD_VALUES))
        case "remove":
            del holder[path[-1]]
        case _ if isinstance(holder, dict):
            holder[draw(st.sampled_from(("extra", "", "0", "\n")))] = draw(st.sampled_from(ODD_VALUES))
        case _:
            holder.append(draw(st.sampled_from(ODD_VALUES)))
    return document


def _paths(value, path=()):
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, one in inner:
        yield from _paths(one, (*path, key))
