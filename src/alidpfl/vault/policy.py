"""The owner's policy: a TOML file that no request can change, and the checks of a request against it.

Unit of privacy, budget, accounting, sample rate, least noise, release, model and what queries may spend are the
*terms*. The ledger began on them, and a vault with other terms refuses to serve. The owner may edit the rest between
two starts.
"""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from alidpfl.config.wording import refused, shortened, shown, together
from alidpfl.errors import ConfigError
from alidpfl.inputs.checks import exact
from alidpfl.privacy import MAX_NOISE_MULTIPLIER, MIN_NOISE_MULTIPLIER
from alidpfl.store.files import disk_errors, to_toml
from alidpfl.types import (
    LARGEST_MAX_RECORDS,
    UNACCOUNTED_SIGNALS,
    AccountantName,
    AccountingKind,
    NoiseKind,
    OnExcess,
    Release,
    Unit,
    VaultLoss,
    VaultModel,
)
from alidpfl.vault.messages import ReleaseRequest, Request, RoundRequest
from alidpfl.vault.refusals import RefusalCode, refusal

PINNED = ("data", "budget", "accounting", "terms", "model", "evaluation", "statistics")
"""Sections that may not change once the ledger has begun."""
SEEDED_NOISE = "seeded-noise"
PROMPT_ANSWERS = "prompt-answers"

_USUAL_MOST_NOISE, _MOST_NOISE_RATIO = 100.0, 10.0
_LARGEST_NOISE = 1e6  # as in the accounting
_LEAST_RATE = 1e-9  # below it, the divisor q n makes the weights overflow
_HEADER = """\
# The policy of this vault, read when it starts; docs/reference/configuration.md explains every key.
# [data], [budget], [accounting], [terms], [model], [evaluation] and [statistics] must stay as they are: the ledger
# began on them, and with others the vault refuses to serve.
"""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class DataSection(_Section):
    """[data]: what ε protects."""

    unit: Unit = Field(
        "record",
        description="What ε protects: `record`, or `person` for all records of a [person](../how-to/persons.md) at "
        "this owner together. The data must then say which records are a person's.",
    )
    max_records: int | None = Field(
        None,
        ge=1,
        le=LARGEST_MAX_RECORDS,
        examples=[3],
        description="k, for `unit` = `person`: the most records of a person in a step, drawn afresh in every step. It "
        "is public.",
    )

    @model_validator(mode="after")
    def _consistent(self) -> "DataSection":
        if self.unit == "record" and self.max_records is not None:
            raise ValueError(f'max_records={self.max_records} is for unit="person"; set that too, or leave it out')
        if self.unit == "person" and self.max_records is None:
            raise ValueError('unit="person" needs max_records, the most records of a person in a step, such as 4')
        return self


class BudgetSection(_Section):
    """[budget]: all that this data set may spend."""

    epsilon: float = Field(gt=0, examples=[2.0], description="ε of all runs together.")
    delta: float = Field(gt=0, lt=1, examples=[1e-5], description="δ of all runs together.")


class AccountingSection(_Section):
    """[accounting]: how steps are charged."""

    kind: AccountingKind = Field(
        "planned",
        description="`planned` charges every step as if it had the largest q and the least σ of [terms]. `filter` "
        "charges the q and σ that a step has ([Rényi filter](../explanation/proofs/filter.md)).",
    )
    accountant: AccountantName = Field("pld", description="Accountant of `planned`; `pld` is the tightest.")


class TermsSection(_Section):
    """[terms]: the largest q, the least σ, and where the noise is added."""

    sample_rate: float = Field(gt=0, le=1, examples=[0.04], description="The largest q that a request may have.")
    min_noise_multiplier: float = Field(
        ge=1e-3, le=1e6, examples=[1.1], description="The least σ that a request may have."
    )
    release: Release = Field(
        "step", description="Noise on every step, or on a round's whole update (`pe_dpfl`, variant `output`)."
    )


class ModelSection(_Section):
    """[model]: the model and its loss, which the vault builds itself."""

    name: VaultModel = Field("compact_cnn", description="The model to train.")
    hidden: int = Field(128, ge=1, le=100_000, description="`mlp`: width of the hidden layer.")
    loss: VaultLoss | None = Field(
        None,
        examples=["squared"],
        description="The loss of each record. Default, by the kind of the targets: `cross_entropy`, `squared` or "
        "`binary`.",
    )
    quantile: float = Field(0.5, gt=0, lt=1, description="`quantile`: the quantile to learn; 0.5 is the median.")


