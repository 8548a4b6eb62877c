"""Training on the owner's records. No other part of a vault sees them.

The code is the `LocalTrainer` of a simulation. The difference is the randomness, which comes from the system.
"""

import copy
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from alidpfl.data.dataset import kind_of
from alidpfl.data.table_sums import noised_sum_of_rows
from alidpfl.dpsgd import Groups, RandomStream, cross_entropy, make_loss
from alidpfl.dpsgd.losses import poisson
from alidpfl.errors import DataError
from alidpfl.federation.client import ClientData, LocalTrainer, check_grid, release_stream, training_stream
from alidpfl.federation.noise_law import largest_batch
from alidpfl.federation.tensors import flatten, load, num_params, steady_arithmetic, trained
from alidpfl.methods import Loss, make_method
from alidpfl.models import make_model
from alidpfl.releases.compute import evaluated
from alidpfl.releases.queries import EvaluationQuery, StatisticsQuery
from alidpfl.tables.schema import Schema
from alidpfl.tables.standardise import RowStandardiser
from alidpfl.tables.statistics import Layout as TableLayout
from alidpfl.types import ClientPlan, ClientUpdate, NoiseKind, Signal
from alidpfl.vault.enrolment import Enrolment, held_out_records
from alidpfl.vault.messages import ReleaseRequest, Request, RoundRequest
from alidpfl.vault.policy import Policy
from alidpfl.vault.refusals import RefusalCode, refusal
from alidpfl.vault.rounds import Job, ReleaseJob
from alidpfl.vault.slots import Cost, upper
from alidpfl.vault.sources import OwnData, OwnRecords

_LOSSES_KEPT = 2  # each keeps a copy of the model
_TRIAL_SECONDS, _FEWEST_TRIALS, _MOST_TRIALS = 0.2, 3, 30
_TRIAL_RECORDS, _TRIAL_RATE = 256, 0.1
_MOST_TRIAL_ROWS = 1 << 22  # of all made-up persons together
_NOISED_SIGNALS: frozenset[Signal] = frozenset({"secants", "gradient_norm"})
_CHANGED = (
    "the records are not the enrolled ones: their content, order, scaling or persons changed. Put them back. Changed "
    "records are a new data set with its own ledger, and a person in both data sets spends in both"
)
_LOG_ODDS = math.log(1e9)  # a batch larger than those that slots are measured with comes once in a billion steps
_TOGETHER = 3  # times as many held-out rows as are likely: those of a person, and equal rows, are held out together


@dataclass(frozen=True, kw_only=True)
class HeldOut:
    """Records (or persons) to evaluate on. Their number is private, so their public share tells how many are likely."""

    records: ClientData
    likely: int
    """A number that is exceeded once in a billion times, if each record (or person) is held out independently."""

    @property
    def room(self) -> int:
        """The number of records (or persons) that the slot of an evaluation has room for, from public numbers only.

        The rows of a person, and equal rows, are held out together, so `likely` can be exceeded. Whether it is must
        not show in anything that a vault does: a test of the number of held-out records has no noise. So a vault
        starts and answers all the same, and all held-out records are evaluated on.
        """
        return _TOGETHER * self.likely

    @classmethod
    def of(cls, records: ClientData, share: float, num_trained: int) -> "HeldOut":
        """Return the records, held out with this probability each, beside `num_trained` that were not."""
        mean, tail = num_trained * share / (1 - share), _LOG_ODDS / 3
        most = mean + tail + math.sqrt(tail**2 + 2 * mean / (1 - share) * _LOG_ODDS)
        return cls(records=records, likely=math.ceil(most))


