"""A federation, whole: engine, loop and model in one object to step through, from a notebook or a run."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Protocol

import torch
from torch import Tensor, nn

from alidpfl.errors import ConfigError
from alidpfl.federation.client import check_grid
from alidpfl.federation.loop import Training
from alidpfl.federation.server import ServerSettings
from alidpfl.federation.settings import Engine, Evaluation, FederationSettings, Part
from alidpfl.federation.tensors import flatten, load, num_params, steady_arithmetic, trained
from alidpfl.methods import Method
from alidpfl.policies import Policy
from alidpfl.privacy import FilteredLedger, GaussianRelease, Ledger, PlannedLedger, PrivacyBudget
from alidpfl.simulation.engine import Simulation
from alidpfl.simulation.runner import SimulationData
from alidpfl.types import ClientId, ClientPlan, NoiseKind, OnShare, RoundRecord, StopReason, tell_nobody


def ledger_for(
    method: Method,
    budget: PrivacyBudget,
    sample_rate: float,
    noise_multiplier: float,
    accountant: str,
    *,
    releases: tuple[GaussianRelease, ...] = (),
) -> Ledger:
    """The accounts that a method needs: a Rényi filter where noise follows outputs, else the accountant asked for.

    Every client has been charged `releases` before its first round.
    """
    if method.adapts_noise:
        return FilteredLedger(budget, sample_rate, noise_multiplier, releases=releases)
    rate = 1.0 if method.release == "update" else sample_rate  # a noised update is a release of all records
    return PlannedLedger(budget, rate, noise_multiplier, accountant=accountant, releases=releases)


class ClosableEngine(Engine, Protocol):
    """An engine that holds processes or connections."""

    def seconds_for(self, params: Tensor, plans: Sequence[ClientPlan]) -> float:
        """About how long training these plans takes; 0 where only the first round can tell."""

    def close(self) -> None:
        """Let go of them."""


class EngineAround:
    """Does as the engine within; whoever puts something around it says in `train` what."""

    def __init__(self, engine: ClosableEngine) -> None:
        self._engine = engine

    def evaluate(self, params: Tensor, part: Part) -> Evaluation | None:
        """As the engine does."""
        return self._engine.evaluate(params, part)

    def seconds_for(self, params: Tensor, plans: Sequence[ClientPlan]) -> float:
        """As the engine does."""
        return self._engine.seconds_for(params, plans)

    def close(self) -> None:
        """End what the engine started."""
        self._engine.close()


Around = Callable[[ClosableEngine], ClosableEngine]
"""Puts something around an engine, such as a memory."""


def as_it_is(engine: ClosableEngine) -> ClosableEngine:
    """Nothing around it."""
    return engine


class Federation:
    """Clients, server and accounts. A context manager: leaving it ends what the engine started.

    Iterate over it for all rounds, or call `step` for one.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        engine: ClosableEngine,
        sizes: Sequence[int],
        method: Method,
        policy: Policy,
        ledger: Ledger,
        settings: FederationSettings,
        server_settings: ServerSettings | None = None,
        bytes_before: int = 0,
    ) -> None:
        """Put the parts together; see `simulated` for clients on this machine, `alidpfl.federate` for the short way."""
        self._model = copy.deepcopy(model)
        self._engine = engine
        self.training = Training(
            engine=engine,
            method=method,
            policy=policy,
            ledger=ledger,
            sizes=sizes,
            initial=flatten(trained(model)),
            settings=settings,
            server_settings=server_settings,
            bytes_before=bytes_before,
        )

    @classmethod
    def simulated(
        cls,
        *,
        model: nn.Module,
        data: SimulationData,
        method: Method,
        policy: Policy,
        ledger: Ledger,
        settings: FederationSettings,
        server_settings: ServerSettings | None = None,
        seed: int | None = None,
        processes: int | None = None,
        device: str = "cpu",
        noise: NoiseKind = "gaussian",
        bytes_before: int = 0,
        around: Around = as_it_is,
        on_share: OnShare = tell_nobody,
    ) -> "Federation":
        """All clients on this machine. `seed` None: secure randomness; `bytes_before`: traffic before round one."""
        if noise == "grid":
            first = method.numbers(method.start(), 0)
            check_grid(method.release, first.noise_multiplier, num_params(trained(model)))
        engine = Simulation(
            model=model,
            method=method,
            data=data,
            seed=seed,
            processes=processes,
            device=device,
            noise=noise,
            on_share=on_share,
        )
        return cls(
            model=model,
            engine=around(engine),
            sizes=[len(rows) for rows in data.clients],
            method=method,
            policy=policy,
            ledger=ledger,
            settings=settings,
            server_settings=server_settings,
            bytes_before=bytes_before,
        )

    def __enter__(self) -> "Federation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[RoundRecord]:
        """All rounds that are left; worker processes end with the last."""
        while (record := self.step()) is not None:
            yield record
        self.close()

    def step(self) -> RoundRecord | None:
        """One round; None once a limit is reached."""
        with steady_arithmetic():  # the server's sums too: a second thread would wait for a core that a worker has
            return self.training.step()

    def check_time_limit(self) -> None:
        """Refuse a time limit that the first round alone would cross, as far as a rehearsal can tell."""
        limit = self.training.settings.time_limit
        if limit is None or (plans := self.training.next_plans()) is None:
            return
        needed = self._engine.seconds_for(self.training.server.params, plans)
        if limit < needed:
            raise ConfigError(
                f"time_limit={limit:g} (seconds) does not pay for one round, which takes about {needed:.2g} here; set "
                f"at least {math.ceil(2 * needed)}, or leave it out"
            )

    def close(self) -> None:
        """End the worker processes; the next round would start them again."""
        self._engine.close()

    @property
    def model(self) -> nn.Module:
        """A copy of the model with the weights as they are now."""
        model = copy.deepcopy(self._model).eval()
        load(self.training.params, trained(model))
        return model

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the training ended; None while it can go on."""
        return self.training.stop_reason

    @property
    def epsilons(self) -> dict[ClientId, float]:
        """ε spent by every client so far."""
        return self.training.epsilons()

    def evaluate(self, part: Part = "test") -> Evaluation | None:
        """Accuracy and loss of the weights as they are now; None where that part of the data was not given."""
        return self._engine.evaluate(self.training.params, part)

    def named_params(self) -> Mapping[str, Tensor]:
        """The model's whole state by name, frozen parts and buffers too: what a file should hold."""
        with torch.no_grad():
            return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}
