"""Rounds of a vault: what the policy allows is served once, and everything else is refused."""

import dataclasses
import errno
import json
import math
import re
import threading
import time

import numpy as np
import pytest
import torch

from alidpfl.dpsgd import RandomStream
from alidpfl.errors import BudgetExceededError, ConfigError
from alidpfl.methods import make_method
from alidpfl.models import make_model
from alidpfl.simulation.runner import Runner, SimulationData
from alidpfl.types import ClientPlan, ClientUpdate, RawSignals
from alidpfl.vault import chain as chain_module
from alidpfl.vault.folder import ANSWERS, LEDGER, status
from alidpfl.vault.messages import RoundRequest, decode_answer, encode, flat
from alidpfl.vault.policy import check_plan, make_policy
from alidpfl.vault.refusals import RefusalCode, VaultRefusedError, VaultTroubleError
from alidpfl.vault.service import public_info
from alidpfl.vault.training import RecordTrainer

from .disk import Disk
from .parts import (
    MOST_STEPS,
    NOISE,
    NUM_CLASSES,
    NUM_FEATURES,
    NUM_RECORDS,
    SAMPLE_RATE,
    CountingTrainer,
    body,
    lines,
    made_vault,
    opened,
    policy_values,
    request,
    spent,
    steps_of,
    weights,
)


def refused(vault, content: bytes) -> RefusalCode:
    before = len(vault.ledger.book.reservations)
    with pytest.raises(VaultRefusedError) as caught:
        vault.answer(content)
    assert len(vault.ledger.book.reservations) == before
    return caught.value.code


def test_a_round_is_reserved_trained_stored_and_released(tmp_path):
    folder = made_vault(tmp_path)
    with opened(folder) as vault:
        answer, after = decode_answer(vault.answer(body(steps=3, signals=["secants", "gradient_norm"])))
    assert (answer.run, answer.round, answer.steps, answer.num_records) == ("a", 0, 3, NUM_RECORDS)
    assert answer.secants is not None
    assert answer.gradient_norm is not None
    assert (answer.raw, answer.unsafe) == (None, [])
    assert {name: values.shape for name, values in after.items()} == {n: v.shape for n, v in weights().items()}
    assert all(np.isfinite(values).all() and (values != 0).any() for values in after.values())
    reserved, released = (json.loads(line) for line in lines(folder)[1:])
    assert reserved["kind"] == "RESERVED"
    assert released["kind"] == "RELEASED"
    expected = {"steps": 3, "units": 3, "sample_rate": SAMPLE_RATE, "noise_multiplier": NOISE, "clip_norm": 1.0}
    assert expected.items() <= reserved.items()
    assert (reserved["request"], released["reservation"]) == (answer.request, 1)
    assert answer.steps_left == status(folder.path)["units_left"]


def test_fresh_noise_for_every_round_and_every_vault(tmp_path):
    """Two rounds that differ only in their number, and the same round of a second vault on the same records."""
    folders = [made_vault(tmp_path, name) for name in ("one", "two")]
    seen = []
    for folder in folders:
        with opened(folder) as vault:
            seen += [decode_answer(vault.answer(body(round=k)))[1]["1.weight"].tobytes() for k in range(2)]
    assert len(set(seen)) == 4


def test_the_noise_is_as_large_as_the_plan_says(tmp_path):
    """With η = 1, one step and B = q n, the update is −(clipped sum + noise) / B: its spread is σC/B and more."""
    folder = made_vault(tmp_path, terms__min_noise_multiplier=50.0)
    with opened(folder) as vault:
        moved = []
        for k in range(40):
            _, after = decode_answer(
                vault.answer(body(round=k, steps=1, learning_rates=[1.0], noise_multiplier=50.0, clip_norm=0.1))
            )
            moved.append(np.concatenate([values.reshape(-1) for values in after.values()]))
    deviation = np.std(np.concatenate(moved)) * SAMPLE_RATE * NUM_RECORDS / 0.1
    assert deviation == pytest.approx(50.0, rel=0.08)  # 840 draws: 3 standard errors; the records add 2 % at most


# --------------------------------------------------------------------------------------------------------- limits


