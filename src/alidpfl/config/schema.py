"""Every setting of a run, with its default and meaning. The defaults together are what `make run` runs.

Never imports torch at its top: completion and errors about settings must be instant. Properties that need a method's
class import it when they are asked for.
"""

import os
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from alidpfl.config.network import Declared, count_of_layers, parse_layers
from alidpfl.config.wording import shown
from alidpfl.errors import ConfigError
from alidpfl.inputs.checks import as_bytes, as_seconds
from alidpfl.inputs.imports import NAME as FACTORY_NAME
from alidpfl.registry import ACCOUNTANTS, AGGREGATIONS, DATASETS, LOSSES, METHODS, MODELS, POLICIES, Registry
from alidpfl.types import LARGEST_MAX_RECORDS, NoiseKind, Release, Unit

if TYPE_CHECKING:
    from alidpfl.privacy import PrivacyBudget

FEATURE_SETTINGS = tuple(("model", key) for key in ("frequencies", "upright", "positions", "learned", "deviation_clip"))
"""Settings that only `scatter_linear` reads."""

# Left out of config.toml at their defaults: runs and results that are older than these settings keep their identity.
_LATER_SETTINGS: dict[tuple[str, str], Any] = {
    ("privacy", "noise"): "gaussian",
    ("privacy", "unit"): "record",
    ("privacy", "earlier_noise"): [],
    ("model", "quantile"): 0.5,
    ("model", "options"): {},
    ("model", "layers"): [],
    ("data", "loader_options"): {},
    ("data", "files"): [],
    ("federation", "signal_limit"): 2.0,
    ("federation", "aggregation"): "mean",
    ("federation", "trim"): 0.3,
    ("evaluation", "releases"): 5,
}
DEFAULT_MAX_RECORDS = 4
"""k, if the unit of privacy is a person and nothing else is set."""

_OWN = frozenset({"npz", "table"})  # the user's own records, one client for each file
_WITH_CLIENTS = _OWN | {"synthetic"}  # data sets that say who holds what


def _whole(value: object) -> object:
    """Refuse what Python takes for a whole number: true, and 1.0."""
    if type(value) is not int:
        raise ValueError("no whole number")
    return value


def _checked_by(registry: Registry) -> tuple[Any, Registry]:
    """Return a check that a name is in a registry, and the registry itself: errors and docs list its names."""

    def check(name: str) -> str:
        if name not in registry:
            raise PydanticCustomError("literal_error", "unknown name")
        return name

    return AfterValidator(check), registry


Accountant = Annotated[str, *_checked_by(ACCOUNTANTS)]
AggregationName = Annotated[str, *_checked_by(AGGREGATIONS)]
DataName = Annotated[str, *_checked_by(DATASETS)]
LossName = Annotated[str, *_checked_by(LOSSES)]
MethodName = Annotated[str, *_checked_by(METHODS)]
ModelName = Annotated[str, *_checked_by(MODELS)]
PolicyName = Annotated[str, *_checked_by(POLICIES)]
Seconds = Annotated[float, BeforeValidator(as_seconds)]
Bytes = Annotated[int, BeforeValidator(as_bytes)]


def _setting(default: Any, meaning: str, *, example: Any = None, **limits: Any) -> Any:
    """Return a field with its default, its meaning for users, an example for errors, and limits."""
    return Field(default, description=meaning, examples=None if example is None else [example], **limits)