class EvaluationSection(_Section):
    """[evaluation]: noised counts of the held-out rows of a table. Without this section there are none."""

    epsilon: float | None = Field(
        None,
        gt=0,
        le=1e6,
        examples=[1.0],
        description="ε that held-out rows may spend. They are in no step, so it does not add to the steps' ε. Default "
        "and maximum: `epsilon` of [budget]. Without the section [evaluation], there are no evaluations.",
    )


class StatisticsSection(_Section):
    """[statistics]: noised sums of the training records. Without this section there are none."""

    noise_multiplier: float = Field(
        ge=1e-3,
        le=1e6,
        examples=[10.0],
        description="All statistics of all runs together may spend as much as one release with this σ. The ledger "
        "sets this cost aside from the start, before any step. Without the section [statistics], there are none.",
    )


class LimitsSection(_Section):
    """[limits]: limits of a single round, and of their number."""

    max_steps_per_round: int = Field(ge=1, le=1_000_000, examples=[10], description="The largest τ.")
    min_clip_norm: float = Field(1e-3, ge=1e-6, le=1e6, description="The least C.")
    max_clip_norm: float = Field(ge=1e-6, le=1e6, examples=[1.0], description="The largest C.")
    max_noise_multiplier: float | None = Field(
        None,
        ge=1e-3,
        le=1e6,
        examples=[100.0],
        description="The largest σ. Under `filter`, steps with much noise cost so little that a server could ask for "
        "millions of them and measure how long they take. Default: 100, or ten times the least σ if that is more.",
    )
    max_rounds: int = Field(
        10_000, ge=1, le=1_000_000_000, description="Rounds that the vault serves in all, lost rounds included."
    )
    max_queries: int = Field(
        100,
        ge=0,
        le=1_000_000_000,
        description="Evaluations that the vault answers in all. Statistics have a limit of their own, of the same "
        "size.",
    )
    on_excess: OnExcess = Field(
        "cut",
        description="If a server asks for more steps than `max_steps_per_round` or the budget allows: `cut` runs as "
        "many as are allowed, `refuse` refuses the round.",
    )

    @model_validator(mode="after")
    def _in_order(self) -> "LimitsSection":
        if self.min_clip_norm > self.max_clip_norm:
            raise ValueError(f"min_clip_norm={self.min_clip_norm} must not exceed max_clip_norm={self.max_clip_norm}")
        return self


class ServiceSection(_Section):
    """[service]: stored answers, waiting times and time slots."""

    keep_answers: int = Field(20, ge=1, description="Stored answers. Answers to older rounds cannot be sent again.")
    max_wait_seconds: float = Field(
        60.0, ge=0, le=3600, description="How long a caller waits while another round is trained."
    )
    seconds_per_round: float | None = Field(
        None,
        gt=0,
        le=3600,
        examples=[0.1],
        description="Fixed part of the time slot at whose end a round's answer leaves. Default: measured at the start.",
    )
    seconds_per_step: float | None = Field(
        None,
        gt=0,
        le=3600,
        examples=[0.02],
        description="Part of the slot for each step, at the largest q. Default: measured on made-up records.",
    )
    seconds_per_query: float | None = Field(
        None,
        gt=0,
        le=3600,
        examples=[5.0],
        description="Slot of an evaluation or a statistic. Default: measured on made-up records.",
    )


