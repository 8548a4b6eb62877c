import json
import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import alidpfl
from alidpfl import cli, privacy


def run(*arguments):
    return CliRunner().invoke(cli.app, list(arguments))


def test_version():
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"alidpfl {alidpfl.__version__}\n")


def test_the_table_of_the_papers_setting():
    result = run("account", "--epsilon", "2", "--epsilon", "5.25")
    rows = [line.replace("│", " ").split() for line in result.stdout.splitlines()]
    assert result.exit_code == 0
    assert ["printed", "in", "the", "paper", "317", "2990"] in rows
    assert ["safe,", "rdp-paper", "314", "3007"] in rows
    assert ["safe,", "rdp", "547", "3800"] in rows
    assert ["safe,", "pld", "716", "4440"] in rows
    assert ["pld", "/", "rdp-paper", "2.28", "1.48"] in rows


def test_json_of_another_setting_and_a_budget_that_pays_for_nothing():
    result = run("account", "--noise-multiplier", "2", "--epsilon", "0.02", "--epsilon", "1", "--json")
    document = json.loads(result.stdout)
    assert document["noise_multiplier"] == 2.0
    poor, rich = document["budgets"]
    assert poor == {
        "epsilon": 0.02,
        "printed_in_paper": None,
        "max_steps": {"rdp-paper": 0, "rdp": 0, "pld": 0},
        "pld_over_rdp_paper": None,
    }
    budget = privacy.PrivacyBudget(epsilon=1.0, delta=1e-5)
    for accountant, steps in rich["max_steps"].items():
        assert steps == privacy.max_steps(budget, 0.015, 2.0, accountant=accountant)


def test_a_budget_that_pays_for_nothing_is_a_cell_that_says_so():
    result = run("account", "--noise-multiplier", "2", "--epsilon", "0.02")
    assert result.exit_code == 0
    assert "none" in result.stdout
    assert "paper │" not in result.stdout.replace("rdp-paper", "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sample-rate", "64"], "alidpfl: sample_rate=64.0 "),
        (["--epsilon", "nan"], "alidpfl: epsilon=nan "),
    ],
)
def test_our_errors_are_one_line_and_status_2(arguments, message):
    result = run("account", *arguments)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith(message)


def test_usage_errors_are_status_2():
    assert run("account", "--epsilon", "x").exit_code == 2
    assert run("acount").exit_code == 2


def test_interrupt_is_status_130(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(privacy, "max_steps", interrupted)
    result = run("account", "--epsilon", "2")
    assert (result.exit_code, result.stderr) == (130, "alidpfl: interrupted\n")


def test_help_has_an_example():
    assert re.search(r"Example:\s+alidpfl account --sample-rate", run("account", "--help").stdout)


def test_the_module_behind_the_installed_command():
    code = "from alidpfl.cli import main; main()"
    command = [sys.executable, "-c", code, "account", "--delta", "7"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("alidpfl: delta=7.0 ")
    assert done.stderr.count("\n") == 1


def test_what_steps_cost():
    result = run("account", "--delta", "5e-6", "--steps", "62", "--steps", "314", "--json")
    document = json.loads(result.stdout)
    assert [cost["steps"] for cost in document["costs"]] == [62, 314]
    for cost in document["costs"]:
        steps = privacy.SampledGaussian(sample_rate=0.015, noise_multiplier=1.1, steps=cost["steps"])
        for accountant, found in cost["epsilon"].items():
            assert found == privacy.epsilon([steps], 5e-6, accountant=accountant)
    shown = run("account", "--steps", "314").stdout
    assert ["at", "most,", "rdp-paper", "1.9997"] in [line.replace("│", " ").split() for line in shown.splitlines()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--steps", "5", "--epsilon", "2"], "--steps"),
        (["--steps", "0"], "steps=0"),
        (["--steps", "-1"], "steps=-1"),
    ],
)
def test_steps_that_cannot_be(arguments, message):
    result = run("account", *arguments)
    assert (result.exit_code, message in result.stderr) == (2, True)


class TestGroups:
    ARGUMENTS = ("account", "--sample-rate", "0.05", "--noise-multiplier", "2", "--group", "30")

    def test_what_is_shown_is_never_below_the_bound(self):
        document = json.loads(run(*self.ARGUMENTS, "--steps", "20", "--steps", "50", "--json").stdout)
        steps = [privacy.SampledGaussian(sample_rate=0.05, noise_multiplier=2.0, steps=count) for count in (20, 50)]
        exact = [privacy.group_epsilon([one], 1e-5, 30) for one in steps]
        assert [one["group_epsilon"] for one in document["groups"]] == exact
        assert [one["epsilon"] for one in document["groups"]] == [privacy.epsilon([one], 1e-5) for one in steps]
        rows = run(*self.ARGUMENTS, "--steps", "20", "--steps", "50").stdout.splitlines()
        (shown,) = (re.findall(r"\d+\.\d+", row) for row in rows if row.startswith("│ ε of 30 records"))
        assert all(0 <= float(one) - value < 1e-4 for one, value in zip(shown, exact, strict=True))

    def test_budgets_are_those_that_pld_pays_for(self):
        document = json.loads(run(*self.ARGUMENTS, "--epsilon", "0.001", "--epsilon", "2", "--json").stdout)
        (one,) = document["groups"]
        assert one["steps"] == document["budgets"][1]["max_steps"]["pld"]
        assert one["epsilon"] <= 2 < one["group_epsilon"] <= (one["naive_group_epsilon"] or float("inf"))

    def test_an_absurd_group_is_refused(self):
        for group in ("0", "-3", "1001"):
            assert run(*self.ARGUMENTS[:-1], group, "--steps", "5").exit_code != 0