@pytest.mark.parametrize("asked", [MOST_STEPS + 1, 10**6, 10**30])
def test_too_many_steps_are_cut(tmp_path, asked):
    with opened(made_vault(tmp_path), CountingTrainer()) as vault:
        assert steps_of(vault.answer(body(steps=asked))) == MOST_STEPS
        assert vault.ledger.book.account.units == MOST_STEPS


@pytest.mark.parametrize("asked", [MOST_STEPS + 1, 10**6])
def test_too_many_steps_are_refused_where_the_policy_says_so(tmp_path, asked):
    with opened(made_vault(tmp_path, limits__on_excess="refuse"), CountingTrainer()) as vault:
        assert refused(vault, body(steps=asked)) is RefusalCode.POLICY
        assert steps_of(vault.answer(body(steps=MOST_STEPS))) == MOST_STEPS


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"noise_multiplier": NOISE * 0.999}, RefusalCode.POLICY),
        ({"noise_multiplier": 0.0}, RefusalCode.POLICY),
        ({"noise_multiplier": -NOISE}, RefusalCode.POLICY),
        ({"noise_multiplier": 1e7}, RefusalCode.POLICY),
        ({"sample_rate": SAMPLE_RATE * 1.001}, RefusalCode.POLICY),
        ({"sample_rate": 1.0}, RefusalCode.POLICY),
        ({"sample_rate": 0.0}, RefusalCode.POLICY),
        ({"sample_rate": -0.1}, RefusalCode.POLICY),
        ({"sample_rate": 0.9e-9}, RefusalCode.POLICY),
        ({"clip_norm": 1.001}, RefusalCode.POLICY),
        ({"clip_norm": 1e-4}, RefusalCode.POLICY),
        ({"clip_norm": -1.0}, RefusalCode.POLICY),
        ({"signals": ["raw"]}, RefusalCode.POLICY),
        ({"signals": ["secants", "raw"]}, RefusalCode.POLICY),
        ({"method": "pe_dpfl", "options": {"variant": "output"}}, RefusalCode.POLICY),
    ],
)
def test_what_the_policy_does_not_allow_is_refused(tmp_path, changes, code):
    trainer, folder = CountingTrainer(), made_vault(tmp_path)
    with opened(folder, trainer) as vault:
        assert refused(vault, body(**changes)) is code
        assert vault.refusals.counts == {code.value: 1}
    assert (trainer.plans, spent(folder)) == ([], 0)


def test_more_noise_and_a_lower_rate_are_served_and_not_charged_less_than_planned(tmp_path):
    with opened(made_vault(tmp_path), CountingTrainer()) as vault:
        vault.answer(body(noise_multiplier=2 * NOISE, sample_rate=SAMPLE_RATE / 2, clip_norm=0.5))
        assert vault.ledger.book.account.units == 2


@pytest.mark.parametrize(
    ("least", "most", "expected"), [(2.0, None, 100.0), (20.0, None, 200.0), (2.0, 2.5, 2.5), (2.0, 300.0, 300.0)]
)
@pytest.mark.parametrize("kind", ["planned", "filter"])
def test_noise_has_a_largest_value(tmp_path, kind, least, most, expected):
    """Else, under a filter, steps would cost next to nothing, and a server could time as many as it likes."""
    terms = {"terms__min_noise_multiplier": least, "limits__max_noise_multiplier": most, "accounting__kind": kind}
    with opened(made_vault(tmp_path, **terms), CountingTrainer()) as vault:
        vault.answer(body(noise_multiplier=expected))
        assert refused(vault, body(round=1, noise_multiplier=1.01 * expected)) is RefusalCode.POLICY
        told = vault.refusals.last[-1]["message"]
        assert f"noise_multiplier={1.01 * expected:g}" in told
        assert "limits.max_noise_multiplier" in told
        assert public_info(vault.enrolment, vault.policy)["limits"]["max_noise_multiplier"] == expected


def test_the_number_of_rounds_is_limited_over_all_runs_and_restarts(tmp_path):
    folder, trainer = made_vault(tmp_path, limits__max_rounds=3), FailingTrainer()
    with opened(folder, trainer) as vault, pytest.raises(VaultTroubleError):
        vault.answer(body(run="lost", steps=1))  # counts
    assert status(folder.path)["rounds_left"] == 2
    with opened(folder, CountingTrainer()) as vault:
        answers = [vault.answer(body(round=k, steps=1)) for k in range(2)]
    with opened(folder, CountingTrainer()) as vault:
        assert refused(vault, body(round=2, steps=1)) is RefusalCode.BUDGET
        assert refused(vault, body(run="b", steps=1)) is RefusalCode.BUDGET
        assert vault.answer(body(round=1, steps=1)) == answers[1]  # what is stored is still sent
        assert vault.ledger.book.account.affordable(SAMPLE_RATE, NOISE) > 0
    assert status(folder.path)["rounds_left"] == 0