class Policy(_Section):
    """All that the owner decides."""

    format: Literal["alidpfl-vault-policy-1"] = Field("alidpfl-vault-policy-1", description="Format of this file.")
    unsafe: list[Literal["unaccounted-signals", "seeded-noise", "prompt-answers"]] = Field(
        default_factory=list,
        examples=[["unaccounted-signals"]],
        description="What the owner allows though ε does not cover it: signals without noise, noise from `seed`, or "
        "answers that leave as soon as they are ready, so that their time depends on records.",
    )
    noise: NoiseKind = Field(
        "gaussian",
        description="`grid` is [exact to the last bit](../explanation/floating-point.md), slower, and costs no more ε.",
    )
    seed: int | None = Field(
        None,
        ge=0,
        examples=[7],
        description="Seed of the noise, only with `seeded-noise`, to compare a deployment with a simulation of the "
        "same `run.name`. Anyone who knows it can subtract the noise.",
    )
    data: DataSection = Field(default_factory=DataSection)
    budget: BudgetSection
    accounting: AccountingSection = Field(default_factory=AccountingSection)
    terms: TermsSection
    model: ModelSection = Field(default_factory=ModelSection)
    evaluation: EvaluationSection | None = Field(None, description="What held-out rows may be used for.")
    statistics: StatisticsSection | None = Field(None, description="What may be released beside the training.")
    limits: LimitsSection
    service: ServiceSection = Field(default_factory=ServiceSection)

    @model_validator(mode="after")
    def _consistent(self) -> "Policy":
        if (self.seed is not None) != (SEEDED_NOISE in self.unsafe):
            raise ValueError(
                f'seed needs unsafe = ["{SEEDED_NOISE}"], and the other way round: who knows it can subtract the noise'
            )
        if self.max_noise_multiplier < (least := self.terms.min_noise_multiplier):
            raise ValueError(
                f"limits.max_noise_multiplier={self.max_noise_multiplier} must be at least {least}, the least σ of the "
                "terms; raise it or leave it out"
            )
        if self.evaluation is not None and (self.evaluation.epsilon or 0) > self.budget.epsilon:
            raise ValueError(
                f"evaluation.epsilon={self.evaluation.epsilon} must not exceed budget.epsilon={self.budget.epsilon}: "
                "that one is promised for every record"
            )
        if self.noise == "grid" and self.terms.release != "step":
            raise ValueError('noise = "grid" goes on steps: set terms.release = "step", or noise = "gaussian"')
        return self

    @property
    def max_noise_multiplier(self) -> float:
        """The largest σ. By default it admits every σ that the planner finds for these terms, and more."""
        default = max(_USUAL_MOST_NOISE, _MOST_NOISE_RATIO * self.terms.min_noise_multiplier)
        return self.limits.max_noise_multiplier or min(default, _LARGEST_NOISE)

    def pinned(self) -> dict[str, Any]:
        """Return the sections that may not change once the ledger has begun."""
        return self.model_dump(include=set(PINNED))

    @classmethod
    def defaults(cls, section: str) -> dict[str, Any]:
        """Return the defaults of a section's keys: a folder that is older than a key has this value."""
        kind: Any = section_of(cls.model_fields[section])
        return {key: field.get_default() for key, field in kind.model_fields.items()}

    def to_toml(self) -> str:
        """Return the text of the policy file."""
        return _HEADER + to_toml(self.model_dump())


def make_policy(values: dict[str, Any], source: str, called: Callable[[str], str] = str) -> Policy:
    """Return a checked policy. Errors name the source, and each key by the name that `called` gives it."""
    try:
        return Policy.model_validate(values)
    except ValidationError as error:
        problems = together(_explained(problem, values, called) for problem in error.errors())
        raise ConfigError(f"{source}: {problems}") from None


def read_policy(path: Path) -> Policy:
    """Read a policy file."""
    with disk_errors("read", path):
        content = path.read_bytes()
    try:
        values = tomllib.loads(content.decode())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not valid TOML: {error}; correct it") from None
    return make_policy(values, str(path))


def _explained(problem: Any, values: dict[str, Any], called: Callable[[str], str]) -> str:
    path = [str(part) for part in problem["loc"]]
    key = ".".join(path)
    if problem["type"] == "extra_forbidden":
        # A line that can be deleted would not protect older copies of the folder.
        elsewhere = "; `alidpfl vault anchor` sets it, and the ledger keeps it" if key == "anchor" else ""
        return f"{shortened(called(key))} is not a setting of a vault; remove it or correct its spelling{elsewhere}"
    if problem["type"] == "missing":
        return f"{called(key)} is missing; add it"
    if problem["type"] == "value_error":  # raised by a validator above, about several settings
        return str(problem["msg"]).removeprefix("Value error, ")
    field, value = Policy.model_fields[path[0]], values[path[0]]
    section = section_of(field)
    if section is None:
        return refused(problem, called(path[0]), value, field)
    if len(path) == 1:
        return f"{key}={shown(value)} must be a section: write [{key}] and its keys below"
    return refused(problem, called(f"{path[0]}.{path[1]}"), value[path[1]], section.model_fields[path[1]])


