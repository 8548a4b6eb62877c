"""Which nodes fit a run: their vaults would serve its model, its schema and its plan."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from torch import nn

from alidpfl.config.schema import Config
from alidpfl.data import Dataset
from alidpfl.errors import NodesMissingError
from alidpfl.federation.tensors import trained
from alidpfl.flower.nodes import Node, Task, UnitTerms, most_common_task, numbered
from alidpfl.inputs.checks import exact
from alidpfl.runs.prepare import Parts, build_model
from alidpfl.tables.encode import Encoder
from alidpfl.types import loss_for, loss_text
from alidpfl.vault.messages import Shapes


class Wanted:
    """What a node must fit: the run's model, for the run's own data set or for the inputs that most nodes have."""

    def __init__(
        self,
        config: Config,
        parts: Parts,
        dataset: Dataset | None,
        encoder: Encoder | None,
        tell: Callable[[str], None],
    ) -> None:
        """Describe the run.

        Args:
            config: the run's configuration.
            parts: what follows from it without data.
            dataset: the server's public data set, or None.
            encoder: the encoder of the run's schema; None if the records are no tables.
            tell: writes a line to the log.
        """
        self._config, self._parts, self._dataset, self._encoder, self.tell = config, parts, dataset, encoder, tell
        self.schema_sha256 = None if encoder is None else encoder.schema.sha256
        self.model = functools.cache(lambda task: build_model(config, task.input_shape, task.num_outputs))

    def task(self, nodes: Sequence[Node]) -> Task:
        """Return the form of the records: by the schema, the server's own data, or what most nodes have."""
        if self._encoder is not None:
            schema = self._encoder.schema
            return Task((self._encoder.width,), schema.target.kind, schema.num_outputs)
        own = self._dataset
        return Task(own.input_shape, own.kind, own.num_outputs) if own else most_common_task(nodes)

    def loss(self, task: Task) -> str:
        """Return the name of the run's loss."""
        return loss_for(task.kind, self._config.model.loss)

    def fitting(self, nodes: Iterable[Node], task: Task) -> list[Node]:
        """Return the nodes with vaults that would serve the run. Tell why the others are left out."""
        shapes = shapes_of(self.model(task))
        problems = [(node, next(self._problems(node, task, shapes), None)) for node in nodes]
        for node, problem in problems:
            if problem is not None:
                self.tell(f"node {node.node} with the vault {node.info.vault!r} is left out: {problem}")
        return [node for node, problem in problems if problem is None]

    def schema_conflict(self, nodes: Sequence[Node]) -> str:
        """Return which two nodes, or which node and the run, have different schemas; an empty text if all agree."""
        other = next((node for node in nodes if node.info.schema_sha256 != self.schema_sha256), None)
        if other is None:
            return ""
        same = next((node for node in nodes if node.info.schema_sha256 == self.schema_sha256), None)
        like = "" if same is None else f" and node {same.node} with the vault {same.info.vault!r}"
        return (
            f"node {other.node} with the vault {other.info.vault!r} has {_schema_text(other.info.schema_sha256)}; this "
            f"run{like} has {_schema_text(self.schema_sha256)}. "
        )

    def _problems(self, node: Node, task: Task, shapes: Shapes) -> Iterator[str]:
        if (found := node.info.schema_sha256) != self.schema_sha256:
            yield (
                f"its vault has {_schema_text(found)}, and this run has {_schema_text(self.schema_sha256)} "
                "(data.name and data.schema_file); agree on one schema"
            )
        if (problem := unit_problem(node, self._config)) is not None:
            yield problem
        if (kind := node.info.kind) != task.kind:
            yield f'its vault has targets of kind "{kind}", and this run has "{task.kind}"'
        theirs, ours = loss_text(node.info.loss, node.info.quantile), self._loss_text(task)
        if theirs != ours:
            yield f"its vault is enrolled for {theirs}, and this run has {ours} (model.loss, model.quantile)"
        if self._config.has_statistics:
            noise = self._config.privacy.statistics_noise
            problem = statistics_problem(node, self._config, self.schema_sha256, noise)
            yield from () if problem is None else (problem,)
        yield from _problems(node, self._config, self._parts, shapes)

    def _loss_text(self, task: Task) -> str:
        return loss_text(self.loss(task), self._config.model.quantile)

    def usable(self, nodes: Sequence[Node]) -> list[Node]:
        """Return the nodes that would be clients if no other node came."""
        try:
            task = self.task(nodes)
        except NodesMissingError:  # there is no node, or a tie
            return []
        return numbered(self.fitting(nodes, task), self.tell)


