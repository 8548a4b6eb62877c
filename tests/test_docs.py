"""What the documents show is what the program does."""

import doctest
import importlib
import json
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import alidpfl

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
README_WORDS = " ".join(README.split())
MODULES = [
    module.name
    for module in pkgutil.walk_packages(alidpfl.__path__, "alidpfl.")
    if not module.name.endswith(("._native", ".__main__"))
]
PROGRAMS = [
    (document, code)
    for document in (
        "README.md",
        "docs/tutorials/python.md",
        "docs/explanation/theory.md",
        "docs/how-to/own-model.md",
        "docs/how-to/own-data.md",
        "docs/how-to/extend.md",
    )
    for code in re.findall(r"```python\n(.*?)```", (ROOT / document).read_text(), re.DOTALL)
]


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # typer's, on first import
def test_examples_in_docstrings_run(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_there_are_examples_to_run():
    finder = doctest.DocTestFinder()
    assert sum(bool(t.examples) for name in MODULES for t in finder.find(importlib.import_module(name))) >= 30


@pytest.mark.parametrize(("document", "code"), PROGRAMS)
def test_the_programs_in_the_documents_run(document, code, tmp_path):
    program = tmp_path / "train.py"
    # The step alone is several times as slow in several threads: whoever pastes the program must not have to know.
    in_one_thread = "\nassert torch.get_num_threads() == 1\n" if "alidpfl.dpsgd" in code else ""
    program.write_text(code + in_one_thread)
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    for shown in re.findall(r"print\(.*\)  # (\[.*\])", code):  # what a comment says is printed
        assert shown in done.stdout
    if document == "README.md":
        assert re.search(r"ε = (1\.9\d\d|2\.000), [6-9]\d % right\n", done.stdout)


def test_the_readme_quotes_the_recipes_results():
    names = {"mnist": "MNIST", "fashion_mnist": "Fashion-MNIST", "cifar10": "CIFAR-10"}
    lines = [json.loads(line) for line in (ROOT / "reproduction" / "results" / "best.jsonl").read_text().splitlines()]
    headline = [line for line in lines if (line["table"], line["ratio"]) == ("small", "1/2")]
    ours, papers = [], []
    for dataset, name in names.items():
        found = [line for line in headline if line["dataset"] == dataset]
        assert sorted(line["seed"] for line in found) == list(range(6))
        assert all(line["epsilon"] <= 2.0 and line["covers_everything"] for line in found)
        mean = sum(line["accuracy"] for line in found) / len(found)
        paper = found[0]["paper"]
        ours.append(f"{mean:.2f} % on {name}")
        papers.append(f"{paper:.2f}")
        assert f"| {name} | {paper:.2f} % | {mean:.2f} % |" in (ROOT / "docs" / "train.md").read_text()
    assert f"reach {ours[0]}, {ours[1]} and {ours[2]} (means of six seeds, [three of which" in README_WORDS
    assert f"The paper, with a CNN, prints {papers[0]}, {papers[1]} and {papers[2]}, and no ε covers" in README_WORDS


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # typer's, on first import
def test_the_plan_in_the_readme_is_what_the_planner_recommends():
    from tests.runs.command import alidpfl

    command = re.search(r"# `alidpfl (plan .+?)` finds", README)[1].split()
    told = json.loads(alidpfl(*command, "--json").stdout)
    assert f"sample_rate={told['sample_rate']:g}, noise_multiplier={told['noise_multiplier']:.4g})" in README


def test_the_readme_quotes_the_grid():
    """MNIST at ε = 2 by the paper's accountant, in the column of Table I that the recipes are compared in."""
    from reproduction.grid import load_grid
    from reproduction.results import read_results
    from reproduction.tables import table_so_far

    known = {result.key: result for result in read_results(ROOT / "reproduction" / "results" / "small.jsonl")}
    column = {
        entry.method: entry
        for entry in table_so_far(load_grid("small"), known).entries
        if (entry.dataset, entry.column, entry.accountant) == ("mnist", "R_s = R_c/2", "rdp-paper")
    }
    ours, rule, fixed = (column[name] for name in ("ours:ali", "ali_dpfl", "fedavg_dp:tau=1"))
    assert ours.by_seed.keys() == rule.by_seed.keys() == fixed.by_seed.keys()
    private_form = f"`ali`, [our private form of it](docs/how-to/choose-a-policy.md), {ours.mean:.2f} %"
    first = f"gives {rule.mean:.2f} % on MNIST in our hands, {private_form}"
    assert f"{first} and one step a round {fixed.mean:.2f} % (n = {len(ours.by_seed)}):" in README_WORDS
    assert rule.paper == 97.58  # which the sentence before it quotes
    assert max(entry.mean for entry in column.values() if entry.mean is not None) < 95


def test_results_are_those_on_the_page():
    """docs/explanation/results.md is written by reproduction/experiments/report.py."""
    sys.path.insert(0, str(ROOT / "reproduction" / "experiments"))
    try:
        import report
    finally:
        sys.path.pop(0)
    assert (ROOT / "docs" / "results.md").read_text() == report.report()


def test_there_are_programs_to_run():
    assert len(PROGRAMS) == 11
    assert sum("alidpfl.dpsgd" in code for _, code in PROGRAMS) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # typer's, on first import
def test_the_readme_quotes_the_recorded_result_of_the_default():
    """reproduction/results/default.json is written by reproduction/experiments/record_default.py, and out of date once a default changes."""
    from alidpfl.cli.run import result_line
    from alidpfl.privacy import SampledGaussian, epsilon
    from alidpfl.runs import Config, Outcome

    record = json.loads((ROOT / "reproduction" / "results" / "default.json").read_text())
    told, config = record["outcome"], Config()
    again = "run reproduction/experiments/record_default.py again; the lines of the grids were made with the old defaults too"
    assert record["config"] == config.to_dict(), again
    line = result_line(Outcome(**told, seconds=0.0, out="", client_epsilon={}))
    shown = f"{line}; kept in runs/{config.data.name}-{config.method.name}-{config.policy}-...\n"
    assert shown in README
    assert shown in (ROOT / "docs" / "index.md").read_text()
    spent = SampledGaussian(
        sample_rate=config.privacy.sample_rate, noise_multiplier=told["noise_multiplier"], steps=told["steps"]
    )
    again = epsilon([spent], told["delta"])  # other processors round the accountant's transforms differently
    assert told["epsilon"] == pytest.approx(again, rel=1e-9)
    assert again <= config.privacy.epsilon
    assert told["accuracy"] >= 90


@pytest.mark.slow
def test_the_default_still_gives_the_recorded_result(tmp_path):
    from alidpfl.runs import Config, execute

    told = json.loads((ROOT / "reproduction" / "results" / "default.json").read_text())["outcome"]
    outcome = execute(Config(), tmp_path / "run")
    assert (outcome.steps, outcome.stop_reason) == (told["steps"], told["stop_reason"])
    assert outcome.epsilon == pytest.approx(told["epsilon"], rel=1e-9)  # other processors round otherwise
    assert outcome.accuracy == pytest.approx(told["accuracy"], abs=0.5)  # and so do they here


def test_the_reference_of_settings_is_that_of_the_program():
    from docs.settings_reference import reference

    assert (ROOT / "docs" / "configuration.md").read_text() == reference()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # typer's, on first import
def test_the_audit_is_shown_as_it_is_printed():
    from tests.runs.command import alidpfl

    page = (ROOT / "docs" / "audit.md").read_text().replace("\\\n", "")
    block = re.search(r"```\n\$ alidpfl (audit [^\n]+)\n(.*?)```", page, re.DOTALL)
    done = alidpfl(*block[1].split())
    assert done.exit_code == 0, done.stderr
    printed = " ".join(done.stdout.split())  # whose lines end where the terminal does
    for line in block[2].splitlines():
        assert " ".join(line.split()) in printed


def test_the_accounting_table_is_shown_as_it_is_printed():
    done = subprocess.run([sys.executable, "-m", "alidpfl", "account"], capture_output=True, text=True, check=True)
    shown = [line.strip() for line in (ROOT / "docs" / "concepts.md").read_text().splitlines()]
    for line in done.stdout.strip().splitlines():
        assert line.strip() in shown


LINKING = sorted(
    path.relative_to(ROOT).as_posix() for folder in (".", "docs", "examples") for path in (ROOT / folder).glob("*.md")
)


@pytest.mark.parametrize("document", LINKING)
def test_links_lead_somewhere(document):
    text = (ROOT / document).read_text()
    for target in re.findall(r"\]\(([^)#]+?)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert ((ROOT / document).parent / target).exists(), f"{document} links to {target}"


@pytest.mark.parametrize("document", LINKING)
def test_links_to_places_in_a_page_lead_there(document):
    for path, place in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", (ROOT / document).read_text()):
        page = ((ROOT / document).parent / path if path else ROOT / document).read_text()
        headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert place in anchors, f"{document} links to {path}#{place}"


def test_every_claim_on_privacy_names_a_test_that_exists():
    text = (ROOT / "docs" / "privacy.md").read_text()
    named = re.findall(r"\[`(test_\w+)`\]\(\.\./([^)]+)\)", text)
    assert len(named) >= 30
    assert len(named) == text.count("`test_")
    for name, path in named:
        assert f"def {name}(" in (ROOT / path).read_text(), f"{path} has no {name}"


def test_the_layout_in_the_architecture_names_every_module():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for path in (ROOT / "src" / "alidpfl").rglob("*.py"):
        if path.stem.startswith("_") or path.name in ("checks.py", "paper.py", "paper_cnn.py"):
            continue
        assert path.name in text, f"ARCHITECTURE.md does not mention {path.name}"


def test_the_version_stands_in_one_place():
    assert f"version: {alidpfl.__version__}" in (ROOT / "CITATION.cff").read_text()
    assert "__version__" not in (ROOT / "pyproject.toml").read_text().replace("alidpfl._version.__version__", "")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_public_names_exist():
    offered = {name: getattr(importlib.import_module(name), "__all__", ()) for name in ("alidpfl", *MODULES)}
    assert sum(map(bool, offered.values())) > 10
    missing = [(name, one) for name, every in offered.items() for one in every if not hasattr(sys.modules[name], one)]
    assert not missing
