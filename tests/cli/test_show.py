import json
import math
import os
import re
import subprocess
import sys

import pytest
import typer
from typer.testing import CliRunner

from alidpfl.cli.show import compare, show
from alidpfl.errors import AliDpflError
from alidpfl.reporting.snapshot import NOT_COVERED
from alidpfl.store import RunDirectory
from tests.reporting.runs import CONFIG, SUMMARY, make_run

app = typer.Typer()
app.command()(show)
app.command()(compare)


def run(*arguments):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, AliDpflError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def test_show_prints_table_and_curves(tmp_path):
    text = run("show", make_run(tmp_path / "first", summary=SUMMARY))
    for part in ("first", "63.21 %", "1.9877 of 2", "test accuracy (%)", "local steps τ", "ε spent", "└──"):
        assert part in text
    assert "resume" not in text
    assert "does NOT cover" not in text


def test_show_of_a_run_that_goes_on_says_how_to_resume(tmp_path):
    path = make_run(tmp_path / "first")
    with (path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 5, "lo')  # being written now
    assert f"alidpfl run --resume {path}" in run("show", path)
    with RunDirectory.open(path).lock():
        assert f"process {os.getpid()} on " in run("show", path)


def test_show_of_a_run_that_has_hardly_begun(tmp_path):
    text = run("show", make_run(tmp_path / "first", rounds=0))
    assert text.count("(nothing to plot yet)") == 3


def test_one_evaluation_is_no_curve(tmp_path):
    text = run("show", make_run(tmp_path / "first", rounds=1))
    assert "local steps" not in text
    assert "nothing to plot" not in text


def test_show_warns_of_unnoised_signals(tmp_path):
    text = run("show", make_run(tmp_path / "first", covers_everything=False))
    assert f"first: {NOT_COVERED}" in text


def test_rounds_are_counted_from_one_where_people_read_them(tmp_path):
    path = make_run(tmp_path / "first", summary=SUMMARY)
    axes = [line.split() for line in run("show", path).splitlines() if line.endswith(" round")]
    assert axes == [["1", "5", "round"]] * 3
    document = json.loads(run("show", path, "--json"))
    assert [r["round"] for r in document["rounds_recorded"]] == [0, 1, 2, 3, 4]  # programs count from 0
    assert document["best_round"] == 4
    assert re.search("best in round +│ 5 ", run("show", path))


def test_show_as_json(tmp_path):
    path = make_run(tmp_path / "first", summary=SUMMARY, loss=math.nan, epsilon=math.inf)

    def refuse(constant):
        raise AssertionError(f"not JSON: {constant}")

    document = json.loads(run("show", path, "--json"), parse_constant=refuse)
    assert (document["run"], document["accuracy"], document["best_round"]) == ("first", 63.21, 4)
    assert document["config"] == CONFIG
    assert document["summary"] == SUMMARY
    assert [r["round"] for r in document["rounds_recorded"]] == [0, 1, 2, 3, 4]
    assert (document["rounds_recorded"][0]["loss"], document["rounds_recorded"][0]["epsilon"]) == (None, "inf")


def test_show_draws_a_figure(tmp_path):
    pytest.importorskip("matplotlib")
    path = make_run(tmp_path / "first")
    assert str(tmp_path / "a.svg") in run("show", path, "--plot", tmp_path / "a.svg")
    assert (tmp_path / "a.svg").stat().st_size > 1000
    json.loads(run("show", path, "--plot", tmp_path / "b.png", "--json"))
    assert (tmp_path / "b.png").stat().st_size > 1000


def test_compare_fits_a_narrow_terminal(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    paths = [make_run(tmp_path / f"a-run-with-quite-a-long-name-{n}", summary=SUMMARY) for n in range(4)]
    text = run("compare", *paths)
    assert max(map(len, text.splitlines())) <= 80


def test_compare(tmp_path):
    paths = [make_run(tmp_path / "one", summary=SUMMARY), make_run(tmp_path / "two")]
    text = run("compare", *paths)
    assert "● one\n▲ two\n" in text
    assert [line.split(":")[0] for line in text.splitlines() if "--resume" in line] == ["two"]
    documents = json.loads(run("compare", *paths, "--json"))
    assert [document["finished"] for document in documents] == [True, False]


def test_compare_tells_runs_of_one_name_apart(tmp_path):
    paths = [make_run(tmp_path / "a" / "run"), make_run(tmp_path / "b" / "run")]
    text = run("compare", *paths)
    assert f"● {paths[0]}\n▲ {paths[1]}\n" in text


@pytest.mark.parametrize("command", ["show", "compare"])
def test_errors_are_ours(tmp_path, command):
    with pytest.raises(AliDpflError, match=tmp_path.name):
        run(command, tmp_path)
    path = make_run(tmp_path / "first")
    with pytest.raises(AliDpflError, match=r"a\.gif"):
        run(command, path, "--plot", tmp_path / "a.gif")


def test_a_terminal_without_unicode_gets_ascii(tmp_path):
    code = (
        "import sys, warnings\nwarnings.simplefilter('ignore')\nsys.stdout.reconfigure(errors='replace')\n"
        "import typer\nfrom alidpfl.cli.show import show\ntyper.run(show)\n"
    )
    command = [sys.executable, "-c", code, str(make_run(tmp_path / "first"))]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    text = done.stdout.decode("ascii")
    assert "epsilon spent\n" in text
    assert "+-----" in text
    assert "local steps tau" in text


def test_looking_at_runs_does_not_wait_for_torch(tmp_path):
    code = (
        "import sys, warnings\nwarnings.simplefilter('ignore')\nfrom pathlib import Path\n"
        "from alidpfl.cli.show import show\nshow(Path(sys.argv[1]))\nassert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code, str(make_run(tmp_path / "first"))], capture_output=True, check=True)
