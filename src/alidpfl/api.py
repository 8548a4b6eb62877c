"""Train from Python: a federation from your own model and your own clients, round by round."""

import inspect
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import data as torch_data

from alidpfl.config.schema import DEFAULT_MAX_RECORDS
from alidpfl.data.dataset import check_counts, kind_of
from alidpfl.data.frames import check_columns, is_frame, is_hub_dataset
from alidpfl.data.own import Client, Clients, described, from_clients, labelled, persons_of
from alidpfl.data.own import Groups as Persons
from alidpfl.dpsgd import Groups, make_loss
from alidpfl.errors import ConfigError, DataError
from alidpfl.federation import Federation, FederationSettings, ServerSettings
from alidpfl.federation.planning import make_ledger
from alidpfl.federation.settings import Part
from alidpfl.federation.tensors import num_params, trained
from alidpfl.inputs import checks
from alidpfl.inputs.names import named
from alidpfl.methods import Loss, Method, make_method
from alidpfl.planner import PlanRequest, affordable_rounds, choose_setting, weak_signal
from alidpfl.policies import Policy, make_policy
from alidpfl.privacy import PrivacyBudget, SampledGaussian
from alidpfl.registry import ACCOUNTANTS
from alidpfl.simulation import Simulation, SimulationData
from alidpfl.simulation.checks import gives_probabilities
from alidpfl.types import LARGEST_MAX_RECORDS, NoiseKind, Unit, loss_for


@dataclass(frozen=True, kw_only=True)
class Privacy:
    """The budget of every client, and the mechanism that spends it.

    `Privacy.plan` finds sampling rate and noise for a model and its clients.

    >>> Privacy(epsilon=2.0, delta=1e-5, sample_rate=0.05, noise_multiplier=2.0).budget
    PrivacyBudget(epsilon=2.0, delta=1e-05)
    """

    epsilon: float
    """ε that every client may spend in total. A smaller ε reveals less about any one record (or person)."""
    delta: float
    """δ: the probability that ε may fail to hold. Keep it well below one over the number of records."""
    sample_rate: float
    """q: probability that a record (or person) joins a batch, in (0, 1]."""
    noise_multiplier: float
    """σ: the noise divided by the clip norm."""
    accountant: str = "pld"
    """How ε is computed: "pld" (tightest), "rdp", or "rdp-paper" (as in the paper)."""
    noise: NoiseKind = "gaussian"
    """"grid": noise that is exact to the last bit, but slower (docs/explanation/floating-point.md)."""
    unit: Unit = "record"
    """What ε protects: "record", or "person" for all records of a person at one client. See docs/how-to/persons.md."""
    max_records: int | None = None
    """k, for persons: the most records of a person in a step, drawn afresh in every step. None means 4."""

    def __post_init__(self) -> None:
        """Refuse at once what the ledger would refuse later."""
        SampledGaussian(sample_rate=self.sample_rate, noise_multiplier=self.noise_multiplier)
        _ = self.budget, ACCOUNTANTS[self.accountant]
        named("noise", self.noise, dict.fromkeys(get_args(NoiseKind)))
        named("unit", self.unit, dict.fromkeys(get_args(Unit)))
        if self.unit == "record" and self.max_records is not None:
            raise ConfigError(f'max_records={self.max_records!r} is for unit="person"; set that too, or leave it out')
        if self.unit == "person":
            found = DEFAULT_MAX_RECORDS if self.max_records is None else self.max_records
            object.__setattr__(self, "max_records", checks.whole("max_records", found, low=1, high=LARGEST_MAX_RECORDS))

    @classmethod
    def plan(
        cls,
        model: nn.Module,
        clients: Clients,
        *,
        epsilon: float,
        delta: float,
        max_rounds: int,
        accountant: str = "pld",
        max_epochs: float | None = None,
        unit: Unit = "record",
        max_records: int | None = None,
        groups: Persons | None = None,
    ) -> "Privacy":
        """Return the sampling rate and the noise that use a budget best, as `alidpfl plan` finds them.

        Only public numbers are used: how many clients, records (or persons) and parameters there are.

        Args:
            model: what will be trained.
            clients: the clients, as for `federate`.
            epsilon: ε that every client may spend.
            delta: δ of every client.
            max_rounds: R_s, the maximum number of communication rounds.
            accountant: how ε is computed.
            max_epochs: limit on a client's passes over its data, if computing is scarce.
            unit: what ε protects, "record" or "person".
            max_records: k, for persons: the most records of a person in a step.
            groups: for persons, the person of each record, as for `federate`.

        >>> import torch
        >>> clients = [(torch.zeros(300, 20), torch.zeros(300, dtype=torch.int64)) for _ in range(5)]
        >>> plan = Privacy.plan(torch.nn.Linear(20, 3), clients, epsilon=2, delta=1e-5, max_rounds=20)
        >>> 0 < plan.sample_rate <= 1, plan.noise_multiplier > 0
        (True, True)
        """
        clients = _checked_clients(clients)
        sizes = [len(labelled(client, who)) for who, client in described(clients)]
        if (persons := _persons(unit, clients, groups, sizes)) is not None:
            sizes = [len(own.unique()) for own in persons]
        request = PlanRequest(
            epsilon=epsilon,
            delta=delta,
            clients=len(sizes),
            samples=sum(sizes),
            max_rounds=max_rounds,
            accountant=accountant,
            num_params=num_params(trained(model)),
            max_epochs=max_epochs,
            unit=unit,
        )
        setting, _ = choose_setting(request, affordable_rounds(request).count)
        if (weakness := weak_signal(setting)) is not None:
            warnings.warn(weakness, stacklevel=2)
        rate, sigma = setting.sample_rate, setting.noise_multiplier
        return cls(
            epsilon=epsilon,
            delta=delta,
            sample_rate=rate,
            noise_multiplier=sigma,
            accountant=accountant,
            unit=unit,
            max_records=max_records,
        )

    @property
    def budget(self) -> PrivacyBudget:
        """ε and δ in one value, as the accounting functions take them."""
        return PrivacyBudget(epsilon=self.epsilon, delta=self.delta)