class _Section(BaseModel):
    """Base of all sections. Strict: true is not a number, and the text "4" is not 4."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class DataSection(_Section):
    """[data]: the data set, and how it is split between clients."""

    name: DataName = _setting(
        "strokes",
        "Data set. alidpfl makes `strokes` and `synthetic` itself; `npz` and `table` are your own files.",
    )
    data_dir: str | None = _setting(
        None, "Folder of the real data sets, or of your .npz, .csv or .parquet files.", example="/my/folder"
    )
    schema_file: str | None = _setting(
        None,
        "`table`: the [schema](../how-to/tables.md) of the files, which says how rows become vectors.",
        example="schema.toml",
    )
    files: tuple[str, ...] = _setting(
        (),
        "`table`: .csv or .parquet files, one for each client, or folders or patterns (`*.csv`). Default: `data_dir`.",
        strict=False,  # TOML has lists, not tuples
        example=["north.csv", "south.csv"],
    )
    standardise: Literal["none", "private"] | None = _setting(
        None,
        "`table`: `private` centres and scales rows by noised means and mean squares, which every client releases and "
        "pays for before the first round. `none` takes rows as the schema encodes them. Default: `private` for "
        "number and labels targets with the model `linear`, else `none`.",
        example="private",
    )
    partition: Literal["iid", "dirichlet", "natural"] | None = _setting(
        None, "Split of the records. Default: `dirichlet`, or `natural` if the data set says who holds what."
    )
    dirichlet_beta: float = _setting(
        0.5, "β: how unequally labels are spread over clients. Smaller is more unequal.", gt=0
    )
    clients: int = _setting(10, "Number of clients.", ge=1, le=1_000_000)
    min_samples: int = _setting(10, "Fewest records of a client in a Dirichlet split.", ge=1)
    validation: float = _setting(
        0.0,
        "Share of the training set that no client trains on. It is for tuning and for adap_dpfl, which use it as "
        "public data, without noise. On your own files, ε does not cover that, and the run says so.",
        ge=0,
        lt=1,
    )
    pixel_range: tuple[float, float] = _setting((-1.0, 1.0), "Values of black and white pixels.", strict=False)
    num_classes: int | None = _setting(
        None,
        "`npz`: number of classes. Default: counted in the clients' labels. ε does not cover this count.",
        ge=2,
        example=3,
    )
    alpha: float = _setting(1.0, "`synthetic`: how much clients' models differ.", ge=0, le=1e6)
    beta: float = _setting(1.0, "`synthetic`: how much clients' inputs differ.", ge=0, le=1e6)
    loader_options: dict[str, Any] = _setting(
        {}, "Settings of a data set from another package, as it documents them.", example={"year": 2026}
    )


class ModelSection(_Section):
    """[model]: the network and its loss."""

    name: ModelName = _setting(
        "compact_cnn",
        "The network. `cnn` is the paper's, for images. `compact_cnn` learns more from small budgets. "
        "`scatter_linear`, softmax on fixed features of images, learns most.",
    )
    factory: str | None = _setting(
        None,
        "A [network of your own](../how-to/own-model.md#from-a-configuration), instead of `name`: "
        "`package.module:function`. It is called as `function(input_shape, num_outputs, **options)` and returns a "
        "torch module. Modules in the current folder are found too.",
        pattern=FACTORY_NAME,
        example="my_package.networks:small_resnet",
    )
    options: dict[str, Any] = _setting({}, "`factory`: what else the function takes, by name.", example={"width": 16})
    layers: tuple[dict[str, Any], ...] = _setting(
        (),
        "A [declared network](../how-to/own-model.md#declare-the-layers), instead of `name`: its layers in order, each "
        "with a `type` and its settings, see the table below. `alidpfl model` shows it.",
        strict=False,  # TOML has lists, not tuples
        example=[{"type": "linear", "out_features": 10}],
    )
    loss: LossName | None = _setting(
        None,
        "The loss of each record. Default, by the kind of the targets: `cross_entropy` for classes, `squared` for "
        "numbers, `binary` for several flags. For numbers you can also choose `huber`, `poisson` or `quantile`.",
        example="squared",
    )
    quantile: float = _setting(0.5, "`quantile`: the quantile to learn; 0.5 is the median.", gt=0, lt=1)
    hidden: int = _setting(128, "`mlp`: width of its hidden layer.", ge=1, le=100_000)
    frequencies: int = _setting(
        6,
        "`scatter_linear`: the features are coefficients of a cosine transform (DCT-II) of filtered images. Those "
        "whose row and column frequencies add up to at most this number are kept.",
        ge=0,
    )
    upright: bool = _setting(False, "`scatter_linear`: centre every image and set it upright first, for handwriting.")
    positions: Annotated[Literal[1, 2, 4], BeforeValidator(_whole)] = _setting(
        1, "`scatter_linear`: average features over this many shifts of the image, two pixels apart."
    )
    learned: tuple[Annotated[str, Field(pattern=r"^.+#sha256=[0-9a-f]{64}$")], ...] = _setting(
        (),
        "`scatter_linear`: at most two files of learned filters, each as `PATH#sha256=HEX`. "
        "A relative path starts at the configuration file's folder. They count as public: "
        "learn them on public data. The recipes' files are in `reproduction/filters`.",
        strict=False,  # TOML has lists, not tuples
        example=["filters.safetensors#sha256=" + 64 * "0"],
    )
    deviation_clip: float = _setting(
        0.05,
        "`scatter_linear`: clip norm of each record's squared deviations from the mean. Their noised sum sets the "
        "scale of the features.",
        gt=0,
    )

    @property
    def is_named(self) -> bool:
        """True if the network is chosen by `name`."""
        return self.factory is None and not self.layers

    @property
    def declared(self) -> tuple[Declared, ...]:
        """The declared layers; empty for other networks. Raise ConfigError if one is wrong."""
        return parse_layers(self.layers) if self.layers else ()

    @property
    def called(self) -> str:
        """The network in one word, for people."""
        return self.factory or (count_of_layers(len(self.layers)) if self.layers else self.name)

    @property
    def setting(self) -> str:
        """The setting that chooses the network, for errors."""
        if self.layers:
            return "model.layers"
        return f'model.name="{self.name}"' if self.factory is None else f'model.factory="{self.factory}"'


class PrivacySection(_Section):
    """[privacy]: the budget of every client, and the mechanism that spends it."""

    epsilon: float = _setting(2.0, "ε that every client may spend. Smaller is more private.", gt=0, le=1e6)
    delta: float = _setting(1e-5, "δ of every client: the probability that ε may fail to hold.", gt=0, lt=1)
    accountant: Accountant = _setting("pld", "How ε is computed. `pld` is the tightest.")
    unit: Unit = _setting(
        "record",
        "What ε protects. `person`: all records of a [person](../how-to/persons.md) at one client together. The data "
        "must then say which records are a person's.",
        example="person",
    )
    max_records: int | None = _setting(
        None,
        "k, for `unit` = `person`: the most records of a person in a step, drawn afresh in every step. Default: "
        f"{DEFAULT_MAX_RECORDS}.",
        ge=1,
        le=LARGEST_MAX_RECORDS,
        example=3,
    )
    sample_rate: float = _setting(0.04, "q: probability that a record (or person) joins a batch.", ge=1e-9, le=1)
    noise_multiplier: float | None = _setting(
        None,
        "σ: noise divided by C. Default: the least σ with which the budget pays for `max_steps` steps.",
        gt=0,
        example=1.1,
    )
    max_steps: int | None = _setting(
        None,
        "R_c: number of local steps that the budget shall pay for; σ is chosen to fit. Set this or `noise_multiplier`, "
        "not both. Default: `local_steps` for each round with the policy `fixed`, two for each round with others. "
        "`pe_dpfl` with variant `output` is charged by the round and does not read it.",
        ge=1,
        example=100,
    )
    noise: NoiseKind = _setting(
        "gaussian",
        "`grid` is exact to the last bit, and slower. It adds gradients and noise as whole numbers, one record "
        "at a time.",
    )
    statistics_noise: float = _setting(
        10.0,
        "σ of each release that centres and scales. `scatter_linear` makes two such releases, "
        '`data.standardise = "private"` makes one. Default for tables: the σ at which this release costs a hundredth '
        "of the budget.",
        gt=0,
    )
    earlier_noise: tuple[Annotated[float, Field(gt=0)], ...] = _setting(
        (),
        "σ of each release that every client made from the same records before this run, such as by `alidpfl "
        "statistics`. The budget pays for these too. `alidpfl run --after FILE` sets it.",
        strict=False,  # TOML has lists, not tuples
        example=[7.5],
    )
    unsafe: tuple[Literal["unaccounted-signals"], ...] = _setting(
        (),
        '["unaccounted-signals"] allows the policies `paper` and `reference`. ε does not cover what they read.',
        strict=False,  # TOML has lists, not tuples
        example=["unaccounted-signals"],
    )


class MethodSection(_Section):
    """[method]: the method, the policy for τ, and the step sizes."""

    name: MethodName = _setting("ali_dpfl", "The method.")
    policy: PolicyName | None = _setting(
        None, "How the number of local steps τ is chosen. Default: `ali` for ali_dpfl, `fixed` for the others."
    )
    local_steps: int | None = _setting(
        None,
        "Local steps τ of a round, for the policy `fixed`. Default: 1; 3 for adap_dpfl and pe_dpfl.",
        ge=1,
        example=3,
    )
    clip_norm: float = _setting(
        1.0,
        "C: the gradient of each record (or person) is clipped to this norm. For adap_dpfl, C of the first round.",
        gt=0,
    )
    learning_rate: float = _setting(4.0, "η₀: the clients' step size at the start.", ge=1e-9, le=1e6)
    schedule: Literal["constant", "late_decay", "linear", "cosine"] = _setting(
        "late_decay", "How the step size η falls during training."
    )
    heterogeneity: float | None = _setting(
        None,
        "Γ in the [formula for τ](../explanation/theory.md#the-papers-theorem-and-lemmas): how much the clients' best "
        "models differ. Default: the paper's value for `data.dirichlet_beta`; 0 for `iid`, 1 for `natural`. Set it "
        "yourself in a deployment.",
        ge=0,
        example=5.0,
    )
    options: dict[str, Any] = _setting({}, "Further settings of the method, see the table below.", example={"draws": 2})
    policy_options: dict[str, Any] = _setting(
        {}, "Further settings of the policy, see the table below.", example={"pace_limit": 2.0}
    )


class FederationSection(_Section):
    """[federation]: rounds, limits, and the server."""

    max_rounds: int = _setting(50, "R_s: the maximum number of communication rounds.", ge=1)
    clients_per_round: int | None = _setting(
        None, "Number of clients drawn at random in each round. Default: all.", ge=1, example=5
    )
    time_limit: Seconds | None = _setting(
        None,
        'Longest time for training, such as "2h" or 90 (seconds). The run stops before a round that would probably '
        "exceed it, judged by the slowest round so far.",
        gt=0,
        le=1e9,
        example="2h",
    )
    traffic_limit: Bytes | None = _setting(
        None,
        'Largest number of bytes that the server sends and receives, such as "5GB". The run stops before a round that '
        "would exceed it.",
        gt=0,
        example="5GB",
    )
    momentum: float = _setting(0.0, "Momentum of the server's step.", ge=0, lt=1)
    averaging: float = _setting(
        0.0,
        "Decay of the moving average of the model's weights over rounds. The average is evaluated and saved instead of "
        "the last weights. 0: no average.",
        ge=0,
        lt=1,
    )
    quorum: float = _setting(
        0.5, "Share of a round's updates that must arrive; with fewer, the model stays as it is.", gt=0, le=1
    )
    max_client_weight: float | None = _setting(
        None,
        "Cap on one client's share of the average: a larger share is cut to it, and the others get the rest. Shares "
        "add up to 1, so with a cap of 0.5 at least two clients must answer. A round with fewer does not count. "
        "Default: no cap. `alidpfl flower init` writes 0.5, because a node states its own size.",
        gt=0,
        le=1,
    )
    weight_exponent: float = _setting(
        1.0, "A client's share is its number of records to this power. Above 1, small clients count less.", ge=0, le=2
    )
    max_size_ratio: float | None = _setting(
        None,
        "A client's records count for at most this many times those of the median client. Default: no limit. `alidpfl "
        "flower init` writes 3, because a node states its own size.",
        ge=1,
        example=3.0,
    )
    signal_limit: float = _setting(
        2.0,
        "Limit on the signal in an update, in multiples of the round's median signal. The signal is the part that is "
        "not noise. A large number such as 1e9 switches the limit off.",
        ge=1,
    )
    aggregation: AggregationName = _setting(
        "mean", "How updates are averaged. All but `mean` further limit what a minority of hostile clients can do."
    )
    trim: float = _setting(
        0.3, "`trimmed_mean`: share of the weight that is left out at each end of every coordinate.", ge=0, lt=0.5
    )
    dropout_rate: float = _setting(0.0, "Simulated share of clients that never answer.", ge=0, lt=1)
    straggler_rate: float = _setting(0.0, "Simulated share of clients that answer too late.", ge=0, lt=1)


class RunSection(_Section):
    """[run]: seeds, processes and evaluation."""

    seed: int = _setting(
        0,
        "Seed of the split and the first weights. With `seeded` randomness, also of the batches and the noise.",
        ge=0,
        lt=2**63,
    )
    randomness: Literal["seeded", "secure"] = _setting(
        "seeded",
        "Batches and noise. `seeded` can be repeated, and hides nothing from anyone who knows the seed: for "
        "experiments. `secure` uses the operating system's entropy: for private data.",
    )
    name: str | None = _setting(
        None,
        "Name of the run. Seeded noise is keyed by it. Over nodes the default is a random name. To compare a "
        "deployment with a simulation, give both the same name. Never use that name for a third run.",
        pattern=r"^[A-Za-z0-9._:-]{1,64}$",
        example="compare-1",
    )
    processes: int | None = _setting(None, "Worker processes. Default: one for each core.", ge=1, le=1024, example=2)
    device: Literal["cpu", "cuda"] = _setting("cpu", "Where clients train.")
    evaluate_every: int = _setting(10, "Rounds between two evaluations. The last round is always evaluated.", ge=1)
    evaluate_on: Literal["test", "validation"] = _setting(
        "test", "Data to evaluate on. `validation` leaves the test set alone, for choosing settings."
    )


class EvaluationSection(_Section):
    """[evaluation]: noised evaluations on records that clients hold out. They have an ε of their own."""

    private: bool | None = _setting(
        None,
        "Release noised counts of the clients' held-out rows instead of exact metrics. Default: yes for tables with "
        "`secure` randomness and without public test rows, and over nodes whose vaults allow it.",
        example=True,
    )
    releases: int = _setting(
        5,
        "Number of evaluations. They share the ε of the held-out rows. The one after the last round gets half of it.",
        ge=1,
        le=1000,
    )
    epsilon: float | None = _setting(
        None, "ε that held-out rows may spend, at most `privacy.epsilon`. Default: the same.", gt=0, le=1e6, example=1.0
    )


class Config(_Section):
    """All settings of a run."""

    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    privacy: PrivacySection = PrivacySection()
    method: MethodSection = MethodSection()
    federation: FederationSection = FederationSection()
    evaluation: EvaluationSection = EvaluationSection()
    run: RunSection = RunSection()

    @property
    def partition(self) -> Literal["iid", "dirichlet", "natural"]:
        """The split of the records: the one that is set, or the data set's default."""
        if self.data.partition is not None:
            return self.data.partition
        name, is_ours = self.data.name, self.data.name in DATASETS.shipped
        is_natural = name in _WITH_CLIENTS if is_ours else getattr(DATASETS[name], "natural_clients", False)
        return "natural" if is_natural else "dirichlet"

    @property
    def has_private_data(self) -> bool:
        """True for the user's own records, and for data sets of other packages, which may be private."""
        return self.data.name in _OWN or self.data.name not in DATASETS.shipped

    @property
    def policy(self) -> str:
        """The policy that chooses τ: the one that is set, or the method's default."""
        return self.method.policy or str(METHODS[self.method.name].default_policy)

    @property
    def budget(self) -> "PrivacyBudget":
        """(ε, δ) of every client."""
        from alidpfl.privacy import PrivacyBudget

        return PrivacyBudget(epsilon=self.privacy.epsilon, delta=self.privacy.delta)

    @property
    def release(self) -> Release:
        """What the noise is added to: every step, or a round's update."""
        of_method = getattr(METHODS[self.method.name], "release", "step")
        if of_method in ("step", "update"):
            return "update" if of_method == "update" else "step"
        return "update" if self.method.options.get("variant") == "output" else "step"

    @property
    def max_records(self) -> int | None:
        """k, the most records of a person in a step; None if the unit of privacy is a record."""
        if self.privacy.unit == "record":
            return None
        return self.privacy.max_records or DEFAULT_MAX_RECORDS

    @property
    def has_features(self) -> bool:
        """True if the model learns from fixed features of images."""
        return self.model.is_named and self.model.name == "scatter_linear"

    @property
    def has_statistics(self) -> bool:
        """True if clients release statistics before the training: of features, or of the rows of a table."""
        return self.statistics_rounds > 0

    @property
    def statistics_rounds(self) -> int:
        """Number of releases before the training. Each takes a round."""
        return 2 if self.has_features else int(self.data.standardise == "private")

    @property
    def training_rounds(self) -> int:
        """R_s without the rounds that exchange statistics."""
        return self.federation.max_rounds - self.statistics_rounds

    @property
    def local_steps(self) -> int:
        """τ of the policy `fixed`: the number that is set, or the method's default."""
        return self.method.local_steps or int(METHODS[self.method.name].default_local_steps)

    def check(self) -> None:
        """Raise ConfigError if settings of one section contradict each other or those of another one."""
        self._check_model()
        self.check_unit()

    def _check_model(self) -> None:
        model = self.model
        if model.factory is not None and model.layers:
            raise ConfigError(f'model.factory="{model.factory}" and model.layers exclude each other; leave one out')
        if not model.is_named and "name" in model.model_fields_set:
            raise ConfigError(f'model.name="{model.name}" and {model.setting} exclude each other; leave one out')
        if model.options and model.factory is None:
            raise ConfigError(f"model.options={shown(model.options)} must be left out, or used with model.factory")
        _ = model.declared  # refuses layers that are not understood

    def check_unit(self) -> None:
        """Raise ConfigError if the unit of privacy does not fit the other settings."""
        privacy, model, data = self.privacy, self.model, self.data
        if privacy.unit == "record":
            if privacy.max_records is not None:
                raise ConfigError(
                    f'privacy.max_records={privacy.max_records} must be left out, or used with privacy.unit="person"'
                )
            return
        if self.has_features:
            raise ConfigError(
                f'privacy.unit="person": the statistics of model.name="{model.name}" are of single records; use '
                "another model, such as compact_cnn"
            )
        if data.name in DATASETS.shipped and data.name not in _OWN:
            raise ConfigError(
                f'privacy.unit="person": {data.name} does not say which records are a person\'s; use npz or table, or '
                "leave the unit out"
            )
        if self.partition != "natural":
            raise ConfigError(
                f'data.partition="{self.partition}" would deal the records of a person to several clients; with '
                'privacy.unit="person" leave it out'
            )

    def with_absolute_paths(self) -> "Config":
        """Return a copy with absolute paths of the data, so that resuming works from any directory."""
        data = self.data
        changes: dict[str, Any] = {
            name: os.path.abspath(path) for name in ("data_dir", "schema_file") if (path := getattr(data, name))
        }
        if data.files:
            changes["files"] = tuple(os.path.abspath(path) for path in data.files)
        return self.model_copy(update={"data": data.model_copy(update=changes)}) if changes else self

    def to_dict(self) -> dict[str, Any]:
        """Return the settings that take effect as nested plain values, for a TOML file."""
        values = self.model_dump(mode="json", exclude_none=True)
        values["data"]["partition"] = self.partition
        values["method"]["policy"] = self.policy
        if self.data.name in _OWN:  # one client for each file
            values["data"].pop("clients", None)
        unread = () if self.has_features else FEATURE_SETTINGS
        for section, key in unread if self.has_statistics else (*unread, ("privacy", "statistics_noise")):
            values[section].pop(key)
        if not self.model.is_named:
            values["model"].pop("name")
        for (section, key), default in _LATER_SETTINGS.items():
            if values[section][key] == default:
                values[section].pop(key)
        if self.policy == "fixed":
            values["method"]["local_steps"] = self.local_steps
        if self.max_records is not None:
            values["privacy"]["max_records"] = self.max_records
        return {section: settings for section, settings in values.items() if settings}
