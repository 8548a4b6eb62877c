"""Messages between a server and a vault: safetensors with the weights by name, and one JSON text in the metadata.

`encode_update` and `decode_update` are the only conversion between what a client computes and what travels. Importing
this module imports no torch, and no message is pickled.
"""

import hashlib
import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import astuple
from typing import Annotated, Any, Literal, TypeAlias, TypeVar

import numpy as np
import safetensors
import safetensors.numpy
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from alidpfl.releases.queries import AnyQuery
from alidpfl.types import ClientPlan, ClientUpdate, RawSignals, Release, SecantSums, Signal, VaultLoss
from alidpfl.vault.refusals import RefusalCode, refusal

MOST_OVERHEAD = 1 << 20
"""Largest number of bytes of a message beside its weights."""

_KEY = "alidpfl"
_VALUES = "values"
STANDARDISER = "standardiser."
"""Prefix of the names of mean and scale. No parameter of a model has it."""
_LENGTH_BYTES = 8
# Not hashed at their defaults: rounds from before these keys keep their hash.
_LATER = {"loss": "cross_entropy", "quantile": 0.5, "standardised": False}
_PLANNED = ("round", "client", "sample_rate", "noise_multiplier", "clip_norm")  # the same in a request and a plan

Weights: TypeAlias = Mapping[str, NDArray[np.float32]]
"""Trained parameters by name."""
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
"""Shapes of the trained parameters by name, in the model's order."""