class RecordTrainer:
    """Trains on the owner's records."""

    def __init__(
        self,
        model: nn.Module,
        inputs: Tensor,
        targets: Tensor,
        *,
        seed: int | None,
        noise: NoiseKind = "gaussian",
        loss: Loss = cross_entropy,
        run_of: Callable[[Request], str | None] = attrgetter("run"),
        held_out: HeldOut | None = None,
        schema: Schema | None = None,
        groups: Groups | None = None,
        max_records: int = 1,
    ) -> None:
        """Hold the records of one owner.

        Args:
            model: the enrolled model; it is copied for every loss.
            inputs: the records' inputs.
            targets: the records' targets.
            seed: makes noise repeatable, for comparing with a simulation; None for fresh entropy in every round.
            noise: "grid" for exact noise, one record at a time.
            loss: the enrolled loss of each record.
            run_of: returns the run that seeded noise is keyed by. For a vault it is the request's.
            held_out: the records to evaluate on, which are never trained on; None if there is no evaluation.
            schema: the schema of the rows; None for records that are no table.
            groups: the rows of each person, if the unit of privacy is a person. None means that it is a record.
            max_records: k, the most records of a person in a step.
        """
        self._model, self._seed, self._noise, self._loss, self._run_of = model, seed, noise, loss, run_of
        self._held_out, self._evaluated, self._schema = held_out, copy.deepcopy(model).eval(), schema
        rows = torch.arange(len(targets))
        self._data = ClientData(inputs=inputs, targets=targets, rows=rows, groups=groups, max_records=max_records)
        # Numbers in [-1, 1], as the schema encodes them. Here, and not in a query: its time must not show their number.
        self._described = replace(self._data, targets=targets - 1) if loss is poisson else self._data
        self._trainers: OrderedDict[str, LocalTrainer] = OrderedDict()

    def job(self, request: RoundRequest) -> Job:
        """Prepare the request's loss. The trial of the model uses made-up samples, not records."""
        return partial(self._trained, self._trainer(request), request)

    def release_job(self, request: ReleaseRequest) -> ReleaseJob:
        """Prepare a query. Refuse one that does not fit the model or the targets."""
        query = request.query
        if self._noise == "grid":
            check_grid("step", request.noise_multiplier, query.layout.size)
        if isinstance(query, StatisticsQuery):
            return self._statistics_job(request, query, self._described)
        if self._held_out is None:
            raise refusal(RefusalCode.POLICY, "this vault holds no records out, so it answers no evaluation query")
        records, outputs = self._held_out.records, self._outputs()
        if (query.task, query.outputs) != (kind := kind_of(records.targets), outputs):
            asked = f"{query.outputs} outputs of kind {query.task}"
            told = f"the query is for {asked}, and this vault has {outputs} of kind {kind}"
            raise refusal(RefusalCode.POLICY, told)
        return partial(self._released, request, query, records)  # proof parallel 3

    def _statistics_job(self, request: ReleaseRequest, query: StatisticsQuery, data: ClientData) -> ReleaseJob:
        """Prepare sums over these rows. Refuse a query that does not fit the schema."""
        if self._schema is None:
            raise refusal(RefusalCode.POLICY, "statistics are of tables, and these records are no table")
        table_layout = TableLayout(self._schema, bins=query.bins, with_target=query.with_target)
        if query.size != table_layout.size:
            told = f"size={query.size} must be {table_layout.size}, as this vault's schema gives it"
            raise refusal(RefusalCode.POLICY, told)
        random_of = partial(release_stream, self._seed, self._run_of(request), request.round, request.client)

        def job(_weights: NDArray[np.float32]) -> NDArray[np.float32]:
            with steady_arithmetic():
                found = noised_sum_of_rows(
                    data.inputs.numpy(),
                    data.targets.numpy(),
                    table_layout,
                    groups=data.groups,
                    max_records=data.max_records,
                    noise_multiplier=request.noise_multiplier,
                    random=random_of(request.channel),
                    noise=self._noise,
                )
            return found.numpy()

        return job

    def _released(
        self,
        request: ReleaseRequest,
        query: EvaluationQuery,
        records: ClientData,
        vector: NDArray[np.float32],
    ) -> NDArray[np.float32]:
        """Return the noised sums over some records."""
        weights, standardiser = self._parts(request, vector)
        load(torch.from_numpy(weights), trained(self._evaluated))
        model, inputs = self._evaluated, records.inputs
        if standardiser is not None and records.groups is None:
            inputs = _moved(inputs, standardiser)
        elif standardiser is not None:  # only the rows that are drawn: no time may depend on how many a person has
            model = _Standardised(model, standardiser)
        random = release_stream(self._seed, self._run_of(request), request.round, request.client, request.channel)
        with steady_arithmetic():
            return evaluated(
                query,
                model,
                inputs,
                records.targets,
                records.rows,
                groups=records.groups,
                max_records=records.max_records,
                noise_multiplier=request.noise_multiplier,
                random=random,
                noise=self._noise,
            )

    def _outputs(self) -> int:
        """Return the number of the model's outputs, tried on one made-up record."""
        with torch.no_grad(), steady_arithmetic():
            return int(self._evaluated(torch.zeros((1, *self._data.inputs.shape[1:]))).shape[-1])

    def cost(self, request: Request) -> Cost:
        """Measure a request on made-up records: its round and step, with the largest batch that is likely at its q."""
        if isinstance(request, ReleaseRequest):
            return self._cost_of_query(request)
        standardiser = self._made_up_standardiser(request)
        trainer, data = self._trainer(request), self._made_up(standardiser)
        rate = math.ceil(largest_batch(len(data), request.sample_rate, _LOG_ODDS)) / len(data)
        plan = replace(request.plan(1), sample_rate=rate, signals=_NOISED_SIGNALS | request.plan(1).signals)
        params = flatten(trained(self._model))

        inputs = self._data.inputs

        def seconds(steps: int) -> float:
            started = time.monotonic()
            random = RandomStream.secure()
            if standardiser is not None and data.groups is None:
                _moved(torch.zeros(1, *inputs.shape[1:]).expand(inputs.shape), standardiser)
            trainer.train(params, data, replace(plan, learning_rates=(_TRIAL_RATE,) * steps), random)
            return time.monotonic() - started

        seconds(2)  # the first steps allocate memory
        rounds: list[float] = []
        pairs: list[float] = []  # of steps, because one step has no secant
        end = time.monotonic() + _TRIAL_SECONDS
        while len(pairs) < _FEWEST_TRIALS or (time.monotonic() < end and len(pairs) < _MOST_TRIALS):
            rounds.append(seconds(0))
            pairs.append(seconds(2))
        # A few of the pairs hold a trial for mixing. Every round has room for one.
        return Cost(round=upper(rounds) + max(pairs) - upper(pairs), step=upper(pairs) / 2)

    def _cost_of_query(self, request: ReleaseRequest) -> Cost:
        """Measure a query on a few made-up records (or persons), for as many as its slot has room for.

        The number of those that are held out is private.
        """
        if isinstance(query := request.query, StatisticsQuery):
            return self._cost_of_statistics(request, query)
        assert self._held_out is not None  # noqa: S101 - `release_job` refuses it before
        count = min(self._held_out.room, _TRIAL_RECORDS)
        weights, standardiser = flatten(trained(self._model)).numpy(), self._made_up_standardiser(request)
        if standardiser is not None:
            weights = np.concatenate([weights, *standardiser.arrays.values()])
        job = partial(self._released, request, query)
        made_up = {size: _zeros_like(self._held_out.records, size) for size in (0, count)}
        job(made_up[count], weights)  # the first run allocates memory
        trials = {size: [_seconds(job, made_up[size], weights) for _ in range(_FEWEST_TRIALS)] for size in made_up}
        fixed, whole = upper(trials[0]), upper(trials[count])
        return Cost(round=fixed + (whole - fixed) * self._held_out.room / count, step=0.0)

    def _cost_of_statistics(self, request: ReleaseRequest, query: StatisticsQuery) -> Cost:
        """Measure statistics on as many made-up rows (or persons) as there are, which is public."""
        job = self._statistics_job(request, query, _zeros_like(self._data, len(self._data)))
        job(np.zeros(0, np.float32))  # the first run allocates memory
        return Cost(round=upper([_seconds(job, np.zeros(0, np.float32)) for _ in range(_FEWEST_TRIALS)]), step=0.0)

    def _parts(
        self, request: Request, vector: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], RowStandardiser | None]:
        """Return the weights, and what standardises rows if it came with them."""
        if not request.standardised or self._schema is None:
            return vector, None
        width = self._schema.width
        weights, mean, scale = np.split(vector, [len(vector) - 2 * width, len(vector) - width])
        return weights, RowStandardiser(mean=mean, scale=scale, bound=self._schema.norm_bound)

    def _made_up_standardiser(self, request: Request) -> RowStandardiser | None:
        if not request.standardised or self._schema is None:
            return None
        ones = np.ones(self._schema.width, np.float32)
        return RowStandardiser(mean=ones, scale=ones, bound=self._schema.norm_bound)

    def _made_up(self, standardiser: RowStandardiser | None) -> ClientData:
        """Return as many made-up records (or persons) as there are. They share a few rows of memory."""
        records, random = self._data, torch.Generator().manual_seed(0)
        count = min(len(records), _TRIAL_RECORDS)
        made_up = replace(
            records,
            inputs=torch.randn((count, *records.inputs.shape[1:]), generator=random).to(records.inputs.dtype),
            targets=torch.zeros((count, *records.targets.shape[1:]), dtype=records.targets.dtype),
            **_made_up_rows(records, len(records), count),
        )
        return made_up if standardiser is None or made_up.groups is None else _prepared(made_up, standardiser)

    def _trainer(self, request: RoundRequest) -> LocalTrainer:
        options = {} if request.options is None else request.options.model_dump()
        method = make_method(request.method, clip_norm=1.0, noise_multiplier=1.0, **options)
        if method.release != request.release:  # what is charged must be what is done
            raise refusal(RefusalCode.POLICY, f"{request.method} does not add its noise to the {request.release}")
        if self._noise == "grid":
            check_grid(request.release, request.noise_multiplier, num_params(trained(self._model)))
        key = "plain" if request.method != "pe_dpfl" else str(sorted(options.items()))
        if key not in self._trainers:
            objective = method.objective(copy.deepcopy(self._model).train(), self._loss)
            trainer = LocalTrainer(objective, noise=self._noise)
            trainer.rehearse(self._data)
            self._trainers[key] = trainer
        self._trainers.move_to_end(key)
        while len(self._trainers) > _LOSSES_KEPT:
            self._trainers.popitem(last=False)
        return self._trainers[key]

    def _trained(
        self, trainer: LocalTrainer, request: RoundRequest, vector: NDArray[np.float32], plan: ClientPlan
    ) -> ClientUpdate:
        weights, standardiser = self._parts(request, vector)
        data = self._data
        if standardiser is not None and data.groups is None:
            data = replace(data, inputs=_moved(data.inputs, standardiser))
        elif standardiser is not None:
            data = _prepared(data, standardiser)
        random = training_stream(self._seed, self._run_of(request), plan)  # a seed gives the keys of a simulation
        return trainer.train(torch.from_numpy(weights), data, plan, random)


