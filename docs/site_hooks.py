"""Hooks that complete the site: pages from outside docs/, and links that lead out of docs/."""

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
ELSEWHERE = {
    "ARCHITECTURE.md": "explanation/architecture.md",
    "CONTRIBUTING.md": "how-to/contributing.md",
    "CHANGELOG.md": "reference/changes.md",
    "examples/README.md": "tutorials/examples.md",
}
"""Files of the repository that become pages of the site, and their places in it."""
_SOURCES = {page: source for source, page in ELSEWHERE.items()}
_PAGES = {**ELSEWHERE, "README.md": "index.md", "examples": "tutorials/examples.md"}
_COMMANDS = "reference/cli.md"
_COMMANDS_HEAD = """# Commands

At the end of this page you will know every command with its options. `alidpfl COMMAND --help` prints the same.
`alidpfl --version` prints the version. `alidpfl --install-completion` adds completion to your shell, and
`--show-completion` prints what it would add."""
_LINK = re.compile(r"(!?)\[([^\]]+)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that are made from other files, and the commands' own help."""
    for name, page in ELSEWHERE.items():
        content = examples_page() if name.startswith("examples") else (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=content))
    files.append(File.generated(config, _COMMANDS, content=commands_page()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Point links at pages of the site; keep only the words of links to other files."""
    here = page.file.src_uri
    markdown = _LINK.sub(lambda found: _link(found, here), markdown)
    # The page of commands exists on the site only, so no Markdown file can link to it.
    return re.sub(r"a page\s+for them", f"[a page for them]({_relative(_COMMANDS, here)})", markdown)


def _link(found: re.Match[str], here: str) -> str:
    image, words, target = found.groups()
    if target.startswith(("http", "#", "mailto:")):
        return found[0]
    path, _, anchor = target.partition("#")
    name = posixpath.normpath(posixpath.join(posixpath.dirname(_SOURCES.get(here, f"docs/{here}")), path))
    if name in _PAGES:
        page, suffix = _PAGES[name], f"#{anchor}" if anchor else ""
    elif name.startswith("examples/") and name.endswith(".py"):
        page, suffix = ELSEWHERE["examples/README.md"], f"#{Path(name).stem}"
    elif name.startswith("docs/") and (ROOT / name).is_file():
        page, suffix = name.removeprefix("docs/"), f"#{anchor}" if anchor else ""
    else:
        return f"{words} (`{name}`)"
    return f"{image}[{words}]({_relative(page, here)}{suffix})"


def _relative(page: str, here: str) -> str:
    return Path(os.path.relpath(page, posixpath.dirname(here) or ".")).as_posix()


def examples_page() -> str:
    """Return the README of the examples, followed by every script that it links to."""
    page = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    scripts = re.findall(r"\]\((\w+\.py)\)", page)
    page = re.sub(r"\[(\w+)\]\(\w+\.py\)", lambda found: f"[{found[1]}](#{found[1]})", page)
    for name in scripts:
        code = (ROOT / "examples" / name).read_text(encoding="utf-8")
        page += f"\n## {name.removesuffix('.py')}\n\n```python\n{code}```\n"
    return page


def commands_page() -> str:
    """Return a page of every command with its options, from the program itself."""
    from alidpfl.cli import commands, help_of

    lines = [_COMMANDS_HEAD]
    for path, command in commands():
        words, example = help_of(command)
        lines += ["", f"## `alidpfl {' '.join(path)}`", "", words, ""]
        if example:
            lines += ["```", _continued(example), "```", ""]
        lines += ["| option | type | meaning |", "| --- | --- | --- |"]
        lines += [_option(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
    return "\n".join(lines) + "\n"


def _continued(example: str, width: int = 100) -> str:
    """Break a long command into lines that a shell joins again. Options stay beside their values."""
    lines = [""]
    for part in re.split(r" (?=--|&& )", example):
        if lines[-1] and len(lines[-1]) + len(part) > width:
            lines.append("   ")
        lines[-1] = f"{lines[-1]} {part}" if lines[-1] else part
    return " \\\n".join(lines)


def _option(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    meaning = _plain(getattr(parameter, "help", None) or "").replace("|", "\\|")
    default = parameter.default if isinstance(parameter.default, int | float | str | Path) else None
    if default is not None and not isinstance(default, bool) and default != "":
        meaning += f" Default: `{default}`."
    elif parameter.required:
        meaning += " Required."
    kind = "switch" if getattr(parameter, "is_flag", False) else parameter.type.name
    choices = getattr(parameter.type, "choices", None)
    kind = ", ".join(f"`{choice}`" for choice in choices) if choices else kind
    several = ", several" if parameter.multiple or parameter.nargs == -1 else ""
    return f"| {names} | {kind}{several} | {meaning} |"


def _plain(text: str) -> str:
    return " ".join(text.split())
