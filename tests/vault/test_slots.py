"""Time slots: answers leave at public times, and only the owner learns how long the work took."""

import asyncio
import dataclasses
import errno
import json
import threading
import time

import httpx
import pytest
from scipy import stats

from alidpfl.errors import ConfigError
from alidpfl.federation.client import LocalTrainer
from alidpfl.vault import chain as chain_module
from alidpfl.vault.folder import SLOTS, AnswerStore, status
from alidpfl.vault.messages import RoundAnswer, decode_answer
from alidpfl.vault.policy import make_policy
from alidpfl.vault.refusals import RefusalCode, VaultRefusedError, refusal
from alidpfl.vault.service import Service, public_info
from alidpfl.vault.slots import Cost, SlotLog, Timetable, storing_seconds, wait_until

from .disk import Disk
from .parts import (
    NUM_RECORDS,
    SAMPLE_RATE,
    CountingTrainer,
    FakeClock,
    body,
    made_vault,
    opened,
    policy_values,
    request,
    served,
)

PER_ROUND, PER_STEP, STEPS = 2.0, 0.5, 2
SLOT = PER_ROUND + STEPS * PER_STEP
SECONDS = {"service__seconds_per_round": PER_ROUND, "service__seconds_per_step": PER_STEP}
MEASURED = {"service__seconds_per_round": None, "service__seconds_per_step": None}

TAKEN = [(0.0, 1), (0.5, 1), (0.999, 1), (1.0, 1), (1.5, 2), (2.0, 2), (3.2, 4)]
"""How long the work takes and when its answer leaves, in slots."""


@dataclasses.dataclass
class SlowTrainer(CountingTrainer):
    """Takes so much time on a false clock, and may fail then."""

    clock: FakeClock = dataclasses.field(default_factory=FakeClock)
    seconds: float = 0.0
    error: Exception | None = None

    def _train(self, start, plan):
        self.clock.pass_(self.seconds)
        if self.error is not None:
            raise self.error
        return super()._train(start, plan)


def slow(tmp_path, seconds=0.0, error=None, **changes):
    trainer = SlowTrainer(seconds=seconds, error=error)
    return trainer.clock, opened(made_vault(tmp_path, **{**SECONDS, **changes}), trainer, clock=trainer.clock)


@pytest.mark.parametrize(("taken", "slots"), TAKEN)
def test_an_answer_leaves_at_the_end_of_a_slot_whatever_the_training_took(tmp_path, taken, slots):
    clock, vault = slow(tmp_path, taken * SLOT)
    with vault as vault:
        vault.answer(body(steps=STEPS))
    assert clock.waits == [pytest.approx(1000 + slots * SLOT)]


@pytest.mark.parametrize(("taken", "slots"), TAKEN)
def test_a_failed_training_leaves_at_the_same_time(tmp_path, taken, slots):
    clock, vault = slow(tmp_path, taken * SLOT, RuntimeError())
    with vault as vault, pytest.raises(VaultRefusedError):
        vault.answer(body(steps=STEPS))
    assert clock.waits == [pytest.approx(1000 + slots * SLOT)]


@pytest.mark.parametrize("fault", ["answer not stored", "release not written", "bug"])
def test_whatever_goes_wrong_after_the_charge_leaves_at_the_same_time(tmp_path, monkeypatch, fault):
    clock, vault = slow(tmp_path, 0.25 * SLOT)
    with vault as vault, monkeypatch.context() as patch:
        if fault == "answer not stored":
            disk = refusal(RefusalCode.DISK, "full")
            patch.setattr(AnswerStore, "store", lambda *_: (_ for _ in ()).throw(disk))
        elif fault == "release not written":
            patch.setattr(chain_module, "os", Disk("write", 6, errno.ENOSPC))
        else:
            patch.setattr("alidpfl.vault.rounds.messages.encode_update", None)
        with pytest.raises((VaultRefusedError, TypeError)):
            vault.answer(body(steps=STEPS))
        assert len(vault.ledger.book.reservations) == 1
    assert clock.waits == [pytest.approx(1000 + SLOT)]


def test_what_touches_no_record_leaves_at_once(tmp_path):
    clock, vault = slow(tmp_path, 0.5 * SLOT)
    with vault as vault:
        vault.answer(body())
        vault.answer(body())  # stored
        for content in (b"", body(round=1, noise_multiplier=1.0), body(steps=1)):
            with pytest.raises(VaultRefusedError):
                vault.answer(content)
    assert len(clock.waits) == 1