def _moved(inputs: Tensor, standardiser: RowStandardiser) -> Tensor:
    """Return standardised rows. A row's vector depends on that row and on what came with the request.

    Denormal numbers are flushed here too: a server could choose a mean and a scale under which some rows meet them.
    """
    with steady_arithmetic():
        return torch.from_numpy(standardiser.rows(inputs.numpy()))


def _prepared(data: ClientData, standardiser: RowStandardiser) -> ClientData:
    """Return data that standardise the rows of each step. The number of all rows is private if persons are the unit."""
    return replace(data, prepare=partial(_moved, standardiser=standardiser))


class _Standardised(nn.Module):
    """Standardises rows before they enter a model."""

    def __init__(self, model: nn.Module, standardiser: RowStandardiser) -> None:
        super().__init__()
        self.model, self._standardiser = model, standardiser

    def forward(self, inputs: Tensor) -> Any:
        return self.model(_moved(inputs, self._standardiser))


def _made_up_rows(records: ClientData, count: int, num_rows: int) -> dict[str, Any]:
    """Return rows and groups of so many made-up records, or persons of k records each, among so many rows."""
    if records.groups is None:
        return {"rows": torch.arange(count) % max(1, num_rows)}
    each = max(1, min(records.max_records, _MOST_TRIAL_ROWS // max(1, count)))
    rows = torch.arange(count * each) % max(1, num_rows)
    return {"rows": rows, "groups": Groups(rows=rows, offsets=each * torch.arange(count + 1))}


def _zeros_like(records: ClientData, count: int) -> ClientData:
    """Return so many records (or persons) of zeros. They share one row of memory."""
    inputs, targets = (values.new_zeros(1, *values.shape[1:]) for values in (records.inputs, records.targets))
    return replace(
        records,
        inputs=inputs.expand(max(1, count), *inputs.shape[1:]),
        targets=targets.expand(max(1, count), *targets.shape[1:]),
        **_made_up_rows(records, count, count),
    )


def load_trainer(enrolment: Enrolment, policy: Policy) -> RecordTrainer:
    """Load the records and build the model. Raise DataError if the records are not the enrolled ones."""
    name, model = enrolment.loss(policy), policy.model
    own = enrolment.source.load(model.loss)
    if own.trained.content_hash(policy.data) != enrolment.data_sha256:
        raise DataError(_CHANGED)
    built = make_model(model.name, tuple(enrolment.input_shape), own.num_outputs, hidden=model.hidden, seed=0)
    trained = _client_data(own.trained, enrolment, policy)
    return RecordTrainer(
        built,
        trained.inputs,
        trained.targets,
        seed=policy.seed,
        noise=policy.noise,
        loss=make_loss(name, level=model.quantile),
        held_out=_held_out(own, enrolment, policy, len(trained)),
        schema=enrolment.source.table,
        groups=trained.groups,
        max_records=trained.max_records,
    )


def _client_data(own: OwnRecords, enrolment: Enrolment, policy: Policy) -> ClientData:
    return ClientData(
        inputs=own.records.inputs,
        targets=own.records.targets,
        rows=torch.arange(len(own.records)),
        groups=own.groups(policy.data, enrolment.source.person_remedy),
        max_records=policy.data.max_records or 1,
    )


def _held_out(own: OwnData, enrolment: Enrolment, policy: Policy, num_trained: int) -> HeldOut | None:
    found, table = held_out_records(enrolment.source, own, policy), enrolment.source.table
    if found is None or table is None:
        return None
    if found.content_hash(policy.data) != enrolment.held_out_sha256:
        raise DataError(_CHANGED)
    return HeldOut.of(_client_data(found, enrolment, policy), table.held_out, num_trained)


def _seconds(job: Callable[..., object], *arguments: object) -> float:
    started = time.monotonic()
    job(*arguments)
    return time.monotonic() - started