def federate(
    model: nn.Module,
    clients: Clients,
    *,
    privacy: Privacy,
    max_rounds: int,
    learning_rate: float,
    groups: Persons | None = None,
    test: Client | None = None,
    public: Client | None = None,
    method: str | Method = "ali_dpfl",
    policy: str | Policy | None = None,
    loss: str | Loss | None = None,
    clip_norm: float = 1.0,
    server: ServerSettings | None = None,
    seed: int | None = None,
    processes: int | None = None,
    device: str = "cpu",
    **settings: Any,
) -> Federation:
    """Return a federation of clients on this machine. Iterate over it for all rounds, or call `step` for one.

    Args:
        model: any module that `dpsgd` accepts. It is copied.
        clients: for each client (inputs, targets) as tensors, arrays, or pandas or polars frames, or a data set of
            torch or Hugging Face. Whole numbers and flags (n,) are classes, other numbers (n,) are numbers, and columns
            (n, k) of flags are labels. A mapping gives clients names: `client_names` of the federation has them, by
            number.
        privacy: budget, sampling rate and noise of every client.
        max_rounds: R_s, the maximum number of communication rounds.
        learning_rate: η₀, the clients' step size at the start. `schedule` says how it falls.
        groups: for `Privacy(unit="person")`, the person of each record: one array of whole numbers or texts for each
            client, in a list or by name, as the clients.
        test: data that is not private, to evaluate on.
        public: public data, for methods that need the loss on it (adap_dpfl).
        method: a name, or an object of your own (see `Method`).
        policy: how τ is chosen: a name, or an object of your own (see `Policy`); None for the method's default.
        loss: the loss of each record: a name, or a function of outputs and targets. None for "cross_entropy",
            "squared" or "binary", by the targets.
        clip_norm: C, the norm to which the gradient of each record (or person) is clipped, for a method given by name.
        server: momentum, averaging, quorum, and what limits hostile clients.
        seed: makes the simulation repeatable. NOT private from anyone who knows it. None for secure randomness.
        processes: worker processes; None for one for each core.
        device: "cpu" or "cuda".
        settings: more settings of `FederationSettings`, such as schedule="late_decay" or clients_per_round=100.

    Raises:
        ConfigError: settings that cannot work.
        DataError: records that the model cannot be trained on.

    >>> import torch
    >>> clients = [(torch.randn(100, 20), torch.randint(2, (100,))) for _ in range(4)]
    >>> privacy = Privacy(epsilon=2.0, delta=1e-3, sample_rate=0.2, noise_multiplier=2.0)
    >>> with federate(
    ...     torch.nn.Linear(20, 2), clients, privacy=privacy, max_rounds=3, learning_rate=0.5, policy="ratio", seed=0
    ... ) as federation:
    ...     steps = [record.local_steps for record in federation]
    >>> len(steps), str(federation.stop_reason)
    (3, 'max_rounds')
    """
    _check_kinds(model, privacy)
    clients = _checked_clients(clients)
    if isinstance(method, str):
        method = make_method(method, clip_norm=clip_norm, noise_multiplier=privacy.noise_multiplier)
    policy = getattr(method, "default_policy", "ratio") if policy is None else policy
    if isinstance(policy, str):
        policy = make_policy(policy, **({"local_steps": 1} if policy == "fixed" else {}))
    private = [client for _, client in described(clients)]
    if any(evaluated is client for evaluated in (test, public) for client in private if evaluated is not None):
        raise ConfigError("test or public is one of the clients, which are private: pass other data, or none")
    if method.needs_public_loss and public is None:
        raise ConfigError(f"{method.name} needs the loss on public data: pass public=(inputs, targets)")
    data = _data(clients, test, public, privacy, groups)
    federation = Federation(
        model=model,
        method=method,
        policy=policy,
        ledger=make_ledger(method, privacy.budget, privacy.sample_rate, privacy.noise_multiplier, privacy.accountant),
        sizes=data.sizes,
        settings=_settings(privacy, max_rounds, learning_rate, seed, settings),
        server_settings=server,
        client_names=tuple(map(str, clients)) if isinstance(clients, Mapping) else (),
        engine=Simulation(
            model=model,
            method=method,
            data=data,
            seed=seed,
            processes=processes,
            device=device,
            noise=privacy.noise,
            loss=_loss(loss, data),
        ),
    )
    if (weakness := privacy.budget.weakness(max(data.sizes), privacy.unit)) is not None:
        warnings.warn(weakness, stacklevel=2)
    if gives_probabilities(model, data):
        warnings.warn(
            "the model ends in a softmax, and the loss (cross-entropy) applies another: training is slow; leave that "
            "layer out, and return one raw score (logit) for each class",
            stacklevel=2,
        )
    federation.check_time_limit()
    return federation


