"""A federation: the loop over rounds, with the model that it trains and the engine that it closes."""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType

import torch
from torch import Tensor, nn

from alidpfl.errors import ConfigError
from alidpfl.federation.loop import RoundLoop
from alidpfl.federation.server import ServerSettings
from alidpfl.federation.settings import Engine, Evaluation, FederationSettings, Part
from alidpfl.federation.tensors import flatten, load, trained
from alidpfl.methods import Method
from alidpfl.policies import Policy
from alidpfl.privacy import FilteredLedger, GaussianRelease, Ledger, PlannedLedger, PrivacyBudget
from alidpfl.types import ClientPlan, ClientUpdate, RoundRecord


def make_ledger(
    method: Method,
    budget: PrivacyBudget,
    sample_rate: float,
    noise_multiplier: float,
    accountant: str,
    *,
    releases: tuple[GaussianRelease, ...] = (),
) -> Ledger:
    """Return the ledger that a method needs.

    Args:
        method: a method that adapts its noise to outputs needs a Rényi filter.
        budget: (ε, δ) of every client.
        sample_rate: q of a step.
        noise_multiplier: σ of a step, or of an update.
        accountant: how ε is computed, where the method does not adapt its noise.
        releases: what every client has been charged before its first round.

    Returns:
        An empty ledger: nothing but `releases` is charged yet.
    """
    if method.adapts_noise:
        return FilteredLedger(budget, sample_rate, noise_multiplier, releases=releases)
    rate = 1.0 if method.release == "update" else sample_rate  # a noised update is a release of all records
    return PlannedLedger(budget, rate, noise_multiplier, accountant=accountant, releases=releases)


class EngineWrapper:
    """Base class for engine wrappers. Forwards every call; subclasses override `train`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def train(self, params: Tensor, plans: Sequence[ClientPlan]) -> list[ClientUpdate]:
        """Forward to the wrapped engine."""
        return self._engine.train(params, plans)

    def evaluate(self, params: Tensor, part: Part) -> Evaluation | None:
        """Forward to the wrapped engine."""
        return self._engine.evaluate(params, part)

    def seconds_for(self, params: Tensor, plans: Sequence[ClientPlan]) -> float:
        """Forward to the wrapped engine."""
        return self._engine.seconds_for(params, plans)

    def close(self) -> None:
        """Close the wrapped engine."""
        self._engine.close()


class Federation(RoundLoop):
    """Clients, server and ledger of one training. A context manager: leaving it closes the engine.

    Iterate over it for all rounds, or call `step` for one. `alidpfl.federate` makes one for clients on this machine.
    """

    def __init__(
        self,
        *,
        model: nn.Module,
        engine: Engine,
        sizes: Sequence[int],
        method: Method,
        policy: Policy,
        ledger: Ledger,
        settings: FederationSettings,
        server_settings: ServerSettings | None = None,
        bytes_before: int = 0,
    ) -> None:
        """Tie the parts together; nothing runs yet.

        Args:
            model: what is trained, with its first weights; it is copied.
            engine: trains clients and evaluates models.
            sizes: number of records of each client, public by enrolment.
            method: sets C, σ and the local loss.
            policy: chooses τ.
            ledger: every client's account.
            settings: rounds, limits, step sizes.
            server_settings: momentum, averaging, quorum.
            bytes_before: traffic before the first round.
        """
        super().__init__(
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
        self._model = copy.deepcopy(model)

    def __enter__(self) -> "Federation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[RoundRecord]:
        """Run all rounds that are left; worker processes end with the last."""
        yield from super().__iter__()
        self.close()

    def close(self) -> None:
        """End the worker processes or connections of the engine; the next round would start them again."""
        self._engine.close()

    @property
    def model(self) -> nn.Module:
        """A copy of the model with the current weights, in evaluation mode."""
        model = copy.deepcopy(self._model).eval()
        load(self.params, trained(model))
        return model

    def evaluate(self, part: Part = "test") -> Evaluation | None:
        """Return accuracy and loss of the current weights, or None if that part of the data was not given."""
        return self._engine.evaluate(self.params, part)

    def named_params(self) -> Mapping[str, Tensor]:
        """Return the model's whole state by name, with frozen parts and buffers, as a file should hold it."""
        with torch.no_grad():
            return {name: tensor.detach().clone() for name, tensor in self.model.state_dict().items()}

    def check_time_limit(self) -> None:
        """Refuse a time limit that the first round alone would cross, as far as a rehearsal can tell.

        Raises:
            ConfigError: the limit is shorter than one round.
        """
        limit = self.settings.time_limit
        if limit is None or (plans := self.next_plans()) is None:
            return
        needed = self._engine.seconds_for(self.server.params, plans)
        if limit < needed:
            raise ConfigError(
                f"time_limit={limit:g} (seconds) does not pay for one round, which takes about {needed:.2g} here; set "
                f"at least {math.ceil(2 * needed)}, or leave it out"
            )
