"""Markdown read line by line: fences, the commands in them, the text between. What is not understood is an error."""

import re
from dataclasses import dataclass

SHELL = ("", "bash", "sh", "shell", "console")
OTHERS = ("bibtex", "ini", "nginx", "python", "text", "toml")
"""Languages that hold no command to paste; a new one is added here once it is known what checks it."""

PROGRAMS = (
    *("alidpfl", "cd", "export", "flower-superlink", "flower-supernode", "flwr", "git", "install", "jupyter", "make"),
    *("pip", "python", "python3", "source", "sudo", "useradd"),
)
_OPENING = re.compile(r"^([\s>]*(?:(?:[-*+]|\d+[.)]) +)?)(`{3,}|~{3,})\s*([^`]*)$")
_COMMAND = re.compile(rf"(\.?/?(?:[\w.-]+/)*)({'|'.join(map(re.escape, PROGRAMS))})(?= |$)")


class NotUnderstoodError(AssertionError):
    """A document that would lose commands."""


@dataclass(frozen=True)
class Fence:
    """A block of code: its language, where its first line stands, and its lines without the fence's own indent."""

    language: str
    first_line: int
    lines: tuple[str, ...]


def fences(text: str) -> list[Fence]:
    """Every fence, at any indent, of ``` or ~~~, with any words behind that."""
    return _parsed(text)[0]


def running_text(text: str) -> str:
    """What stands outside of fences."""
    return "\n".join(_parsed(text)[1])


def _parsed(text: str) -> tuple[list[Fence], list[str]]:
    found: list[Fence] = []
    outside: list[str] = []
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        opening = _OPENING.match(line)
        if opening is None:
            outside.append(line)
            continue
        indent, marks, info = opening.groups()
        block = _block(lines, number, marks, len(indent))
        found.append(Fence(_language(info, number), number + 1, tuple(block)))
    return found, outside


def _block(lines, number: int, marks: str, indent: int) -> list[str]:
    block = []
    for _, line in lines:
        if re.fullmatch(rf"[\s>]*{re.escape(marks[0])}{{{len(marks)},}}\s*", line):
            return block
        block.append(line[indent:] if not line[:indent].strip(" \t>") else line.lstrip())
    raise NotUnderstoodError(f"line {number}: this fence is never closed")


def _language(info: str, number: int) -> str:
    language = re.sub(r"^\{\s*\.?|\}$", "", info).split(" ")[0].strip()
    if language not in (*SHELL, *OTHERS):
        raise NotUnderstoodError(
            f"line {number}: a fence of {language!r}; known are {', '.join((*SHELL[1:], *OTHERS))}"
        )
    return language


def commands(text: str) -> list[str]:
    """As they would be pasted, one by one: without prompt and comment, continued lines and `a && b` taken apart.

    In a fence that begins with the prompt `$ `, lines with it are commands and the others output; of any other shell
    fence every line is a command.
    """
    return [one for fence in fences(text) if fence.language in SHELL for one in _commands_of(fence)]


def _commands_of(fence: Fence) -> list[str]:
    joined = _joined(fence)
    is_session = bool(joined) and joined[0][1].startswith("$ ")
    if fence.language == "console" and not is_session:
        raise NotUnderstoodError(f"line {fence.first_line}: a console begins with `$ ` and a command")
    found = []
    for number, line in joined:
        if is_session and not line.startswith("$ "):
            if _COMMAND.match(line):
                raise NotUnderstoodError(f"line {number}: output or a command without its prompt? {line}")
            continue
        found += [_checked(part, number) for part in _without_comment(line.removeprefix("$ ")).split(" && ")]
    return found


def _joined(fence: Fence) -> list[tuple[int, str]]:
    """Lines that say something, with those that they go on in."""
    found: list[tuple[int, str]] = []
    goes_on = False
    for number, line in enumerate(fence.lines, fence.first_line):
        part = line.strip().removesuffix("\\").rstrip()
        if goes_on:
            found[-1] = (found[-1][0], f"{found[-1][1]} {part}")
        elif part and not part.startswith("#"):
            found.append((number, part))
        else:
            continue
        goes_on = line.rstrip().endswith("\\")
    if goes_on:
        raise NotUnderstoodError(f"line {found[-1][0]}: it goes on after the end of its fence")
    return found


def _without_comment(line: str) -> str:
    """A # within quotes or within a word begins none; a quote that stays open is left for the shell to refuse."""
    parts = re.fullmatch(r"""((?:[^'"#]|'[^']*'|"[^"]*"|(?<=\S)\#)*)(?:\#.*)?""", line)
    return (parts[1] if parts else line).strip()


def _checked(part: str, number: int) -> str:
    command = re.sub(r"^(?:[A-Z_]+=\S+ )+", "", part.strip()).removeprefix(".venv/bin/")
    if not _COMMAND.match(command):
        known = ", ".join(PROGRAMS)
        raise NotUnderstoodError(f"line {number}: {command!r} is no command of {known}; label output `text`")
    return command