def unit_problem(node: Node, config: Config) -> str | None:
    """Return how a vault's unit of privacy differs from the run's; None if they are the same."""
    own = UnitTerms(unit=config.privacy.unit, max_records=config.max_records)
    if (found := node.info.data) == own:
        return None
    return (
        f"its vault was enrolled with {found}, and this run has {own} (privacy.unit, privacy.max_records); the unit of "
        "an enrolled data set never changes"
    )


def statistics_problem(node: Node, config: Config, schema_sha256: str | None, noise_multiplier: float) -> str | None:
    """Return why a vault would not release statistics with this noise; None if it would.

    Args:
        node: the node with the vault.
        config: the settings, which have the unit of privacy.
        schema_sha256: hash of the schema that is asked about.
        noise_multiplier: σ of the release.
    """
    if (found := node.info.schema_sha256) != schema_sha256:
        return f"its vault has {_schema_text(found)}, and this run has {_schema_text(schema_sha256)}"
    if (problem := unit_problem(node, config)) is not None:
        return problem
    if (terms := node.info.statistics) is None:
        return (
            "its vault releases no statistics (its owner may enrol with `alidpfl vault init --statistics-noise`); for "
            'training set data.standardise="none"'
        )
    if not noise_multiplier > (least := terms.get("noise_multiplier") or math.inf):
        return (
            f"its vault requires privacy.statistics_noise above {exact(least)}, and this has {exact(noise_multiplier)}"
        )
    return None


def shapes_of(model: nn.Module) -> Shapes:
    """Return the shapes of the trained parameters by name, in the model's order."""
    return {name: tuple(values.shape) for name, values in trained(model).items()}


def _problems(node: Node, config: Config, parts: Parts, shapes: Shapes) -> Iterator[str]:
    """Return why a vault would refuse every round. It is called before any charge."""
    rate, sigma, clip_norm = config.privacy.sample_rate, parts.noise_multiplier, config.method.clip_norm
    terms, limits = node.info.terms, node.info.limits
    if dict(node.info.parameters) != shapes:
        brief = ", ".join(f"{name} {list(shape)}" for name, shape in [*shapes.items()][:2])
        yield (
            f"its vault is enrolled for another model than {config.model.setting}, which has parameters "
            f"such as {brief}: another name, or other inputs (data.name; --no-evaluate)"
        )
    if terms.release != parts.method.release:
        yield f"its vault puts noise on the {terms.release}, {config.method.name} on the {parts.method.release}"
    if rate > terms.sample_rate:
        yield f"its vault allows privacy.sample_rate={exact(terms.sample_rate)}, and this run has {exact(rate)}"
    if rate * node.info.num_records < 1:  # τ is planned for the smallest client, so it would slow down all
        size = node.info.num_records
        yield f"its vault has num_records={size}, less than one per batch at privacy.sample_rate={exact(rate)}"
    if sigma < terms.min_noise_multiplier:
        least = terms.min_noise_multiplier
        yield f"its vault requires privacy.noise_multiplier={exact(least)} or more, and this run has {exact(sigma)}"
    if sigma > limits.max_noise_multiplier:
        most = limits.max_noise_multiplier
        yield f"its vault allows privacy.noise_multiplier={exact(most)} or less, and this run has {exact(sigma)}"
    if not limits.min_clip_norm <= clip_norm <= limits.max_clip_norm:
        low, high, own = (exact(norm) for norm in (limits.min_clip_norm, limits.max_clip_norm, clip_norm))
        yield f"its vault requires method.clip_norm from {low} to {high}, and this run has {own}"


def _schema_text(sha256: str | None) -> str:
    return "no table" if sha256 is None else f"the schema {sha256}"
