"""What a node sends: an introduction or an update, damaged or made up. It is used, or left out with a reason."""

import json

import numpy as np
import safetensors.numpy
import torch
from hypothesis import given
from hypothesis import strategies as st

from alidpfl.flower.engine import VaultEngine
from alidpfl.flower.nodes import Failure, Member, gather, most_common_task
from alidpfl.privacy import PlannedLedger, PrivacyBudget
from alidpfl.privacy.client_ledger import CappedLedger
from alidpfl.types import ClientPlan
from alidpfl.vault.messages import RoundAnswer, RoundRequest, decode_request, encode, request_digest

from .damage import damaged, edited
from .harness import check_text, examples, fine_or_refused

SHAPES = {"weight": (3, 2), "bias": (3,)}
SIGMA, RATE, RECORDS = 2.0, 0.1, 50
PLAN = ClientPlan(
    client=0,
    round=0,
    sample_rate=RATE,
    noise_multiplier=SIGMA,
    clip_norm=1.0,
    learning_rates=(0.5, 0.5),
    signals=frozenset({"secants", "gradient_norm"}),
)
INFO = {
    "vault": "a",
    "num_records": RECORDS,
    "num_classes": 3,
    "input_shape": [2],
    "parameters": [[name, list(shape)] for name, shape in SHAPES.items()],
    "terms": {"sample_rate": RATE, "min_noise_multiplier": SIGMA, "release": "step"},
    "limits": {"min_clip_norm": 1e-3, "max_clip_norm": 1.0, "max_steps_per_round": 5},
    "unsafe": [],
}


class Link:
    """One node, which sends what it likes."""

    def __init__(self, answer) -> None:
        self._answer, self.told = answer, []

    def online(self):
        return {7}

    def ask(self, question, contents, seconds):
        return {node: self._answer(content) for node, content in contents.items()}

    def tell(self, text):
        self.told.append(text)


def _honest(content: bytes) -> tuple[RoundAnswer, dict]:
    request, weights = decode_request(content)
    answer = RoundAnswer(
        run=request.run,
        round=request.round,
        client=request.client,
        request=request_digest(request, weights),
        steps=request.steps,
        steps_left=10,
        num_records=RECORDS,
    )
    return answer, {name: values + np.float32(0.1) for name, values in weights.items()}


def _trained(answer):
    """The updates that the server would aggregate, and what it says of the rest."""
    link = Link(answer)
    budget = PrivacyBudget(epsilon=2.0, delta=1e-5)
    ledger = CappedLedger(PlannedLedger(budget, RATE, SIGMA, accountant="rdp"))
    engine = VaultEngine(
        link=link,
        members=[Member(node=7, vault="a", num_records=RECORDS, most_steps=5)],
        run="r",
        method="fedavg_dp",
        options=None,
        shapes=SHAPES,
        ledger=ledger,
        evaluator=None,
        least_updates=lambda count: count,
        round_timeout=1.0,
        wait_for_nodes=0.0,
        clock=lambda: 0.0,
        sleep=lambda _seconds: None,
    )
    before = ledger.affordable_steps(0, SIGMA)
    updates = fine_or_refused(lambda: engine.train(torch.zeros(9), [PLAN]))
    assert ledger.affordable_steps(0, SIGMA) <= before  # no node gives itself more
    for text in link.told:
        check_text(text)
    assert len(updates) + len(link.told) == 1
    for update in updates:
        assert update.params.shape == (9,)
        assert update.params.dtype == torch.float32
        assert update.steps is None or 1 <= update.steps <= PLAN.steps
    return updates


def test_an_honest_answer_is_used():
    (update,) = _trained(lambda content: encode(*_honest(content)))
    assert torch.equal(update.params, torch.full((9,), 0.1))


@examples(40)
@given(data=st.data())
def test_damaged_answers(data):
    _trained(lambda content: data.draw(damaged(encode(*_honest(content)))))


@examples(40)
@given(data=st.data())
def test_edited_answers(data):
    def answer(content):
        told, weights = _honest(content)
        values = data.draw(edited(told.model_dump()))
        return safetensors.numpy.save(weights, {"alidpfl": json.dumps(values)})

    _trained(answer)


@examples(25)
@given(header=edited({"weight": {"dtype": "F32", "shape": [3, 2], "data_offsets": [0, 24]}}), size=st.integers(0, 64))
def test_headers_that_lie_about_sizes(header, size):
    def answer(content):
        told, _ = _honest(content)
        values = {**header, "__metadata__": {"alidpfl": told.model_dump_json()}} if isinstance(header, dict) else header
        text = json.dumps(values).encode()
        return len(text).to_bytes(8, "little") + text + bytes(size)

    assert _trained(answer) == []


def _gathered(answer: bytes):
    link = Link(lambda _content: answer)
    nodes = gather(link, bool, seconds=0.0, clock=lambda: 0.0, sleep=lambda _seconds: None)
    for text in link.told:
        check_text(text)
    if nodes:
        fine_or_refused(lambda: most_common_task(list(nodes.values())))
    return nodes


def test_an_honest_introduction_is_taken():
    assert _gathered(json.dumps({"info": INFO, "partition": 0}).encode()).keys() == {7}


@examples(40)
@given(data=st.data(), is_edited=st.booleans())
def test_introductions(data, is_edited):
    document = {"info": INFO, "partition": 0}
    if is_edited:
        _gathered(json.dumps(data.draw(edited(document))).encode())
    else:
        _gathered(data.draw(damaged(json.dumps(document).encode())))


def test_failures_are_one_line():
    assert Failure(code="x", reason="a\nb\x1b").reason == "a?b?"
    assert RoundRequest.of_plan(PLAN, run="r", method="fedavg_dp").steps == 2
