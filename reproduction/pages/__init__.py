"""The pages about the results: templates in this folder, filled with figures computed from reproduction/results."""

from pathlib import Path

_HERE = Path(__file__).parent
_DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    "findings": "explanation/results.md",
    "recipes": "reference/results/recipes.md",
    "tables": "reference/results/tables.md",
    "differences": "reference/results/differences.md",
    "adaptivity": "reference/results/adaptivity.md",
    "searches": "reference/results/searches.md",
}
"""The templates, and the pages in docs that are made from them."""


def pages() -> dict[Path, str]:
    """Return the content of every generated page."""
    filled = blocks()
    return {_DOCS / page: template(name).format(**filled) for name, page in PAGES.items()}


def template(name: str) -> str:
    """Return a page with names in braces in place of its figures."""
    return (_HERE / f"{name}.md").read_text(encoding="utf-8")


def blocks() -> dict[str, str]:
    """Compute everything that the templates name in braces."""
    from reproduction.pages import adaptivity, differences, figures, policies, recipes, searches, sources

    found = sources.load()
    modules = (adaptivity, differences, figures, policies, recipes, searches)
    return {name: text for module in modules for name, text in module.blocks(found).items()}


def write() -> list[Path]:
    """Write all pages and pictures; return their paths."""
    from reproduction.pages import pictures

    contents = pages()
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return [*contents, *pictures.draw_all()]