def _loss(loss: str | Loss | None, data: SimulationData) -> Loss:
    """Return the loss: a function as it is, or one by name, which must fit the targets."""
    if callable(loss):
        return loss
    found = make_loss(loss_for(kind_of(data.targets), loss))
    check_counts("clients", data.targets, loss)
    return found


def _check_kinds(model: object, privacy: object) -> None:
    if not isinstance(privacy, Privacy):
        raise ConfigError(f"privacy is a {type(privacy).__name__}: pass alidpfl.Privacy(epsilon=2, delta=1e-5, ...)")
    if not isinstance(model, nn.Module):
        raise ConfigError(f"model={model!r} is not a torch.nn.Module; call a class first: nn.Linear(20, 2)")


def _checked_clients(clients: Clients | Iterable[Client]) -> Clients:
    """Return the clients as a list or by name. Ledger and records number them by their places in it."""
    if is_frame(clients) or is_hub_dataset(clients) or isinstance(clients, torch_data.Dataset | Tensor | np.ndarray):
        raise ConfigError(f"clients is one {type(clients).__name__}: pass a list with an entry for each client")
    found = dict(clients) if isinstance(clients, Mapping) else list(clients)
    if not found:
        raise DataError("there are no clients; give at least one")
    for who, client in described(found):
        if isinstance(client, Tensor | np.ndarray) or is_frame(client):
            raise DataError(
                f"{who} is one {type(client).__name__}, and must be a pair of inputs and targets: pass "
                "[(inputs, targets), ...], also for a single client"
            )
    return found