class _Message(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class _Asked(_Message):
    """What every request has. `round` counts the requests of a channel in ascending order, not without gaps."""

    run: str = Field(pattern=r"^[A-Za-z0-9._:-]{1,64}$")
    """Name of the run, the same in all of its rounds."""
    round: int = Field(ge=0, le=1_000_000_000)
    """Number of the round, from 0."""
    client: int = Field(0, ge=0, le=1_000_000_000)
    """The server's number for this client. Seeded noise is keyed by it, the run and the round."""
    noise_multiplier: float
    """σ: the noise's standard deviation, divided by the clip norm."""
    schema_sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    """Hash of the schema that the model's inputs are encoded by; None if the records are no table."""
    standardised: bool = False
    """Whether mean and scale come with the weights, and rows are standardised by them first."""

    @property
    def channel(self) -> str:
        """What the rounds of a run are counted by: training, or a kind of query."""
        raise NotImplementedError

    @property
    def needs_weights(self) -> bool:
        """Whether the model's weights come with the request."""
        return True


_Kind = TypeVar("_Kind", bound=_Message)


class PerturbationOptions(_Message):
    """Options of PE-DPFL's loss. They are bounded, so that no request makes a round endless."""

    regularisation: float = Field(0.5, ge=0, le=100)
    perturbation: float = Field(0.05, ge=0, le=100)
    draws: int = Field(1, ge=1, le=8)
    variant: Literal["dpsgd", "output"] = "dpsgd"


class RoundRequest(_Asked):
    """A request for one round of one run. The vault's policy decides what is done."""

    format: Literal["alidpfl-vault-request-1"] = "alidpfl-vault-request-1"
    method: Literal["fedavg_dp", "ali_dpfl", "adap_dpfl", "pe_dpfl"] = "fedavg_dp"
    """Method of the local loss."""
    options: PerturbationOptions | None = None
    """Options of `pe_dpfl`. The losses of other methods have none."""
    steps: int = Field(ge=1)
    """Requested local steps τ. The vault may run fewer."""
    learning_rates: list[Annotated[float, Field(gt=0, le=1e6)]] = Field(min_length=1)
    """η of each step, or one η for all steps."""
    sample_rate: float
    """q: probability that a record joins a batch."""
    clip_norm: float
    """C: each record's gradient is clipped to this norm."""
    signals: list[Signal] = Field(default_factory=list)
    """Requested signals beside the update."""

    loss: VaultLoss = "cross_entropy"
    """Loss of each record. A vault refuses any but its own."""
    quantile: float = 0.5
    """Level of the loss `quantile`. Others do not read it."""

    @model_validator(mode="after")
    def _consistent(self) -> "RoundRequest":
        if (count := len(self.learning_rates)) not in (1, self.steps):
            raise ValueError(f"{count} learning_rates for {self.steps} steps; give one, or one per step")
        if self.options is not None and self.method != "pe_dpfl":
            raise ValueError(f"{self.method} takes no options; leave them out")
        return self

    @classmethod
    def of_plan(
        cls,
        plan: ClientPlan,
        *,
        run: str,
        method: str,
        options: Mapping[str, Any] | None = None,
        schema_sha256: str | None = None,
        loss: str = "cross_entropy",
        quantile: float = 0.5,
        standardised: bool = False,
    ) -> "RoundRequest":
        """Return the request for a client's plan. Equal learning rates are sent once, to fit into a message.

        Args:
            plan: the training loop's plan for one client and round.
            run: name of the run.
            method: name of the method.
            options: options of the method. Only those of `pe_dpfl` concern a client.
            schema_sha256: hash of the run's schema, if it trains on tables.
            loss: name of the loss.
            quantile: level of the loss `quantile`.
            standardised: whether mean and scale of the rows come with the weights.
        """
        rates, has_options = list(plan.learning_rates), bool(options) and method == "pe_dpfl"
        return cls.model_validate(
            {
                "run": run,
                "method": method,
                "options": PerturbationOptions.model_validate(options) if has_options else None,
                "steps": plan.steps,
                "learning_rates": rates if len(set(rates)) > 1 else rates[:1],
                "signals": sorted(plan.signals),
                "schema_sha256": schema_sha256,
                "loss": loss,
                "quantile": quantile,
                "standardised": standardised,
                **{name: getattr(plan, name) for name in _PLANNED},
            }
        )

    @property
    def channel(self) -> str:
        """The rounds of training are counted by themselves."""
        return "train"

    @property
    def release(self) -> Release:
        """Whether noise is added to every step or to the whole update."""
        return "update" if self.options is not None and self.options.variant == "output" else "step"

    def plan(self, steps: int) -> ClientPlan:
        """Return the client's plan for `steps` steps, which must not exceed the requested ones."""
        rates = self.learning_rates * steps if len(self.learning_rates) == 1 else self.learning_rates[:steps]
        planned = {name: getattr(self, name) for name in _PLANNED}
        return ClientPlan(learning_rates=tuple(rates), release=self.release, signals=frozenset(self.signals), **planned)


class ReleaseRequest(_Asked):
    """A request for one noised release. The query says which records it reads."""

    format: Literal["alidpfl-vault-query-1"] = "alidpfl-vault-query-1"
    query: AnyQuery
    """What is asked."""

    @property
    def channel(self) -> str:
        """Every kind of query has rounds of its own."""
        return self.query.kind

    @property
    def needs_weights(self) -> bool:
        """Whether the model's weights come with the request."""
        return self.query.needs_weights


Request: TypeAlias = RoundRequest | ReleaseRequest
"""What a server may ask of a vault."""


class ReleaseAnswer(_Message):
    """The part of a vault's answer beside the noised values."""

    format: Literal["alidpfl-vault-released-1"] = "alidpfl-vault-released-1"
    run: str
    round: int
    client: int
    request: str
    """Hash of the request that this answers."""
    unsafe: list[str] = Field(default_factory=list)
    """What this answer uses that no ε covers. The owner allowed it by name."""


class RoundAnswer(_Message):
    """The part of a vault's answer beside the noised weights."""

    format: Literal["alidpfl-vault-answer-1"] = "alidpfl-vault-answer-1"
    run: str
    round: int
    client: int
    request: str
    """Hash of the request that this answers."""
    steps: int
    """Local steps that were run. They are fewer than requested if the policy cut them."""
    steps_left: int
    """Steps that the budget still pays for at this q and σ. Rounds, if the noise is on the update."""
    num_records: int
    secants: SecantSums | None = None
    gradient_norm: float | None = None
    raw: RawSignals | None = None
    unsafe: list[str] = Field(default_factory=list)
    """What this answer uses that no ε covers. The owner allowed it by name."""


def standardiser_shapes(width: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of what standardises rows of a table. It travels behind the weights."""
    return {f"{STANDARDISER}{name}": (width,) for name in ("mean", "scale")}


def encode_update(
    update: ClientUpdate,
    request: RoundRequest,
    *,
    digest: str,
    steps: int,
    steps_left: int,
    num_records: int,
    unsafe: Sequence[str],
    shapes: Shapes,
) -> bytes:
    """Return the answer to a request as bytes.

    Args:
        update: what the client computed. `params` may be a tensor or an array.
        request: the request that it answers. Only the signals that it asks for are sent.
        digest: hash of the request.
        steps: local steps that were run.
        steps_left: steps that the budget still pays for.
        num_records: public number of records.
        unsafe: what the answer uses that no ε covers.
        shapes: shapes of the trained parameters.
    """
    answer = RoundAnswer(
        **request.model_dump(include={"run", "round", "client"}),
        request=digest,
        steps=steps,
        steps_left=steps_left,
        num_records=num_records,
        unsafe=list(unsafe),
        **_signals(update, request.signals),
    )
    return encode(answer, named(np.asarray(update.params), shapes))


def decode_update(content: bytes, plan: ClientPlan, shapes: Shapes) -> tuple[RoundAnswer, ClientUpdate]:
    """Return a vault's answer and the update in it, which holds only signals that the plan asked for.

    Raise VaultRefusedError if the bytes are no answer or the weights do not fit the model. The weights may still not
    be finite: the training loop judges that.
    """
    from torch import from_numpy

    answer, weights = decode_answer(content)
    _check_form(weights, shapes)
    update = ClientUpdate(
        client=plan.client,
        params=from_numpy(flat(weights, shapes)),
        steps=None if answer.steps == plan.steps else answer.steps,
        **_signals(answer, plan.signals),
    )
    return answer, update


def encode_released(
    values: NDArray[np.float32], request: ReleaseRequest, *, digest: str, unsafe: Sequence[str]
) -> bytes:
    """Return the answer to a query as bytes.

    Args:
        values: (size,) the noised sums.
        request: the request that it answers.
        digest: hash of the request.
        unsafe: what the answer uses that no ε covers.
    """
    told = request.model_dump(include={"run", "round", "client"})
    return encode(ReleaseAnswer(**told, request=digest, unsafe=list(unsafe)), {_VALUES: values})


def decode_released(content: bytes, request: ReleaseRequest) -> tuple[ReleaseAnswer, NDArray[np.float32]]:
    """Return a vault's answer and its noised sums. Raise VaultRefusedError if they do not fit the query."""
    answer, values = _decoded(content, ReleaseAnswer)
    shapes = {_VALUES: (request.query.layout.size,)}
    check_weights(values, shapes)
    return answer, values[_VALUES]


def _signals(source: ClientUpdate | RoundAnswer, asked: Collection[Signal]) -> dict[str, Any]:
    """Return the signals that were asked for. Those that are not finite are left out: JSON has no such numbers."""
    found = {name: getattr(source, name) for name in asked}
    return {name: value for name, value in found.items() if value is not None and _is_finite(value)}


def _is_finite(value: float | SecantSums | RawSignals) -> bool:
    return all(map(math.isfinite, [value] if isinstance(value, float | int) else astuple(value)))


def encode(message: Request | RoundAnswer | ReleaseAnswer, weights: Weights) -> bytes:
    """Return the bytes of a message. Equal messages give equal bytes."""
    plain = {name: np.ascontiguousarray(values, dtype=np.float32) for name, values in weights.items()}
    return bytes(safetensors.numpy.save(plain, {_KEY: message.model_dump_json()}))


def decode_request(content: bytes) -> tuple[Request, Weights]:
    """Return a request and its weights, which are not checked yet. Refuse anything else."""
    return _decoded(content, RoundRequest, ReleaseRequest)


def decode_answer(content: bytes) -> tuple[RoundAnswer, Weights]:
    """Return a vault's answer and its weights, which are not checked. Refuse anything else."""
    return _decoded(content, RoundAnswer)


def answered_request(content: bytes) -> str:
    """Return the hash of the request that an answer of any kind is to. Refuse anything else."""
    found: tuple[RoundAnswer | ReleaseAnswer, Weights] = _decoded(content, RoundAnswer, ReleaseAnswer)
    return found[0].request


def request_digest(request: Request, weights: Weights) -> str:
    """Return a hash of everything that was asked for. It does not depend on how the request was written."""
    asked = {key: value for key, value in request.model_dump().items() if key not in _LATER or _LATER[key] != value}
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True).encode())
    for name in sorted(weights):
        digest.update(json.dumps([name, list(weights[name].shape)]).encode())
        digest.update(np.ascontiguousarray(weights[name]).tobytes())
    return digest.hexdigest()


