"""The documentation shows what the program does: code runs, links lead somewhere, figures are generated."""

import ast
import doctest
import importlib
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import alidpfl
from docs import generate
from tests import documents

ROOT = Path(__file__).parent.parent
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix() for path in (*ROOT.glob("*.md"), *(ROOT / "examples").glob("*.md"), *PAGES)
)
MODULES = [
    module.name
    for module in pkgutil.walk_packages(alidpfl.__path__, "alidpfl.")
    if not module.name.endswith(("._native", ".__main__"))
]
TESTED_ELSEWHERE = {
    "docs/how-to/tables.md": "tests/tables/test_page.py",
    "docs/how-to/vault.md": "tests/vault/test_vault_command.py",
}
PROGRAMS = {
    document: "\n".join(code)
    for document in DOCUMENTS
    if document not in TESTED_ELSEWHERE
    and (
        code := [
            "\n".join(fence.lines)
            for fence in documents.fences((ROOT / document).read_text())
            if fence.language == "python"
        ]
    )
}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # typer's, on first import
def test_examples_in_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_there_are_examples_to_run():
    finder = doctest.DocTestFinder()
    assert sum(bool(t.examples) for name in MODULES for t in finder.find(importlib.import_module(name))) >= 30


@pytest.mark.parametrize("document", PROGRAMS)
def test_the_program_of_a_page_runs(document, tmp_path):
    """The code blocks of a page, one after the other, as a reader would paste them."""
    code = PROGRAMS[document]
    program = tmp_path / "program.py"
    # A step alone is several times slower in several threads. A reader must not have to know that.
    in_one_thread = "\nassert torch.get_num_threads() == 1\n" if "import PerSampleClipper" in code else ""
    program.write_text(code + in_one_thread)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    for shown in re.findall(r"print\(.*\)  # (\[.*\])", code):  # a comment that says what is printed
        assert shown in done.stdout
    if document == "README.md":
        accuracy, epsilon = re.findall(r"(\d+) % right at ε = ([\d.]+)\n", done.stdout)[0]
        assert 1.9 < float(epsilon) <= 2
        assert int(accuracy) >= 75


def test_there_are_programs_to_run():
    assert PROGRAMS.keys() >= {"README.md", "docs/tutorials/python.md", "docs/how-to/extend.md"}
    assert sum("import PerSampleClipper" in code for code in PROGRAMS.values()) == 1
    for document, test in TESTED_ELSEWHERE.items():
        assert Path(document).name in (ROOT / test).read_text()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # typer's, on first import
def test_generated_parts_are_up_to_date():
    """Otherwise: `make docs`."""
    contents = generate.generated()
    assert {ROOT / "README.md", ROOT / "docs/explanation/results.md", generate.SETTINGS} <= contents.keys()
    outdated = [page.name for page, content in contents.items() if page.read_text() != content]
    assert outdated == []


def test_a_generated_part_of_an_unknown_name_is_refused():
    with pytest.raises(KeyError, match="nonsense"):
        generate.filled("<!-- generated: nonsense -->\n<!-- end -->\n", generate.BLOCKS)


def test_every_generated_part_is_used():
    text = "".join(page.read_text() for page in generate.pages())
    assert set(re.findall(r"^<!-- generated: (\S+) -->$", text, re.MULTILINE)) == generate.BLOCKS.keys()


def test_the_recorded_run_is_the_default_run():
    """Out of date once a default changes: `python -m docs.generate --record`."""
    from alidpfl.privacy import SampledGaussian, epsilon
    from alidpfl.runs import Config

    record, config = generate.recorded(), Config()
    outcome = record["outcome"]
    assert record["config"] == config.to_dict(), (
        "record again; the results of the grids were made with old defaults too"
    )
    spent = SampledGaussian(
        sample_rate=config.privacy.sample_rate, noise_multiplier=outcome["noise_multiplier"], steps=outcome["steps"]
    )
    again = epsilon([spent], outcome["delta"])  # processors round the accountant's transforms differently
    assert outcome["epsilon"] == pytest.approx(again, rel=1e-9)
    assert again <= config.privacy.epsilon
    assert outcome["accuracy"] >= 90
    assert f"{outcome['accuracy']:.2f} %" in record["printed"]["run"][-1]


