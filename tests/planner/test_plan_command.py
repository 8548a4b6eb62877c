"""`alidpfl plan` as a user runs it."""

import json

import pytest

from alidpfl.runs import auto_plan
from tests.planner.conftest import SEARCH

PAPER = ("--sample-rate", "0.015", "--noise-multiplier", "1.1", "--model", "cnn")


def test_the_papers_setting_in_json(alidpfl):
    budgets = ("--epsilon", "2", "--delta", "1e-5", "--clients", "10", "--samples", "60000", "--max-rounds", "158")
    limits = ("--time-limit", "2h", "--seconds-per-round", "13", "--traffic-limit", "5GB")
    done = alidpfl("plan", *budgets, *PAPER, *limits, "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["max_steps"] == {"rdp-paper": 314, "rdp": 547, "pld": 716}
    assert plan["max_rounds"] == 107  # 5 GB carry that many
    assert plan["rounds_limited_by"] == "traffic_limit"
    assert plan["seconds"] == 107 * 13
    assert plan["bytes"] == 107 * 46_562_080
    assert set(plan["local_steps"]) == {"ali", "corrected", "fixed", "paper", "ratio", "reference"}
    assert plan["epsilon_spent"] <= 2.0


def test_the_tables_fit_eighty_columns_and_hold_every_accountant_and_policy(alidpfl, searched):
    done = alidpfl("plan", *SEARCH)
    assert done.returncode == 0, done.stderr
    tables = [line for line in done.stdout.splitlines() if line.startswith(("┃", "│", "┏", "└"))]
    assert max(map(len, tables)) <= 80
    for name in (*searched["max_steps"], *searched["policies"]):
        assert name in done.stdout
    for value in (searched["sample_rate"], searched["noise_multiplier"], *searched["max_steps"].values()):
        assert f"{value:g}" in done.stdout


def test_what_was_asked_before_is_answered_without_the_accountants(process, searched, tmp_path):
    """A second plan must not even load them: that is what makes it quick."""
    blocker = tmp_path / "dp_accounting.py"
    blocker.write_text("raise RuntimeError('loaded')")
    done = process("plan", *SEARCH, "--json", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == searched
    anew = process("plan", *SEARCH, "--epsilon", "5", "--json", PYTHONPATH=str(tmp_path))
    assert anew.returncode != 0  # the blocker does block


def test_persons_are_counted_instead_of_records(alidpfl):
    """The same numbers make the same plan: only what they count has another name."""
    numbers = ("--clients", "2", "--samples", "3200", "--sample-rate", "0.2", "--noise-multiplier", "5")
    plans = []
    for unit in ("record", "person"):
        plans.append(json.loads(alidpfl("plan", *numbers, "--unit", unit, "--json").stdout))
        assert plans[-1].pop("request").pop("unit") == unit
        told = alidpfl("plan", *numbers, "--unit", unit).stdout
        assert f"3,200 {unit}s" in told
    assert plans[0] == plans[1]
    assert "unit='patient'" in alidpfl("plan", *numbers, "--unit", "patient").stderr


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--max-rounds", "0"), "max_rounds=0"),
        (("--epsilon", "0.01", "--accountant", "rdp-paper"), "epsilon=0.01"),
        (("--epsilon", "0.01", *PAPER), "0.2305"),
        (("--traffic-limit", "1MB", "--model", "cnn"), "46,562,080 bytes"),
        (("--time-limit", "10s", "--seconds-per-round", "13"), "13 s"),
        (("--time-limit", "soon", "--seconds-per-round", "13"), "time_limit='soon'"),
        (("--model", "cnm"), "'cnn'"),
        (("--accountant", "pdl"), "'pld'"),
        (("--epsilon", "-1"), "epsilon=-1"),
        (("--plot", "plan.jpg", *SEARCH), "plan.jpg"),
    ],
)
def test_an_impossible_request_is_refused_in_one_line(alidpfl, searched, options, named):
    done = alidpfl("plan", *options)
    assert done.returncode == 2
    assert named in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_pictures_are_drawn_and_repeatable(alidpfl, searched, tmp_path):
    for name in ("one.svg", "two.svg", "three.png"):
        assert alidpfl("plan", *SEARCH, "--plot", tmp_path / name).returncode == 0
    drawn = (tmp_path / "one.svg").read_bytes()
    assert drawn == (tmp_path / "two.svg").read_bytes()
    assert b"<svg" in drawn
    assert (tmp_path / "three.png").read_bytes().startswith(b"\x89PNG")