NO_BIAS = {"1.weight": weights()["1.weight"]}
WRONG_WEIGHTS = {
    "nan": (NO_BIAS | {"1.bias": np.array([0, math.nan, 0], np.float32)}, RefusalCode.WEIGHTS),
    "inf": (NO_BIAS | {"1.bias": np.array([0, 0, -math.inf], np.float32)}, RefusalCode.WEIGHTS),
    "longer": (NO_BIAS | {"1.bias": np.zeros(4, np.float32)}, RefusalCode.MODEL),
    "folded": (weights() | {"1.weight": np.zeros((6, 3), np.float32)}, RefusalCode.MODEL),
    "flat": ({"params": np.zeros(21, np.float32)}, RefusalCode.MODEL),
    "missing": (NO_BIAS, RefusalCode.MODEL),
    "more": (weights() | {"2.bias": np.zeros(1, np.float32)}, RefusalCode.MODEL),
    "none": ({}, RefusalCode.MODEL),
}


@pytest.mark.parametrize("name", WRONG_WEIGHTS)
def test_weights_of_another_model_or_not_finite_are_refused(tmp_path, name):
    sent, code = WRONG_WEIGHTS[name]
    with opened(made_vault(tmp_path), CountingTrainer()) as vault:
        assert refused(vault, encode(request(), sent)) is code


def test_weights_of_another_type_are_refused(tmp_path):
    import safetensors.numpy

    text = {"alidpfl": request().model_dump_json()}
    for dtype in (np.float64, np.float16, np.int32):
        sent = safetensors.numpy.save({name: values.astype(dtype) for name, values in weights().items()}, text)
        with opened(made_vault(tmp_path, dtype.__name__), CountingTrainer()) as vault:
            assert refused(vault, sent) is RefusalCode.MODEL


@pytest.mark.parametrize("value", [3e38, -1e30, 1e15])
def test_huge_weights_are_served_because_they_reveal_nothing(tmp_path, value):
    """Also as the first weights that the model sees, and with a huge step size."""
    with opened(made_vault(tmp_path)) as vault:
        sent = body(value, steps=4, learning_rates=[1e6], signals=["secants", "gradient_norm"])
        assert steps_of(vault.answer(sent)) == 4


# ------------------------------------------------------------------------------------------------------- replays


def test_a_replay_is_answered_with_the_stored_bytes_also_after_a_restart(tmp_path):
    folder, trainer = made_vault(tmp_path), CountingTrainer()
    with opened(folder, trainer) as vault:
        first = vault.answer(body())
        assert vault.answer(body()) == first
    with opened(folder, trainer) as vault:
        assert vault.answer(body()) == first
    assert (len(trainer.plans), spent(folder)) == (1, 2)


def test_one_instruction_from_two_sides_at_once_is_trained_once(tmp_path):
    """Two threads of one process ask at once: the second waits, and gets the stored answer of the first."""
    trainer, answers = CountingTrainer(), []
    train, both_asked = trainer._train, threading.Event()

    def slowly(start, plan):
        both_asked.wait(5)
        time.sleep(0.2)  # long enough for the other to enter, if the lock were missing
        return train(start, plan)

    trainer._train = slowly
    with opened(made_vault(tmp_path), trainer) as vault:
        threads = [threading.Thread(target=lambda: answers.append(vault.answer(body()))) for _ in range(2)]
        for thread in threads:
            thread.start()
        both_asked.set()
        for thread in threads:
            thread.join()
        assert len(vault.ledger.book.reservations) == 1
    assert len(trainer.plans) == 1
    assert len(answers) == 2
    assert answers[0] == answers[1]


