"""The nodes of a deployment, each with a vault behind it. Nothing that a node says about itself is trusted."""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from alidpfl.errors import NodesMissingError, printable
from alidpfl.types import Release, TaskKind, Unit, VaultLoss

NodeId: TypeAlias = int
Question: TypeAlias = Literal["info", "train", "release"]

_POLL_SECONDS = 0.5
_LONGEST_REASON = 300
_LONGEST_INTRODUCTION = 1 << 20  # bytes: 10,000 parameters with long names
_SECONDS_TO_INTRODUCE = 90.0  # the node's process starts, and its vault may still be loading


@dataclass(frozen=True, kw_only=True)
class Failure:
    """The reason why a node gave no answer."""

    code: str
    """A vault's `RefusalCode`, or a problem on the way."""
    reason: str
    """A text for a log or a terminal. A lying node may have written it, so it is cut and printable."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "reason", printable(self.reason, _LONGEST_REASON))


class Link(Protocol):
    """A connection to the nodes."""

    def online(self) -> set[NodeId]:
        """Return the nodes that are online now."""

    def ask(
        self, question: Question, contents: Mapping[NodeId, bytes], seconds: float
    ) -> dict[NodeId, bytes | Failure]:
        """Ask all nodes at once. After at most `seconds`, every node has an answer or a failure."""

    def tell(self, text: str) -> None:
        """Write a line to the log."""


class _Told(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)


class UnitTerms(_Told):
    """What ε protects."""

    unit: Unit = "record"
    max_records: int | None = Field(None, ge=1)
    """k, the most records of a person in a step; None if the unit is a record."""

    def __str__(self) -> str:
        most = "" if self.max_records is None else f" and max_records={self.max_records}"
        return f'unit="{self.unit}"{most}'


class _Terms(_Told):
    sample_rate: float
    min_noise_multiplier: float
    release: Release


class _Limits(_Told):
    min_clip_norm: float
    max_clip_norm: float
    max_noise_multiplier: float = 1e6
    max_steps_per_round: int = Field(ge=1, le=1_000_000)


class Task(NamedTuple):
    """The form of the records of a run."""

    input_shape: tuple[int, ...]
    kind: TaskKind
    """The kind of the targets."""
    num_outputs: int


class VaultInfo(_Told):
    """What a vault makes public. Only its form is checked: it may be a lie."""

    vault: str = Field(min_length=1, max_length=64)
    num_records: int = Field(ge=1, le=1 << 40)
    num_classes: int = Field(ge=0, le=1_000_000)
    kind: TaskKind = "class"
    num_outputs: int | None = Field(None, ge=1, le=1_000_000)
    loss: VaultLoss = "cross_entropy"
    quantile: float = 0.5
    input_shape: tuple[int, ...] = Field(max_length=8)
    parameters: tuple[tuple[str, tuple[int, ...]], ...] = Field(max_length=10_000)
    data: UnitTerms = UnitTerms()
    """The unit of privacy. `num_records` counts such units."""
    terms: _Terms
    limits: _Limits
    evaluation: dict[str, float | None] | None = Field(None, max_length=8)
    """Terms of evaluations on held-out records; None if the vault answers none."""
    statistics: dict[str, float | None] | None = Field(None, max_length=8)
    """Terms of statistics of the training records; None if the vault answers none."""
    schema_sha256: str | None = Field(None, pattern=r"^[0-9a-f]{64}$")
    unsafe: tuple[str, ...] = Field((), max_length=8)

    @property
    def task(self) -> "Task":
        """What its records are for."""
        return Task(self.input_shape, self.kind, self.num_outputs or max(2, self.num_classes))


class Introduction(_Told):
    """A node's answer to the question "info"."""

    info: VaultInfo
    partition: int | None = Field(None, ge=0)
    """The client number that the node's own configuration asks for."""


class Node(Introduction):
    """A node that has introduced itself."""

    node: NodeId


