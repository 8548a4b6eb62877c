"""What the site adds to the folder docs/: pages that live elsewhere, and links that lead out of it."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
ELSEWHERE = {
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "examples": "examples.md",
}
_COMMANDS_HEAD = """# Commands

`alidpfl COMMAND --help` says the same. `alidpfl --version` tells the version, `alidpfl --install-completion` teaches
your shell the commands, and `--show-completion` prints what it would add."""
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")


def on_files(files: Files, config: Any) -> Files:
    """Take in the pages that stand beside the code, and the commands' own help."""
    for name, page in ELSEWHERE.items():
        content = examples_page() if name == "examples" else (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=content))
    files.append(File.generated(config, "cli.md", content=commands_page()))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Links to pages that the site has lead there; of links to files that it has not, the words stay."""
    markdown = _LINK.sub(_link, markdown)
    return re.sub(r"a page\s+of the site", "[a page of the site](cli.md)", markdown)  # which is no file elsewhere


def _link(found: re.Match[str]) -> str:
    words, target = found[1], found[2]
    if target.startswith(("http", "#", "mailto:", "pictures/")):
        return found[0]
    path, _, anchor = target.partition("#")
    name = path.removeprefix("../").removeprefix("docs/")
    if name == "README.md":
        return f"[{words}](index.md)"
    if name in ELSEWHERE:
        return f"[{words}]({ELSEWHERE[name]}{'#' if anchor else ''}{anchor})"
    if name.startswith("examples/") and name.endswith(".py"):
        return f"[{words}](examples.md#{Path(name).stem})"
    if (ROOT / "docs" / name).exists() and "/" not in name:
        return f"[{words}]({name}{'#' if anchor else ''}{anchor})"
    return f"{words} (`{path.removeprefix('../')}`)"


def examples_page() -> str:
    """The folder's own page, and every script that it links to."""
    page = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    scripts = re.findall(r"\]\((\w+\.py)\)", page)
    page = re.sub(r"\[(\w+)\]\(\w+\.py\)", lambda found: f"[{found[1]}](#{found[1]})", page)
    for name in scripts:
        code = (ROOT / "examples" / name).read_text(encoding="utf-8")
        page += f"\n## {name.removesuffix('.py')}\n\n```python\n{code}```\n"
    return page


def commands_page() -> str:
    """Every command with its options, from the program itself."""
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
    """A long command over several lines, as a shell reads them; an option stays with its value."""
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