def test_raw_signals_that_nobody_asked_for_are_not_sent(tmp_path):
    trainer = CountingTrainer()
    raw = RawSignals(curvature=1.0, loss_before=2.0, loss_after=1.0)
    trainer._train = lambda start, _plan: ClientUpdate(client=0, params=start, raw=raw)
    with opened(made_vault(tmp_path), trainer) as vault:
        answer, _ = decode_answer(vault.answer(body()))
    assert answer.raw is None


def test_a_reservation_beyond_what_is_left_is_refused_by_the_ledger_itself(tmp_path):
    folder = made_vault(tmp_path)
    with opened(folder, CountingTrainer()) as vault:
        vault.answer(body(steps=1))
        (reservation,) = vault.ledger.book.reservations.values()
        left = vault.ledger.book.account.affordable(SAMPLE_RATE, NOISE)
        before = (folder.path / LEDGER).read_bytes()
        for units in (0, -1, left + 1):
            with pytest.raises(BudgetExceededError, match=f"{units} units"):
                vault.ledger.reserve(dataclasses.replace(reservation, round=1, units=units))
        assert (folder.path / LEDGER).read_bytes() == before
        assert vault.ledger.book.account.affordable(SAMPLE_RATE, NOISE) == left
        vault.ledger.reserve(dataclasses.replace(reservation, round=1, units=left))


def test_a_replay_written_down_differently_is_the_same_request(tmp_path):
    import safetensors.numpy

    text = json.dumps(dict(reversed(request().model_dump().items())), indent=1)
    with opened(made_vault(tmp_path), CountingTrainer()) as vault:
        first = vault.answer(body())
        assert vault.answer(safetensors.numpy.save(weights(), {"alidpfl": text})) == first


@pytest.mark.parametrize(
    "changed",
    [
        body(1e-30),
        body(steps=1),
        body(learning_rates=[0.4]),
        body(clip_norm=0.9),
        body(noise_multiplier=3.0),
        body(sample_rate=0.1),
        body(client=1),
        body(signals=["secants"]),
        body(method="adap_dpfl"),
    ],
)
def test_a_changed_replay_is_refused(tmp_path, changed):
    trainer = CountingTrainer()
    with opened(made_vault(tmp_path), trainer) as vault:
        vault.answer(body())
        assert refused(vault, changed) is RefusalCode.CHANGED_REPLAY
    assert len(trainer.plans) == 1


def test_rounds_of_a_run_only_grow_and_runs_share_one_budget(tmp_path):
    folder, trainer = made_vault(tmp_path), CountingTrainer()
    with opened(folder, trainer) as vault:
        vault.answer(body(round=5))
        assert refused(vault, body(round=4)) is RefusalCode.ROUND_ORDER
    with opened(folder, trainer) as vault:  # a restart forgets nothing
        assert refused(vault, body(round=0)) is RefusalCode.ROUND_ORDER
        vault.answer(body(round=6))
        vault.answer(body(run="b", round=0))  # a new run has new rounds and the same account
        assert vault.ledger.book.account.units == 6
    assert status(folder.path)["runs"] == 2


def test_pruned_answers_are_refused_and_not_trained_again(tmp_path):
    folder, trainer = made_vault(tmp_path, service__keep_answers=2), CountingTrainer()
    with opened(folder, trainer) as vault:
        answers = [vault.answer(body(round=k)) for k in range(4)]
        assert [refused(vault, body(round=k)) for k in range(2)] == [RefusalCode.PRUNED] * 2
        assert [vault.answer(body(round=k)) for k in (2, 3)] == answers[2:]
    assert (len(trainer.plans), len(list((folder.path / ANSWERS).iterdir()))) == (4, 2)


def test_a_damaged_answer_is_not_sent(tmp_path):
    folder = made_vault(tmp_path)
    with opened(folder, CountingTrainer()) as vault:
        vault.answer(body())
        stored = next((folder.path / ANSWERS).glob("*.safetensors"))
        content = bytearray(stored.read_bytes())
        content[-1] ^= 1
        stored.write_bytes(content)
        assert refused(vault, body()) is RefusalCode.PRUNED


class FailingTrainer(CountingTrainer):
    def _train(self, start, plan):
        self.plans.append(plan)
        raise RuntimeError("a record says 7")