def _settings(
    privacy: Privacy, max_rounds: int, learning_rate: float, seed: int | None, settings: dict[str, Any]
) -> FederationSettings:
    drawn = seed if seed is not None else int(torch.randint(2**62, (1,)))  # for cohorts only: no noise depends on it
    if drawn < 0:
        raise ConfigError(f"seed={seed} must not be negative")
    known = dict.fromkeys([*inspect.signature(federate).parameters, *(f.name for f in fields(FederationSettings))])
    known.pop("settings")
    for name in settings:
        named("the setting of federate", name, known)
    if "unsafe" in settings:
        settings = {**settings, "unsafe": frozenset(settings["unsafe"])}
    try:
        return FederationSettings(
            max_rounds=max_rounds, sample_rate=privacy.sample_rate, learning_rate=learning_rate, seed=drawn, **settings
        )
    except TypeError as error:
        raise ConfigError(f"federate: {error}") from None


def _persons(unit: Unit, clients: Clients, groups: Persons | None, sizes: Sequence[int]) -> tuple[Tensor, ...] | None:
    """Return the number of the person of each record, by client; None if the unit of privacy is a record."""
    if unit == "record" and groups is not None:
        raise ConfigError(
            'groups are given, and privacy has unit="record": to protect persons set Privacy(unit="person"), or leave '
            "groups out"
        )
    if unit == "person" and groups is None:
        raise ConfigError(
            'privacy has unit="person", and no groups are given: pass groups=[...], for each client an array with the '
            "person of each record"
        )
    return None if groups is None else persons_of(clients, groups, sizes, "federate")


def _data(
    clients: Clients, test: Client | None, public: Client | None, privacy: Privacy, groups: Persons | None
) -> SimulationData:
    """Put all records into one pair of tensors. Without test data, a client gives the shape."""
    first = next(client for _, client in described(clients))
    dataset = from_clients(clients, test=first if test is None else test)
    evaluation: dict[Part, tuple[Tensor, Tensor]] = {}
    if test is not None:
        evaluation["test"] = (dataset.test.inputs, dataset.test.targets)
    if public is not None:
        check_columns([described(clients)[0], ("public", public)])
        held = labelled(public, "public")
        if len(held) == 0:
            raise DataError("public: there are no samples; give at least one, or leave it out")
        if held.inputs.shape[1:] != dataset.train.inputs.shape[1:]:
            shapes = [tuple(part.inputs.shape[1:]) for part in (held, dataset.train)]
            raise DataError(f"public inputs have shape {shapes[0]} and the clients' {shapes[1]}; make them equal")
        evaluation["validation"] = (held.inputs, held.targets)
    train, rows = dataset.train, dataset.natural_clients
    assert rows is not None  # noqa: S101 - for the type checker
    persons = _persons(privacy.unit, clients, groups, [len(own) for own in rows])
    return SimulationData(
        inputs=train.inputs,
        targets=train.targets,
        clients=rows,
        evaluation=evaluation,
        groups=() if persons is None else [Groups.of(*pair) for pair in zip(persons, rows, strict=True)],
        max_records=privacy.max_records or 1,
    )
