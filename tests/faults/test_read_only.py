"""A disk that is read-only: what reads goes on reading, what writes says so in one line and changes nothing."""

import pytest

from alidpfl.runs import execute
from alidpfl.vault.folder import VaultFolder
from reproduction.grid import cells, load_grid
from reproduction.results import Results
from tests.reproduction.made import made_result
from tests.runs.command import alidpfl, config, run_arguments
from tests.vault.parts import CountingTrainer, body, made_vault, not_served, opened

from .disks import small_disk

GRID = """title = "of data that are made"
datasets = ["synthetic"]
[[columns]]
name = "one"
settings = {}
[[methods]]
name = "ratio"
settings = { "method.policy" = "ratio" }
"""


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    """With a finished run, one that can go on, a vault that has served a round, and results."""
    with small_disk(tmp_path_factory.mktemp("read_only") / "disk") as made:
        for name in ("finished", "stopped"):
            execute(config(federation__max_rounds=2, run__evaluate_every=1), made.path / name)
        (made.path / "stopped" / "summary.json").unlink()
        with opened(made_vault(made.path), CountingTrainer()) as vault:
            vault.answer(body())
        results, (cell, *_) = Results(made.path / "results.sqlite"), cells(load_grid("small"))
        results.add(made_result(cell, 90.0))
        results.write_lines(made.path / "small.jsonl", {cell.key})
        (made.path / "mine.toml").write_text(GRID)
        made.make_read_only()
        yield made


@pytest.mark.parametrize(
    "arguments",
    [
        ["show", "{}/finished"],
        ["compare", "{}/finished", "{}/stopped"],
        ["vault", "status", "--dir", "{}/vault"],
        ["tables", "small", "--store", "{}"],
    ],
)
def test_what_reads_goes_on(disk, arguments):
    done = alidpfl(*(argument.format(disk.path) for argument in arguments))
    assert done.exit_code == 0, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        run_arguments("{}/new"),
        ["run", "--resume", "{}/stopped"],
        ["report", "{}/finished", "-o", "{}/page.html"],
        ["show", "{}/finished", "--plot", "{}/plot.svg"],
        ["reproduce", "{}/mine.toml", "--store", "{}"],
    ],
)
def test_what_writes_says_so(disk, arguments):
    refused = alidpfl(*(str(argument).format(disk.path) for argument in arguments))
    assert refused.exit_code == 2, refused.stdout
    *_, line = refused.stderr.splitlines()
    assert line.startswith("alidpfl: ")
    assert "read-only" in line.lower() or "readonly" in line


def test_a_vault_is_not_served(disk):
    folder = VaultFolder(path=disk.path / "vault")
    (line,) = not_served(folder, log=disk.path.parent / "log").splitlines()
    assert "read-only" in line