def test_a_round_whose_training_failed_stays_charged_and_is_never_trained_again(tmp_path, caplog):
    folder, trainer = made_vault(tmp_path), FailingTrainer()
    with opened(folder, trainer) as vault:
        with pytest.raises(VaultTroubleError) as caught:
            vault.answer(body())
        assert "7" not in str(caught.value)
        assert caught.value.__cause__ is None
        assert caught.value.__suppress_context__
        assert refused(vault, body()) is RefusalCode.LOST
    assert (len(trainer.plans), spent(folder)) == (1, 2)
    assert "RuntimeError" in caplog.text  # the owner sees the type, but not the text
    assert "record says" not in caplog.text
    told = status(folder.path)
    assert (told["rounds_charged"], told["rounds_released"], told["rounds_lost"]) == (1, 0, 1)
    assert all("7" not in refusal["message"] for refusal in told["last_refusals"])


def test_a_disk_that_fills_up_after_the_answer_is_stored_delays_it_and_loses_nothing(tmp_path, monkeypatch):
    folder, trainer = made_vault(tmp_path), CountingTrainer()
    with opened(folder, trainer) as vault:
        with monkeypatch.context() as patch:
            # Two heads, RESERVED, two heads, RELEASED.
            patch.setattr(chain_module, "os", Disk("write", 5, errno.ENOSPC))
            with pytest.raises(VaultTroubleError) as caught:
                vault.answer(body())
            assert caught.value.code is RefusalCode.DISK
        assert spent(folder) == 2
        assert steps_of(vault.answer(body())) == 2
    assert (len(trainer.plans), spent(folder), len(lines(folder))) == (1, 2, 3)


# -------------------------------------------------------------------------------------------------------- budget


@pytest.mark.parametrize("kind", ["planned", "filter"])
def test_the_budget_ends_and_stays_ended(tmp_path, kind):
    folder, trainer = made_vault(tmp_path, accounting__kind=kind), CountingTrainer()
    with opened(folder, trainer) as vault:
        affordable = vault.ledger.book.account.affordable(SAMPLE_RATE, NOISE)
        rounds = 0
        while vault.ledger.book.account.affordable(SAMPLE_RATE, NOISE):
            vault.answer(body(round=rounds, steps=10**6))
            rounds += 1
        assert trainer.steps == affordable
        assert refused(vault, body(round=rounds)) is RefusalCode.BUDGET
    with opened(folder, trainer) as vault:
        for run in ("a", "b"):
            assert refused(vault, body(run=run, round=rounds)) is RefusalCode.BUDGET
    told = status(folder.path)
    assert 0.97 * 4 < told["epsilon_spent"] <= 4.0
    assert (told["units_spent"], told["units_left"], told["refusals"]["budget"]) == (affordable, 0, 3)


def test_noise_on_updates_is_charged_by_the_round_over_all_records(tmp_path):
    folder = made_vault(tmp_path, terms__release="update", terms__min_noise_multiplier=4.0, budget__epsilon=8.0)
    output = {"method": "pe_dpfl", "options": {"variant": "output"}, "noise_multiplier": 4.0}
    with opened(folder) as vault:
        answer, _ = decode_answer(vault.answer(body(**output, steps=4)))
        assert answer.steps == 4
        assert vault.ledger.book.account.units == 1
        reservation = vault.ledger.book.reservations[1]
        assert (reservation.units, reservation.sample_rate, reservation.release) == (1, 1.0, "update")
        assert refused(vault, body(round=1, noise_multiplier=4.0)) is RefusalCode.POLICY  # noise on steps


