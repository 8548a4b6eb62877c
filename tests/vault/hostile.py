"""Requests that a hostile or broken server might send."""

import json
import random

import numpy as np
import safetensors.numpy

from .parts import MOST_STEPS, NOISE, SAMPLE_RATE, request, weights

VALUES = (
    None,
    True,
    -1,
    0,
    1,
    MOST_STEPS,
    MOST_STEPS + 1,
    10**6,
    10**400,
    -(2**63),
    0.1,
    -0.0,
    SAMPLE_RATE,
    NOISE,
    1e-300,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "a",
    "raw",
    "x" * 5000,
    "../../etc/passwd",
    "\0",
    [],
    ["raw"],
    ["secants"] * 50,
    [0.5] * 7,
    [float("nan")],
    {},
    {"variant": "output"},
    {"draws": 10**9},
    {"draws": 2, "perturbation": 0.1},
    "pe_dpfl",
    "adap_dpfl",
)


class HostileServer:
    """Draws requests. Some are honest, because a vault that refuses everything would pass any test."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)  # noqa: S311
        self._round, self._sent = 0, []

    def next_request(self) -> bytes:
        make = self._random.choice(
            (
                self._noise,
                self._cut,
                self._flipped,
                self._one_value,
                self._one_value,
                self._numbers,
                self._numbers,
                self._weights,
                self._replay,
                self._honest,
            )
        )
        content = make()
        self._sent.append(content)
        return content

    def _noise(self) -> bytes:
        return self._random.randbytes(self._random.choice((0, 1, 8, 100, 5000)))

    def _cut(self) -> bytes:
        content = self._honest()
        return content[: self._random.randrange(len(content))]

    def _flipped(self) -> bytes:
        content = bytearray(self._honest())
        for _ in range(self._random.choice((1, 3, 30))):
            content[self._random.randrange(len(content))] ^= 1 << self._random.randrange(8)
        return bytes(content)

    def _one_value(self) -> bytes:
        values = self._fields()
        key = self._random.choice([*values, "extra"])
        if self._random.random() < 0.1:
            values.pop(key, None)
        else:
            values[key] = self._random.choice(VALUES)
        return self._encoded(values)

    def _numbers(self) -> bytes:
        """A well-formed plan with numbers around the limits."""
        pick, values = self._random.choice, self._fields()
        values["steps"] = pick((1, 3, MOST_STEPS, MOST_STEPS + 1, 10**6))
        values["noise_multiplier"] = NOISE * pick((0.0, 0.5, 0.999999, 1.0, 1.5))
        values["sample_rate"] = SAMPLE_RATE * pick((0.0, 0.5, 1.0, 1.000001, 5.0))
        values["clip_norm"] = pick((0.0, 1e-9, 0.5, 1.0, 1.000001, 1e30))
        values["learning_rates"] = [pick((1e-9, 0.5, 1e6))]
        values["signals"] = pick(([], ["secants"], ["gradient_norm"], ["raw"]))
        values["schema_sha256"] = pick((None, None, None, None, None, 64 * "0"))
        return self._encoded(values)

    def _weights(self) -> bytes:
        sent = weights()
        match self._random.randrange(4):
            case 0:
                sent["1.bias"][1] = self._random.choice((np.nan, np.inf, -np.inf))
            case 1:
                sent["1.bias"] = np.zeros(self._random.choice((0, 1, 4, 3000)), np.float32)
            case 2:
                sent = {"x" * self._random.choice((1, 1000)): sent["1.bias"]}
            case _:
                sent = {name: values.astype(np.float64) for name, values in sent.items()}
        return self._encoded(self._fields(), sent)

    def _replay(self) -> bytes:
        return self._random.choice(self._sent) if self._sent else b""

    def _honest(self) -> bytes:
        return self._encoded(self._fields())

    def _fields(self) -> dict:
        self._round += self._random.choice((1, 1, 1, -1))
        return request(run=self._random.choice("ab"), round=max(0, self._round), steps=1).model_dump()

    def _encoded(self, values: dict, sent: dict | None = None) -> bytes:
        return safetensors.numpy.save(weights() if sent is None else sent, {"alidpfl": json.dumps(values)})