def check_weights(weights: Weights, shapes: Shapes) -> None:
    """Refuse weights that do not fit the enrolled model or are not finite."""
    _check_form(weights, shapes)
    for name, values in weights.items():
        if not np.isfinite(values).all():
            raise refusal(RefusalCode.WEIGHTS, f"{name!r} has values that are NaN or infinite; send finite weights")


def _check_form(weights: Weights, shapes: Shapes) -> None:
    found = {name: tuple(values.shape) for name, values in weights.items()}
    if found != dict(shapes):
        wrong = sorted(name for name in found.keys() | shapes.keys() if found.get(name) != shapes.get(name))[:3]
        told = ", ".join(f"{n[:60]!r} is {found.get(n)} and must be {shapes.get(n)}" for n in wrong)
        raise refusal(RefusalCode.MODEL, f"these weights do not fit the enrolled model: {told}")
    for name, values in weights.items():
        if values.dtype != np.float32:
            raise refusal(RefusalCode.MODEL, f"{name!r} has type {values.dtype} and must be float32")


def flat(weights: Weights, shapes: Shapes) -> NDArray[np.float32]:
    """Return the weights as one vector (num_params,), in the model's order."""
    return np.concatenate([weights[name].reshape(-1) for name in shapes])


def named(vector: NDArray[np.float32], shapes: Shapes) -> dict[str, NDArray[np.float32]]:
    """Return the weights by name. This is the inverse of `flat`."""
    ends = np.cumsum([math.prod(shape) for shape in shapes.values()])
    parts: Sequence[NDArray[np.float32]] = np.split(vector, ends[:-1])
    return {name: part.reshape(shape) for (name, shape), part in zip(shapes.items(), parts, strict=True)}


def _decoded(content: bytes, kind: type[_Kind], *others: type[_Kind]) -> tuple[_Kind, Weights]:
    """Return a message and its weights. Its format says which of the kinds it is; by default it is the first."""
    try:
        weights = safetensors.numpy.load(content)
        end = _LENGTH_BYTES + int.from_bytes(content[:_LENGTH_BYTES], "little")
        text = str(json.loads(content[_LENGTH_BYTES:end])["__metadata__"][_KEY])
        told = json.loads(text) if others else {}
        named = told.get("format") if isinstance(told, dict) else None
    except (safetensors.SafetensorError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
        told = f"the body is not a safetensors file with the metadata {_KEY!r}; use VaultClient"
        raise refusal(RefusalCode.MALFORMED, told) from None
    kind = next((other for other in others if other.model_fields["format"].default == named), kind)
    try:
        return kind.model_validate_json(text), weights
    except ValidationError as error:
        problems = [(".".join(map(str, p["loc"])) or "the message", p["msg"]) for p in error.errors()[:3]]
        told = "; ".join(f"{key[:60]}: {text}" for key, text in problems)
        raise refusal(RefusalCode.MALFORMED, told[:200]) from None