def test_only_the_owner_learns_of_an_overrun(tmp_path, caplog):
    answers, told = [], []
    for name, taken in (("quick", 0.1), ("late", 2.5)):
        trainer = SlowTrainer(seconds=taken * SLOT)
        folder = made_vault(tmp_path, name, **SECONDS)
        with opened(folder, trainer, clock=trainer.clock) as vault:
            answers.append(vault.answer(body(steps=STEPS)))
            info = public_info(vault.enrolment, vault.policy)
        told.append(status(folder.path))
    assert answers[0] == answers[1]
    assert [(found["overruns"], len(found["last_overruns"])) for found in told] == [(0, 0), (1, 1)]
    (entry,) = told[1]["last_overruns"]
    assert (entry["run"], entry["round"], entry["slot"], entry["seconds"]) == ("a", 0, SLOT, 2.5 * SLOT)
    assert "more than its slot" in caplog.text
    public = json.dumps(info) + " ".join(RoundAnswer.model_fields)
    assert not any(word in public for word in ("overrun", "seconds", "slot"))


def test_the_next_round_waits_until_the_slot_ends(tmp_path):
    """Otherwise a second caller would learn when training ended."""
    reached, end, answers = threading.Event(), threading.Event(), []
    clock, vault = slow(tmp_path)
    clock.wait_until = lambda _moment: (reached.set(), end.wait(10))
    with vault as vault:
        first = threading.Thread(target=lambda: answers.append(vault.answer(body())))
        second = threading.Thread(target=lambda: answers.append(vault.answer(body(round=1))))
        first.start()
        assert reached.wait(10)
        second.start()
        second.join(0.2)
        assert second.is_alive()
        assert len(vault.ledger.book.reservations) == 1
        end.set()
        first.join()
        second.join()
    assert len(answers) == 2


def test_the_vault_is_busy_until_the_slot_ends(tmp_path):
    reached, end = threading.Event(), threading.Event()
    clock, vault = slow(tmp_path, service__max_wait_seconds=0.0)
    clock.wait_until = lambda _moment: (reached.set(), end.wait(10))

    async def asked(service):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(service.app), base_url="http://vault") as http:
            first = asyncio.create_task(http.post("/v1/train", content=body()))
            while not reached.is_set():
                await asyncio.sleep(0.005)
            busy = await http.post("/v1/train", content=body(round=1))
            end.set()
            return (await first).status_code, busy.json()["code"]

    with vault as vault:
        service = Service(vault)
        assert asyncio.run(asked(service)) == (200, "busy")
        service.stop()


def test_waiting_ends_no_earlier_than_it_should():
    for seconds in (-1.0, 0.0, 0.0005, 0.004):
        moment = time.monotonic() + seconds
        wait_until(moment)
        assert time.monotonic() >= moment


# ------------------------------------------------------------------------------------------------- the slot's length


class Meter:
    """Notes what is measured."""

    def __init__(self):
        self.rates = []

    def __call__(self, asked):
        self.rates.append(asked.sample_rate)
        return Cost(round=0.01, step=asked.sample_rate)


def timetable(**changes) -> tuple[Timetable, Meter]:
    meter = Meter()
    return Timetable(make_policy(policy_values(**changes), "test"), meter, storing=0.02), meter


def test_a_slot_grows_with_the_steps_and_covers_what_was_measured():
    table, _ = timetable(**MEASURED)
    lengths = [table.seconds(request(), steps) for steps in (1, 2, 7)]
    assert lengths[0] > 0.01 + 0.02 + SAMPLE_RATE
    assert lengths[2] - lengths[1] == pytest.approx(5 * (lengths[1] - lengths[0]))
    assert lengths[1] - lengths[0] > SAMPLE_RATE


def test_the_owners_seconds_are_taken_and_nothing_is_measured():
    table, meter = timetable(service__seconds_per_round=3.0, service__seconds_per_step=0.25)
    assert table.seconds(request(), 4) == 4.0
    assert meter.rates == []
    table, _ = timetable(**{**MEASURED, "service__seconds_per_round": 3.0})
    assert table.cost(request()).round == 3.0
    assert table.cost(request()).step > SAMPLE_RATE