@pytest.mark.slow
def test_the_default_still_gives_the_recorded_result(tmp_path):
    from alidpfl.runs import Config, execute

    recorded = generate.recorded()["outcome"]
    outcome = execute(Config(), tmp_path / "run")
    assert (outcome.steps, outcome.stop_reason) == (recorded["steps"], recorded["stop_reason"])
    assert outcome.epsilon == pytest.approx(recorded["epsilon"], rel=1e-9)
    assert outcome.accuracy == pytest.approx(recorded["accuracy"], abs=0.5)  # processors round differently


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # typer's, on first import
def test_the_audit_is_shown_as_it_is_printed():
    from tests.runs.command import alidpfl

    page = (ROOT / "docs/how-to/audit.md").read_text().replace("\\\n", "")
    block = re.search(r"```\w*\n\$ alidpfl (audit [^\n]+)\n(.*?)```", page, re.DOTALL)
    done = alidpfl(*block[1].split())
    assert done.exit_code == 0, done.stderr
    printed = " ".join(done.stdout.split())  # lines end where the terminal does
    for line in block[2].splitlines():
        assert " ".join(line.split()) in printed


def test_the_readme_fits_a_screen_and_a_half():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 85
    assert max(map(len, lines)) <= 120


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document):
    text = (ROOT / document).read_text()
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert ((ROOT / document).parent / target).exists(), f"{document} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_to_places_in_a_page_lead_there(document):
    for path, place in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", (ROOT / document).read_text()):
        page = ((ROOT / document).parent / path if path else ROOT / document).read_text()
        headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert place in anchors, f"{document} links to {path}#{place}"


def test_the_first_page_links_to_every_page_of_the_docs():
    index = ROOT / "docs" / "index.md"
    linked = {
        Path(os.path.normpath(index.parent / target)) for target in re.findall(r"\]\(([^)#:]+)", index.read_text())
    }
    tables = ROOT / "docs" / "reference" / "results"  # generated tables are linked from the results page
    missing = [page for page in PAGES if page not in linked and page != index and tables not in page.parents]
    assert missing == []


def test_every_claim_on_privacy_names_a_test_that_exists():
    page = ROOT / "docs/explanation/privacy.md"
    text = page.read_text()
    named = re.findall(r"\[`(test_\w+)`\]\(([^)]+)\)", text)
    assert len(named) >= 30
    assert len(named) == text.count("`test_")
    for name, path in named:
        assert f"def {name}(" in (page.parent / path).read_text(), f"{path} has no {name}"


@pytest.mark.parametrize("page", sorted((ROOT / "docs/explanation/proofs").glob("*.md")), ids=lambda page: page.stem)
def test_every_number_of_a_proof_stands_at_a_line_of_code(page):
    claims = set(re.findall(r"\*\*\[(\d+)\]", page.read_text()))
    sources = "\n".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    lines = {number for found in re.findall(rf"# proof {page.stem} ([\d, ]+)", sources) for number in found.split(", ")}
    assert claims == {number.strip() for number in lines} != set()
    assert f"docs/explanation/proofs/{page.name}" in sources  # a docstring leads to the page


def test_the_architecture_names_every_package():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    packages = [path.parent.name for path in (ROOT / "src" / "alidpfl").glob("*/__init__.py")]
    assert len(packages) > 10
    assert [name for name in packages if not re.search(rf"\b{name}\b", text)] == []


def test_the_version_stands_in_one_place():
    assert f"version: {alidpfl.__version__}" in (ROOT / "CITATION.cff").read_text()
    assert "__version__" not in (ROOT / "pyproject.toml").read_text().replace("alidpfl._version.__version__", "")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_public_names_exist():
    offered = {name: getattr(importlib.import_module(name), "__all__", ()) for name in ("alidpfl", *MODULES)}
    assert sum(map(bool, offered.values())) > 10
    missing = [(name, one) for name, every in offered.items() for one in every if not hasattr(sys.modules[name], one)]
    assert not missing


def _public_functions():
    for path in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(path.read_text())
        groups = [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name[0] != "_")]
        for group in groups:
            for node in group.body:
                if isinstance(node, ast.FunctionDef) and (node.name == "__init__" or not node.name.startswith("_")):
                    yield f"{path.relative_to(ROOT)}:{node.lineno} {node.name}", node


def _num_parameters(node: ast.FunctionDef) -> int:
    given = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
    return len([parameter for parameter in given if parameter.arg not in ("self", "cls")])


def test_public_functions_say_what_they_do_and_what_they_take():
    """All have a docstring. Above three parameters: `Args`, or the function that lists them; commands have help."""
    found = list(_public_functions())
    assert len(found) > 400
    assert [name for name, node in found if not ast.get_docstring(node) and node.name != "__init__"] == []
    long = {name: ast.get_docstring(node) or "" for name, node in found if _num_parameters(node) > 3}
    described = {name for name, text in long.items() if "Args:" in text or re.search(r"`[\w.]+`", text)}
    assert [name for name in long if name not in described and "/cli/" not in name] == []
