"""A client's round: τ steps of DP-SGD on its own data. The same code runs in a simulation and in a vault.

Only noised quantities leave `LocalTrainer.train`. The exception is the raw signals of the paper's policy, which must be
admitted by name and are outside every guarantee.
"""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from alidpfl.dpsgd import (
    Clipper,
    Grid,
    Groups,
    OneByOneClipper,
    PerSampleClipper,
    RandomStream,
    SoftmaxClipper,
    StepSettings,
    add_noise,
    cross_entropy,
    dp_sgd_step,
    is_softmax_regression,
    poisson_sample,
)
from alidpfl.dpsgd.clipping import SAFETY
from alidpfl.dpsgd.gradient_forms import clip_factors, finite
from alidpfl.dpsgd.grid_noise import thresholds
from alidpfl.dpsgd.step import NO_CLIPPING, NO_NOISE
from alidpfl.errors import ConfigError, DataError
from alidpfl.federation.curvature import Noise, secant, squared_norm, total
from alidpfl.federation.tensors import flatten, load, steady_arithmetic, trained
from alidpfl.methods.method import Objective
from alidpfl.types import ClientPlan, ClientUpdate, NoiseKind, RawSignals, Release, SecantSums


@dataclass(frozen=True, kw_only=True)
class ClientData:
    """A client's records, as rows of shared tensors. Nothing is copied until a batch is drawn.

    Its length is the number of its units: of its persons if there are `groups`, of its records otherwise.
    """

    inputs: Tensor = field(repr=False)  # hidden: printing or logging data must not reveal them
    targets: Tensor = field(repr=False)
    rows: Tensor = field(repr=False)
    """(n,) int64: the client's rows."""
    groups: Groups | None = None
    """The rows of each person, if the unit of privacy is a person. None means that it is a record."""
    max_records: int = 1
    """k: the most records of a person in a step. It is public."""
    prepare: Callable[[Tensor], Tensor] | None = None
    """Maps the inputs of drawn records, each by itself, before they enter a step. None: they enter as they are."""

    def __post_init__(self) -> None:
        if self.groups is not None and len(self.groups.rows) != len(self.rows):
            raise DataError("groups must have each of the client's records exactly once")

    def __len__(self) -> int:
        return len(self.rows) if self.groups is None else len(self.groups)

    def drawn(self, units: Tensor, random: RandomStream) -> tuple[Tensor, Tensor | None]:
        """Return the rows of these units, and the weights of a person's rows in her mean; None for records.

        Args:
            units: (B,) numbers of the units, counted from 0.
            random: draws at most k records of each person.
        """
        if self.groups is None:
            return self.rows[units], None
        return self.groups.draw(units, self.max_records, random)

    def none_drawn(self) -> tuple[Tensor, Tensor | None]:
        """Return the rows and weights of an empty batch."""
        if self.groups is None:
            return self.rows[:0], None
        return self.rows.new_empty(0, self.max_records), torch.empty(0, self.max_records)

    def prepared(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return inputs and targets, and where these rows are in them. No work depends on other rows."""
        if self.prepare is None:
            return self.inputs, self.targets, rows
        some = rows.flatten()
        return self.prepare(self.inputs[some]), self.targets[some], torch.arange(len(some)).view(rows.shape)

    def batch(self, records: Tensor) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of the client's records with these numbers, counted from 0."""
        inputs, targets, rows = self.prepared(self.rows[records])
        return inputs[rows], targets[rows]


def training_stream(seed: int | None, run: str | None, plan: ClientPlan) -> RandomStream:
    """Return the randomness of one client's round: fresh entropy, or a stream keyed by seed, round, client and run.

    A vault always names the run. Otherwise a server could ask for the same round in two runs, and the difference of the
    answers would have no noise.

    Args:
        seed: the seed, or None for fresh entropy.
        run: name of the run, or None for the key of a simulation without a name.
        plan: the round and the client.
    """
    if seed is None:
        return RandomStream.secure()
    name = () if run is None else (int.from_bytes(hashlib.sha256(run.encode()).digest()),)
    return RandomStream.seeded(seed, plan.round, plan.client, *name)


def release_stream(seed: int | None, run: str | None, number: int, client: int, channel: str) -> RandomStream:
    """Return the randomness of one noised release: fresh entropy, or a stream that no round and no other release has.

    Args:
        seed: the seed, or None for fresh entropy.
        run: name of the run, or None for the key of a simulation without a name.
        number: number of the release in its channel.
        client: the client.
        channel: what its numbers are counted by, such as "evaluation".
    """
    if seed is None:
        return RandomStream.secure()
    words = (int.from_bytes(hashlib.sha256(text.encode()).digest()) for text in (channel, run or ""))
    return RandomStream.seeded(seed, number, client, *words)


class LocalTrainer:
    """Trains one client after the other on one model in memory. It keeps nothing of a client between rounds."""

    def __init__(self, objective: Objective, *, device: str = "cpu", noise: NoiseKind = "gaussian") -> None:
        """Take over the objective's model: every round overwrites its weights."""
        self._objective = objective
        self._clipper: Clipper | OneByOneClipper
        if noise == "grid":
            self._clipper = OneByOneClipper(objective.model.to(device), loss=objective.loss)
            thresholds()  # takes a second, once; done before processes fork and rounds are timed
        else:
            self._clipper = batch_clipper_for(objective, device)

    def rehearse(self, data: ClientData) -> None:
        """Try the model now, on made-up samples and at its own weights.

        Later the trial would run at a server's weights, after the round was charged, and hostile weights such as 3e38
        could make it fail.
        """
        with steady_arithmetic():
            if isinstance(self._clipper, OneByOneClipper):
                self._clipper.rehearse(data.inputs, data.targets)
            else:
                rows, weights = data.none_drawn()
                self._clipper.clipped_sum(data.inputs, data.targets, clip_norm=1.0, seed=0, rows=rows, weights=weights)

    def train(self, params: Tensor, data: ClientData, plan: ClientPlan, random: RandomStream) -> ClientUpdate:
        """Run a plan, which must have been charged before. Return the new weights and the signals.

        Args:
            params: (num_params,) the weights to start from.
            data: the client's records.
            plan: steps, step sizes, C, σ and the signals that are asked for.
            random: the source of batches and noise.
        """
        if len(data) == 0:
            raise DataError(f"client {plan.client} has no records; leave it out, or set min_samples")
        if isinstance(self._clipper, OneByOneClipper):
            check_grid(plan.release, plan.noise_multiplier, len(params))
        with steady_arithmetic():
            return self._trained(params, data, plan, random)

    def _trained(self, params: Tensor, data: ClientData, plan: ClientPlan, random: RandomStream) -> ClientUpdate:
        load(params, self._clipper.parameters)
        divisor = plan.sample_rate * len(data)  # public: fixed at enrolment, whatever the size of the batch
        observer = _NoisedGradients(plan, len(data), len(params))
        for learning_rate in plan.learning_rates:
            gradient = self._step(data, plan, learning_rate, divisor, random)
            observer.see(gradient, learning_rate)
        after = flatten(self._clipper.parameters)
        if plan.release == "update":
            after = _noised_update(params, after, plan, random)
        return ClientUpdate(
            client=plan.client,
            params=after,
            secants=total(observer.pairs),
            gradient_norm=sum(observer.norms) / len(observer.norms) if observer.norms else None,
            raw=raw_signals(self._objective, params, after, data) if "raw" in plan.signals else None,
        )

    def _step(
        self, data: ClientData, plan: ClientPlan, learning_rate: float, divisor: float, random: RandomStream
    ) -> dict[str, Tensor]:
        """Run one step in place; return its noised sum."""
        units = poisson_sample(len(data), plan.sample_rate, random)
        if self._objective.before_step is not None:
            self._objective.before_step(random)
        settings = _step_settings(plan, learning_rate, divisor)
        drawn, weights = data.drawn(units, random)
        inputs, targets, rows = data.prepared(drawn)
        result = dp_sgd_step(self._clipper, inputs, targets, settings, random, rows=rows, weights=weights, places=units)
        return result.noised_sum


def check_grid(release: Release, noise_multiplier: float, num_params: int) -> None:
    """Refuse what noise on a grid does not cover. Uses public numbers only, so it can be called before any charge."""
    if release != "step":
        raise ConfigError(
            'noise="grid" goes on steps, and this method puts its noise on the update: use variant="dpsgd" of pe_dpfl, '
            'or noise="gaussian"'
        )
    Grid(clip_norm=1.0, noise_multiplier=noise_multiplier).check_size(num_params)


def batch_clipper_for(objective: Objective, device: str) -> Clipper:
    """Return the clipper of a client's steps: closed form for softmax regression, layer by layer for all else."""
    model = objective.model.to(device)
    if objective.loss is cross_entropy and is_softmax_regression(model):
        assert isinstance(model, nn.Linear)  # noqa: S101 - for the type checker
        return SoftmaxClipper(model)
    return PerSampleClipper(model, loss=objective.loss)


def _step_settings(plan: ClientPlan, learning_rate: float, divisor: float) -> StepSettings:
    is_plain = plan.release == "update"  # plain SGD steps; the update is clipped and noised as a whole
    return StepSettings(
        clip_norm=math.inf if is_plain else plan.clip_norm,
        noise_multiplier=0.0 if is_plain else plan.noise_multiplier,
        learning_rate=learning_rate,
        expected_batch_size=divisor,
        unsafe=frozenset({NO_NOISE, NO_CLIPPING} if is_plain else ()),
    )


def _noised_update(before: Tensor, after: Tensor, plan: ClientPlan, random: RandomStream) -> Tensor:
    """Clip the whole update to S = clip_norm and add N(0, σ²(2S)²): any change of the data moves it by at most 2S."""
    update = (after - before).double()
    factor = clip_factors(update.norm(), plan.clip_norm * SAFETY)  # 0 if not finite: then only noise goes out
    released = {"update": finite(update) * factor}
    add_noise(released, 2 * plan.clip_norm * plan.noise_multiplier, random)
    return before + released["update"]


class _NoisedGradients:
    """Signals from the noised gradients of a round. It sees nothing else, so the signals cost no privacy."""

    def __init__(self, plan: ClientPlan, num_units: int, num_params: int) -> None:
        on_steps = plan.release == "step"
        self._wants_secants = on_steps and "secants" in plan.signals and plan.steps > 1
        self._wants_norm = on_steps and "gradient_norm" in plan.signals
        self._divisor, self._num_params = plan.sample_rate * num_units, num_params
        self._noise = Noise.of(plan, num_units)
        self._previous: Tensor | None = None
        self._previous_rate = 0.0
        self.pairs: list[SecantSums] = []
        """Secants of consecutive gradients."""
        self.norms: list[float] = []
        """De-biased norm of each step's gradient."""

    def see(self, noised_sum: dict[str, Tensor], learning_rate: float) -> None:
        """Record a step's noised gradient, taken at the weights before that step."""
        if not (self._wants_secants or self._wants_norm):
            return
        gradient = flatten(noised_sum).div_(self._divisor)
        if self._wants_norm:
            # Adap DP-FL: with the noise's share left in, the norm would grow by σ√d/B every round.
            squared = squared_norm(gradient) - self._num_params * self._noise.variance
            self.norms.append(math.sqrt(max(0.0, squared)))
        if self._wants_secants:
            if self._previous is not None:
                change, moved = gradient - self._previous, self._previous * -self._previous_rate
                self.pairs.append(secant(change, moved, self._noise, self._noise, self._previous_rate))
            self._previous, self._previous_rate = gradient, learning_rate


MOST_RECORDS = 128
"""Records of a client that raw signals use, evenly spread.

Full gradients of 6,000 records would take fifty times as long as the training itself. On MNIST the curvature from 128
records is within 20 to 30 % of that from 2,048, and it changes more from round to round.
"""


def raw_signals(objective: Objective, before: Tensor, after: Tensor, data: ClientData) -> RawSignals:
    """Return μ = ‖∇F_i(w_i) − ∇F_i(w)‖ / ‖w_i − w‖ and the losses at both ends, all WITHOUT noise.

    The ratio lies between the smallest and the largest curvature. It measures smoothness, not the strong convexity that
    the paper calls μ.

    Args:
        objective: the model and the loss.
        before: the weights at the start of the round.
        after: the weights at its end.
        data: the client's records.
    """
    count = len(data.rows)  # also for persons: this is private in any case
    records = torch.linspace(0, count - 1, min(count, MOST_RECORDS)).long()
    inputs, targets = data.batch(records)
    loss_before, gradient_before = _loss_and_gradient(objective, before, inputs, targets)
    loss_after, gradient_after = _loss_and_gradient(objective, after, inputs, targets)
    moved = float((after - before).double().norm())
    change = float((gradient_after - gradient_before).norm())
    return RawSignals(curvature=change / moved if moved > 0 else 0.0, loss_before=loss_before, loss_after=loss_after)


def _loss_and_gradient(objective: Objective, weights: Tensor, inputs: Tensor, targets: Tensor) -> tuple[float, Tensor]:
    parameters = trained(objective.model)
    device = next(iter(parameters.values())).device
    load(weights, parameters)
    loss = objective.loss(objective.model(inputs.to(device)), targets.to(device)).mean()
    gradients = torch.autograd.grad(loss, list(parameters.values()))
    return float(loss.detach()), torch.cat([g.reshape(-1) for g in gradients]).double()