@pytest.mark.parametrize(
    ("method", "options", "noise"),
    [
        ("fedavg_dp", None, "gaussian"),
        ("ali_dpfl", None, "gaussian"),
        ("adap_dpfl", None, "gaussian"),
        ("pe_dpfl", None, "gaussian"),
        ("pe_dpfl", {"draws": 2, "regularisation": 0.3, "perturbation": 0.1}, "gaussian"),
        ("ali_dpfl", None, "grid"),
        ("pe_dpfl", None, "grid"),
    ],
)
def test_every_method_gives_what_a_simulation_gives(tmp_path, method, options, noise):
    """With seeded noise, which the owner has to allow: the same code trains, from the same keys."""
    folder = made_vault(tmp_path, unsafe=["seeded-noise"], seed=9, noise=noise)
    plan = ClientPlan(
        client=0,
        round=3,
        sample_rate=SAMPLE_RATE,
        noise_multiplier=NOISE,
        clip_norm=0.7,
        learning_rates=(0.5, 0.4, 0.3),
        signals=frozenset({"secants", "gradient_norm"}),
    )
    asked = RoundRequest.of_plan(plan, run="r", method=method, options=options)
    with opened(folder) as vault:
        answer, after = decode_answer(vault.answer(encode(asked, weights(0.1))))
        records = vault.enrolment.source.load().trained.records
        shapes = vault.enrolment.shapes
    built = make_method(method, clip_norm=0.7, noise_multiplier=NOISE, **(options or {}))
    data = SimulationData(
        inputs=records.inputs, targets=records.targets, clients=[torch.arange(NUM_RECORDS)], evaluation={}
    )
    model = make_model("linear", (NUM_FEATURES,), NUM_CLASSES, hidden=1, seed=5)
    simulated = Runner(model=model, method=built, data=data, seed=9, run="r", noise=noise).train(
        torch.from_numpy(flat(weights(0.1), shapes)), plan
    )
    assert flat(after, shapes).tobytes() == simulated.params.numpy().tobytes()
    assert (answer.secants, answer.gradient_norm) == (simulated.secants, simulated.gradient_norm)
    assert answer.unsafe == ["seeded-noise"]


def noises(run: str) -> np.ndarray:
    """What a vault with seeded noise answers where no record joins a batch: noise alone, of many rounds."""
    random = np.random.default_rng(0)
    inputs = torch.from_numpy(random.normal(size=(NUM_RECORDS, NUM_FEATURES)).astype(np.float32))
    model = make_model("linear", (NUM_FEATURES,), NUM_CLASSES, hidden=1, seed=5)
    trainer = RecordTrainer(model, inputs, torch.zeros(NUM_RECORDS, dtype=torch.int64), seed=9)
    start = np.zeros(NUM_CLASSES * (NUM_FEATURES + 1), np.float32)
    asked = [request(run=run, round=k, steps=1, sample_rate=1e-9) for k in range(60)]
    return np.concatenate([trainer.job(one)(start, one.plan(1)).params.numpy() for one in asked])


def test_seeded_noise_of_two_runs_is_independent():
    """Otherwise the difference of two runs' answers has no noise. The bound is five standard deviations."""
    first, again, other = (noises(run) for run in ("a", "a", "b"))
    assert np.array_equal(first, again)
    assert abs(np.corrcoef(first, other)[0, 1]) < 5 / math.sqrt(len(first))


@pytest.mark.parametrize("field", ["sample_rate", "noise_multiplier", "clip_norm"])
@pytest.mark.parametrize("side", [0, 1])
def test_a_refusal_shows_enough_digits_to_see_why(field, side):
    policy = make_policy(policy_values(limits__min_clip_norm=0.3, terms__min_noise_multiplier=1.0), "test")
    limits = {"sample_rate": (1e-9, SAMPLE_RATE), "noise_multiplier": (1.0, 100.0), "clip_norm": (0.3, 1.0)}[field]
    for away in (0.5, 1e-6, 1e-9, 1e-15, 0.0):  # the last is the number next to the limit
        beyond = limits[side] * (1 + away * (2 * side - 1))
        value = beyond if away else float(np.nextafter(limits[side], (2 * side - 1) * math.inf))
        with pytest.raises(VaultRefusedError) as caught:
            check_plan(request(**{"noise_multiplier": 1.0, field: value}), policy)
        told, low, high = (float(number) for number in re.findall(r"\d[\d.]*(?:e[-+]?\d+)?", str(caught.value)))
        assert told == value
        assert not low <= told <= high
        check_plan(request(**{"noise_multiplier": 1.0, field: limits[side]}), policy)


def test_noise_on_a_grid_is_the_owner_s_choice_and_what_it_does_not_cover_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(RandomStream, "normal", None)  # no floating-point noise is drawn
    with opened(made_vault(tmp_path, noise="grid")) as vault:
        assert decode_answer(vault.answer(body()))[0].steps == 2
        assert refused(vault, body(round=1, noise_multiplier=2000.0)) is RefusalCode.POLICY
        assert vault.ledger.book.account.units == 2  # the second was not charged
    with pytest.raises(ConfigError, match="grid"):
        made_vault(tmp_path, "other", noise="grid", terms__release="update")
