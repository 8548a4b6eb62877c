"""`alidpfl audit` as a user runs it."""

import json
import re

import pytest

from alidpfl.dpsgd import step
from tests.audit.parts import REAL_ADD_NOISE, network, subject, too_little_noise
from tests.runs.command import ADAP, alidpfl, overrides

QUICK = ("--draws", "100", "--canaries", "50", "--seed", "1")


def audit(*options, **changes):
    settings = (part for one in overrides(**changes) for part in ("--set", one))
    return alidpfl("audit", *settings, *QUICK, *options)


@pytest.mark.parametrize(
    "changes",
    [{}, {"model.name": "mlp"}, ADAP, {"method.name": "pe_dpfl", "method.options.variant": "output"}],
    ids=["linear", "mlp", "adap_dpfl", "output"],
)
def test_a_claim_that_holds(changes):
    done = audit("--json", **{"privacy.max_steps": 3, **changes})
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["refuted"] is False
    assert 0 <= found["lower_bound"] < found["claimed_epsilon"] == 2.0
    assert found["confidence"] == pytest.approx(1 - 0.05 - 2 * 0.0001, rel=1e-9)  # the run, the step, its noise
    assert found["one_run"]["canaries"] == 50


def test_a_claim_that_is_broken_ends_with_status_1(monkeypatch, tmp_path):
    too_little_noise(monkeypatch, 4.0)
    done = audit("--one-step", "--plot", tmp_path / "audit.svg", **{"privacy.max_steps": 3})
    assert done.exit_code == 1
    assert re.search(r"REFUTED: .*ε = 2 at δ = 1e-05", done.stdout)
    assert "One run" not in done.stdout
    assert "REFUTED" in (tmp_path / "audit.svg").read_text()


def test_noise_that_is_missing_off_the_canarys_line_is_told(monkeypatch):
    def but_one_weight(gradients, scale, random):
        REAL_ADD_NOISE(gradients, scale, random)
        next(iter(gradients.values())).view(-1)[0] = 0.0

    monkeypatch.setattr(step, "add_noise", but_one_weight)
    done = audit("--one-step", **{"privacy.max_steps": 3})
    assert done.exit_code == 1
    assert re.search(r"REFUTED: weight 0 has .*ε = 2 at δ = 1e-05", " ".join(done.stdout.split()))


def test_what_is_printed_says_what_it_means(tmp_path):
    done = audit("--plot", tmp_path / "audit.png", **{"privacy.max_steps": 3})
    assert done.exit_code == 0, done.stderr
    for words in ("One step", "One run", "confidence 0.9999", "confidence 0.95", "not refuted", "no proof"):
        assert words in done.stdout
    assert (tmp_path / "audit.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--plot", "audit.jpg"), "audit.jpg"),
        (("--draws", "5"), "draws=5"),
        (("--canaries", "5"), "canaries=5"),
        (("--confidence", "2"), "confidence=2.0"),
        (("--set", "privacy.epsilom=2"), "privacy.epsilon"),
    ],
)
def test_a_users_mistake_ends_with_status_2(options, says):
    done = audit(*options, **{"privacy.max_steps": 2})
    assert done.exit_code == 2
    assert says in done.stderr
    assert done.stdout == ""


@pytest.mark.slow
def test_the_real_engine_is_never_refuted():
    """200 repetitions of both audits, with other noise, other canaries and other coins each time."""
    from alidpfl.audit import Audit, audit_run, audit_step

    refuted = []
    for seed in range(200):
        claims = subject(network() if seed % 2 else None)
        found = Audit(
            claimed_epsilon=1.0,
            delta=1e-5,
            step=audit_step(claims, draws=200, seed=seed),
            run=audit_run(claims, canaries=100, seed=seed),
        )
        if found.is_refuted:
            refuted.append(seed)
    assert refuted == []


@pytest.mark.slow
@pytest.mark.parametrize("model", ["cnn", "compact_cnn", "linear", "mlp", "scatter_linear"])
def test_every_model_of_a_configuration_can_be_audited(model):
    settings = ("--set", f"model.name={model}", "--set", "privacy.max_steps=3", "--set", "privacy.accountant=rdp")
    done = alidpfl("audit", *settings, *QUICK, "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["one_step"]["strength"] > 0.995  # clipping is 0.4 % lower, for rounding


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--draws", "100000000000"], "draws=100000000000"),
        (["--seed", "-1"], "seed=-1"),
        (["--confidence", "2"], "confidence=2"),
        (["--one-step", "--one-run"], "--one-run"),
    ],
)
def test_what_cannot_be_done_is_known_before_data_are_loaded(arguments, says, monkeypatch):
    monkeypatch.setattr("alidpfl.audit.subject.load_data", None)
    done = alidpfl("audit", *arguments)
    assert done.exit_code == 2
    assert says in done.stderr
