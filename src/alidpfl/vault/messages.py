"""What goes over the socket: safetensors, the weights by name and one JSON text beside them. No pickle, no torch."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from alidpfl.types import ClientPlan, RawSignals, Release, SecantSums, Signal
from alidpfl.vault.refusals import RefusalCode, refusal

Weights: TypeAlias = Mapping[str, NDArray[np.float32]]
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""Of the trained parameters by name, in the model's order."""

MOST_OVERHEAD = 1 << 20
"""Bytes of a message beyond its weights."""

_KEY = "alidpfl"
_LENGTH_BYTES = 8
_LONGEST_PROBLEM = 200
_LARGEST_RATE = 1e6

LearningRate = Annotated[float, Field(gt=0, le=_LARGEST_RATE)]
RunId = Annotated[str, Field(pattern=r"^[A-Za-z0-9._:-]{1,64}$")]


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


_Kind = TypeVar("_Kind", bound=_Message)


class PerturbationOptions(_Message):
    """Of PE-DPFL's loss. Bounded, so that no instruction makes a round take for ever."""

    regularisation: float = Field(0.5, ge=0, le=100)
    perturbation: float = Field(0.05, ge=0, le=100)
    draws: int = Field(1, ge=1, le=8)
    variant: Literal["dpsgd", "output"] = "dpsgd"


class RoundRequest(_Message):
    """An instruction: one round of one run. It is only asked for; what is done is up to the vault's policy."""

    format: Literal["alidpfl-vault-request-1"] = "alidpfl-vault-request-1"
    """Which form of message this is, with its version."""
    run: RunId
    """Name of the run, the same in all of its rounds."""
    round: int = Field(ge=0, le=1_000_000_000)
    """Number of the round, from 0."""
    client: int = Field(0, ge=0, le=1_000_000_000)
    """How the server numbers this client; it keys the noise where that is seeded."""
    method: Literal["fedavg_dp", "ali_dpfl", "adap_dpfl", "pe_dpfl"] = "fedavg_dp"
    """Which loss is trained."""
    options: PerturbationOptions | None = None
    """With pe_dpfl only: the other methods have one loss."""
    steps: int = Field(ge=1)
    """Local steps τ that are asked for; the vault may run fewer."""
    learning_rates: list[LearningRate] = Field(min_length=1)
    """η of each step, or one for all."""
    sample_rate: float
    """q: probability that a record joins a batch."""
    noise_multiplier: float
    """σ: the noise's standard deviation over the clip norm."""
    clip_norm: float
    """C: each record's gradient is clipped to it."""
    signals: list[Signal] = Field(default_factory=list)
    """What is asked for beside the update."""

    @model_validator(mode="after")
    def _consistent(self) -> "RoundRequest":
        if len(self.learning_rates) not in (1, self.steps):
            raise ValueError(
                f"{len(self.learning_rates)} learning_rates for {self.steps} steps; give one, or one a step"
            )
        if self.options is not None and self.method != "pe_dpfl":
            raise ValueError(f"{self.method} takes no options; leave them out")
        return self

    @classmethod
    def of_plan(
        cls, plan: ClientPlan, *, run: str, method: str, options: Mapping[str, Any] | None = None
    ) -> "RoundRequest":
        """The request for a plan as the training loop makes it. Options of other methods concern the server alone."""
        of_loss = PerturbationOptions.model_validate(options) if options and method == "pe_dpfl" else None
        rates = list(plan.learning_rates)
        return cls.model_validate(
            {
                "run": run,
                "round": plan.round,
                "client": plan.client,
                "method": method,
                "options": of_loss,
                "steps": plan.steps,
                "learning_rates": rates if len(set(rates)) > 1 else rates[:1],  # a million steps must fit
                "sample_rate": plan.sample_rate,
                "noise_multiplier": plan.noise_multiplier,
                "clip_norm": plan.clip_norm,
                "signals": sorted(plan.signals),
            }
        )

    @property
    def release(self) -> Release:
        """What the noise goes on."""
        return "update" if self.options is not None and self.options.variant == "output" else "step"

    def plan(self, steps: int) -> ClientPlan:
        """What a client does, of `steps` steps: no more than were asked for."""
        rates = self.learning_rates * steps if len(self.learning_rates) == 1 else self.learning_rates[:steps]
        signals: frozenset[Signal] = frozenset(self.signals)
        return ClientPlan(
            client=self.client,
            round=self.round,
            sample_rate=self.sample_rate,
            noise_multiplier=self.noise_multiplier,
            clip_norm=self.clip_norm,
            learning_rates=tuple(rates),
            release=self.release,
            signals=signals,
        )