@dataclass(frozen=True, kw_only=True)
class Member:
    """A client of a run. Its number and size are fixed when the run begins, whatever the node says later."""

    node: NodeId
    vault: str
    num_records: int
    most_steps: int
    """Largest number of steps that its vault runs in a round."""
    evaluates: bool = False
    """Whether its vault answers evaluations on held-out records."""

    def to_json(self) -> dict[str, Any]:
        """Return plain values. A node id has 64 bits, more than some JSON readers keep, so it becomes a text."""
        return {**asdict(self), "node": str(self.node)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Member":
        """Return the member that `to_json` wrote."""
        return cls(**{**values, "node": int(values["node"])})


def gather(
    link: Link,
    is_enough: Callable[[Mapping[NodeId, Node]], bool],
    *,
    seconds: float,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> dict[NodeId, Node]:
    """Ask nodes that come online to introduce themselves. Return those that do; two failures leave a node out.

    Args:
        link: the connection to the nodes.
        is_enough: says whether the nodes so far are enough.
        seconds: how long to wait for enough nodes.
        clock: returns the time in seconds.
        sleep: waits for some seconds.
    """
    end, found, failed = clock() + seconds, dict[NodeId, Node](), Counter[NodeId]()
    while True:
        new = sorted(link.online() - found.keys() - {node for node, times in failed.items() if times > 1})
        patience = min(_SECONDS_TO_INTRODUCE, max(1.0, end - clock()))
        answers = link.ask("info", dict.fromkeys(new, b""), patience) if new else {}
        for node, answer in answers.items():
            introduced = _introduced(node, answer)
            if isinstance(introduced, Node):
                found[node] = introduced
            else:  # it is asked once more, because its vault may have been starting
                failed[node] += 1
                link.tell(f"node {node} is left out: {introduced.code}: {introduced.reason}")
        if is_enough(found) or clock() >= end:
            return found
        sleep(_POLL_SECONDS)


def _introduced(node: NodeId, answer: bytes | Failure) -> Node | Failure:
    if isinstance(answer, Failure):
        return answer
    if len(answer) > _LONGEST_INTRODUCTION:
        return Failure(code="too-large", reason=f"its introduction has {len(answer)} bytes")
    try:
        told = Introduction.model_validate_json(answer)
    except ValidationError as error:
        problem = error.errors()[0]
        return Failure(code="malformed", reason=f"{'.'.join(map(str, problem['loc']))[:60]}: {problem['msg']}"[:200])
    return Node(node=node, info=told.info, partition=told.partition)


def numbered(nodes: Sequence[Node], tell: Callable[[str], None]) -> list[Node]:
    """Return the nodes in the order of the clients: by partition if the owner gave one, otherwise by node id.

    A vault's name is only what its node says. If several nodes give the same name, nobody knows which one is right, so
    all of them are left out.
    """
    ordered = sorted(nodes, key=lambda node: (node.partition is None, node.partition or 0, node.node))
    having: dict[str, list[NodeId]] = {}
    for node in ordered:
        having.setdefault(node.info.vault, []).append(node.node)
    for vault, several in having.items():
        if len(several) > 1:
            told = ", ".join(map(str, several))
            tell(f"nodes {told} are left out: they give the same name of a vault, {vault!r}; stop the wrong ones")
    return [node for node in ordered if len(having[node.info.vault]) == 1]


def found_again(members: Sequence[Member], nodes: Mapping[NodeId, Node]) -> list[Member]:
    """Return the clients of a resumed run. They are found by node id, or by the vault's name if the id is new.

    If several new nodes give the same name, none of them is taken; see `numbered`.
    """
    taken = {member.node for member in members} & nodes.keys()
    new = [node for node in nodes.values() if node.node not in taken]
    names = Counter(node.info.vault for node in new)
    by_vault = {node.info.vault: node.node for node in new if names[node.info.vault] == 1}
    return [
        member if member.node in taken else replace(member, node=by_vault.get(member.vault, member.node))
        for member in members
    ]


def most_common_task(nodes: Sequence[Node]) -> Task:
    """Return the task of most nodes. Raise NodesMissingError if there is a tie."""
    counted = Counter(node.info.task for node in nodes).most_common(2)
    if not counted:
        raise NodesMissingError("no node has introduced itself; start SuperNodes with a vault-socket and submit again")
    if len(counted) > 1 and counted[0][1] == counted[1][1]:
        raise NodesMissingError(
            f"as many nodes have inputs and targets {tuple(counted[0][0])} as {tuple(counted[1][0])}; set "
            "evaluate=true, so that the run's own data set decides"
        )
    return counted[0][0]
