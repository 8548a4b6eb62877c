"""Two runs on neighbouring data sets with frozen noise: what all tests in this folder stand on.

**Neighbours.** The number of records n is public, so D' has n places as D has. One record is in D and not in D': in D
its coin falls heads in every step, which is the worst case, in D' never; all other coins are the same. And in D' its
place holds another record entirely, so that whatever looks there without a coin shows it.

**Frozen noise.** Both runs draw the same keystream. After the first step their weights would still drift apart, since
the sums differ. So in the second run every sum is computed from its own records and held against the first run's, and
then the *first* run's noised sum is what goes out: the noise is moved by the difference of the sums, which is what the
Gaussian mechanism charges for. Both runs therefore are at the same weights before every release.

**Why that is the guarantee, and no less.** By adaptive composition a run costs what its releases cost, each given all
those before it. Given the same past, a release costs no more than was charged if the sums differ by at most
(standard deviation of the noise) / σ, and noise and scale do not depend on the records. All else must be computed from
releases and public numbers. With the same releases in both runs it is then the same to the last bit, and whatever
differs is a leak: plans, weights, signals, records, logs, errors, files, bytes.

Nothing is asserted while the code under test runs, which might swallow it: `Watch` keeps comparisons, `check` judges.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor

from alidpfl.data import table_sums
from alidpfl.dpsgd import Groups, RandomStream, release, step
from alidpfl.dpsgd.grid_noise import Grid
from alidpfl.federation import client
from alidpfl.federation.client import LocalTrainer
from alidpfl.privacy import FilteredLedger, PlannedLedger
from alidpfl.runs import features as featured
from alidpfl.types import ClientPlan, ClientUpdate

Sums = dict[str, Tensor]

ROUNDING = 1e-6
"""A sample's contribution is at most C(1 + 1e-6)."""


@dataclass(frozen=True)
class Neighbour:
    """The record (or person) that is in D and not in D'."""

    client: int
    place: int
    """Among the client's records (or persons)."""
    appears: bool = False
    """True if D' comes first, so that it appears in the second run. Else it vanishes there."""


@dataclass(frozen=True)
class Release:
    """A noised sum, and what it was made of."""

    total: Sums
    noised: Sums
    scale: float
    """Standard deviation of the noise."""
    charged: float
    """σ of the plan, which `Watch.check` holds against what the ledger was told."""
    rate: float
    """Probability with which a record takes part, as the plan says."""
    what: object
    """Whose, and which of them."""

    @property
    def form(self) -> object:
        """All of it that must not depend on records."""
        shapes = [(name, tuple(t.shape), t.dtype) for name, t in self.noised.items()]
        return shapes, self.scale, self.charged, self.rate, self.what


@dataclass(frozen=True)
class Comparison:
    """One release of the second run beside the first run's."""

    distance: float
    """‖sum with D − sum with D'‖."""
    allowed: float
    """What the noise hides at the σ that was charged: C, and 2S where it goes on an update."""
    same_form: bool
    same_noise: bool


