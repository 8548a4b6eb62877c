"""The two arms of the one-step audit: what a client releases with a canary among its records, and without it.

A record that is left out is replaced by a record of NaN, and its gradient counts as zero. So the number of records is
the same in both arms, as in the claim. Weights, step size and records are those of the worst server and the worst data.
Everything else is the client's own code.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import torch
from torch import Tensor

from alidpfl.audit.canaries import CanaryGradients
from alidpfl.audit.subject import Subject
from alidpfl.dpsgd import RandomStream
from alidpfl.federation.client import ClientData, LocalTrainer
from alidpfl.types import ClientPlan

_SCALES = (1.0, 10.0, 100.0, 1000.0)  # of canaries
_WEIGHT_SCALES = (1.0, 3.0, 10.0)  # a server may send any weights; larger ones give larger gradients
_TARGET_DISTANCE = 2.7  # standard deviations between the arms; here a threshold shows most about σ
_MOST_COPIES = 64
_SEARCH_STEPS = 200
_PLENTY = 10.0  # times S, so that every update is clipped
_STANDING_STILL = 1e-20  # step size of a step that must not move the weights
_Candidate: TypeAlias = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Arms:
    """A client's step with and without the canary, read along the line on which the arms differ."""

    trainer: LocalTrainer
    plans: tuple[ClientPlan, ...]  # used in turns; the last step of each is read: the first and the second of a round
    params: Tensor
    data: dict[bool, ClientData]  # the records, by whether the canary is among them
    reader: Tensor  # (num_params,) the line; its product with a released change of the weights is in units of C (or 2S)
    threshold: float  # half way between the un-noised values of the arms; above it, the guess is that the canary is in
    distance: float  # between the un-noised values of the arms, in the same units
    copies: int = 1  # canaries that are in or out together; by group privacy, μ is `copies`/σ for them
    unnoised: dict[bool, Tensor]  # (num_params,) change of the weights without noise, for the arms where it is known
    is_exact: bool = True  # False if `unnoised` is an average over the randomness of the loss
    noise_scale: float  # standard deviation of the noise on every weight: σC, or 2σS for an update

    def released(self, is_in: bool, number: int, random: RandomStream) -> Tensor:
        """Train with the client's code and return the change of the weights, (num_params,). `number` picks the plan."""
        plan = self.plans[number % len(self.plans)]
        return self.trainer.train(self.params, self.data[is_in], plan, random).params - self.params


def make_arms(subject: Subject, random: RandomStream) -> Arms:
    """Return arms with the strongest canary found, for noise on steps or on updates."""
    make = _arms_of_update if subject.method.release == "update" else _arms_of_step
    return make(subject, CanaryGradients(subject.objective()), random)


def _arms_of_step(subject: Subject, gradients: CanaryGradients, random: RandomStream) -> Arms:
    """Use copies of one record with a clipped gradient. Each moves the sum by C along its gradient."""
    clip_norm, sigma = subject.clip_norm, subject.noise_multiplier

    def moved(params: Tensor, record: Tensor, label: Tensor, copies: int) -> Tensor:
        inputs, targets = (part.expand(copies, *part.shape[1:]).contiguous() for part in (record, label))
        return gradients.mean_total(params, inputs, targets, clip_norm, random)

    def length(candidate: _Candidate) -> float:
        return float(moved(*candidate, 1).nan_to_num().norm())

    params, record, label = max(_candidates(subject, gradients.params, random), key=length)
    copies = min(_MOST_COPIES, max(1, round(_TARGET_DISTANCE * sigma)))
    shift = moved(params, record, label, copies)
    distance = float(shift.norm())
    inputs = torch.cat([record, torch.full_like(record, torch.nan)])
    rows = {True: torch.zeros(copies, dtype=torch.int64), False: torch.ones(copies, dtype=torch.int64)}
    return Arms(
        trainer=LocalTrainer(subject.objective(), noise=subject.noise),
        # The step size cancels the divisor: the weights move by the noised sum of the last step alone.
        plans=tuple(_plan(subject, *rates, float(copies)) for rates in ((), (copies * _STANDING_STILL,))),
        params=params,
        data={k: _client(subject, inputs, torch.cat([label, label]), r) for k, r in rows.items()},
        reader=-shift / (distance * clip_norm),
        threshold=distance / clip_norm / 2,
        distance=distance / clip_norm,
        copies=copies,
        unnoised={False: torch.zeros_like(params)} | ({} if gradients.is_random else {True: -shift}),
        noise_scale=sigma * clip_norm,
    )