def section_of(field: FieldInfo) -> type[_Section] | None:
    """Return the section of a field of the policy, which it may leave out; None for a plain setting."""
    kinds = (field.annotation, *get_args(field.annotation))
    return next((kind for kind in kinds if isinstance(kind, type) and issubclass(kind, _Section)), None)


def check_plan(request: RoundRequest, policy: Policy) -> None:
    """Refuse a request that the policy does not allow, whatever its number of steps."""
    terms = policy.terms
    if request.release != terms.release:
        _refuse(f"this vault adds noise to the {terms.release}, and the request asks for it on the {request.release}")
    limits, noise = policy.limits, "terms.min_noise_multiplier and limits.max_noise_multiplier"
    for name, low, high, keys in (
        ("sample_rate", _LEAST_RATE, terms.sample_rate, "terms.sample_rate"),
        ("noise_multiplier", terms.min_noise_multiplier, policy.max_noise_multiplier, noise),
        ("clip_norm", limits.min_clip_norm, limits.max_clip_norm, "limits.min_clip_norm and limits.max_clip_norm"),
    ):
        if not low <= (value := getattr(request, name)) <= high:
            _refuse(f"{name}={exact(value)} must be between {exact(low)} and {exact(high)}, by the owner's {keys}")
    if "raw" in request.signals and UNACCOUNTED_SIGNALS not in policy.unsafe:
        _refuse(
            "the request asks for signals without noise. No epsilon covers them, and the owner has not allowed them by "
            f'unsafe = ["{UNACCOUNTED_SIGNALS}"]; use a policy that needs none, such as "ali"'
        )


def check_rounds(reserved: int, policy: Policy) -> None:
    """Refuse a new round if the vault has served as many as the policy allows."""
    if reserved >= (most := policy.limits.max_rounds):
        raise refusal(
            RefusalCode.BUDGET,
            f"this vault has served max_rounds={most} rounds and serves no more; the owner may raise limits.max_rounds",
        )


def check_query(request: ReleaseRequest, policy: Policy, answered: int) -> None:
    """Refuse a query that the policy does not allow, after so many queries of its part of the records."""
    part = request.query.part
    if (policy.evaluation if part == "held_out" else policy.statistics) is None:
        section = "evaluation" if part == "held_out" else "statistics"
        _refuse(f"this vault answers no {request.query.kind} query: its owner's policy has no section [{section}]")
    if not MIN_NOISE_MULTIPLIER <= (noise := request.noise_multiplier) <= MAX_NOISE_MULTIPLIER:
        _refuse(f"noise_multiplier={exact(noise)} must be between {MIN_NOISE_MULTIPLIER} and {MAX_NOISE_MULTIPLIER:g}")
    if answered >= (most := policy.limits.max_queries):
        raise refusal(
            RefusalCode.BUDGET,
            f"this vault has answered max_queries={most} queries and answers no more; the owner may raise "
            "limits.max_queries",
        )


def granted_steps(request: RoundRequest, policy: Policy, affordable: int) -> int:
    """Return how many steps to run: the requested ones, cut to the round's limit and the budget. Refuse if none."""
    if affordable < 1:
        raise refusal(RefusalCode.BUDGET, "the privacy budget of this data set is spent at this sample rate and noise")
    by_steps = policy.terms.release == "step"
    most = min(policy.limits.max_steps_per_round, affordable) if by_steps else policy.limits.max_steps_per_round
    if request.steps <= most or policy.limits.on_excess == "cut":
        return min(request.steps, most)
    if most < policy.limits.max_steps_per_round:
        raise refusal(RefusalCode.BUDGET, f"steps={request.steps}: the privacy budget pays for {most}")
    raise refusal(RefusalCode.POLICY, f"steps={request.steps} must be at most {most} a round")


def unsafe_uses(request: Request, policy: Policy) -> tuple[str, ...]:
    """Return what the answer will hold that no ε covers. The owner allowed it by name."""
    uses = [UNACCOUNTED_SIGNALS] if isinstance(request, RoundRequest) and "raw" in request.signals else []
    uses += [SEEDED_NOISE] if policy.seed is not None else []
    return (*uses, *([PROMPT_ANSWERS] if PROMPT_ANSWERS in policy.unsafe else []))


def _refuse(message: str) -> None:
    raise refusal(RefusalCode.POLICY, message)
