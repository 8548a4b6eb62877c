"""What the clip norm costs: short trainings on rows made up from a schema. No record is read, so it costs no ε.

With a small C there is little noise, but many gradients are shortened, which biases predicted probabilities. At the
public bound on gradients nothing is shortened, but there is more noise. Which is better depends on ε and on the number
of records.
"""

import math
from dataclasses import dataclass
from statistics import NormalDist

import torch
from torch import Tensor, nn

from alidpfl.data.dataset import LabelledData
from alidpfl.dpsgd import RandomStream, StepSettings, dp_sgd_step, make_loss, poisson_sample
from alidpfl.federation.client import batch_clipper_for
from alidpfl.federation.tensors import steady_arithmetic
from alidpfl.methods.method import Objective
from alidpfl.metrics import measure
from alidpfl.planner import PlanRequest, Setting
from alidpfl.policies.schedules import learning_rate
from alidpfl.runs.tables import default_clip_norm, default_learning_rate, gradient_bound
from alidpfl.tables.schema import CategoryColumn, FlagColumn, Schema
from alidpfl.types import OnShare, ignore_progress, loss_for

_MOST_ROWS = 5_000  # more rows take long; the noise is that of all rows in any case
_TEST_ROWS = 5_000
_SPREAD = 2.0  # standard deviation of a made-up row's scores
_NOISE = 0.25  # standard deviation of made-up numbers around their rule
_SHOWN = ("auc", "log_loss", "calibration", "pinball", "r2", "rmse")


@dataclass(frozen=True, kw_only=True)
class ClipNormTrial:
    """What training with one clip norm gave on made-up rows."""

    clip_norm: float | None
    """C; None for the rule by which the targets were made up, which no model can beat on average."""
    name: str
    metrics: dict[str, float]


def try_clip_norms(
    schema: Schema,
    request: PlanRequest,
    setting: Setting,
    *,
    loss: str | None = None,
    quantile: float = 0.5,
    on_share: OnShare = ignore_progress,
) -> list[ClipNormTrial]:
    """Train the linear model with C = 1, with the default, and with the public bound on gradients.

    Args:
        schema: says what rows are possible.
        request: clients, records and budget.
        setting: q, σ and the number of steps.
        loss: name of a loss that ships; None for the default of the target.
        quantile: level of the loss `quantile`.
        on_share: told the share of the trials that are done.

    Returns:
        A trial for each clip norm, the smallest first. The last one is the rule of the targets itself.

    Raises:
        ConfigError: the loss takes another kind of target, or the level is not between 0 and 1.
    """
    task = _Task(schema, loss_for(schema.target.kind, loss), quantile)
    rule = _Rule(task)
    train, test = rule.rows(min(request.samples, _MOST_ROWS), seed=1), rule.rows(_TEST_ROWS, seed=2)
    norms = {
        1.0: "C = 1",
        default_clip_norm(schema, "linear", task.loss, quantile): "default",
        gradient_bound(schema, task.loss, quantile): "public bound",
    }
    found = []
    for number, clip_norm in enumerate(sorted(norms)):
        on_share(number / len(norms))
        outputs = _trained(task, train, request, setting, clip_norm)(test.inputs)
        found.append(_trial(clip_norm, norms[clip_norm], outputs, test, task))
    return [*found, _trial(None, "best possible", rule.best(test.inputs), test, task)]


def _trained(task: "_Task", train: LabelledData, request: PlanRequest, setting: Setting, clip_norm: float) -> nn.Linear:
    """Train on all rows at once, with the noise that the mean over the clients has."""
    model = nn.Linear(task.schema.width, task.schema.num_outputs)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    objective = Objective(model=model, loss=make_loss(task.loss, level=task.quantile))
    clipper, random = batch_clipper_for(objective, "cpu"), RandomStream.seeded(0)
    missing = len(train) / request.samples  # of the rows, if there are more than are made up
    first = default_learning_rate(task.schema, task.loss)
    with steady_arithmetic():
        for step in range(setting.steps):
            settings = StepSettings(
                clip_norm=clip_norm,
                noise_multiplier=setting.noise_multiplier * math.sqrt(request.clients) * missing,
                learning_rate=learning_rate("late_decay", first, step / setting.steps),
                expected_batch_size=setting.sample_rate * len(train),
            )
            rows = poisson_sample(len(train), setting.sample_rate, random)
            dp_sgd_step(clipper, train.inputs, train.targets, settings, random, rows=rows, places=rows)
    return model


def _trial(clip_norm: float | None, name: str, outputs: Tensor, test: LabelledData, task: "_Task") -> ClipNormTrial:
    truth = test.targets.numpy()
    values = measure(test.kind, outputs.detach().numpy(), truth, loss=task.loss, quantile=task.quantile).values
    return ClipNormTrial(clip_norm=clip_norm, name=name, metrics={key: values[key] for key in _SHOWN if key in values})


@dataclass(frozen=True)
class _Task:
    """What is learnt."""

    schema: Schema
    loss: str
    quantile: float
    """Level of the loss `quantile`."""


class _Rule:
    """A random linear rule from rows to targets."""

    def __init__(self, task: _Task) -> None:
        schema = task.schema
        self._task, self._schema = task, schema
        random = torch.Generator().manual_seed(0)
        self._weights = torch.randn(schema.num_outputs, schema.width, generator=random)
        self._weights *= _SPREAD / math.sqrt(len(schema.columns))

    def scores(self, inputs: Tensor) -> Tensor:
        """Return what the rule says of rows: scores, or numbers in [-1, 1]."""
        scores = inputs @ self._weights.t()
        return scores.div_(2 * _SPREAD).clamp_(-1, 1) if self._schema.target.kind == "number" else scores

    def best(self, inputs: Tensor) -> Tensor:
        """Return the outputs of the best possible model."""
        scores = self.scores(inputs)
        if self._task.loss == "quantile":
            return (scores + _NOISE * NormalDist().inv_cdf(self._task.quantile)).clamp_(-1, 1)
        return (scores + 1).log() if self._task.loss == "poisson" else scores

    def rows(self, count: int, *, seed: int) -> LabelledData:
        """Draw rows, every possible value equally often, and a target for each."""
        random = torch.Generator().manual_seed(seed)
        inputs = torch.cat([self._column(name, count, random) for name in self._schema.columns], 1)
        scores, kind = self.scores(inputs), self._schema.target.kind
        if kind == "class":
            targets = torch.multinomial(scores.softmax(1), 1, generator=random)[:, 0]
        elif kind == "labels":
            targets = torch.bernoulli(scores.sigmoid(), generator=random)
        else:
            targets = (scores[:, 0] + _NOISE * torch.randn(count, generator=random)).clamp_(-1, 1)
            if self._task.loss == "poisson":  # counts are in [0, 2], as in a run
                targets += 1
        return LabelledData(inputs=inputs, targets=targets)

    def _column(self, name: str, count: int, random: torch.Generator) -> Tensor:
        """Return (count, features) values of a column, none of them missing."""
        column, values = self._schema.columns[name], torch.zeros(count, len(self._schema.features(name)))
        if isinstance(column, CategoryColumn):
            places = torch.randint(len(column.values), (count, 1), generator=random)
            return values.scatter_(1, places, 1.0)
        drawn = torch.rand(count, generator=random) * 2 - 1
        values[:, 0] = drawn.sign() if isinstance(column, FlagColumn) else drawn
        return values
