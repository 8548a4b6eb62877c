"""Named parts that a configuration can choose: one registry a concept, all in this file. Never imports torch.

To add a part to alidpfl, write it and add one line to its table below. Another package adds one by an entry point,
without a change here:

    [project.entry-points."alidpfl.policies"]
    my_policy = "my_package.policies:MyPolicy"

The groups are `alidpfl.policies`, `.methods`, `.aggregations`, `.models`, `.losses`, `.accountants` and `.datasets`.
Names are known without importing a part; the part itself is imported when it is first used.
"""

import pkgutil
import warnings
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from alidpfl.errors import ConfigError
from alidpfl.inputs.names import named


class Registry(Mapping[str, Any]):
    """A mapping from names to parts of one concept. Iterating gives the names, without importing anything.

    >>> POLICIES["fixed"].__name__, "ratio" in POLICIES
    ('Fixed', True)
    """

    def __init__(self, concept: str, group: str, shipped: Mapping[str, str]) -> None:
        """Make a registry of a concept, such as "policy". `shipped` maps names to "module:attribute"."""
        self.concept, self.shipped, self._group = concept, dict(shipped), group
        self._loaded: dict[str, Any] = {}

    __hash__, __eq__ = object.__hash__, object.__eq__  # a registry is itself: pydantic keeps it beside a type

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self.shipped, *self._loaded, *self._plugins]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __contains__(self, name: object) -> bool:
        return name in self.shipped or name in self._loaded or name in self._plugins

    def __getitem__(self, name: str) -> Any:
        """Return the part, imported on first use."""
        if name not in self:
            named(self.concept, name, dict.fromkeys(self))
        if name not in self._loaded:
            self._loaded[name] = self._load(name)
        return self._loaded[name]

    def add(self, name: str, part: Any) -> None:
        """Offer a part under a name in this process, as an entry point does for every process."""
        if name in self:
            raise ConfigError(f"{self.concept}={name!r} exists already; choose another name")
        self._loaded[name] = part

    def _load(self, name: str) -> Any:
        if name in self.shipped:
            return pkgutil.resolve_name(self.shipped[name])
        plugin = self._plugins[name]
        try:
            return plugin.load()
        except Exception as error:  # any fault of another package, in its own words
            raise ConfigError(
                f"{self.concept}={name!r}: {plugin.value} of another package cannot be loaded "
                f"({type(error).__name__}: {error}); mend or uninstall that package"
            ) from error

    @cached_property
    def _plugins(self) -> dict[str, EntryPoint]:
        found: dict[str, EntryPoint] = {}
        for point in entry_points(group=self._group):
            other = self.shipped.get(point.name) or (found[point.name].value if point.name in found else None)
            if other is None:
                found[point.name] = point
            elif other != point.value:  # never replaced in silence: a run must mean what its name says
                warnings.warn(f"{point.value} is ignored: {self.concept}={point.name!r} is {other}", stacklevel=2)
        return found


POLICIES = Registry(
    "policy",
    "alidpfl.policies",
    {
        "ali": "alidpfl.policies.lemma2:Ali",
        "corrected": "alidpfl.policies.corrected:Corrected",
        "fixed": "alidpfl.policies.pace:Fixed",
        "paper": "alidpfl.policies.lemma2:Paper",
        "ratio": "alidpfl.policies.pace:Ratio",
        "reference": "alidpfl.policies.lemma2:Reference",
    },
)
"""How many local steps a round takes: dataclasses that follow `alidpfl.policies.Policy`."""

METHODS = Registry(
    "method",
    "alidpfl.methods",
    {
        "fedavg_dp": "alidpfl.methods.method:FedAvgDp",
        "ali_dpfl": "alidpfl.methods.method:AliDpfl",
        "adap_dpfl": "alidpfl.methods.adap_dpfl:AdapDpfl",
        "pe_dpfl": "alidpfl.methods.pe_dpfl:PeDpfl",
    },
)
"""What clients minimise, at which C and σ: classes that follow `alidpfl.methods.Method`."""

MODELS = Registry(
    "model",
    "alidpfl.models",
    {
        "cnn": "alidpfl.models.cnn:paper_cnn",
        "compact_cnn": "alidpfl.models.cnn:compact_cnn",
        "linear": "alidpfl.models.linear:linear",
        "mlp": "alidpfl.models.linear:mlp",
        "scatter_linear": "alidpfl.models.linear:scatter_linear",
    },
)
"""Networks: functions from (input_shape, num_classes) to a module."""

AGGREGATIONS = Registry(
    "aggregation",
    "alidpfl.aggregations",
    {
        "mean": "alidpfl.federation.aggregation:mean",
        "trimmed_mean": "alidpfl.federation.aggregation:trimmed_mean",
        "median": "alidpfl.federation.aggregation:median",
        "geometric_median": "alidpfl.federation.aggregation:geometric_median",
    },
)
"""How a round's updates become one: functions that follow `alidpfl.federation.aggregation.Aggregation`."""

LOSSES = Registry(
    "loss",
    "alidpfl.losses",
    {
        "cross_entropy": "alidpfl.dpsgd.losses:cross_entropy",
        "binary": "alidpfl.dpsgd.losses:binary",
        "squared": "alidpfl.dpsgd.losses:squared",
        "huber": "alidpfl.dpsgd.losses:huber",
        "poisson": "alidpfl.dpsgd.losses:poisson",
        "quantile": "alidpfl.dpsgd.losses:quantile",
    },
)
"""Losses of each sample: functions from outputs (B, ...) and targets (B, ...) to (B,)."""

ACCOUNTANTS = Registry(
    "accountant",
    "alidpfl.accountants",
    {
        "rdp-paper": "alidpfl.privacy.accountants:RDP_PAPER",
        "rdp": "alidpfl.privacy.accountants:RDP",
        "pld": "alidpfl.privacy.accountants:PLD",
    },
)
"""What a composition of mechanisms costs: values that follow `alidpfl.privacy.accountants.Accountant`."""

DATASETS = Registry(
    "data set",
    "alidpfl.datasets",
    {
        "strokes": "alidpfl.data.strokes:load_strokes",
        "mnist": "alidpfl.data.readers:load_mnist",
        "fashion_mnist": "alidpfl.data.readers:load_fashion_mnist",
        "cifar10": "alidpfl.data.readers:load_cifar10",
        "synthetic": "alidpfl.data.synthetic:load_synthetic",
        "npz": "alidpfl.data.own:load_npz",
        "table": "alidpfl.data.table:load_table",
    },
)
"""Data sets: functions that return a `Dataset`; `alidpfl.data.load` says which keyword parameters they may take."""