def _arms_of_update(subject: Subject, gradients: CanaryGradients, random: RandomStream) -> Arms:
    """Use a record that reverses the whole update: from S in one direction to S in the other, if one is found."""
    limit = subject.clip_norm

    def updates(params: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, float]:
        """Return both un-noised updates, without and with the canary, and a step size that clips both."""
        sums = [gradients.mean_total(params, inputs[:n], targets[:n], torch.inf, random) for n in (1, 2)]
        norms = [max(float(total.norm()), 1e-6) for total in sums]
        without, with_canary = (total * (-limit / norm) for total, norm in zip(sums, norms, strict=True))
        return without, with_canary, _PLENTY * len(inputs) * limit / min(norms)

    def distance(candidate: _Candidate) -> float:
        without, with_canary, _ = updates(*candidate)
        return float((with_canary - without).nan_to_num().norm())

    params, inputs, targets = max(_opposites(subject, gradients, random), key=distance)
    without, with_canary, rate = updates(params, inputs, targets)
    shift = with_canary - without
    reader = shift / (shift.norm() * 2 * limit)
    records = {True: inputs, False: torch.cat([inputs[:1], torch.full_like(inputs[1:], torch.nan)])}
    return Arms(
        trainer=LocalTrainer(subject.objective(), noise=subject.noise),
        plans=(_plan(subject, rate),),
        params=params,
        data={k: _client(subject, own, targets, torch.arange(2)) for k, own in records.items()},
        reader=reader,
        threshold=float(torch.dot(without + with_canary, reader)) / 2,
        distance=float(shift.norm()) / (2 * limit),
        unnoised={False: without},
        is_exact=not gradients.is_random,
        noise_scale=2 * subject.noise_multiplier * limit,
    )


def _client(subject: Subject, inputs: Tensor, targets: Tensor, rows: Tensor) -> ClientData:
    """Return a client with these rows as its records, or with a person for each row.

    A person has her row k + 1 times. So her gradient is that of the row.
    """
    groups = subject.canary_groups(rows)
    rows = rows if groups is None else groups.rows
    return ClientData(inputs=inputs, targets=targets, rows=rows, groups=groups, max_records=subject.max_records)


def _plan(subject: Subject, *learning_rates: float) -> ClientPlan:
    """Return steps over all records. The canary is always in the batch, and only σ hides it."""
    return ClientPlan(
        client=0,
        round=0,
        sample_rate=1.0,
        noise_multiplier=subject.noise_multiplier,
        clip_norm=subject.clip_norm,
        learning_rates=learning_rates,
        release=subject.method.release,
    )


def _candidates(subject: Subject, params: Tensor, random: RandomStream) -> Iterator[_Candidate]:
    """Return weights, a record (1, ...) of noise and its target (1, ...)."""
    noise, targets = _noise(subject.inputs, random), subject.wrong_targets
    for weights, scale, target in product(_WEIGHT_SCALES, _SCALES, (targets[:1], targets[-1:])):
        yield params * weights, noise * scale, target


def _opposites(subject: Subject, gradients: CanaryGradients, random: RandomStream) -> Iterator[_Candidate]:
    """Return weights and two records. The second pulls in the opposite direction, and more strongly."""
    noise, labels = _noise(subject.inputs, random), subject.wrong_targets[[0, -1]]
    for scale in _SCALES[:2]:
        record = noise * scale
        yield _torn_weights(gradients, record, labels, random), torch.cat([record, record]), labels
        yield gradients.params, torch.cat([record, -10 * record]), torch.cat([labels[:1], labels[:1]])


def _torn_weights(gradients: CanaryGradients, record: Tensor, labels: Tensor, random: RandomStream) -> Tensor:
    """Return weights at which the record has probability 0.9 of one class and 0.1 of the other.

    There its gradients with the two labels are opposite in every layer, and the second is nine times as long.
    """
    params, size = gradients.params.clone(), None
    for _ in range(_SEARCH_STEPS):
        pulls = [gradients.total(params, record, label, torch.inf, random) for label in labels.split(1)]
        size = size or max(2 * float(pulls[1].norm()) ** 2, 1e-12)
        params -= (0.9 * pulls[0] + 0.1 * pulls[1]) / size
    return params


def _noise(like: Tensor, random: RandomStream) -> Tensor:
    """Return a made-up record, (1, ...)."""
    return random.normal(like[0].numel()).view(1, *like.shape[1:]).to(like.dtype)