def test_a_server_cannot_make_the_vault_measure_for_ever():
    """Every q is measured at the next larger of a few rates."""
    table, meter = timetable(**MEASURED)
    rates = [SAMPLE_RATE * 0.97**k for k in range(2000) if SAMPLE_RATE * 0.97**k >= 1e-9]
    for rate in rates:
        before = len(meter.rates)
        table.seconds(request(sample_rate=rate), 1)
        assert all(rate <= measured < 2.0001 * rate for measured in meter.rates[before:])
    for perturbation in range(50):
        options = {"draws": 1 + perturbation % 2, "perturbation": 0.01 * perturbation}
        table.seconds(request(method="pe_dpfl", options=options), 1)
    assert len(meter.rates) < 35


def test_slots_are_measured_on_made_up_records_and_the_largest_batch(tmp_path, monkeypatch):
    seen, train = [], LocalTrainer.train

    def watched(self, params, data, plan, random):
        seen.append((data, plan))
        return train(self, params, data, plan, random)

    monkeypatch.setattr(LocalTrainer, "train", watched)
    with opened(made_vault(tmp_path, **MEASURED)) as vault:
        records = vault.trainer._data
        cost = vault.trainer.cost(request())
    assert cost.round >= 0
    assert cost.step > 0
    pointers = {data.inputs.untyped_storage().data_ptr() for data, _ in seen}
    assert records.inputs.untyped_storage().data_ptr() not in pointers
    assert not any(bool((data.inputs == records.inputs).any()) for data, _ in seen)
    assert {len(data) for data, _ in seen} == {NUM_RECORDS}
    (rate,) = {plan.sample_rate for _, plan in seen}
    assert SAMPLE_RATE < rate <= 1
    assert rate * NUM_RECORDS == pytest.approx(round(rate * NUM_RECORDS))
    assert stats.binom.sf(round(rate * NUM_RECORDS), NUM_RECORDS, SAMPLE_RATE) <= 1e-9
    assert {plan.steps for _, plan in seen} >= {0, 2}


def test_a_served_vault_measures_its_slots(tmp_path):
    folder = made_vault(tmp_path, **MEASURED)
    with served(folder) as (_, client):
        slot = status(folder.path)["slot"]
        assert slot["round"] > 0
        assert slot["step"] > 0
        client.train_bytes(body())
    assert list(folder.path.glob("**/*.trial")) == []


def test_a_served_vault_keeps_to_its_slots(tmp_path):
    folder = made_vault(tmp_path, service__seconds_per_round=0.2, service__seconds_per_step=0.1)
    with served(folder) as (_, client):
        started = time.monotonic()
        client.train_bytes(body(steps=2))
        assert time.monotonic() - started >= 0.4  # a lower bound holds on any machine


def test_storing_is_measured_and_a_bad_disk_is_left_to_the_round(tmp_path):
    assert storing_seconds([tmp_path / "a", tmp_path / "b"], 100) > 0
    assert storing_seconds([tmp_path / "missing" / "a"], 100) >= 0
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------------------------------------- the owner's choices


def test_slots_are_switched_off_only_by_name(tmp_path):
    for key in ("seconds_per_round", "seconds_per_step"):
        for value in (0, -1.0):
            with pytest.raises(ConfigError, match=key):
                make_policy(policy_values(**{f"service__{key}": value}), "here")
    clock, vault = slow(tmp_path, 5 * SLOT, unsafe=["prompt-answers"])
    with vault as vault:
        answer, _ = decode_answer(vault.answer(body()))
        assert public_info(vault.enrolment, vault.policy)["unsafe"] == ["prompt-answers"]
    assert clock.waits == []
    assert answer.unsafe == ["prompt-answers"]
    told = status(tmp_path / "vault")
    assert (told["overruns"], told["rounds_not_covered"]) == (0, {"prompt-answers": 1})


def test_the_log_of_slots_is_bounded_and_survives_damage(tmp_path):
    log = SlotLog(tmp_path / SLOTS)
    log.note_cost(Cost(round=0.1, step=0.2))
    for number in range(30):
        log.note_overrun("a", number, 1.0, 1.5)
    again = SlotLog.read(tmp_path / SLOTS)
    assert (again.cost, again.overruns, len(again.last)) == (Cost(round=0.1, step=0.2), 30, 20)
    assert again.last[-1]["round"] == 29
    for damage in (b"", b"{}", b"[]", b'{"cost": 1, "overruns": 0, "last": []}', b"\xff"):
        (tmp_path / SLOTS).write_bytes(damage)
        assert SlotLog.read(tmp_path / SLOTS).overruns == 0
