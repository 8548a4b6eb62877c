"""Every setting of a run, with its default and meaning. The defaults together are what `make run` runs."""

import os
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from alidpfl.inputs.checks import as_bytes, as_seconds
from alidpfl.methods import DEFAULT_POLICIES
from alidpfl.privacy import PrivacyBudget
from alidpfl.types import AccountantName, NoiseKind, Release

_LOCAL_STEPS = {"adap_dpfl": 3, "pe_dpfl": 3}  # as the ALI-DPFL paper runs them

STATISTICS = 2
"""Releases, and rounds, that `scatter_linear` needs before its training."""

STATISTICS_SETTINGS = (
    ("model", "frequencies"),
    ("model", "upright"),
    ("model", "positions"),
    ("model", "learned"),
    ("model", "deviation_clip"),
    ("privacy", "statistics_noise"),
)
"""What `scatter_linear` alone reads."""


def _whole(value: object) -> object:
    """Of a choice between numbers: Python takes true, and 1.0, for 1."""
    if type(value) is not int:
        raise ValueError("no whole number")
    return value


Seconds = Annotated[float, BeforeValidator(as_seconds)]
Bytes = Annotated[int, BeforeValidator(as_bytes)]


class _Section(BaseModel):
    """Strict: true is no number, and neither is the text "4"; whoever wrote that meant something else."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class DataSection(_Section):
    """[data]: what is learnt from, and who holds what."""

    name: Literal["strokes", "mnist", "fashion_mnist", "cifar10", "synthetic", "npz"] = Field(
        "strokes", description="Data set; `strokes` and `synthetic` are made by the program, `npz` is your own folder."
    )
    data_dir: str | None = Field(
        None, examples=["/my/folder"], description="Folder of the real data sets, or of your .npz files."
    )
    partition: Literal["iid", "dirichlet", "natural"] | None = Field(
        None, description="Split by client; left out: dirichlet, or natural where the data set says who holds what."
    )
    dirichlet_beta: float = Field(0.5, gt=0, description="Skew of the labels; smaller is harder.")
    clients: int = Field(10, ge=1, le=1_000_000, description="Number of clients.")
    min_samples: int = Field(10, ge=1, description="Least records of a client in a Dirichlet split.")
    validation: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Share of the training set that no client holds: public data for tuning and for adap_dpfl.",
    )
    pixel_range: tuple[float, float] = Field((-1.0, 1.0), strict=False, description="What black and white become.")
    num_classes: int | None = Field(
        None,
        ge=2,
        examples=[3],
        description="`npz`: number of classes; left out: from the clients' labels, which no ε covers.",
    )
    alpha: float = Field(1.0, ge=0, le=1e6, description="`synthetic`: how much clients' models differ.")
    beta: float = Field(1.0, ge=0, le=1e6, description="`synthetic`: how much clients' inputs differ.")


class ModelSection(_Section):
    """[model]: what is trained."""

    name: Literal["cnn", "compact_cnn", "linear", "mlp", "scatter_linear"] = Field(
        "compact_cnn",
        description="`cnn` is the paper's, for images; `compact_cnn` learns more from small budgets; `scatter_linear`, "
        "softmax on fixed features of images, most.",
    )
    hidden: int = Field(128, ge=1, le=100_000, description="`mlp`: width of its hidden layer.")
    frequencies: int = Field(
        6, ge=0, description="`scatter_linear`: scattering is cut to this sum of row and column frequency."
    )
    upright: bool = Field(
        False, description="`scatter_linear`: centre every image and shear it upright first; for handwriting."
    )
    positions: Annotated[Literal[1, 2, 4], BeforeValidator(_whole)] = Field(
        1,
        description="`scatter_linear`: average features over so many positions of the image, two pixels apart.",
    )
    learned: tuple[Literal["leaves", "garments"], ...] = Field(
        (),
        strict=False,  # TOML has lists, not tuples
        examples=[["leaves"]],
        description="`scatter_linear`: also features of filters that were learnt on made-up pictures: `leaves` for "
        "photographs, `garments` for clothes.",
    )
    deviation_clip: float = Field(
        0.05,
        gt=0,
        description="`scatter_linear`: clip norm of the squared deviations whose sum is released.",
    )


class PrivacySection(_Section):
    """[privacy]: the budget of every client, and the mechanism that spends it."""

    epsilon: float = Field(
        2.0, gt=0, le=1e6, description="ε that every client may spend; the smaller, the more private."
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="δ of every client: probability with which ε may fail to hold.")
    accountant: AccountantName = Field("pld", description="How ε is computed; pld is the tightest.")
    sample_rate: float = Field(0.04, ge=1e-9, le=1, description="q: probability that a record joins a batch.")
    noise_multiplier: float | None = Field(
        None, gt=0, examples=[1.1], description="σ: noise over C; left out: the least that pays for `max_steps` steps."
    )
    max_steps: int | None = Field(
        None,
        ge=1,
        examples=[100],
        description="R_c wished for: sets σ where that is left out. Left out too: `local_steps` a round for the policy "
        "`fixed`, two a round for others. `pe_dpfl` with variant `output` is charged one a round and does not read it.",
    )
    noise: NoiseKind = Field(
        "gaussian",
        description="`grid` is exact to the last bit, and slower: sums of whole numbers, one record at a time, and "
        "noise in whole numbers.",
    )
    statistics_noise: float = Field(
        10.0, gt=0, description="`scatter_linear`: σ of each of the two releases that centre and scale its features."
    )
    unsafe: tuple[Literal["unaccounted-signals"], ...] = Field(
        (),
        strict=False,  # TOML has lists, not tuples
        examples=[["unaccounted-signals"]],
        description='["unaccounted-signals"] admits the policies `paper` and `reference`, which no ε covers.',
    )


class MethodSection(_Section):
    """[method]: which paper, which rule for τ, which step sizes."""

    name: Literal["fedavg_dp", "ali_dpfl", "adap_dpfl", "pe_dpfl"] = Field("ali_dpfl", description="The method.")
    policy: Literal["ali", "corrected", "fixed", "paper", "ratio", "reference"] | None = Field(
        None, description="How local steps, τ, are chosen; left out: ali for ali_dpfl, fixed for the others."
    )
    local_steps: int | None = Field(
        None,
        ge=1,
        examples=[3],
        description="Local steps τ a round, of the policy fixed; left out: 1, and 3 for adap_dpfl and pe_dpfl.",
    )
    clip_norm: float = Field(
        1.0, gt=0, description="C: each record's gradient is clipped to it; for adap_dpfl that of the first round."
    )
    learning_rate: float = Field(4.0, ge=1e-9, le=1e6, description="η₀: the clients' step size at the start.")
    schedule: Literal["constant", "late_decay", "linear", "cosine"] = Field(
        "late_decay", description="How the step size η falls in the course of training."
    )
    heterogeneity: float | None = Field(
        None,
        ge=0,
        examples=[5.0],
        description="Γ of Lemma 2, how far clients' optima lie apart; left out: as the paper sets it for the split "
        "(a guess over vaults, where there is none), 1 where clients come with the data.",
    )
    options: dict[str, Any] = Field(
        {}, examples=[{"draws": 2}], description="Further settings of the method: the table below."
    )
    policy_options: dict[str, Any] = Field(
        {}, examples=[{"pace_limit": 2.0}], description="Further settings of the policy: the table below."
    )


class FederationSection(_Section):
    """[federation]: rounds, limits, and the server."""

    max_rounds: int = Field(50, ge=1, description="R_s: the most rounds of communication.")
    clients_per_round: int | None = Field(
        None, ge=1, examples=[5], description="Drawn at random each round; left out: all."
    )
    time_limit: Seconds | None = Field(
        None, gt=0, le=1e9, examples=["2h"], description='Stop before crossing it, such as "2h" or 90 seconds.'
    )
    traffic_limit: Bytes | None = Field(
        None, gt=0, examples=["5GB"], description='Stop before crossing it, such as "5GB".'
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="Of the server's step: how much of the last one is kept.")
    averaging: float = Field(0.0, ge=0, lt=1, description="Moving average of the model that is evaluated and saved.")
    quorum: float = Field(0.5, gt=0, le=1, description="Least share of a round's updates that must arrive.")
    max_client_weight: float | None = Field(
        None,
        gt=0,
        le=1,
        description="Cap on one client's share of the average, and so many updates are a quorum that none exceeds it; "
        "left out: none. `alidpfl flower init` writes 0.5, since a node's size is its own word.",
    )
    weight_exponent: float = Field(
        1.0,
        ge=0,
        le=2,
        description="A client's share goes with its records to this power; above 1, small clients' noise counts less.",
    )
    dropout_rate: float = Field(0.0, ge=0, lt=1, description="Simulated: share of clients that never answer.")
    straggler_rate: float = Field(0.0, ge=0, lt=1, description="Simulated: share whose answer comes too late.")


class RunSection(_Section):
    """[run]: seeds, processes, looks at the test set."""

    seed: int = Field(0, ge=0, lt=2**63, description="Of the split, the first weights, batches and noise.")
    randomness: Literal["seeded", "secure"] = Field(
        "seeded", description="Batches and noise: repeatable, or from the operating system's entropy."
    )
    processes: int | None = Field(
        None, ge=1, le=1024, examples=[2], description="Worker processes; left out: one a core."
    )
    device: Literal["cpu", "cuda"] = Field("cpu", description="Where clients train.")
    evaluate_every: int = Field(10, ge=1, description="Rounds between two evaluations; the last is always evaluated.")
    evaluate_on: Literal["test", "validation"] = Field(
        "test", description="`validation` leaves the test set alone: for choosing settings."
    )


class Config(_Section):
    """A whole run."""

    data: DataSection = DataSection()
    model: ModelSection = ModelSection()
    privacy: PrivacySection = PrivacySection()
    method: MethodSection = MethodSection()
    federation: FederationSection = FederationSection()
    run: RunSection = RunSection()

    @property
    def partition(self) -> Literal["iid", "dirichlet", "natural"]:
        """How the records are split, also where that was left out."""
        if self.data.partition is not None:
            return self.data.partition
        return "natural" if self.data.name in ("synthetic", "npz") else "dirichlet"

    @property
    def policy(self) -> str:
        """How τ is chosen, also where that was left out."""
        return self.method.policy or DEFAULT_POLICIES[self.method.name]

    @property
    def budget(self) -> PrivacyBudget:
        """(ε, δ) of every client."""
        return PrivacyBudget(epsilon=self.privacy.epsilon, delta=self.privacy.delta)

    @property
    def release(self) -> Release:
        """What the noise goes on."""
        return "update" if self.method.options.get("variant") == "output" else "step"

    @property
    def has_statistics(self) -> bool:
        """True where two releases, of means and of variances, come before the training."""
        return self.model.name == "scatter_linear"

    @property
    def training_rounds(self) -> int:
        """R_s without the rounds in which statistics are exchanged."""
        return self.federation.max_rounds - (STATISTICS if self.has_statistics else 0)

    @property
    def local_steps(self) -> int:
        """τ of the policy fixed, also where that was left out."""
        return self.method.local_steps or _LOCAL_STEPS.get(self.method.name, 1)

    def anchored(self) -> "Config":
        """With the whole path of the data, by which a run goes on from whatever folder it is resumed in."""
        if not self.data.data_dir:
            return self
        data = self.data.model_copy(update={"data_dir": os.path.abspath(self.data.data_dir)})
        return self.model_copy(update={"data": data})

    def to_dict(self) -> dict[str, Any]:
        """Nested plain values for a TOML file: all that takes effect, without what stays open."""
        values = self.model_dump(mode="json", exclude_none=True)
        values["data"]["partition"] = self.partition
        values["method"]["policy"] = self.policy
        if self.data.name == "npz":  # there are as many as files
            values["data"].pop("clients", None)
        if not self.has_statistics:
            for section, key in STATISTICS_SETTINGS:
                values[section].pop(key)
        if self.privacy.noise == "gaussian":  # as it was before there was a choice: runs of that time keep their names
            values["privacy"].pop("noise")
        if self.policy == "fixed":
            values["method"]["local_steps"] = self.local_steps
        return values
