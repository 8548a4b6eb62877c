"""Messages: the one conversion between what a client computes and what travels."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import safetensors.numpy
import torch

from alidpfl.types import ClientPlan, ClientUpdate, RawSignals, SecantSums
from alidpfl.vault.messages import RoundRequest, decode_answer, decode_update, encode, encode_update
from alidpfl.vault.refusals import RefusalCode, VaultRefusedError

SHAPES = {"weight": (2, 3), "bias": (2,)}
PARAMS = torch.arange(8, dtype=torch.float32)
PLAN = ClientPlan(
    client=3,
    round=1,
    sample_rate=0.1,
    noise_multiplier=2.0,
    clip_norm=1.0,
    learning_rates=(0.5, 0.4),
    signals=frozenset({"secants", "gradient_norm", "raw"}),
)
UPDATE = ClientUpdate(
    client=3,
    params=PARAMS,
    secants=SecantSums(product=1.0, displacement=2.0, noise=3.0, noise_variance=4.0),
    gradient_norm=0.5,
    raw=RawSignals(curvature=1.0, loss_before=2.0, loss_after=1.5),
)
SIGNALS = ("secants", "gradient_norm", "raw")


def encoded(update=UPDATE, plan=PLAN, steps=2) -> bytes:
    request = RoundRequest.of_plan(plan, run="r", method="fedavg_dp")
    return encode_update(
        update, request, digest="d", steps=steps, steps_left=7, num_records=40, unsafe=("seeded-noise",), shapes=SHAPES
    )


def signals_of(update) -> dict:
    return {name: getattr(update, name) for name in SIGNALS}


@pytest.mark.parametrize("params", [PARAMS, PARAMS.numpy()], ids=["tensor", "array"])
def test_an_update_arrives_as_it_was_sent(params):
    answer, update = decode_update(encoded(replace(UPDATE, params=params)), PLAN, SHAPES)
    assert (answer.run, answer.round, answer.client, answer.request, answer.steps) == ("r", 1, 3, "d", 2)
    assert (answer.steps_left, answer.num_records, answer.unsafe) == (7, 40, ["seeded-noise"])
    assert torch.equal(update.params, PARAMS)
    assert update.params.dtype == torch.float32
    assert (update.client, update.steps, signals_of(update)) == (3, None, signals_of(UPDATE))
    assert decode_update(encoded(steps=1), PLAN, SHAPES)[1].steps == 1  # the vault cut the plan


@pytest.mark.parametrize("name", SIGNALS)
def test_signals_that_were_not_asked_for_are_neither_sent_nor_read(name):
    others = replace(PLAN, signals=PLAN.signals - {name})
    expected = {**signals_of(UPDATE), name: None}
    assert signals_of(decode_answer(encoded(plan=others))[0]) == expected
    assert signals_of(decode_update(encoded(), others, SHAPES)[1]) == expected


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", SIGNALS)
def test_signals_that_are_not_finite_are_left_out(name, number):
    """JSON has no such numbers, so they would make the whole answer unreadable."""
    broken = {
        "secants": replace(UPDATE.secants, noise=number),
        "gradient_norm": number,
        "raw": replace(UPDATE.raw, loss_after=number),
    }[name]
    sent = encoded(replace(UPDATE, **{name: broken}))
    assert signals_of(decode_answer(sent)[0]) == {**signals_of(UPDATE), name: None}
    answer, weights = decode_answer(encoded())
    values = {**answer.model_dump(), name: broken if name == "gradient_norm" else vars(broken)}
    forged = safetensors.numpy.save(dict(weights), {"alidpfl": json.dumps(values)})
    with pytest.raises(VaultRefusedError, match=name) as caught:
        decode_update(forged, PLAN, SHAPES)
    assert caught.value.code is RefusalCode.MALFORMED


@pytest.mark.parametrize(
    "weights",
    [
        {"weight": np.zeros((2, 3), np.float32)},
        {"weight": np.zeros((3, 2), np.float32), "bias": np.zeros(2, np.float32)},
        {"weight": np.zeros((2, 3), np.float32), "other": np.zeros(2, np.float32)},
    ],
    ids=["missing", "shape", "name"],
)
def test_weights_of_another_model_are_refused(weights):
    answer, _ = decode_answer(encoded())
    with pytest.raises(VaultRefusedError) as caught:
        decode_update(encode(answer, weights), PLAN, SHAPES)
    assert caught.value.code is RefusalCode.MODEL


def test_weights_of_another_type_are_refused():
    answer, weights = decode_answer(encoded())
    doubled = {name: values.astype(np.float64) for name, values in weights.items()}
    with pytest.raises(VaultRefusedError) as caught:
        decode_update(safetensors.numpy.save(doubled, {"alidpfl": answer.model_dump_json()}), PLAN, SHAPES)
    assert caught.value.code is RefusalCode.MODEL