class RoundAnswer(_Message):
    """What leaves a vault beside the noised weights."""

    format: Literal["alidpfl-vault-answer-1"] = "alidpfl-vault-answer-1"
    run: str
    round: int
    client: int
    request: str
    """Hash of the request that this answers."""
    steps: int
    """Local steps that were run: fewer than asked for, where the policy cut them."""
    steps_left: int
    """That the budget still pays for at this q and σ; rounds, where the noise goes on the update."""
    num_records: int
    secants: SecantSums | None = None
    gradient_norm: float | None = None
    raw: RawSignals | None = None
    unsafe: list[str] = Field(default_factory=list)
    """What the owner admitted and this answer uses: nothing of it is covered by any ε."""


def request_digest(request: RoundRequest, weights: Weights) -> str:
    """Hash of everything that was asked for, however it was written down."""
    digest = hashlib.sha256(json.dumps(request.model_dump(), sort_keys=True).encode())
    for name in sorted(weights):
        digest.update(json.dumps([name, list(weights[name].shape)]).encode())
        digest.update(np.ascontiguousarray(weights[name]).tobytes())
    return digest.hexdigest()


def encode(message: RoundRequest | RoundAnswer, weights: Weights) -> bytes:
    """The bytes of a message; equal messages give equal bytes."""
    plain = {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in weights.items()}
    content: bytes = safetensors.numpy.save(plain, {_KEY: message.model_dump_json()})
    return content


def decode_request(content: bytes) -> tuple[RoundRequest, Weights]:
    """An instruction and the weights in it; a refusal for anything else. The weights are not checked yet."""
    return _decoded(content, RoundRequest)


def decode_answer(content: bytes) -> tuple[RoundAnswer, Weights]:
    """Back from what a vault sent."""
    return _decoded(content, RoundAnswer)


def check_weights(weights: Weights, shapes: Shapes) -> None:
    """Refuse weights that are not those of the enrolled model, or not finite."""
    found = {name: tuple(values.shape) for name, values in weights.items()}
    if found != dict(shapes):
        wrong = sorted(name for name in found.keys() | shapes.keys() if found.get(name) != shapes.get(name))[:3]
        told = ", ".join(f"{n[:60]!r} is {found.get(n)} and must be {shapes.get(n)}" for n in wrong)
        raise refusal(RefusalCode.MODEL, f"these are not the weights of the enrolled model: {told}")
    for name, values in weights.items():
        if values.dtype != np.float32:
            raise refusal(RefusalCode.MODEL, f"{name!r} has type {values.dtype} and must be float32")
        if not np.isfinite(values).all():
            raise refusal(RefusalCode.WEIGHTS, f"{name!r} has values that are NaN or infinite; send finite weights")


def flat(weights: Weights, shapes: Shapes) -> NDArray[np.float32]:
    """(num_params,) in the model's order."""
    return np.concatenate([weights[name].reshape(-1) for name in shapes])


def named(vector: NDArray[np.float32], shapes: Shapes) -> dict[str, NDArray[np.float32]]:
    """Back from `flat`."""
    sizes = [num_values(shape) for shape in shapes.values()]
    parts: Sequence[NDArray[np.float32]] = np.split(vector, np.cumsum(sizes)[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def num_values(shape: Sequence[int]) -> int:
    """Numbers in a tensor of this shape."""
    return int(np.prod(shape, dtype=np.int64))


def _decoded(content: bytes, kind: type[_Kind]) -> tuple[_Kind, Weights]:
    text, weights = _opened(content)
    try:
        return kind.model_validate_json(text), weights
    except ValidationError as error:
        raise refusal(RefusalCode.MALFORMED, _explained(error)) from None


def _opened(content: bytes) -> tuple[str, Weights]:
    try:
        weights = safetensors.numpy.load(content)
        end = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
        text = json.loads(content[_LENGTH_BYTES:end])["__metadata__"][_KEY]
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        raise refusal(
            RefusalCode.MALFORMED, f"the body is not a safetensors file with the metadata {_KEY!r}; use VaultClient"
        ) from None
    return str(text), weights


def _explained(error: ValidationError) -> str:
    problems = []
    for problem in error.errors()[:3]:
        key = ".".join(str(part) for part in problem["loc"]) or "the message"
        problems.append(f"{key[:60]}: {problem['msg']}")
    return "; ".join(problems)[:_LONGEST_PROBLEM]


@dataclass(frozen=True, kw_only=True)
class NoisedUpdate:
    """The weights after a round and its signals. Signals that are not finite are left out: JSON has none."""

    params: NDArray[np.float32]
    secants: SecantSums | None = None
    gradient_norm: float | None = None
    raw: RawSignals | None = None

    def __post_init__(self) -> None:
        for name in ("secants", "raw"):
            value = getattr(self, name)
            if value is not None and not all(math.isfinite(number) for number in astuple(value)):
                object.__setattr__(self, name, None)
        if self.gradient_norm is not None and not math.isfinite(self.gradient_norm):
            object.__setattr__(self, "gradient_norm", None)