@dataclass
class Watch:
    """A context in which a run is watched; the second one follows the first."""

    neighbour: Neighbour
    follows: "Watch | None" = field(default=None, repr=False)
    num_clients: int = 1
    """Who releases statistics before the first round, one after the other."""
    releases: list[Release] = field(default_factory=list, repr=False)
    comparisons: list[Comparison] = field(default_factory=list, repr=False)
    updates: list[tuple[object, ...]] = field(default_factory=list, repr=False)
    """What each client was sent, and what it sent."""
    charges: dict[int, list[tuple[float, float]]] = field(default_factory=dict, repr=False)
    """By client, σ and sampling rate of every unit that a ledger on this machine was told of."""

    def __enter__(self) -> "Watch":
        self._patch = pytest.MonkeyPatch()
        self._charged, self._rate, self._what = 0.0, 1.0, ()
        noised = self._watched_noise(step.add_noise)
        for module in (step, client, release):
            self._patch.setattr(module, "add_noise", noised)
        self._patch.setattr(Grid, "noised_total", self._watched_grid(Grid.noised_total))
        for ledger in (PlannedLedger, FilteredLedger):
            self._patch.setattr(ledger, "charge", self._watched_charge(ledger.charge))
        self._patch.setattr(Groups, "draw", self._watched_draw(Groups.draw))
        self._patch.setattr(LocalTrainer, "train", self._watched_training(LocalTrainer.train))
        for module in (featured, table_sums):
            self._patch.setattr(module, "noised_total", self._watched_total(module.noised_total))
        return self

    def __exit__(self, *_: object) -> None:
        self._patch.undo()

    def check(self) -> None:
        """The second run's releases cost no more than was charged. Of anything else the test itself judges."""
        assert self.follows is not None
        assert len(self.releases) == len(self.follows.releases) > 0, "one run released more often than the other"
        for number, found in enumerate(self.comparisons):
            assert found.same_form, (
                f"release {number}: {self.releases[number].form}, {self.follows.releases[number].form}"
            )
            assert found.same_noise, f"release {number}: the noise depends on the records"
            assert found.distance <= found.allowed * (1 + ROUNDING), f"release {number}: {found}"

    def check_charges(self) -> None:
        """Every client's releases in rounds are what its ledger has booked: as many, of as much noise, at that rate."""
        released: dict[int, list[tuple[float, float]]] = {}
        for found in self.releases:
            kind, client = found.what
            if kind != "statistics":
                released.setdefault(client, []).append((found.charged, found.rate))
        assert released == self.charges

    @property
    def furthest(self) -> float:
        """Largest distance of two sums, as a share of what the noise hides."""
        return max(found.distance / found.allowed for found in self.comparisons)

    # ------------------------------------------------------------------------------------------------------- taps

    def _watched_training(self, train: Callable[..., ClientUpdate]) -> Callable[..., ClientUpdate]:
        def watched(
            trainer: LocalTrainer, params: Tensor, data: Any, plan: ClientPlan, random: RandomStream
        ) -> ClientUpdate:
            if plan.client == self.neighbour.client:
                is_with_it = (self.follows is None) != self.neighbour.appears
                _fix_coin(random, self.neighbour.place, 0.0 if is_with_it else 1.0)
            self._charged, self._what = plan.noise_multiplier, (plan.round, plan.client)
            self._rate = plan.sample_rate if plan.release == "step" else 1.0  # an update is of all records
            sent = (_bits(params), plan)
            update = train(trainer, params, data, plan, random)
            signals = (update.client, update.secants, update.gradient_norm, update.raw, update.steps)
            self.updates.append((*sent, _bits(update.params), *signals))
            return update

        return watched

    def _watched_draw(self, draw: Callable[..., tuple[Tensor, Tensor]]) -> Callable[..., tuple[Tensor, Tensor]]:
        """Draw records with randomness of each person's own: the others' draws are the same in both runs.

        The code draws from the stream of the batch. One person more would move that stream on, which changes no
        distribution, but would tell the two runs apart.
        """
        calls = iter(range(1 << 30))

        def watched(groups: Groups, persons: Tensor, max_records: int, random: RandomStream) -> tuple[Tensor, Tensor]:
            coupled = RandomStream.seeded(next(calls))
            every = coupled.uniform(len(groups) * max_records).view(len(groups), max_records)
            coupled.uniform = lambda _: every[persons].flatten()  # type: ignore[method-assign]
            return draw(groups, persons, max_records, coupled)

        return watched

    def _watched_total(self, total: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """The statistics before the first round: every client's in turn, of all its records, so no coin is thrown."""
        calls = iter(range(1 << 30))

        def watched(vectors: Iterable[Tensor], size: int, *, noise_multiplier: float, **settings: Any) -> Tensor:
            number = next(calls)
            self._charged, self._rate, self._what = noise_multiplier, 1.0, ("statistics", number)
            pieces = list(vectors)
            if self.follows is not None and number % self.num_clients == self.neighbour.client:
                pieces = [torch.cat(pieces)]
                pieces[0][self.neighbour.place] = 0.0
            return total(iter(pieces), size, noise_multiplier=noise_multiplier, **settings)

        return watched

    def _watched_charge(self, charge: Callable[..., None]) -> Callable[..., None]:
        def watched(ledger: Any, client: Any, steps: int, noise_multiplier: float, *, sample_rate: float) -> None:
            before = ledger.steps_spent(client)
            charge(ledger, client, steps, noise_multiplier, sample_rate=sample_rate)
            booked = ledger.steps_spent(client) - before
            self.charges.setdefault(client, []).extend([(noise_multiplier, sample_rate)] * booked)

        return watched

    def _watched_grid(self, noised_total: Callable[..., Tensor]) -> Callable[..., Tensor]:
        """Noise on a grid is added to whole numbers: what is compared are their sums, in the sum's own units."""

        def watched(grid: Grid, vectors: Iterable[Tensor], size: int, random: RandomStream) -> Tensor:
            kept = [vector.clone() for vector in vectors]
            total = torch.zeros(size, dtype=torch.float64)
            for vector in kept:
                total += grid.rounded(vector) * grid.step
            sums = {"total": noised_total(grid, iter(kept), size, random)}
            self._note(total={"total": total}, sums=sums, scale=grid.noise_multiplier * grid.clip_norm)
            return sums["total"]

        return watched

    def _watched_noise(self, add_noise: Callable[..., None]) -> Callable[..., None]:
        def watched(sums: Sums, scale: float, random: RandomStream, *rest: Any, **options: Any) -> None:
            if scale == 0:  # a step of a round whose update is noised as a whole: it does not leave the client
                return
            total = {name: values.double().clone() for name, values in sums.items()}
            add_noise(sums, scale, random, *rest, **options)
            self._note(total=total, sums=sums, scale=scale)

        return watched

    def _note(self, *, total: Sums, sums: Sums, scale: float) -> None:
        """Keep a release, and put the first run's in its place where there is one."""
        noised = {name: values.clone() for name, values in sums.items()}
        self.releases.append(
            Release(total=total, noised=noised, scale=scale, charged=self._charged, rate=self._rate, what=self._what)
        )
        self._follow(sums)

    def _follow(self, sums: Sums) -> None:
        if self.follows is None or len(self.releases) > len(self.follows.releases):
            return
        ours, theirs = self.releases[-1], self.follows.releases[len(self.releases) - 1]
        self.comparisons.append(_compared(ours, theirs))
        if ours.noised.keys() == theirs.noised.keys():
            sums.update({name: values.clone() for name, values in theirs.noised.items()})


def _compared(ours: Release, theirs: Release) -> Comparison:
    if ours.form != theirs.form:
        return Comparison(distance=0.0, allowed=0.0, same_form=False, same_noise=False)
    apart = _joined(ours.total) - _joined(theirs.total)
    moved = _joined(ours.noised) - _joined(theirs.noised) - apart
    return Comparison(
        distance=float(apart.norm()),
        allowed=ours.scale / ours.charged,
        same_form=True,
        same_noise=bool(moved.abs().max() <= ours.scale / 100),  # but for the rounding of both to a grid
    )


def _joined(sums: Sums) -> Tensor:
    return torch.cat([values.double().flatten() for values in sums.values()])


def _fix_coin(random: RandomStream, place: int, value: float) -> None:
    draw = random.uniform

    def uniform(count: int) -> Tensor:
        coins = draw(count)
        coins[place] = value
        return coins

    random.uniform = uniform  # type: ignore[method-assign]


def _bits(values: Tensor) -> bytes:
    return values.detach().contiguous().numpy().tobytes()
