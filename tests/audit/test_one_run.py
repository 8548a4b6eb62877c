"""The one-run audit: the real training passes, and training that sometimes lacks noise does not."""

import pytest
import torch

from alidpfl.audit import audit_run, one_run
from alidpfl.audit.bounds import one_run_epsilon_bound
from alidpfl.audit.canaries import make_canaries
from alidpfl.audit.one_run import Attempt, attempts, best_attempt
from alidpfl.audit.subject import stream
from alidpfl.errors import ConfigError
from tests.audit.parts import network, noise_skipped_every, nothing_clipped, softmax_regression, subject

WIDE = 1000  # enough parameters for canaries with different gradients


def wide_subject():
    return subject(softmax_regression(WIDE), features=WIDE)


def test_the_real_training_is_not_refuted():
    audited = wide_subject()
    found = audit_run(audited, canaries=300, seed=1)
    assert not found.is_refuted
    assert found.lower_bound < found.claimed_epsilon == 1.0
    assert found.steps == audited.max_steps
    assert (found.strength, found.overlap) == (pytest.approx(1, abs=1e-3), pytest.approx(0, abs=0.05))
    assert len(found.scores_in) + len(found.scores_out) == 300
    assert 100 < len(found.scores_in) < 200


def test_a_canary_that_was_in_scores_higher():
    """With hardly any noise nearly all guesses are correct. Otherwise the audit would pass any engine."""
    found = audit_run(subject(softmax_regression(WIDE), features=WIDE, sigma=0.1, epsilon=1000.0), canaries=200, seed=1)
    assert found.correct / found.guesses > 0.9
    assert found.lower_bound > 1
    assert not found.is_refuted


def test_noise_that_is_skipped_now_and_then_is_refuted(monkeypatch):
    noise_skipped_every(monkeypatch, 3)
    found = audit_run(wide_subject(), canaries=600, seed=1)
    assert found.correct >= 0.95 * found.guesses
    assert found.is_refuted


def test_a_sum_that_is_not_clipped_is_refuted(monkeypatch):
    nothing_clipped(monkeypatch)
    assert audit_run(wide_subject(), canaries=300, seed=1).is_refuted


@pytest.mark.parametrize(
    "options",
    [
        {"method": "adap_dpfl", "sigma": 4.0},
        {"method": "pe_dpfl", "model": network()},
        {"method": "pe_dpfl", "variant": "output", "sigma": 10.0},
    ],
)
def test_every_kind_of_release_can_be_audited(options):
    audited = subject(**options)
    found = audit_run(audited, canaries=50, seed=1)
    assert not found.is_refuted
    assert audited.max_steps - 2 <= found.steps <= audited.max_steps  # adap_dpfl lowers its noise, and pays for it


def test_a_client_has_as_many_records_whatever_the_coins():
    audited = subject()
    canaries = make_canaries(audited, 50, stream(1))
    for is_in in (torch.zeros(50, dtype=torch.bool), torch.ones(50, dtype=torch.bool)):
        records = one_run._records(audited, canaries, is_in)
        (rows,) = records.clients
        assert len(rows) == 20 + 50
        kept = records.inputs[rows[20:]]
        assert bool(kept.isnan().all()) != bool(is_in.all())
        assert torch.equal(records.inputs[rows[:20]], audited.inputs)


def test_the_highest_scores_are_guessed_in_and_the_lowest_out():
    scores = torch.arange(100, dtype=torch.float64)
    found = attempts(scores, scores >= 40)
    assert Attempt(guesses=10, correct=10) in found
    assert Attempt(guesses=50, correct=50) in found
    upside_down = attempts(-scores, scores >= 40)
    assert max(a.correct for a in upside_down if a.guesses == 50) <= 10


def test_the_best_of_several_attempts_pays_for_the_choice():
    made = [Attempt(guesses=50, correct=45), *[Attempt(guesses=50, correct=25)] * 5]
    bound, best = best_attempt(made, 1000, 1e-5, 0.95)
    assert best == made[0]

    def alone(confidence):
        return one_run_epsilon_bound(canaries=1000, guesses=50, correct=45, delta=1e-5, confidence=confidence)

    assert bound == alone(1 - 0.05 / 6) < alone(0.95)


def test_a_seed_repeats_an_audit():
    first, again, other = (audit_run(subject(), canaries=50, seed=seed) for seed in (1, 1, None))
    assert first == again
    assert first.scores_in != other.scores_in


def test_too_few_canaries_are_refused():
    with pytest.raises(ConfigError, match="canaries=10"):
        audit_run(subject(), canaries=10)
