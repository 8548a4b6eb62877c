"""The page docs/how-to/tables.md from its first line to its last, as a reader would paste it."""

import os
from pathlib import Path

from tests import documents
from tests.runs.command import alidpfl

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "tables.md"


def fences(language, page=PAGE):
    return ["\n".join(fence.lines) for fence in documents.fences(page.read_text()) if fence.language == language]


def write_tables(folder, page=PAGE, schema="schema.toml"):
    """Write a page's tables and its schema into a folder."""
    here = Path.cwd()
    try:
        os.chdir(folder)
        exec(fences("python", page)[0], {})  # noqa: S102 - our own page
    finally:
        os.chdir(here)
    (folder / schema).write_text(fences("toml", page)[0])


def test_the_whole_page(tmp_path, monkeypatch):
    write_tables(tmp_path)
    monkeypatch.chdir(tmp_path)
    for command in documents.commands(PAGE.read_text()):
        if command.startswith("alidpfl "):
            quick = ["--set", "privacy.accountant=rdp"] if command.startswith("alidpfl run") else []
            done = alidpfl(*command.split()[1:], *quick)
            assert done.exit_code == 0, f"{command}\n{done.stderr}"
    assert (tmp_path / "scores.csv").read_text().count("\n") == 4
    names = {}
    for block in fences("python")[1:]:
        exec(block, names)  # noqa: S102 - our own page
    assert names["model"].classes == ("no", "yes")
    assert names["federation"].client_names == ("north", "south")
