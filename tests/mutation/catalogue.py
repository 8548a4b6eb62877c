"""The mutants, read from the TOML files beside this module, and how one is applied to a copy of the code."""

import ast
import tomllib
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent
ROOT = FOLDER.parent.parent


class MutantError(Exception):
    """A mutant no longer fits the code."""


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One bug: inside one function, the text `old` becomes `new`."""

    name: str
    file: str
    """Path from the project's root."""
    within: str = ""
    """The function, as `function` or `Class.method`; empty for the whole file (C, constants)."""
    old: str
    new: str
    tests: str
    """Test files, one of which must fail."""
    known_bug: str = ""
    """The claim in docs/explanation/privacy.md that names this bug, if one does."""

    def applied(self, text: str) -> str:
        """Return the text of the file with the bug.

        Only the named function is searched, so that lines elsewhere may change freely.

        Raises:
            MutantError: the function is gone, or `old` does not stand in it exactly once.
        """
        first, last = _lines_of(text, self.within) if self.within else (0, None)
        lines = text.splitlines(keepends=True)
        part = "".join(lines[first:last])
        if part.count(self.old) != 1:
            where = f"{self.file}:{self.within}" if self.within else self.file
            raise MutantError(
                f"{self.name!r}: its text stands {part.count(self.old)} times in {where}; mend the mutant"
            )
        rest = "" if last is None else "".join(lines[last:])
        return "".join(lines[:first]) + part.replace(self.old, self.new) + rest


def load_mutants() -> list[Mutant]:
    """Return all mutants, in the order of the files."""
    return [
        Mutant(**{"known_bug": "", **entry})
        for path in sorted(FOLDER.glob("*.toml"))
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]
    ]


def _lines_of(text: str, within: str) -> tuple[int, int]:
    """Return the first line of a function or class, from 0, and the line after its last."""
    body: list[ast.stmt] = ast.parse(text).body
    for name in within.split("."):
        kinds = (ast.FunctionDef, ast.ClassDef)
        found = [node for node in body if isinstance(node, kinds) and node.name == name]
        if len(found) != 1:
            raise MutantError(f"{within} is not in the file; mend the mutant")
        body = found[0].body
    first = min([found[0].lineno, *(decorator.lineno for decorator in found[0].decorator_list)])
    return first - 1, found[0].end_lineno or first
