"""The search for batches in which a model mixes records: it finds all known ways, and accuses no honest model."""

import json

import pytest
import torch
from torch import nn

from alidpfl.audit import SearchOptions, audit_model
from alidpfl.errors import ConfigError, DataError
from tests.dpsgd.mixers import CLASSES, HONEST, MIXERS, WIDTH, Around, Tokens, squared_error
from tests.runs.command import alidpfl

OWN = ("--input-shape", str(WIDTH), "--classes", str(CLASSES), "--seed", "1")
SHOWN_AT_FIRST_SIGHT_ONLY = {
    *("hidden batch norm", "renamed batch norm", "in training mode only"),
    *("running maximum of targets", "running range"),
    *("a batch skipped if a loss is not finite", "a batch skipped if an error is not finite"),  # values that overflow
    *("a batch scaled down if an error is huge", "a batch without outputs that are no numbers"),
}


@pytest.mark.parametrize("name", MIXERS)
def test_every_known_way_of_mixing_is_found(name):
    """Fixed seeds: no false alarms. The search finds it itself, but for a few that the clipper's own trials find."""
    case, options = MIXERS[name], SearchOptions(trials=40, seed=1)
    found = audit_model(case.model(), (WIDTH,), loss=case.loss, targets=case.targets, options=options)
    assert found.is_refuted
    assert found.refusal is not None
    assert found.is_mixing == (name not in SHOWN_AT_FIRST_SIGHT_ONLY)


@pytest.mark.parametrize("name", HONEST)
def test_no_honest_model_is_accused(name):
    case, options = HONEST[name], SearchOptions(trials=30, seed=1)
    found = audit_model(case.model(), (WIDTH,), loss=case.loss, targets=case.targets, options=options)
    assert found.refusal is None
    assert not found.is_refuted
    assert found.trials == 30
    assert 0 < found.others_moved < found.allowed / 3  # rounding, and far from an accusation
    assert 0 < found.moved <= 1 + 1e-5


def only_with_huge_values(x):
    return x - x.mean(0) if x.abs().max() > 3000 else x


def test_the_search_finds_what_the_trials_do_not():
    found = audit_model(Around(only_with_huge_values), (WIDTH,), options=SearchOptions(trials=400, seed=1))
    assert found.refusal is None
    assert found.is_mixing
    assert found.is_refuted
    assert found.others_moved > 10 * found.allowed


def test_climbing_finds_worse_batches():
    """One record in capacity routing moves the sum by more than C: what an ε relies on is broken."""
    few, many = (
        audit_model(
            MIXERS["switch routing, capacity 1.25"].model(), (WIDTH,), options=SearchOptions(trials=trials, seed=2)
        )
        for trials in (20, 200)
    )
    assert many.others_moved >= few.others_moved
    assert many.moved > max(1.1, few.moved)


def test_a_search_can_be_repeated_and_changes_nothing():
    model = MIXERS["switch routing, capacity 1"].model()
    before, state = [p.clone() for p in model.parameters()], torch.get_rng_state()
    first, second = (audit_model(model, (WIDTH,), options=SearchOptions(trials=30, seed=5)) for _ in range(2))
    assert first == second
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))
    assert torch.equal(torch.get_rng_state(), state)


def test_tokens_and_other_targets():
    for is_mixing in (False, True):
        model = Tokens(is_mixing=is_mixing)
        found = audit_model(
            model, (5,), loss=squared_error, targets=torch.zeros(1), options=SearchOptions(trials=40, seed=1)
        )
        assert found.is_mixing == is_mixing


def test_the_time_is_kept():
    shares = []
    audit_model(
        nn.Linear(3, 2), (3,), options=SearchOptions(seconds=0.2, on_progress=lambda _, share: shares.append(share))
    )
    assert shares[0] == 0
    assert sorted(shares) == shares
    assert shares[-1] < 1


def test_a_model_that_is_refused_for_another_reason():
    found = audit_model(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), (4,), options=SearchOptions(trials=3))
    assert "BatchNorm1d" in found.refusal
    assert found.is_refuted
    assert not found.is_mixing
    assert found.trials == 0


def test_mistakes_are_named():
    with pytest.raises(ConfigError, match="trials=0"):
        audit_model(nn.Linear(3, 2), (3,), options=SearchOptions(trials=0))
    with pytest.raises(ConfigError, match="seconds=0"):
        audit_model(nn.Linear(3, 2), (3,), options=SearchOptions(seconds=0))
    with pytest.raises(DataError, match=r"\(4,\)"):
        audit_model(nn.Linear(3, 2), (4,), options=SearchOptions(trials=3))


def honest(input_shape, num_classes):
    return nn.Linear(*input_shape, num_classes)


def mixing():
    return MIXERS["switch routing, capacity 1.25"].build()


def one_argument(width):
    return nn.Linear(width, 2)


def broken():
    raise RuntimeError("no such file")


BUILT = nn.Linear(WIDTH, CLASSES)
NO_MODEL = 7
batch_loss = MIXERS["contrastive loss"].loss


def test_the_command_refutes_a_model_of_ones_own():
    done = alidpfl("audit", "--model", f"{__name__}:mixing", *OWN, "--trials", "60", "--json")
    assert done.exit_code == 1, done.stderr
    found = json.loads(done.stdout)
    assert found["refuted"] is found["mixing"] is True
    assert found["others_moved"] > found["allowed"]
    assert found["trials"] == 60
    assert "search for mixing" in done.stderr  # progress
    done = alidpfl("audit", "--model", f"{__name__}:mixing", *OWN, "--trials", "60")
    assert done.exit_code == 1
    assert "REFUTED" in done.stdout


@pytest.mark.parametrize("name", [f"{__name__}:honest", f"{__name__}:BUILT", "linear", "mlp"])
def test_the_command_accepts_honest_models(name):
    done = alidpfl("audit", "--model", name, *OWN, "--trials", "20", "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["refuted"] is False
    done = alidpfl("audit", "--model", name, *OWN, "--trials", "20")
    assert "not refuted" in done.stdout


def test_the_command_takes_shapes_from_the_configuration_and_a_loss():
    settings = ("--set", "data.name=synthetic", "--trials", "20", "--seed", "1", "--json")
    assert alidpfl("audit", "--model", "linear", *settings).exit_code == 0
    done = alidpfl("audit", "--model", "linear", "--loss", f"{__name__}:batch_loss", *settings)
    assert done.exit_code == 1, done.stderr


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--model", "linaer"), "linaer"),
        (("--model", "no_such_module:make"), "no_such_module"),
        (("--model", f"{__name__}:nothing"), "nothing"),
        (("--model", f"{__name__}:one_argument"), "1 arguments"),
        (("--model", f"{__name__}:broken"), "no such file"),
        (("--model", f"{__name__}:NO_MODEL"), "int"),
        (("--model", f"{__name__}:honest", "--input-shape", "3x4"), "3x4"),
        (("--model", f"{__name__}:honest", "--loss", "no_such_loss"), "no_such_loss"),
        (("--model", f"{__name__}:honest", "--trials", "0"), "trials=0"),
        (("--model", f"{__name__}:honest", "--seconds", "-1"), "seconds=-1"),
        (("--model", "linear", "--canaries", "100"), "--canaries"),
        (("--model", "linear", "--one-step"), "--one-step"),
        (("--trials", "10"), "--trials"),
    ],
)
def test_a_users_mistake_ends_with_status_2(options, says):
    shape = () if "--input-shape" in options or "--model" not in options else OWN[:4]
    done = alidpfl("audit", *options, *shape)
    assert done.exit_code == 2
    assert says in done.stderr
    assert done.stdout == ""