def test_run_uses_the_plan(alidpfl, tmp_path):
    few = ("--set", "data.name=synthetic", "--set", "data.clients=3", "--set", "model.name=linear")
    rest = ("--set", "federation.max_rounds=30", "--set", "privacy.epsilon=4", "--set", "run.processes=1")
    even = ("--set", "method.policy=ratio")  # takes all steps, whatever the noise
    done = alidpfl(
        "run", *few, *rest, *even, "--plan", "auto", "--max-epochs", "6", "--json", "--out", tmp_path / "run"
    )
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["steps"] >= 115  # the planner asks for 120
    assert 3.8 < outcome["epsilon"] <= 4.0
    assert outcome["stop_reason"] in ("max_rounds", "budget")
    kept = (tmp_path / "run" / "config.toml").read_text()
    assert f"noise_multiplier = {outcome['noise_multiplier']}" in kept
    assert f"σ = {outcome['noise_multiplier']:g}" in done.stderr


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--plan", "manual"), "manual"),
        (("--max-epochs", "5"), "--plan auto"),
        (("--plan", "auto", "--set", "privacy.max_steps=5"), "privacy.max_steps=5"),
        (("--plan", "auto", "--set", "privacy.noise_multiplier=2"), "privacy.noise_multiplier=2"),
        (("--plan", "auto", "--set", "federation.clients_per_round=2"), "federation.clients_per_round=2"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(alidpfl, tmp_path, options, named):
    done = alidpfl(
        "run", "--set", "data.name=synthetic", "--set", "model.name=linear", *options, "--out", tmp_path / "r"
    )
    assert done.returncode == 2
    assert named in done.stderr
    assert not (tmp_path / "r").exists()


def test_a_decided_rate_stays(alidpfl, tmp_path):
    few = ("--set", "data.name=synthetic", "--set", "data.clients=3", "--set", "model.name=linear")
    rest = ("--set", "federation.max_rounds=2", "--set", "privacy.sample_rate=0.11", "--set", "run.processes=1")
    done = alidpfl("run", *few, *rest, "--plan", "auto", "--json", "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "sample_rate = 0.11" in (tmp_path / "run" / "config.toml").read_text()
    assert "q = 0.11" in done.stderr


def test_the_setting_of_a_run_is_cached_and_its_weak_signal_told(alidpfl, tmp_path, monkeypatch):
    searched, search = [], auto_plan.choose_setting
    monkeypatch.setattr(auto_plan, "choose_setting", lambda *given: searched.append(given) or search(*given))
    few = ("--set", "data.name=synthetic", "--set", "data.clients=3", "--set", "model.name=linear")
    rest = ("--epsilon", "0.01", "--delta", "1e-7", "--rounds", "1", "--set", "run.processes=1", "--plan", "auto")
    outcomes, told = [], []
    for name in ("first", "second"):
        done = alidpfl("run", *few, *rest, "--json", "--out", tmp_path / name)
        assert done.returncode == 0, done.stderr
        outcomes.append(json.loads(done.stdout))
        told.append([line for line in done.stderr.splitlines() if line.startswith(("plan:", "warning:"))])
    assert len(searched) == 1
    assert told[0] == told[1]
    assert "signal-to-noise is 0." in told[0][1]
    assert outcomes[0]["noise_multiplier"] == outcomes[1]["noise_multiplier"]
    alidpfl("run", *few, *rest, "--epsilon", "0.02", "--json", "--out", tmp_path / "third")
    assert len(searched) == 2


def test_a_plan_for_a_table_compares_clip_norms(alidpfl, tmp_path):
    schema = tmp_path / "schema.toml"
    schema.write_text(
        'target = { column = "died", kind = "class", values = ["no", "yes"] }\n'
        '[columns]\nage = { kind = "number", low = 0, high = 110 }\n'
    )
    given = ("--schema", schema, "--clients", "3", "--samples", "900", "--max-rounds", "5", "--min-steps", "5")
    done = alidpfl("plan", *given, "--json", "--html", tmp_path / "plan.html")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)
    assert plan["request"]["num_params"] == 2 * (2 + 1)  # age and its indicator, with a bias, for two classes
    assert [trial["name"] for trial in plan["clip_norms"]] == ["C = 1", "default", "public bound", "best possible"]
    page = (tmp_path / "plan.html").read_text()
    assert f"{plan['clip_norms'][2]['clip_norm']:.4g}" in page


def test_a_plan_for_a_table_takes_the_loss_of_the_run(alidpfl, tmp_path):
    schema = tmp_path / "schema.toml"
    schema.write_text(
        'target = { column = "days", kind = "number", low = 1, high = 30 }\n'
        '[columns]\nage = { kind = "number", low = 0, high = 110 }\n'
    )
    given = ("--schema", schema, "--clients", "3", "--samples", "900", "--max-rounds", "5", "--min-steps", "5")
    plans = [
        json.loads(alidpfl("plan", *given, "--json", *loss).stdout)["clip_norms"]
        for loss in ((), ("--loss", "quantile", "--quantile", "0.9"))
    ]
    assert "pinball" not in plans[0][0]["metrics"]
    assert "pinball" in plans[1][0]["metrics"]
    assert plans[0][1]["clip_norm"] > plans[1][1]["clip_norm"]
    refused = (("binary",), ("hubert",), ("poisson",), ("quantile", "--quantile", "1"))
    for wrong in (*((*given, "--loss", *loss) for loss in refused), ("--loss", "huber")):
        done = alidpfl("plan", *wrong)
        assert done.returncode == 2
        assert len(done.stderr.strip().splitlines()) == 1
